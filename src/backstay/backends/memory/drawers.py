"""What memory keeps of a session and of a checkpoint, and what can be told from them alone. No lock is taken here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backstay.backend import Commit, Journaled, Kept, Moved, Row, SessionRow, Totals
from backstay.backends.memory.running import Running, Took, arrive_with
from backstay.delta import Record
from backstay.digest import checkpoint_digest
from backstay.errors import AlreadyExistsError, ConflictError, CorruptionError, InvalidInputError, NotFoundError


@dataclass(slots=True)
class Entry:
    """A checkpoint: what never changes, as a Row, and what a deletion beside it may change."""

    row: Row
    link: str | None
    place: int
    number: int  # rises with every commit to the store
    size_bytes: int
    delta: Record | None
    whole: Record | None
    took: Took | None = None

    def refs(self) -> set[bytes]:
        return {ref for record in (self.delta, self.whole) if record is not None for ref in record.refs}

    def size(self) -> int:
        return sum(record.size_bytes for record in (self.delta, self.whole) if record is not None)


@dataclass(slots=True)
class Stand:
    """Where a branch stands, and where an undo would take it."""

    head: str
    undo: str | None = None


@dataclass(slots=True)
class Drawer:
    """A session: its checkpoints and its names."""

    id: str
    totals: Totals
    created_us: int
    born: int  # the number of its first checkpoint
    sequence: int = 0
    epoch: int = 0
    branches: dict[str, Stand] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    checkpoints: dict[str, Entry] = field(default_factory=dict)  # in the order of their sequence
    runs: dict[str, Running] = field(default_factory=dict)
    calls: dict[int, Journaled] = field(default_factory=dict)  # by slot, in the order they were begun
    last_run: int = 0
    last_slot: int = 0

    def touched(self) -> int:
        newest = next(reversed(self.checkpoints.values()), None)
        return -self.born if newest is None else newest.number


def new_entry(commit: Commit, parent: Entry | None, *, sequence: int, number: int) -> Entry:
    """A commit as it will be kept."""
    parent_id, parent_digest = (None, None) if parent is None else (parent.row.id, parent.row.digest)
    digest = checkpoint_digest(
        id_=commit.id, parent=parent_digest, state=commit.state_digest, sequence=sequence, fields=commit.fields
    )
    return Entry(
        row=Row(commit.id, sequence, parent_id, parent_digest, parent_id, commit.state_digest, digest, commit.fields),
        link=parent_id,
        place=0 if parent is None else 1 if parent.whole is not None else parent.place + 1,
        number=number,
        size_bytes=commit.size_bytes,
        delta=None if parent is None else commit.delta,
        whole=commit.whole,
    )


def arrive(moved: Moved, history: Sequence[Kept], *, born: int) -> Drawer:
    """A session as it came from elsewhere; CorruptionError if something it refers to did not come."""
    line = moved.line
    session = Drawer(line.id, line.totals, line.created_us, born=born, sequence=moved.sequence)
    runs = arrive_with(session, moved)
    for number, kept in enumerate(history, born):
        row = kept.row
        link = None if row.link_id is None else arrived(session, row.link_id)
        place = 0 if link is None else 1 if link.whole is not None else link.place + 1
        delta = None if link is None else kept.delta
        if delta is None and kept.whole is None:
            message = f"checkpoint {row.id[:12]} comes without a record"
            raise InvalidInputError(message, hint="the history is not complete")
        took = None if kept.took is None or kept.took[0] not in runs else (runs[kept.took[0]], kept.took[1])
        entry = Entry(row, row.link_id, place, number, kept.size_bytes, delta, kept.whole, took)
        session.checkpoints[row.id] = entry
    for branch in moved.names.branches:
        undo = None if branch.undo_id is None else arrived(session, branch.undo_id).row.id
        session.branches[branch.name] = Stand(arrived(session, branch.head_id).row.id, undo)
    for tag in moved.names.tags:
        session.tags[tag.name] = arrived(session, tag.id).row.id
    return session


def arrived(session: Drawer, id_: str) -> Entry:
    """A checkpoint that must have come before what refers to it."""
    found = session.checkpoints.get(id_)
    if found is None:
        message = f"checkpoint {id_[:12]} is referred to before it comes, or never comes"
        raise CorruptionError(message, hint="the history is not complete")
    return found


def anchor_of(kept: Entry, gone: Mapping[str, Entry]) -> str | None:
    """The nearest ancestor that stays."""
    link = kept.link
    while link is not None and link in gone:
        link = gone[link].link
    return link


def entry_of(session: Drawer, id_: str | None) -> Entry:
    """A checkpoint that must be there."""
    found = None if id_ is None else session.checkpoints.get(id_)
    if found is None:
        message = f"there is no checkpoint {id_!r}"
        raise NotFoundError(message, hint="session.log() lists those there are")
    return found


def row_of(kept: Entry) -> Row:
    """A checkpoint as the port shows it."""
    row = kept.row
    return Row(
        row.id, row.sequence, row.parent_id, row.parent_digest, kept.link, row.state_digest, row.digest, row.fields
    )


def line_of(session: Drawer) -> SessionRow:
    """A session's line."""
    counts = len(session.branches), len(session.checkpoints)
    crashed = any(running.entered and not running.live() for running in session.runs.values())
    return SessionRow(session.id, session.totals, *counts, session.created_us, session.touched(), crashed)


def refuse_taken(session: Drawer, name: str) -> None:
    """AlreadyExistsError if a branch or tag has the name."""
    if name in session.branches or name in session.tags:
        message = f"there is already a branch or tag named {name!r}"
        raise AlreadyExistsError(message, hint="branches and tags share their names: choose another")


def refuse_pinned(session: Drawer, gone: Mapping[str, Entry], *, spare_names: bool) -> None:
    """InvalidInputError if a tag, or the only place of a branch, would go."""
    for name, id_ in session.tags.items():
        if id_ in gone:
            message = f"the checkpoint is tagged {name!r}"
            raise InvalidInputError(message, hint="untag it first")
    for name, branch in session.branches.items():
        if spare_names and (branch.head in gone or branch.undo in gone):
            message = f"branch {name!r} needs a checkpoint that was to be deleted"
            raise ConflictError(message, hint="try again")
        if branch.head in gone and anchor_of(gone[branch.head], gone) is None:
            message = f"branch {name!r} has no other checkpoint to stand on"
            raise InvalidInputError(message, hint="delete the branch or the whole session instead")
