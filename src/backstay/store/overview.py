"""A session without its states: names, all checkpoints, runs, where an undo leads, the calls of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.model import RunInfo, Status, counted
from backstay.port import (
    EVERY,
    Ask,
    Backend,
    CallRow,
    CheckpointRow,
    FoundLane,
    Kind,
    LaneQuery,
    LaneRow,
    SessionQuery,
    SessionRow,
    Unreadable,
)
from backstay.port.lease import Claim
from backstay.port.row_codec import marks_of
from backstay.port.rows import DOUBTFUL, ENTERED, MARK_WAITING
from backstay.store.fields import read_fields, to_datetime
from backstay.store.refs import readable

_PAGE_ROWS = 100
_BEYOND = 2**40  # no sequence is as large


def session_row(backend: Backend, session: str) -> SessionRow | None:
    """A session's line."""
    return backend.read(Ask(session)).session


def crashed_sessions(backend: Backend) -> dict[str, SessionRow]:
    """The lines of sessions where a run crashed, or where calls are in doubt, the one touched last first."""
    found = backend.lanes(LaneQuery(ENTERED | DOUBTFUL))
    return {one.session.id: one.session for one in found if _is_crashed(one)}


def waiting_sessions(backend: Backend) -> dict[str, SessionRow]:
    """The lines of sessions that wait on a branch for a person, a message or a time."""
    return {one.session.id: one.session for one in backend.lanes(LaneQuery(MARK_WAITING))}


def troubled_sessions(backend: Backend) -> tuple[dict[str, SessionRow], dict[str, SessionRow]]:
    """The lines of both, in one look at all branches."""
    found = backend.lanes(LaneQuery(ENTERED | DOUBTFUL | MARK_WAITING))
    crashed = [one.session for one in found if marks_of(one.lane) & (ENTERED | DOUBTFUL) and _is_crashed(one)]
    waiting = [one.session for one in found if marks_of(one.lane) & MARK_WAITING]
    return {row.id: row for row in crashed}, {row.id: row for row in waiting}


def _is_crashed(one: FoundLane) -> bool:
    return not one.live and one.lane.stop is None


def names_by_checkpoint(backend: Backend, session: str) -> dict[str, list[tuple[str, str]]]:
    """By the ids of checkpoints: the names they have, each with whether it is a branch or a tag."""
    view = backend.read(Ask(session, names=EVERY, heads=True))
    found: dict[str, list[tuple[str, str]]] = {}
    for lane in view.lanes.values():
        if lane.head is not None:
            found.setdefault(lane.head.id, []).append((lane.name, "branch"))
    for tag in view.tags.values():
        row = view.checkpoints.get(tag.sequence)
        if isinstance(row, CheckpointRow):
            found.setdefault(row.id, []).append((tag.name, "tag"))
    return found


def branch_statuses(backend: Backend, session: str) -> dict[str, tuple[str, str | None]]:
    """How each branch stands, and why. A run that failed or was halted says so here, and on no checkpoint."""
    view = backend.read(Ask(session, names=EVERY, heads=True))
    found = {}
    for name, lane in view.lanes.items():
        head = None if lane.head is None else view.checkpoints.get(lane.head.sequence)
        if lane.status == "in_progress" and lane.reason is None and isinstance(head, CheckpointRow):
            fields = read_fields(head)  # forked, and not written to since
            found[name] = fields.status, fields.reason
        else:
            found[name] = lane.status, lane.reason
    return found


def undo_target(backend: Backend, session: str, branch: str) -> str | None:
    """The checkpoint that an undo of this branch would bring back; None if there is nothing to undo."""
    lane = backend.read(Ask(session, names=(branch,))).lanes.get(branch)
    if lane is None or lane.undo is None:
        return None
    row = backend.read(Ask(session, sequences=(lane.undo,))).checkpoints.get(lane.undo)
    return row.id if isinstance(row, CheckpointRow) else None


def resting_on(backend: Backend, session: str, sequence: int) -> int:
    """How many checkpoints rest on this one."""
    return len(backend.read(Ask(session, children_of=(sequence,))).children.get(sequence, ()))


