"""Sessions into one file: each as of one moment while writers go on, and the file there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from backstay.errors import CorruptionError, UnavailableError
from backstay.hints import RUN_VERIFY, after
from backstay.model import counted
from backstay.port import Ask, Backend, SessionQuery, SessionRow
from backstay.rules import refusals
from backstay.store.overview import descendants_of
from backstay.upkeep.copying import bring
from backstay.upkeep.deletion import sweep
from backstay.upkeep.export_file import Draft, check_target
from backstay.upkeep.forget_files import forget_matching, is_captured_secret, is_secret_path
from backstay.upkeep.progress import Progress

_SESSIONS_PAGE = 1000


def export(
    backend: Backend,
    path: str | os.PathLike[str],
    *,
    session: str | None = None,
    children: bool = True,
    overwrite: bool = False,
    with_secrets: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a session with its children, or all sessions, to a file."""
    target = check_target(path, overwrite=overwrite)
    lines = _all_sessions(backend) if session is None else [_one_session(backend, session)]
    if session is not None and children:
        lines = [*descendants_of(backend, session), *lines]
    meter = Meter(progress, sum([line.checkpoints for line in lines]))
    try:
        with Draft(target) as draft:
            damaged = _write_all(backend, draft.backend, lines, meter, wanted=session)
            if not with_secrets and draft.backend.sizes().held_bytes:
                _leave_out_secrets(draft.backend)
            draft.publish(overwrite=overwrite)
    except UnavailableError as error:
        if "nothing was exported" in error.hint:
            raise
        hint = after("nothing was exported", error.hint)
        raise UnavailableError(error.args[0], hint=hint, retryable=error.retryable) from error
    if damaged:
        raise _left_out(target, damaged, len(lines) - len(damaged)) from next(iter(damaged.values()))


def _write_all(
    backend: Backend, target: Backend, lines: Sequence[SessionRow], meter: Meter, *, wanted: str | None
) -> dict[str, CorruptionError]:
    """Every session that is intact; those that are not. The first error itself where none is."""
    damaged: dict[str, CorruptionError] = {}
    for line in lines:
        try:
            _write(backend, target, line.id, meter, alone=line.id == wanted)
        except CorruptionError as error:
            damaged[line.id] = error
    if damaged and len(damaged) == len(lines):
        raise next(iter(damaged.values()))
    if damaged:
        sweep(target)  # what came of them before the damage was met
    return damaged


def _leave_out_secrets(target: Backend) -> None:
    """The contents of secrets that were captured are forgotten in an export."""
    for line in _all_sessions(target):
        forget_matching(target, line.id, is_captured_secret, is_secret_path)
    target.tend()


def _left_out(target: Path, damaged: dict[str, CorruptionError], intact: int) -> CorruptionError:
    name, error = next(iter(damaged.items()))
    others = f" and {counted(len(damaged) - 1, 'other')}" if len(damaged) > 1 else ""
    message = f"{target} has the {counted(intact, 'intact session')}; {name!r}{others} is damaged and was left out"
    return CorruptionError(f"{message}: {error.message}", hint=RUN_VERIFY)


def _write(backend: Backend, target: Backend, session: str, meter: Meter, *, alone: bool) -> None:
    arrival = bring(backend, target, session, tell=meter.tell)
    if arrival is not None:
        arrival.show(session)
        meter.next(arrival.row.checkpoints)
    elif alone:  # of many, one that was deleted meanwhile is left out
        raise refusals.no_session(session)[1]


def _one_session(backend: Backend, session: str) -> SessionRow:
    line = backend.read(Ask(session)).session
    if line is None:
        raise refusals.no_session(session)[1]
    return line


def _all_sessions(backend: Backend) -> list[SessionRow]:
    """Every session, the one touched longest ago first: imported again in this order, they are listed as they were."""
    found: dict[str, SessionRow] = {}
    newest: int | None = None
    while True:
        # A session that is touched while the pages are read moves to a page that has been read. So the newest ones are
        # looked at again, until no session is new.
        before, until, fresh = None, newest, 0
        more = True
        while more:
            page = backend.sessions(SessionQuery(before=before, limit=_SESSIONS_PAGE))
            for line in page:
                fresh += line.id not in found
                found[line.id] = line
                newest = line.touched if newest is None else max(newest, line.touched)
            more = len(page) == _SESSIONS_PAGE and (until is None or page[-1].touched > until)
            before = page[-1].touched if page else None
        if not fresh:
            return sorted(found.values(), key=lambda line: line.touched)


class Meter:
    """Counts checkpoints over several sessions for a progress callback. It never goes back."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._before = self._shown = 0

    def tell(self, count: int) -> None:
        """So many checkpoints of the session at hand have come."""
        self._shown = max(self._shown, self._before + count)
        if self._progress is not None:
            self._progress(self._shown, max(self._shown, self._total))

    def next(self, count: int) -> None:
        """A session is over; it had so many."""
        self._before += count


__all__ = ["Meter", "export"]
