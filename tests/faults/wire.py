"""The switch before everything that is sent to a PostgreSQL: a message that reaches the server is carried out there."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from backstay.backends.postgres import pool
from tests.faults.switch import Call, Faults

_SENDERS = ("ask", "ask_all", "ask_kept", "keep", "tell")


class Messages:
    """While it is entered, every statement that a store of this process sends meets the switch."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._real: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._real = {name: getattr(pool, name) for name in _SENDERS}
        for name, real in self._real.items():
            setattr(pool, name, self._meeting(real))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, real in self._real.items():
            setattr(pool, name, real)

    def _meeting(self, send: Any) -> Any:
        def meet(*args: Any) -> Any:
            answers: list[Any] = []
            self._faults.meet(Call("write", "the server"), lambda _: answers.append(send(*args)))
            return answers[0]

        return meet