def calls_taken(backend: Backend, session: str, row: CheckpointRow) -> list[CallRow]:
    """The calls that a checkpoint took in; CorruptionError if one is damaged or missing."""
    if row.took is None or row.took.left is not None:  # those are calls that it left behind
        return []
    at = row.took.run, row.took.journal
    kept = backend.read(Ask(session, journals=(at,))).journals.get(at, ())
    calls = [call for call in kept if isinstance(call, CallRow)]
    if len(calls) != row.took.count or len(kept) != len(calls):
        lost = [call.why for call in kept if isinstance(call, Unreadable)]
        why = lost[0] if lost else f"{counted(row.took.count, 'call')} must be there, and {len(kept)} can be read"
        message = f"session {session!r}: its journal is damaged: {why}"
        raise CorruptionError(message, hint=RUN_VERIFY)
    return calls


def calls_by_checkpoint(backend: Backend, session: str, rows: Iterable[CheckpointRow]) -> dict[int, list[CallRow]]:
    """The calls that some checkpoints took in, by sequence, in one read; calls that cannot be read are left out."""
    at = {row.sequence: (row.took.run, row.took.journal) for row in rows if row.took and row.took.left is None}
    kept = backend.read(Ask(session, journals=tuple(set(at.values())))).journals if at else {}
    return {sequence: [call for call in kept.get(key, ()) if isinstance(call, CallRow)] for sequence, key in at.items()}


def calls_at(backend: Backend, session: str, sequence: int) -> list[CallRow]:
    """The calls that the checkpoint with this sequence took in."""
    row = backend.read(Ask(session, sequences=(sequence,))).checkpoints.get(sequence)
    return calls_taken(backend, session, row) if isinstance(row, CheckpointRow) else []


def find_row(backend: Backend, session: str, id_: str) -> CheckpointRow | None:
    """A checkpoint by its whole id; CorruptionError if it is damaged."""
    for row in backend.read(Ask(session, ids=(id_,))).checkpoints.values():
        if isinstance(row, Unreadable):
            raise CorruptionError(f"session {session!r}: {row.why}", hint=RUN_VERIFY)
        return row
    return None


def history(backend: Backend, session: str, *, before: int | None, limit: int | None) -> Iterator[CheckpointRow]:
    """The checkpoints of a session on all branches, newest first, read in pages."""
    at, left = _BEYOND if before is None else before, limit if limit is not None else _BEYOND
    while left > 0:
        page = backend.scan(session, Kind.CHECKPOINT, before=at, limit=min(left, _PAGE_ROWS))
        if not page:
            return
        for row in page:
            assert isinstance(row, CheckpointRow | Unreadable)  # noqa: S101 - the kind that was asked for
            found = readable(session, row)
            at = found.sequence
            yield found
        left -= len(page)


def runs(backend: Backend, session: str) -> list[RunInfo]:
    """The runs of a session that have not come to their end, by branch."""
    view = backend.read(Ask(session, names=EVERY))
    lanes = sorted(view.lanes.values(), key=lambda lane: lane.name)
    return [_run(lane, live=lane.name in view.live) for lane in lanes if lane.unfinished and lane.purpose is None]


def _run(lane: LaneRow, *, live: bool) -> RunInfo:
    return RunInfo(
        branch=lane.name,
        live=live,
        holder=None if lane.claim is None else _spoken(lane.claim),
        since=to_datetime(lane.since_us) if lane.since_us else None,
        crashed=lane.entered and not live,
        waiting=lane.status == Status.WAITING.value,
        status=Status(lane.status),
        reason=lane.reason,
    )


def _spoken(claim: Claim) -> str:
    return f"process {claim.holder.pid} on {claim.holder.host}"


def children_of(backend: Backend, session: str) -> list[SessionRow]:
    """The children of a session, the one touched last first; their names begin with its own."""
    found: list[SessionRow] = []
    before: int | None = None
    while page := backend.sessions(SessionQuery(before=before, limit=_PAGE_ROWS, prefix=f"{session}/")):
        found += [row for row in page if row.parent == session]
        before = page[-1].touched
    return found


def descendants_of(backend: Backend, session: str) -> list[SessionRow]:
    """The children of a session, theirs before them."""
    return [row for child in children_of(backend, session) for row in (*descendants_of(backend, child.id), child)]
