"""The port: what the hall asks of a place that keeps bytes, in the words both share.

Each verb is one transaction. Values go in and come out frozen, uncompressed, and verified where they were kept
(what a backend cannot read truly it reports as CorruptionError; it never leaves anything out). Backends raise only
Backstay's own errors. Ids are made before the write, so that a retry after an unclear outcome is recognised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec

from backstay.delta import Record
from backstay.errors import InDoubtError
from backstay.model import Problem

FORMAT_VERSION = 1
MIN_READER = 1
MIN_WRITER = 1
MAX_ROW_BYTES = 16 * 1024 * 1024
GROUP_DELTAS = 16
LOOK_S = 0.5


class Row(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint as it is kept. `digest` covers all of it; `fields` is opaque to backends.

    `parent_id` and `parent_digest` are those it was committed on; `link_id` is the nearest ancestor still there
    (the parent, unless that was deleted).
    """

    id: str
    sequence: int
    parent_id: str | None
    parent_digest: bytes | None
    link_id: str | None
    state_digest: bytes
    digest: bytes
    fields: bytes


class Totals(msgspec.Struct, frozen=True, gc=False):
    """What a session's line in a listing says, kept up to date by every commit."""

    agent: str | None
    status: str
    reason: str | None
    last_step: int | None
    usage: bytes
    at_us: int


class Chain(msgspec.Struct, frozen=True, gc=False):
    """All that is needed to read one state: the whole copy it rests on, and the deltas since, oldest first.

    Older deltas may come merged (rolls); the last `singles` records are deltas of one commit each, made since the
    checkpoint `roll_base` (None if that cannot be told).
    `whole_bytes` is how large the state was at the whole copy; `place` and `prefix` are for the delta that comes
    next, see `next_prefix`; `epoch` counts the deletions in the session: a chain read in an older epoch may have been
    packed anew since.
    """

    row: Row
    records: tuple[Record, ...]
    singles: int
    roll_base: str | None
    whole_bytes: int
    place: int
    prefix: bytes
    epoch: int


def next_prefix(place: int, prefix: bytes, body: bytes) -> bytes:
    """The prefix for the delta after the one at `place` (1 is the first after a whole copy), which had this body."""
    return b"" if place % GROUP_DELTAS == 0 else prefix + body


class Commit(msgspec.Struct, frozen=True, gc=False):
    """One checkpoint to be written. `expect` is the head it must find (None: no such branch yet).

    `roll` is the deltas since the checkpoint `roll_base` merged into one, this one included: a shorter way to read.
    `prefix` is the bodies before this delta in its group of 16, as of `epoch`: they make packing cheap. A backend
    that packs must read them itself if the epoch has changed.

    With a `lease` it is a boundary of that run: FencedError unless the run still holds it, and the pending calls of
    the branch are taken in; of those named in `kept_in_state` the result is dropped and its place in the state kept;
    `ends_run` ends the run, completed. Without one it is somebody else's write: LeaseHeldError if a run is alive on the
    branch, InDoubtError if a pending call is in doubt; other pending calls stay with the head they were made on, until
    a commit with `take_up` brings the calls pending at that checkpoint to the new head. A run there that was silent too
    long is fenced: see `Lease`.
    """

    session: str
    branch: str
    id: str
    expect: str | None
    fields: bytes
    state_digest: bytes
    base_digest: bytes | None
    delta: Record | None
    whole: Record | None
    roll: Record | None
    roll_base: str | None
    prefix: bytes
    epoch: int
    blobs: Mapping[bytes, bytes]
    size_bytes: int
    totals: Totals
    undo_to: str | None = None
    take_up: str | None = None
    lease: Lease | None = None
    kept_in_state: Mapping[str, bytes] = {}
    ends_run: bool = False


class Lease(msgspec.Struct, frozen=True, gc=False):
    """What a run shows with each of its writes. A later run on the branch has a larger token.

    So has the branch once somebody else has written where a run was silent for longer than its lease: that run may yet
    wake, and what it did on a head that moved no later run would know of. Tokens begin anywhere (see `token_after`).
    """

    session: str
    branch: str
    run: int
    token: int
    lease_us: int


class CallRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A journaled call. `parent` is the call it was made in, `nth` how often that was asked before since a boundary.

    `args` is None where none were given; `args_digest` is then that of the state. A finished call has a `result`, or
    its `place` in the state of the checkpoint that took it in, or an `error`: type and text.
    `token` is that of the run which started it last.
    """

    id: str
    parent: str | None
    name: str
    key: str | None
    nth: int
    kind: str
    args: bytes | None
    args_digest: bytes
    status: str
    token: int
    started_us: int
    ended_us: int | None = None
    result: bytes | None = None
    place: bytes | None = None
    error: tuple[str, str] | None = None


class Journaled(msgspec.Struct, frozen=True, gc=False):
    """A call in its place: made by the run with this number while its branch stood at the sequence `after`.

    0 is before the first checkpoint; `slot` is the backend's own name for it.
    """

    run: int
    after: int
    slot: int
    call: CallRow


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """What is known of the runs on one branch. `run` is its number; a branch made anew gets another.

    `entered`: one was entered and has neither ended nor been given up. `live`: and somebody holds its lease.
    `unfinished`: the next one goes on with its input. `crashes` counts those at one spot, see `spot_of`.
    """

    branch: str
    run: int
    token: int
    entered: bool
    live: bool
    unfinished: bool
    input: bytes | None
    crashes: int = 0
    spot: bytes = b""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A run about to begin. `expect_token` is what the branch's last run had, for who wants to continue just that."""

    session: str
    branch: str
    agent: str | None
    lease_us: int
    at_us: int
    input: bytes | None
    expect_token: int | None = None


class Entered(msgspec.Struct, frozen=True, gc=False):
    """A run that has begun: its lease, what it continues (if anything), and the calls that are pending."""

    lease: Lease
    head_id: str | None
    before: RunRow | None
    run: RunRow
    calls: tuple[Journaled, ...]


class Pending(msgspec.Struct, frozen=True, gc=False):
    """How a branch stands between boundaries: the run on it, if there ever was one, and the calls since the head."""

    run: RunRow | None
    calls: tuple[Journaled, ...]


# What a call may be. The first two are in doubt once the run that wrote them is gone.
STARTED, IN_DOUBT, DONE, FAILED, SKIPPED, RETRY, ABANDONED = (
    "started",
    "in_doubt",
    "done",
    "failed",
    "skipped",
    "retry",
    "abandoned",
)


def in_doubt(call: CallRow, live_token: int | None) -> bool:
    """True if nobody knows whether the call happened. `live_token`: of the run that is alive on its branch, if any."""
    return call.status == IN_DOUBT or (call.status == STARTED and call.token != live_token)


def refuse_in_doubt(session: str, branch: str, calls: Iterable[Journaled]) -> None:
    """InDoubtError if one of the calls pending on a branch without a live run is in doubt."""
    doubtful = [journaled.call for journaled in calls if in_doubt(journaled.call, None)]
    if doubtful:
        names = ", ".join([f"{call.name} ({call.id})" for call in doubtful])
        message = f"session {session!r}, branch {branch!r}: nobody knows whether these calls happened: {names}"
        raise InDoubtError(message, hint="decide each with session.resolve(call_id, …), or give up: session.abandon()")


def spot_of(after: int, calls: Iterable[Journaled]) -> bytes:
    """Where a run stood: two crashes at one spot had nothing recorded between them."""
    stood = [(journaled.call.id, journaled.call.status) for journaled in calls]
    return sha256(msgspec.msgpack.encode((after, stood))).digest()[:12]


class BranchRow(msgspec.Struct, frozen=True, gc=False):
    """A branch: where it stands, and where an undo would take it."""

    name: str
    head_id: str
    undo_id: str | None


class TagRow(msgspec.Struct, frozen=True, gc=False):
    """A tag and the checkpoint it holds."""

    name: str
    id: str


class SessionRow(msgspec.Struct, frozen=True, gc=False):
    """A session's line. `touched` rises with every write to the store; listings are in its order."""

    id: str
    totals: Totals
    branches: int
    checkpoints: int
    created_us: int
    touched: int
    crashed: bool = False


