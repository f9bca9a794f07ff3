"""The port: what the hall asks of a place that keeps bytes, in the words both share.

Each verb is one transaction. Values go in and come out frozen, uncompressed, and verified where they were kept
(what a backend cannot read truly it reports as CorruptionError; it never leaves anything out). Backends raise only
Holdfast's own errors. Ids are made before the write, so that a retry after an unclear outcome is recognised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast.delta import Record
from holdfast.model import Problem

FORMAT_VERSION = 1
MIN_READER = 1
MIN_WRITER = 1
MAX_ROW_BYTES = 16 * 1024 * 1024
GROUP_DELTAS = 16


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
    """A checkpoint with its records, as it moves from one store to another."""

    row: Row
    size_bytes: int
    delta: Record | None
    whole: Record | None


class Moved(msgspec.Struct, frozen=True, gc=False):
    """A session as it moves: its line, its names, and the number its next checkpoint comes after."""

    line: SessionRow
    names: Names
    sequence: int


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """What `stats` reports."""

    sessions: int
    checkpoints: int
    logical_bytes: int
    stored_bytes: int


class Backend(Protocol):
    """Where bytes live. Thread-safe. See `holdfast.testing.BackendContract` for what each verb owes."""

    name: str

    # writes
    def commit(self, commit: Commit) -> Row:
        """Write blobs, records, checkpoint and head, or nothing. ConflictError if the head is not as expected."""

    def fork(self, session: str, *, id_: str, branch: str) -> None:
        """A new branch at a checkpoint. AlreadyExistsError if a branch or tag has the name."""

    def delete_branch(self, session: str, *, branch: str) -> None:
        """Forget a branch's name; its checkpoints stay."""

    def tag(self, session: str, *, id_: str, name: str) -> None:
        """A name that does not move. AlreadyExistsError if taken."""

    def untag(self, session: str, *, name: str) -> None:
        """Forget a tag."""

    def delete_checkpoints(self, deletion: Deletion) -> None:
        """Remove checkpoints; branches on them move to the nearest ancestor that stays. ConflictError on a race."""

    def delete_session(self, session: str) -> None:
        """Remove a session and everything only it needed."""

    def adopt(self, moved: Moved, history: Iterable[tuple[Kept, Mapping[bytes, bytes]]]) -> None:
        """Write a whole session, each checkpoint with its blobs after the one it is linked to, or nothing at all.

        AlreadyExistsError if a session has its id. An error raised by `history` leaves nothing behind.
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
