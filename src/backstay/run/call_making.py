"""The calls of a run: the half of Run that asks the journal, makes what is not recorded, and says what came out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

from backstay.errors import InvalidInputError
from backstay.model import Call
from backstay.run.calling import Calling
from backstay.run.options import OnDoubt, OnFailed, approved, check_choices
from backstay.run.wait_journal import WaitJournal


class CallMaking:
    """The calls of one live execution. Run adds when it begins and ends, and its boundaries."""

    def __init__(self, *, on_doubt: OnDoubt, on_failed: OnFailed) -> None:
        check_choices(on_doubt, on_failed)
        self._on_doubt, self._on_failed = on_doubt, on_failed
        self._calls: WaitJournal | None = None

    def _entered(self) -> WaitJournal:
        if self._calls is None:
            raise InvalidInputError("this run was not entered", hint="use it as: with store.run(…) as run:")
        return self._calls

    @property
    def in_doubt(self) -> list[Call]:
        """The calls in doubt: in flight at a crash, and not known whether they happened."""
        return self._entered().doubtful()

    def call(
        self,
        name: str,
        fn: Callable[[], Any],
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        approve: bool = False,
    ) -> Any:
        """The outcome of `fn()`, journaled: given again after a crash, not made again. See docs/runs.md.

        With `approve` the run first waits until `session.answer(name, True)` approves exactly these args; a rejection
        is a CallFailedError. A function with a parameter is given the args as they were approved.
        """
        edited = self._approve(name, key, args) if approve else None
        make = approved(fn, args, edited) if approve else fn
        calling = self.begin(name, key=key, kind=kind, args=args, on_doubt=on_doubt, on_failed=on_failed, edited=edited)
        if calling.done:
            return calling.result
        with self._entered().enclosed(calling):
            try:
                value = make()
            except BaseException as error:
                calling.give_up(error)  # raises CallFailedError where the journal has it as failed
                raise
        return calling.finish(value)

    @contextlib.contextmanager
    def calling(
        self,
        name: str,
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
    ) -> Iterator[Calling]:
        """A call that someone else makes: `if not call.done: call.finish(value)`; then `call.result`."""
        calling = self.begin(name, key=key, kind=kind, args=args, on_doubt=on_doubt, on_failed=on_failed)
        with self._entered().enclosed(calling):
            try:
                yield calling
            except BaseException as error:
                if not calling.done:
                    calling.give_up(error)
                raise
        if not calling.done:
            calling.interrupt()
            message = f"call {name!r} was left without an outcome, and is in doubt now"
            raise InvalidInputError(message, hint="say what came out: call.finish(value)")

    def begin(
        self,
        name: str,
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        edited: Any = None,
    ) -> Calling:
        """The first half of `call`, for loops that someone else drives: the recorded outcome, or leave to make it."""
        return self._entered().begin(
            name,
            key=key,
            kind=kind,
            args=args,
            on_doubt=on_doubt or self._on_doubt,
            on_failed=on_failed or self._on_failed,
            edited=edited,
        )

    def enclosed(self, calling: Calling) -> contextlib.AbstractContextManager[None]:
        """LiveJournal made meanwhile, here and in tasks started here, belong to this one."""
        return self._entered().enclosed(calling)

    def _approve(self, name: str, key: str | None, args: Any) -> Any:
        """Wait until a call is approved; the args that were approved instead, or None."""
        raise NotImplementedError
