"""The port: the words that hall, rules and backends share.

A backend keeps rows. It is handed the rule: `write(ask, decide)` calls `decide` with a View that it knows to be true,
and makes the Batch that comes back durable, all of it or nothing. A backend knows keys and references of blobs, and no
rule: it never refuses anything about sessions, branches, calls or leases, and never looks into a body (`row_codec`
turns rows into bytes and back, once for all). docs/backends.md walks through writing one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from backstay.codec import is_held
from backstay.errors import CorruptionError, FormatError
from backstay.hints import RUN_VERIFY
from backstay.model import Problem
from backstay.port.lease import is_live
from backstay.port.rows import (
    INBOX,
    MESSAGE,
    WAIT,
    CallKey,
    CallRow,
    CheckpointRow,
    JournalKey,
    Key,
    KeyframeRow,
    Kind,
    LaneRow,
    Row,
    SegmentRow,
    SessionRow,
    TagRow,
    Unreadable,
)

LOOK_S = 0.5  # the longest that `wait` waits before it looks again

EVERY = None  # in an Ask: all of them

_WAITS = frozenset({WAIT, MESSAGE})
_GAPS = 1000  # missing calls that are named one by one: a number in a file from outside may be any


class Features(msgspec.Struct, frozen=True, gc=False):
    """Features of a store that not every version knows, as bit sets: needed to read it, needed to write it."""

    read: int = 0
    write: int = 0


SEGMENTS = 1  # checkpoints are packed: neither read nor written by a process that does not know how

WAITING = 2  # runs were left waiting, or messages sent: a version that does not know them would make calls again

FILES = 4  # states hold blobs: a version that does not know would hand a list of files to a loop, or drop it

_ALL = SEGMENTS | WAITING | FILES
KNOWN = Features(_ALL, _ALL)


def feature_of(row: Row) -> int:
    """The feature that a store has once it holds such a row; 0 for what every version knows."""
    if type(row) is CallRow:
        return WAITING if row.kind in _WAITS else 0
    found = SEGMENTS if type(row) is SegmentRow else 0
    refs = getattr(row, "refs", None)
    return found | FILES if refs and any(map(is_held, refs)) else found


def refuse_unknown(features: Features, *, writing: bool) -> None:
    """FormatError if the store uses a feature that this version does not know."""
    unknown = features.read & ~KNOWN.read or (features.write & ~KNOWN.write if writing else 0)
    if unknown:
        message = f"this store uses features that this version does not know (bits {unknown:#x})"
        raise FormatError(message, hint="upgrade: pip install -U backstay")


class Ask(msgspec.Struct, frozen=True, gc=False):
    """The rows to read of one session, as of one moment. The session's row always comes along.

    `names`: branches and tags, or EVERY; with `heads` the checkpoints that they name come along. `sequences`, `ids`:
    checkpoints. `prefix`: foreign ids that begin so (their sequences come in `foreign`). `children_of`: the sequences
    of the checkpoints whose parent is one of these. `pending`: the branches whose pending calls are wanted, EVERY for
    all branches that came; `counted`: the branches whose pending calls are only counted. `calls`: single calls;
    `journals`: all calls under some journals. `beside`: the id of another session, whose row is wanted too.
    `segments`: sequences whose segments are wanted as they are kept, of those that are packed. `lazy`: whatever the
    rule decides is a lazy Batch, or an empty one.
    """

    session: str
    hidden: bool = False
    names: tuple[str, ...] | None = ()
    heads: bool = False
    sequences: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()
    prefix: str = ""
    children_of: tuple[int, ...] = ()
    pending: tuple[str, ...] | None = ()
    counted: tuple[str, ...] = ()
    calls: tuple[CallKey, ...] = ()
    journals: tuple[JournalKey, ...] = ()
    beside: str | None = None
    segments: tuple[int, ...] = ()
    lazy: bool = False


_NOTHING: Mapping[Any, Any] = {}


class View(msgspec.Struct, kw_only=True):
    """The rows of one moment, as far as an Ask named them. A row that is absent here is absent in the store.

    `now_us` is the clock that leases go by, `wall_us` the calendar. `fresh` is larger than any `touched` that was ever
    put, by a session since deleted too: a rule takes it for `touched`, and for the number of a new run. `live` are the
    branches whose lease a live process holds. `checkpoints` are by sequence, those asked for by `ids` too; `foreign`
    says which sequence a foreign id has. A packed checkpoint is among them without its delta (segments.NOT_READ in its
    place); `segments` are by their first. `again`: the outcome of an earlier try of this very write is not known, and
    the rows it tried to put were asked for as well. `answer` is what the rule had to say, once the write is done.
    """

    now_us: int
    wall_us: int
    session: SessionRow | None = None
    fresh: int = 0
    lanes: Mapping[str, LaneRow] = _NOTHING
    tags: Mapping[str, TagRow] = _NOTHING
    live: Collection[str] = frozenset()
    checkpoints: Mapping[int, CheckpointRow | Unreadable] = _NOTHING
    foreign: Mapping[str, int] = _NOTHING
    children: Mapping[int, Sequence[int]] = _NOTHING
    pending: Mapping[str, Sequence[CallRow | Unreadable]] = _NOTHING
    counts: Mapping[str, int] = _NOTHING
    calls: Mapping[CallKey, CallRow | Unreadable] = _NOTHING
    journals: Mapping[JournalKey, Sequence[CallRow | Unreadable]] = _NOTHING
    beside: SessionRow | None = None
    segments: Mapping[int, SegmentRow | Unreadable] = _NOTHING
    again: bool = False
    answer: Any = None


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The decision of a rule: rows to put, keys to drop (a JournalKey: all calls under it), blobs that the rows need.

    Puts come before drops. A segment that is put takes the place of the checkpoints' own rows from its first to its
    last, and of all segments that reach in between. An empty batch writes and syncs nothing. `lazy`: nothing
    is lost with it (a lease that it renewed ends earlier, rows that it packed lie where they lay): it need not be
    synced before a later write is, and wakes no waiter. `wakes`: a waiter may be
    waiting for this.

    `whole`: blobs that must be there, or come along, and of which nothing was cut; BlobsAbsentError otherwise. `cuts`:
    remnants (`sealing.is_cut`) that take the place of blobs which are there. Such a batch puts the session's row, and
    is written only if no session was touched since the View that it was decided on. `erases`: what its rows take the
    place of is to be nowhere once the store was tended, as what is dropped.
    """

    puts: tuple[Row, ...] = ()
    drops: tuple[tuple[Kind, Key], ...] = ()
    blobs: Mapping[bytes, bytes] = {}
    wakes: bool = False
    lazy: bool = False
    answer: Any = None
    whole: Collection[bytes] = ()
    cuts: Mapping[bytes, bytes] = {}
    erases: bool = False


