"""Pruning: which checkpoints go (retention says), what those that stay must stand on then, and the space given back.

A checkpoint that stays but stood on one that goes gets a delta from its nearest ancestor that stays, or a whole copy
where there is none or that is as short. All of one session goes in one transaction: at any moment a reader sees the
session before or after. A commit that comes in between is safe: heads never go, and a plan that no longer fits (a
branch or tag was set on a checkpoint meanwhile) is made again. A session on which somebody works, or could go on with
a run, is not over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from backstay.backend import Backend, Deletion, Rewrite, Row, SessionRow
from backstay.delta import advance, know, rebuild, whole
from backstay.errors import ConflictError, CorruptionError, InvalidInputError, LeaseHeldError, NotFoundError
from backstay.model import CheckpointId, PruneReport, SessionId, StateDict, Status
from backstay.retention import Point, Retention, is_over, to_drop
from backstay.store.fields import read_fields
from backstay.store.reading import read_chain
from backstay.upkeep.progress import Progress

_TRIES = 20
_PAGE_ROWS = 1000
_SESSIONS_PAGE = 1000
_DELTA_WORTH = 0.5  # of a whole copy: above that the whole copy is taken, which leans on nothing
_FINISHED = frozenset({Status.COMPLETED.value, Status.FAILED.value, Status.HALTED.value})


def prune(
    backend: Backend,
    retention: Retention,
    *,
    session: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PruneReport:
    """Forget what a retention allows; with `dry_run`, only say what."""
    if not isinstance(retention, Retention):
        message = f"prune takes a Retention, not {type(retention).__name__}"
        raise InvalidInputError(message, hint="Retention(keep_last=50, keep_days=30)")
    if session is not None and backend.find_session(session) is None:
        message = f"there is no session {session!r}"
        raise NotFoundError(message, hint="store.sessions() lists those there are")
    now_us = time.time_ns() // 1000
    before = backend.sizes()
    sessions = [session] if session is not None else _all_sessions(backend)
    dropped: dict[SessionId, tuple[CheckpointId, ...]] = {}
    ended: list[SessionId] = []
    for number, id_ in enumerate(sessions):
        if progress is not None:
            progress(number, len(sessions))
        try:
            if _end(backend, id_, retention, now_us, dry_run=dry_run):
                ended.append(SessionId(id_))
                continue
            gone = _prune_session(backend, id_, retention, now_us, dry_run=dry_run)
        except NotFoundError:
            continue  # somebody deleted it meanwhile
        if gone:
            dropped[SessionId(id_)] = tuple([CheckpointId(gone_id) for gone_id in gone])
    if not dry_run and dropped:
        backend.compact()
    freed = 0 if dry_run else before.stored_bytes - backend.sizes().stored_bytes
    return PruneReport(checkpoints=dropped, sessions=tuple(ended), freed_bytes=max(0, freed), dry_run=dry_run)


def _all_sessions(backend: Backend) -> list[str]:
    found: list[str] = []
    before: int | None = None
    while True:
        page = backend.sessions(before=before, limit=_SESSIONS_PAGE, status=None, agent=None)
        found += [row.id for row in page]
        if len(page) < _SESSIONS_PAGE:
            return found
        before = page[-1].touched


def _end(backend: Backend, session: str, retention: Retention, now_us: int, *, dry_run: bool) -> bool:
    """Delete a whole session if it is over; True if it was."""
    for _ in range(_TRIES):
        line = backend.find_session(session)
        if line is None or not _is_over(backend, line, retention, now_us):
            return False
        if dry_run:
            return True
        try:
            backend.delete_session(session, touched=line.touched)
        except ConflictError:
            continue  # somebody wrote to it since it was looked at
        except LeaseHeldError:
            return False  # somebody has begun to work on it again
        return True
    return False


def _is_over(backend: Backend, line: SessionRow, retention: Retention, now_us: int) -> bool:
    if retention.finished_days is None or line.totals.status not in _FINISHED:
        return False
    names = backend.names(line.id)
    statuses = [read_fields(_row(backend, line.id, branch.head_id)).status for branch in names.branches]
    if len(statuses) == 1:
        # Then the line speaks of this branch, and knows more than its head: a run may have been given up since.
        statuses = [line.totals.status]
    return not _has_work_left(backend, line.id) and is_over(
        finished=all(status in _FINISHED for status in statuses),
        tagged=bool(names.tags),
        at_us=line.totals.at_us,
        retention=retention,
        now_us=now_us,
    )


def _has_work_left(backend: Backend, session: str) -> bool:
    """True if a run is alive, or the next one would go on where one stopped; so, too, if that cannot be told."""
    try:
        return any(
            [
                row.entered or row.unfinished or bool(backend.pending(session, row.branch).calls)
                for row in backend.runs(session)
            ]
        )
    except CorruptionError:
        return True


def _prune_session(backend: Backend, session: str, retention: Retention, now_us: int, *, dry_run: bool) -> list[str]:
    for _ in range(_TRIES):
        # Ids before names: what is committed in between is behind one of the heads, what comes later is no candidate.
        ids = backend.ids(session)
        names = backend.names(session)
        rows = _rows(backend, session, ids, [branch.head_id for branch in names.branches])
        points = []
        for row in rows.values():
            fields = read_fields(row)
            points.append(Point(row.id, row.link_id, fields.at_us, fields.label is not None))
        pinned = {tag.id for tag in names.tags} | {b.undo_id for b in names.branches if b.undo_id is not None}
        heads = [branch.head_id for branch in names.branches]
        gone = to_drop(points, heads, pinned, retention, now_us=now_us)
        if dry_run or not gone:
            return gone
        try:
            rewrites = _rewrites(backend, session, rows, set(gone))
            backend.delete_checkpoints(Deletion(session, tuple(gone), rewrites, spare_names=True))
        except (ConflictError, InvalidInputError, NotFoundError):
            continue  # the session changed under the plan
        return gone
    message = f"session {session!r} keeps changing; it was not pruned"
    raise ConflictError(message, hint="try again")


def drop(backend: Backend, session: str, choose: Callable[[Mapping[str, Row]], Collection[str]]) -> list[str]:
    """Remove the checkpoints that `choose` names, given all of a session's, in one transaction; those that stay, stay.

    A branch that stands on one of them moves back to what is left of its line, or goes with it. If all go, so does the
    session.
    """
    for _ in range(_TRIES):
        line = backend.find_session(session)
        if line is None:
            return []
        names = backend.names(session)
        rows = _rows(backend, session, backend.ids(session), [branch.head_id for branch in names.branches])
        gone = [id_ for id_ in choose(rows) if id_ in rows]
        if not gone:
            return []
        try:
            if len(gone) == len(rows):
                backend.delete_session(session, touched=line.touched)
            else:
                for branch in names.branches:
                    if _anchor(rows, branch.head_id, set(gone)) is None:
                        backend.delete_branch(session, branch=branch.name)
                rewrites = _rewrites(backend, session, rows, set(gone))
                backend.delete_checkpoints(Deletion(session, tuple(gone), rewrites))
        except (ConflictError, InvalidInputError, NotFoundError):
            continue  # the session changed under the plan
        return gone
    message = f"session {session!r} keeps changing; nothing was removed"
    raise ConflictError(message, hint="try again")


def _rows(backend: Backend, session: str, ids: Iterable[str], heads: Iterable[str]) -> dict[str, Row]:
    """All checkpoints of a session by their ids, oldest first: line by line, then those on no line."""
    found: dict[str, Row] = {}
    for head in heads:
        next_id: str | None = head
        while next_id is not None and next_id not in found:
            page = backend.line(session, next_id, limit=_PAGE_ROWS)
            found.update({row.id: row for row in page})
            next_id = page[-1].link_id
    for id_ in ids:
        if id_ not in found:
            found[id_] = _row(backend, session, id_)
    return dict(sorted(found.items(), key=lambda item: item[1].sequence))


def _row(backend: Backend, session: str, id_: str) -> Row:
    row = backend.find_row(session, id_)
    if row is None:
        message = f"there is no checkpoint {id_!r}"
        raise NotFoundError(message)
    return row


def _rewrites(backend: Backend, session: str, rows: Mapping[str, Row], gone: Collection[str]) -> tuple[Rewrite, ...]:
    rewrites = []
    for row in rows.values():
        if row.id in gone or row.link_id is None or row.link_id not in gone:
            continue
        anchor = _anchor(rows, row.link_id, gone)
        state = _state(backend, session, row.id)
        copy, blobs = whole(state)
        rewrite = Rewrite(row.id, copy, blobs)
        if anchor is not None:
            known = know(_state(backend, session, anchor))
            delta, pieces, _ = advance(known, state)
            if delta.size_bytes < _DELTA_WORTH * copy.size_bytes:
                rewrite = Rewrite(row.id, None, pieces, delta, known.digest)
        rewrites.append(rewrite)
    return tuple(rewrites)


def _anchor(rows: Mapping[str, Row], id_: str | None, gone: Collection[str]) -> str | None:
    """A checkpoint, or the nearest ancestor that stays."""
    while id_ is not None and id_ in gone:
        id_ = rows[id_].link_id
    return id_


def _state(backend: Backend, session: str, id_: str) -> StateDict:
    chain, pieces = read_chain(backend, session, id_)
    return rebuild(chain.records, pieces).state
