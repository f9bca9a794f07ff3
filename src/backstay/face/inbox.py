"""The half of a Session that others speak to: what it waits for, answers, and messages."""

from __future__ import annotations

from typing import Any

from backstay.face.family import Family
from backstay.model import Wait
from backstay.names import check_name
from backstay.run import answering
from backstay.store.history import History


class Inbox(Family):
    """Answers and messages for a session."""

    _history: History

    def waiting(self, branch: str = "main") -> list[Wait]:
        """What a branch waits for: answers, approvals, times and messages."""
        return answering.waits(self._history, check_name(branch, "a branch name"))

    def answer(
        self, name: str, value: Any, *, branch: str = "main", by: str | None = None, args: dict[str, Any] | None = None
    ) -> None:
        """Answer what the session waits for, by its name or its id; once: a second, other answer is a ConflictError.

        An approval is answered by True; `args` approves the call with these arguments instead.
        """
        branch = check_name(branch, "a branch name")
        answering.answer(self._history, name, value, branch=branch, by=by, args=args)

    def reject(self, name: str, reason: str, *, branch: str = "main", by: str | None = None) -> None:
        """Say no to what the session waits for: the run gets a CallFailedError of type "rejected" with the reason."""
        answering.reject(self._history, name, reason, branch=check_name(branch, "a branch name"), by=by)

    def send(self, name: str, value: Any, *, branch: str = "main") -> None:
        """Send a message for `run.receive(name)`: each is received once, in order. Makes the session if need be."""
        answering.send(self._history, name, value, branch=check_name(branch, "a branch name"))
