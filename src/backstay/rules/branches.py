"""The rules of names: fork, tag, untag, delete_branch. Branches and tags share one name space."""

from __future__ import annotations

import msgspec

from backstay.port import Ask, Batch, CheckpointRow, Decide, Key, Kind, LaneRow, Row, TagRow, Unreadable, View
from backstay.port.rows import INBOX
from backstay.rules import refusals


def naming_ask(session: str, name: str, sequence: int) -> Ask:
    """The rows that `fork` and `tag` read."""
    return Ask(session, names=(name,), sequences=(sequence,))


def fork(session: str, branch: str, *, sequence: int, id_: str) -> Decide:
    """A new branch at a checkpoint."""

    def decide(view: View) -> Batch:
        lane = view.lanes.get(branch)
        if view.again and lane is not None and lane.head is not None and lane.head.id == id_:
            return Batch()  # an earlier try of this very fork went through
        row = _checkpoint(view, session, sequence, id_, name=branch)
        after = LaneRow(branch, head=row.head, journal=row.sequence)
        return Batch((_counted(view, lanes=1), after))

    return decide


def tag(session: str, name: str, *, sequence: int, id_: str) -> Decide:
    """A name that does not move."""

    def decide(view: View) -> Batch:
        kept = view.tags.get(name)
        if view.again and kept is not None and kept.sequence == sequence:
            return Batch()
        _checkpoint(view, session, sequence, id_, name=name)
        return Batch((_counted(view, tags=1), TagRow(name, sequence)))

    return decide


def _checkpoint(view: View, session: str, sequence: int, id_: str, *, name: str) -> CheckpointRow:
    """The checkpoint that gets a name, unless that is refused."""
    row = view.checkpoints.get(sequence)
    found: list[refusals.Found] = []
    if view.session is None:
        found.append(refusals.no_session(session))
    if isinstance(row, Unreadable):
        found.append(refusals.damaged_checkpoint(session, row.why))
    elif row is None or row.id != id_:
        found.append(refusals.no_checkpoint(session, id_))
    if name in view.lanes or name in view.tags:
        found.append(refusals.name_taken(name))
    refusals.settle(found)
    assert isinstance(row, CheckpointRow)  # noqa: S101 - refused above
    return row


def _counted(view: View, *, lanes: int = 0, tags: int = 0) -> Row:
    """The session's line with as many names more."""
    session = view.session
    assert session is not None  # noqa: S101 - refused before
    return msgspec.structs.replace(session, touched=view.fresh, lanes=session.lanes + lanes, tags=session.tags + tags)


def name_ask(session: str, name: str) -> Ask:
    """The rows that `untag` and `delete_branch` read."""
    return Ask(session, names=(name,))


def untag(session: str, name: str) -> Decide:
    """Forget a tag."""

    def decide(view: View) -> Batch:
        if name not in view.tags:
            if view.again:
                return Batch()
            refusals.settle([_missing(view, session) or refusals.no_tag(session, name)])
        return Batch((_counted(view, tags=-1),), ((Kind.NAME, name),))

    return decide


def delete_branch(session: str, branch: str) -> Decide:
    """Forget a branch and what is pending on it; its checkpoints stay, and the calls they took in."""

    def decide(view: View) -> Batch:
        lane = view.lanes.get(branch)
        if lane is None:
            if view.again:
                return Batch()
            refusals.settle([_missing(view, session) or refusals.no_branch(session, branch)])
            raise AssertionError  # pragma: no cover - refused above
        refusals.settle(refusals.held(view, branch))
        drops: list[tuple[Kind, Key]] = [(Kind.NAME, branch)]
        if lane.run:
            journals = (lane.journal, lane.undo_journal, INBOX if lane.inbox else None)
            drops += [(Kind.CALL, (lane.run, journal)) for journal in journals if journal is not None]
        return Batch((_counted(view, lanes=-1),), tuple(drops), wakes=True)

    return decide


def _missing(view: View, session: str) -> refusals.Found | None:
    return refusals.no_session(session) if view.session is None else None