class Names(msgspec.Struct, frozen=True, gc=False):
    """All names of a session."""

    branches: tuple[BranchRow, ...]
    tags: tuple[TagRow, ...]


class Rewrite(msgspec.Struct, frozen=True, gc=False):
    """What a checkpoint becomes when the one it was linked to goes: linked to the nearest ancestor that stays.

    It stands on a whole copy of its own (`whole`; None if it has one already), or on `delta` from that ancestor,
    whose state has `base_digest`.
    """

    id: str
    whole: Record | None
    blobs: Mapping[bytes, bytes]
    delta: Record | None = None
    base_digest: bytes | None = None


class Deletion(msgspec.Struct, frozen=True, gc=False):
    """Checkpoints to be removed together.

    `rewrites` must name exactly the staying ones that are linked to one of them when the removal happens. With
    `spare_names` it is a ConflictError if a branch stands on one of them, or an undo leads there; otherwise branches
    move back to what stays.
    """

    session: str
    ids: tuple[str, ...]
    rewrites: tuple[Rewrite, ...]
    spare_names: bool = False


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint with its records, as it moves from one store to another.

    `took` says which calls it took in: those of a run, made while its branch stood at a sequence.
    """

    row: Row
    size_bytes: int
    delta: Record | None
    whole: Record | None
    took: tuple[int, int] | None = None


class Moved(msgspec.Struct, frozen=True, gc=False):
    """A session as it moves: its line, its names, the number its next checkpoint comes after, its runs and its journal.

    The numbers of runs mean something only here: a backend gives them others, in `Kept.took` too. Leases do not
    travel, and who arrives has not crashed: what was `entered` is `unfinished`.
    """

    line: SessionRow
    names: Names
    sequence: int
    runs: tuple[RunRow, ...] = ()
    calls: tuple[Journaled, ...] = ()


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """What `stats` reports."""

    sessions: int
    checkpoints: int
    logical_bytes: int
    stored_bytes: int


class Backend(Protocol):
    """Where bytes live. Thread-safe. See `backstay.testing.BackendContract` for what each verb owes."""

    name: str

    # writes
    def commit(self, commit: Commit) -> Row:
        """Write blobs, records, checkpoint and head, or nothing. ConflictError if the head is not as expected."""

    def fork(self, session: str, *, id_: str, branch: str) -> None:
        """A new branch at a checkpoint. AlreadyExistsError if a branch or tag has the name."""

    def delete_branch(self, session: str, *, branch: str) -> None:
        """Forget a branch's name and what is pending on it; its checkpoints stay. LeaseHeldError if a run is alive."""

    def tag(self, session: str, *, id_: str, name: str) -> None:
        """A name that does not move. AlreadyExistsError if taken."""

    def untag(self, session: str, *, name: str) -> None:
        """Forget a tag."""

    def delete_checkpoints(self, deletion: Deletion) -> None:
        """Remove checkpoints; branches on them move to the nearest ancestor that stays. ConflictError on a race.

        The calls that they took in go with them, and those pending at one. LeaseHeldError if a branch stands on one of
        them and a run is alive there; InDoubtError if a call pending there is in doubt.
        """

    def delete_session(self, session: str, *, touched: int | None = None) -> None:
        """Remove a session and everything only it needed. LeaseHeldError if a run is alive.

        ConflictError if it was touched since the number given.
        """

    def adopt(self, moved: Moved, history: Iterable[tuple[Kept, Mapping[bytes, bytes]]]) -> None:
        """Write a whole session, each checkpoint with its blobs after the one it is linked to, or nothing at all.

        AlreadyExistsError if a session has its id. An error raised by `history` leaves nothing behind.
        """

    # runs
    def enter(self, entry: Entry) -> Entered:
        """Take the lease of a branch and record that a run was entered, making the session if there is none.

        LeaseHeldError if a run is alive there. ConflictError if `expect_token` is given and another run was entered
        since, or that one has ended. The input is kept until a run completes: an unfinished run's is not replaced.
        """

    def renew(self, lease: Lease) -> None:
        """Hold on for another `lease_us`. FencedError if another run was entered since, or the branch is gone."""

    def journal(self, lease: Lease, call: CallRow, *, after: int, slot: int | None = None) -> int:
        """Write down a call, or (with its slot) what became of it; its slot is returned. FencedError as in `renew`.

        `after` is the sequence of the branch's head, 0 if it has none.
        """

    def leave(self, lease: Lease, *, status: str | None, reason: str | None) -> None:
        """Give the lease back, with how it ended; None: it was interrupted and still counts as entered."""

    def settle(self, session: str, branch: str, *, before: Journaled, after: CallRow) -> None:
        """Change a pending call from outside. ConflictError if it is not as it was `before`.

        If no run is alive on the branch, one that comes back to life is fenced: see `Lease`.
        """

    def abandon(self, session: str, branch: str, *, reason: str) -> int:
        """Give up what is pending: calls become abandoned, the run is over, its input dropped. LeaseHeldError if alive.

        Returns how many calls there were.
        """

    def pending(self, session: str, branch: str) -> Pending:
        """How a branch stands between boundaries; nothing if it never ran."""

    def calls(self, session: str, id_: str) -> Sequence[Journaled]:
        """The calls that a checkpoint took in, in the order they were begun."""

    def runs(self, session: str) -> Sequence[RunRow]:
        """The runs of a session, one row per branch that ever had one."""

    def entries(self, session: str) -> Sequence[Journaled]:
        """The whole journal of a session, in the order it was written."""

    def crashed(self) -> Sequence[tuple[SessionRow, RunRow]]:
        """Runs that were entered, have not ended, and whose lease nobody alive holds; the one touched last first."""

    def wait(self, seconds: float) -> None:
        """Wait until a lease may have ended: return when one was given back, or after a moment, to look again.

        Never longer than `seconds`, nor than LOOK_S, after which an expired lease or a dead holder is to be noticed.
        """

    # reads
    def find_session(self, session: str) -> SessionRow | None:
        """A session's line."""

    def sessions(
        self, *, before: int | None, limit: int, status: str | None, agent: str | None
    ) -> Sequence[SessionRow]:
        """A page of sessions touched before that number (None: from the newest), newest first."""

    def names(self, session: str) -> Names:
        """Branches and tags; empty for a session that is not there."""

    def find_branch(self, session: str, branch: str) -> BranchRow | None:
        """One branch."""

    def find_row(self, session: str, id_: str) -> Row | None:
        """One checkpoint by its id."""

    def find_ids(self, session: str, prefix: str, *, limit: int) -> Sequence[str]:
        """Ids that begin like this."""

    def line(self, session: str, id_: str, *, limit: int) -> Sequence[Row]:
        """A checkpoint and its ancestors, newest first."""

    def chain(self, session: str, id_: str, *, salvage: bool = False) -> Chain:
        """What is needed to read a state. With `salvage`, unreadable records are replaced by their shape."""

    def children(self, session: str, id_: str) -> Sequence[str]:
        """The checkpoints whose link is this one."""

    def ids(self, session: str) -> Sequence[str]:
        """All checkpoints of a session, oldest first."""

    def history(self, session: str, *, after: int, limit: int) -> Sequence[Kept]:
        """A page of a session's checkpoints with a sequence beyond `after`, oldest first, with their records."""

    def blobs(self, digests: Collection[bytes], *, salvage: bool = False) -> Mapping[bytes, bytes]:
        """The contents of blobs; with `salvage`, only of those that can be read."""

    # upkeep
    def sizes(self) -> Sizes:
        """Running totals and the size on disk."""

    def check(self) -> Iterator[Problem]:
        """What is wrong below the level of sessions: pages, indexes, orphans."""

    def compact(self) -> None:
        """Give the space of what was deleted back to the disk, in steps that let writers in between."""

    def repair(self) -> Sequence[str]:
        """Remove what is provably useless and point names that lead nowhere at what is left; say what was done.

        Never removes a checkpoint that can be read.
        """

    def close(self) -> None:
        """Release everything. Further use is a ClosedError."""
