"""Pruning: which checkpoints go (retention says), in portions, and the space given back.

What stays can be read at every moment (see deletion). A commit that comes in between is safe: heads never go, and a
plan that no longer fits (a branch or a tag was set on a checkpoint meanwhile) is made again. A session on which
a run works, or can be resumed, is not over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from backstay.errors import (
    BackstayError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    LeaseHeldError,
    NotFoundError,
)
from backstay.hints import Hint
from backstay.model import CheckpointId, PruneReport, SessionId, Status
from backstay.port import EVERY, Ask, Backend, CheckpointRow, Kind, LaneRow, SessionQuery, View
from backstay.retention import Candidate, Retention, is_over, to_drop
from backstay.rules import branches, refusals
from backstay.rules.calls import pending_of
from backstay.store.fields import read_fields
from backstay.store.refs import readable
from backstay.upkeep.deletion import delete_session, delete_some, sweep
from backstay.upkeep.file_policies import KeepByRetention, KeepEverything
from backstay.upkeep.file_uses import FilePolicy
from backstay.upkeep.forgetting import Forgetting, Forgotten
from backstay.upkeep.pages import pages
from backstay.upkeep.progress import Progress
from backstay.upkeep.weighing import Weighing

_RETENTION = Hint("Retention(keep_last=50, keep_days=30)", "--keep-last 50 --keep-days 30")

_TRIES = 20
_PAGE_ROWS = 1000
_FINISHED = frozenset({Status.COMPLETED.value, Status.FAILED.value, Status.HALTED.value, Status.CANCELLED.value})


def prune(
    backend: Backend,
    retention: Retention,
    *,
    session: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PruneReport:
    """Forget what a retention allows; with `dry_run`, only say what, and how many bytes that is."""
    if not isinstance(retention, Retention):
        message = f"prune takes a Retention, not {type(retention).__name__}"
        raise InvalidInputError(message, hint=_RETENTION)
    if session is not None and backend.read(Ask(session)).session is None:
        raise refusals.no_session(session)[1]
    before = backend.sizes().stored_bytes
    sessions = [session] if session is not None else _all_sessions(backend)
    pruning = _Pruning(backend, retention, dry_run=dry_run)
    for number, id_ in enumerate(sessions):
        if progress is not None:
            progress(number, len(sessions))
        try:
            pruning.prune(id_)
        except NotFoundError:
            continue  # another process deleted it meanwhile
    forgotten = _forget_files(backend, retention, session, pruning, dry_run=dry_run)
    if not dry_run and (sweep(backend) or pruning.dropped or pruning.ended or forgotten.groups):
        backend.tend()
    weighed = pruning.weighing.total_bytes + forgotten.stored_bytes if dry_run else 0
    freed = weighed if dry_run else before - backend.sizes().stored_bytes
    return PruneReport(
        checkpoints=pruning.dropped,
        sessions=tuple(pruning.ended),
        freed_bytes=max(0, freed),
        dry_run=dry_run,
        files=forgotten.versions,
    )


def _forget_files(
    backend: Backend, retention: Retention, session: str | None, pruning: _Pruning, *, dry_run: bool
) -> Forgotten:
    """Contents of files that no rule keeps; and groups of which little is needed since checkpoints went."""
    writer = session if session is not None else next(iter(_all_sessions(backend)), None)
    went = bool(pruning.dropped or pruning.ended) and not dry_run
    if writer is None or not backend.sizes().held_bytes or not (retention.forgets_files or went):
        return Forgotten()

    def policy_of(id_: str) -> FilePolicy:
        if not retention.forgets_files or session not in (None, id_):
            return KeepEverything()
        return KeepByRetention(retention, pruning.now_us)

    work = Forgetting(backend, policy_of, writer=writer, regroup=went)
    return work.plan(retention.limit_bytes) if dry_run else work.run(retention.limit_bytes)


def _all_sessions(backend: Backend) -> list[str]:
    found: list[str] = []
    before: int | None = None
    while page := backend.sessions(SessionQuery(before=before, limit=_PAGE_ROWS)):
        found += [row.id for row in page]
        before = page[-1].touched
    return found


class _Plan:
    """A session as a retention sees it: first its checkpoints, then its names.

    In this order, because what is committed in between is then behind one of the heads, from which it is looked for;
    and what comes later is no candidate.
    """

    def __init__(self, backend: Backend, session: str) -> None:
        self._points: dict[int, Candidate] = {}
        self._session = session
        self.ids: dict[int, str] = {}
        for page in pages(backend, session, Kind.CHECKPOINT):
            for row in page:
                self._add(readable(session, row))  # type: ignore[arg-type]
        view = backend.read(Ask(session, names=EVERY))
        self._heads = {lane.head.sequence for lane in view.lanes.values() if lane.head is not None}
        self._pinned = {tag.sequence for tag in view.tags.values()}
        self._pinned |= {lane.undo for lane in view.lanes.values() if lane.undo is not None}
        for head in self._heads:
            at: int | None = head
            while at is not None and at not in self._points:
                line = backend.ancestors(session, at, limit=_PAGE_ROWS)
                for found in line:
                    self._add(readable(session, found))
                at = line[-1].parent if line else None

    def _add(self, row: CheckpointRow) -> None:
        fields = read_fields(row)
        self._points[row.sequence] = Candidate(row.sequence, row.parent, fields.at_us, fields.label is not None)
        self.ids[row.sequence] = row.id

    def gone(self, retention: Retention, now_us: int) -> list[int]:
        """The checkpoints to delete, oldest first."""
        points = sorted(self._points.values(), key=lambda point: point.sequence)
        return to_drop(points, self._heads, self._pinned, retention, now_us=now_us)


class _Pruning:
    """One prune of some sessions, and what it came to."""

    def __init__(self, backend: Backend, retention: Retention, *, dry_run: bool) -> None:
        self._backend = backend
        self._retention = retention
        self._dry_run = dry_run
        self.now_us = time.time_ns() // 1000
        self.dropped: dict[SessionId, tuple[CheckpointId, ...]] = {}
        self.ended: list[SessionId] = []
        self.weighing = Weighing(backend)

    def prune(self, session: str) -> None:
        """The whole of it, if it is over; or what may go of it."""
        if self._end(session):
            self.ended.append(SessionId(session))
            return
        gone = self._thin(session) if self._retention.thins else []
        if gone:
            self.dropped[SessionId(session)] = tuple([CheckpointId(id_) for id_ in gone])

    def _end(self, session: str) -> bool:
        """Delete a whole session if it is over; True if it was."""
        for _ in range(_TRIES if self._retention.finished_days is not None else 0):
            try:
                view = self._backend.read(Ask(session, names=EVERY, heads=True, pending=EVERY))
            except CorruptionError:
                return False  # whether a run can be resumed there cannot be told
            if view.session is None or not self._is_over(view):
                return False
            if self._dry_run:
                self.weighing.add_session(session)
                return True
            try:
                delete_session(self._backend, session, touched=view.session.touched)
            except ConflictError:
                continue  # another process wrote to it since it was read
            except LeaseHeldError:
                return False  # another process works on it again
            return True
        return False

    def _is_over(self, view: View) -> bool:
        line, lanes = view.session, view.lanes.values()
        if line is None or line.status not in _FINISHED:
            return False
        working = [lane.entered or lane.unfinished or pending_of(view.pending.get(lane.name, ())) for lane in lanes]
        return not any(working) and is_over(
            finished=all([_status(view, lane) in _FINISHED for lane in lanes]),
            tagged=bool(view.tags),
            at_us=line.updated_us,
            retention=self._retention,
            now_us=self.now_us,
        )

    def _thin(self, session: str) -> list[str]:
        """Delete what may go of a session; the ids of what went."""
        went: dict[int, str] = {}
        planned: dict[int, str] = {}
        for _ in range(_TRIES):
            plan = _Plan(self._backend, session)
            went |= {at: id_ for at, id_ in planned.items() if at not in plan.ids}
            gone = plan.gone(self._retention, self.now_us)
            planned = {at: plan.ids[at] for at in gone}
            if self._dry_run:
                if gone:
                    self.weighing.add_checkpoints(session, set(gone))
                else:
                    self.weighing.keep_session(session)
                return list(planned.values())
            try:
                if gone:
                    delete_some(self._backend, session, gone, spare_names=True)
            except (ConflictError, InvalidInputError, NotFoundError):
                continue  # the session changed under the plan
            return [id_ for _, id_ in sorted((went | planned).items())]
        raise refusals.changed(session, "it keeps changing; it was not pruned to its end")[1]


def _status(view: View, lane: LaneRow) -> str:
    """The status of a branch. One that was forked and not written to since has that of its head."""
    row = None if lane.head is None else view.checkpoints.get(lane.head.sequence)
    if lane.status in _FINISHED or not isinstance(row, CheckpointRow):
        return lane.status
    return read_fields(row).status


def drop(backend: Backend, session: str, choose: Callable[[Mapping[str, CheckpointRow]], Collection[str]]) -> list[str]:
    """Remove the checkpoints that `choose` names, given all of a session's by their ids; those that stay, stay.

    A branch that stands on one of them moves back to what is left of its line, or goes with it. If all go, so does the
    session.
    """
    refused: BackstayError = refusals.changed(session, "it keeps changing; nothing was removed")[1]
    for _ in range(_TRIES):
        line = backend.read(Ask(session)).session
        if line is None:
            return []
        found = [row for page in pages(backend, session, Kind.CHECKPOINT) for row in page]
        rows = {row.id: row for row in [readable(session, row) for row in found]}  # type: ignore[arg-type]
        gone = [id_ for id_ in choose(rows) if id_ in rows]
        if not gone:
            return []
        try:
            if len(gone) == len(rows):
                delete_session(backend, session, touched=line.touched)
            else:
                _drop_some(
                    backend, session, {row.sequence: row.parent for row in rows.values()}, [rows[id_] for id_ in gone]
                )
        except (ConflictError, InvalidInputError, NotFoundError) as error:
            refused = error  # the session may have changed under the plan
            continue
        return gone
    raise refused


def _drop_some(
    backend: Backend, session: str, parents: Mapping[int, int | None], gone: Collection[CheckpointRow]
) -> None:
    going = {row.sequence for row in gone}
    for lane in backend.read(Ask(session, names=EVERY)).lanes.values():
        at = None if lane.head is None else lane.head.sequence
        while at is not None and at in going:
            at = parents[at]
        if at is None and lane.head is not None:
            backend.write(branches.name_ask(session, lane.name), branches.delete_branch(session, lane.name))
    delete_some(backend, session, going)