class More(msgspec.Struct, frozen=True, gc=False):
    """A rule wants to look again, with a wider ask. Once: what it decides then must be a Batch."""

    ask: Ask


Decide = Callable[[View], Batch | More]


class Stale(Exception):  # noqa: N818 - no error: the caller prepares the write again
    """Raised by a rule where what was prepared does not fit the session that is there; nothing is written."""


class BlobsAbsentError(CorruptionError):
    """A batch refers to blobs that are not there and did not come with it; nothing was written."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self.digests = frozenset(digests)
        names = ", ".join(sorted([digest.hex()[:12] for digest in self.digests])[:8])
        super().__init__(f"blobs are needed and not here: {names}", hint=RUN_VERIFY)


class Records(msgspec.Struct, frozen=True):
    """All that is needed to read one state: rows from a checkpoint with a keyframe to the one asked for.

    `session` is None if there is no such session, `rows` is empty if it has nothing by that ref. `rows` are oldest
    first, where many are packed as a PackedLine; only the oldest has its keyframe here. `blobs` are packed; one that is
    not there is left out, and so is one that states only hold (`codec.is_held`).
    """

    session: SessionRow | None
    lane: LaneRow | None = None
    rows: Sequence[CheckpointRow | Unreadable] = ()
    keyframe: bytes | None = None
    blobs: Mapping[bytes, bytes] = {}


class SessionQuery(msgspec.Struct, frozen=True, gc=False):
    """A query for sessions, newest first: touched before a number, with an id that begins so.

    `facets`: it has one of each of these (`port.facets`). `since_us`: it was updated then or later. `uid_start`: the
    first bytes of the uid; `foreign`: a session that has a checkpoint with this foreign id, or with `foreign_start`
    one that begins so.
    """

    before: int | None = None
    limit: int = 100
    facets: tuple[tuple[int, ...], ...] = ()
    since_us: int | None = None
    prefix: str = ""
    uid_start: bytes | None = None
    foreign: str | None = None
    foreign_start: bool = False
    hidden: bool = False


class LaneQuery(msgspec.Struct, frozen=True, gc=False):
    """A query for branches of all sessions: those with one of these marks; with `due`, those whose time has come too.

    `row_codec.are_wanted` says which those are.
    """

    marks: int
    due: bool = False


class FoundLane(msgspec.Struct, frozen=True, gc=False):
    """A branch of some session, and whether a live process holds its lease."""

    session: SessionRow
    lane: LaneRow
    live: bool


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """How much is kept. `stored_bytes` is what it takes on disk; `held_bytes` of it are blobs that states only hold."""

    sessions: int
    checkpoints: int
    logical_bytes: int
    stored_bytes: int
    held_bytes: int = 0


class Backend(Protocol):
    """Keeps rows. Thread-safe; raises only Backstay's errors. `backstay.testing` says what each verb owes (W1-W11)."""

    name: str
    packs: bool  # it keeps segments; where it does not, none are put

    # one session, one moment
    def read(self, ask: Ask) -> View:
        """The rows that an Ask names, as of now."""

    def write(self, ask: Ask, decide: Decide) -> View:
        """Let a rule decide on what holds, and write what it says. Durable when it returns; `answer` is the rule's."""

    def state(self, session: str, ref: str | int, *, salvage: bool = False, without: Collection[int] = ()) -> Records:
        """A state's rows by sequence, or by the exact name of a branch or tag, resolved in the same moment.

        Keyframes of the sequences in `without` are passed over. With `salvage`, rows that cannot be read are in the
        result as Unreadable; otherwise they are a CorruptionError.
        """

    def ancestors(self, session: str, sequence: int, *, limit: int) -> Sequence[CheckpointRow | Unreadable]:
        """A checkpoint and its ancestors along `parent`, newest first; empty if there is none."""

    def scan(
        self,
        session: str,
        kind: Kind,
        *,
        after: Key | None = None,
        before: Key | None = None,
        limit: int,
        hidden: bool = False,
    ) -> Sequence[Row | Unreadable]:
        """A page of a session's rows of one kind by key: upwards from behind `after`, or downwards from `before`.

        Checkpoints come wherever they lie, packed or not. A segment is behind `after` if its last is, before `before`
        if its first is.

        A row that is damaged comes as Unreadable. One that is missing does not come, or the end of the list is a
        CorruptionError: a caller that wants those that are there asks for fewer at a time. A page may be shorter than
        `limit` where rows are long: only an empty page is the end.
        """

    # many sessions
    def sessions(self, query: SessionQuery) -> Sequence[SessionRow]:
        """A page of sessions, the one touched last first."""

    def lanes(self, query: LaneQuery) -> Sequence[FoundLane]:
        """Branches of all sessions that need attention, the session touched last first."""

    # large values
    def absent(self, digests: Collection[bytes]) -> Collection[bytes]:
        """The blobs among these that are not here, or of which something was cut (`sealing.is_cut`): a hint."""

    def put_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        """Keep blobs ahead of the write that refers to them; `tend` may remove them before it comes.

        One that is there stays; but a blob takes the place of its remnant, here and in a Batch.
        """

    def blobs(self, digests: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Blobs as they are kept; what is not here is left out."""

    # time and news
    def changes(self) -> int:
        """A number that is another once any process has written; compared only with values of the same object."""

    def wait(self, seconds: float, *, since: int) -> None:
        """Return when `changes` may differ from `since`, or after `seconds`, LOOK_S at most."""

    # upkeep
    def sizes(self) -> Sizes:
        """Totals over all sessions, and the size on disk."""

    def check(self) -> Iterator[Problem]:
        """Problems below the level of rows: pages, indexes, references."""

    def tend(self, *, repair: bool = False) -> Sequence[str]:
        """Remove blobs that no row refers to, give space back; with `repair`, mend indexes. Says what was done."""

    def close(self) -> None:
        """Release everything. Further use is a ClosedError."""


def live_lanes(lanes: Iterable[LaneRow], *, now_us: int, wall_us: int, server_clock: bool = False) -> frozenset[str]:
    """The branches whose lease a live process holds: what every View says of its lanes."""
    return frozenset(
        [
            lane.name
            for lane in lanes
            if lane.claim is not None and is_live(lane.claim, now_us=now_us, wall_us=wall_us, server_clock=server_clock)
        ]
    )


def decided(look: Callable[[Ask], View], ask: Ask, decide: Decide) -> tuple[View, Batch]:
    """The decision of a rule on a View, read once more if the rule asks for more; inside one transaction."""
    view = look(ask)
    batch = decide(view)
    if isinstance(batch, More):
        view = look(batch.ask)
        batch = decide(view)
    assert isinstance(batch, Batch)  # noqa: S101 - a rule looks again once
    view.answer = batch.answer
    return view, batch


def numbered(calls: Iterable[CallRow | Unreadable], run: int, journal: int) -> list[CallRow | Unreadable]:
    """The calls under a journal in order, with Unreadable where one is missing; of messages some always are."""
    if journal == INBOX:
        return list(calls)
    found: list[CallRow | Unreadable] = []
    for call in calls:
        at = call.at if isinstance(call, CallRow) else call.key
        n = at[2] if isinstance(at, tuple) else 0
        gaps = range(len(found), min(n, len(found) + _GAPS))
        found += [Unreadable((run, journal, gap), "a journaled call is missing") for gap in gaps]
        found.append(call)
    return found


__all__ = [
    "EVERY",
    "FILES",
    "KNOWN",
    "LOOK_S",
    "SEGMENTS",
    "WAITING",
    "Ask",
    "Backend",
    "Batch",
    "BlobsAbsentError",
    "CallKey",
    "CallRow",
    "CheckpointRow",
    "Decide",
    "Features",
    "FoundLane",
    "JournalKey",
    "Key",
    "KeyframeRow",
    "Kind",
    "LaneQuery",
    "LaneRow",
    "More",
    "Records",
    "Row",
    "SegmentRow",
    "SessionQuery",
    "SessionRow",
    "Sizes",
    "Stale",
    "TagRow",
    "Unreadable",
    "View",
    "decided",
    "feature_of",
    "live_lanes",
    "numbered",
    "refuse_unknown",
]
