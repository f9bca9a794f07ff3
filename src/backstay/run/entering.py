"""How a run takes the lease of its branch. Files that were being put back there come to their place first."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from backstay.port import CallRow
from backstay.port.rows import IN_DOUBT, STARTED
from backstay.rules import runs
from backstay.rules.file_restore import FilesPendingError
from backstay.rules.runs import Entered
from backstay.store.history import History

if TYPE_CHECKING:
    from backstay.run.files import SessionFiles

__all__ = ["Entered", "enter", "going_on"]

_TRIES = 3  # another process may begin the next restore meanwhile


def enter(history: History, intent: runs.Enter, files: SessionFiles | None = None) -> Entered:
    """The run, begun. A folder that cannot be captured is refused before anything is written."""
    if files is not None:
        files.refuse_unusable(intent.branch)
    for _ in range(_TRIES):
        try:
            return _entered(history, intent)
        except FilesPendingError:
            from backstay.run.file_restore import finish_files  # noqa: PLC0415 - few runs have files to wait for

            finish_files(history, intent.branch)
    return _entered(history, intent)


def going_on(calls: Iterable[CallRow], keys: Collection[str]) -> list[CallRow]:
    """The calls that did what differs from the last boundary, where calls are made elsewhere and go on without a run.

    Those are the tool calls without an outcome, those with these keys, which have ended just now, and any other that
    ended while one of them was in flight.
    """
    tools = [call for call in calls if call.kind == "tool"]
    flying = [call.started_us for call in tools if call.status in (STARTED, IN_DOUBT) or call.key in keys]
    if not flying:
        return []
    since = min(flying)
    return [call for call in tools if call.ended_us is None or call.ended_us >= since]


def _entered(history: History, intent: runs.Enter) -> Entered:
    entered: Entered = history.backend.write(intent.ask, runs.enter(intent)).answer
    return entered
