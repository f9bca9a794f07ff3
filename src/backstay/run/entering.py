"""How a run takes the lease of its branch. Files that were being put back there come to their place first."""

from __future__ import annotations

from backstay.rules import runs
from backstay.rules.file_restore import FilesPendingError
from backstay.rules.runs import Entered
from backstay.store.history import History

__all__ = ["Entered", "enter"]

_TRIES = 3  # another process may begin the next restore meanwhile


def enter(history: History, intent: runs.Enter) -> Entered:
    """The run, begun."""
    for _ in range(_TRIES):
        try:
            return _entered(history, intent)
        except FilesPendingError:
            from backstay.run.file_restore import finish_files  # noqa: PLC0415 - few runs have files to wait for

            finish_files(history, intent.branch)
    return _entered(history, intent)


def _entered(history: History, intent: runs.Enter) -> Entered:
    entered: Entered = history.backend.write(intent.ask, runs.enter(intent)).answer
    return entered
