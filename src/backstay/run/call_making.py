"""The calls of a run as its loop makes them: journaled, given again after a crash, not made again.

`begin` and a Calling are the two halves that everything here is made of: the recorded outcome, or leave to make it.
"""

from __future__ import annotations

import contextlib
import inspect
import secrets
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, overload

from backstay.errors import InvalidInputError
from backstay.model import Call
from backstay.run.calling import Calling
from backstay.run.options import VALUE, OnDoubt, OnFailed, OnMismatch, approved, check_choices, check_effects
from backstay.run.typed_results import typed
from backstay.run.wait_journal import WaitJournal

T = TypeVar("T")

_RANDOM_BITS = 53  # as many as a float holds


class CallMaking:
    """What a loop asks for. A Run is one that has a state, a lease and boundaries too."""

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

    @overload
    def call(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        returns: type[T],
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        on_mismatch: OnMismatch = "raise",
        approve: bool = False,
        effects: Literal["files"] | None = None,
    ) -> T: ...

    @overload
    def call(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        returns: None = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        on_mismatch: OnMismatch = "raise",
        approve: bool = False,
        effects: Literal["files"] | None = None,
    ) -> Any: ...

    def call(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        returns: type[T] | None = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        on_mismatch: OnMismatch = "raise",
        approve: bool = False,
        effects: Literal["files"] | None = None,
    ) -> Any:
        """The outcome of `fn()`, journaled: given again after a crash, not made again. See docs/runs.md.

        With `returns` (a dataclass, Struct, pydantic model, or a type like list[int]) the recorded value is converted
        to it, live and replayed alike. `on_mismatch="again"`: a model whose recorded question was another is asked.
        With `approve` the run first waits until `session.answer(name, True)` approves exactly these args; a rejection
        is a CallFailedError. A function with a parameter is given the args as they were approved.
        `effects="files"` says that it does nothing but change files of the workspace: it is made when no other tool is,
        and one that was cut off is rolled back and made again.
        """
        if inspect.iscoroutinefunction(fn):
            message = f"the function of call {name!r} is a coroutine function, and this run is not asynchronous"
            raise InvalidInputError(message, hint="use backstay.aio, or lambda: asyncio.run(fn())")
        edited = self._approve(name, key, args) if approve else None
        make = approved(fn, args, edited) if approve else fn
        calling = self.begin(
            name,
            key=key,
            kind=kind,
            args=args,
            returns=returns,
            on_doubt=on_doubt,
            on_failed=on_failed,
            on_mismatch=on_mismatch,
            edited=edited,
            effects=effects,
        )
        if calling.done:
            return typed(calling.row, calling.result, returns)
        with self._entered().enclosed(calling):
            try:
                value = make()
            except BaseException as error:
                calling.give_up(error)  # raises CallFailedError where the journal has it as failed
                raise
        return calling.finish_as(value, returns)

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
        on_mismatch: OnMismatch = "raise",
    ) -> Iterator[Calling]:
        """A call that someone else makes: `if not call.done: call.finish(value)`; then `call.result`."""
        calling = self.begin(
            name,
            key=key,
            kind=kind,
            args=args,
            on_doubt=on_doubt,
            on_failed=on_failed,
            on_mismatch=on_mismatch,
        )
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
        returns: Any = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        on_mismatch: OnMismatch = "raise",
        edited: Any = None,
        effects: Literal["files"] | None = None,
    ) -> Calling:
        """The first half of `call`, for loops that someone else drives: the recorded outcome, or leave to make it."""
        if kind not in ("tool", "llm"):
            raise InvalidInputError(f"kind must be 'tool' or 'llm', not {kind!r}")
        calls = self._entered()
        doubt = on_doubt or ("rollback" if effects and self._on_doubt == "ask" else self._on_doubt)
        check_effects(effects, kind, calls.files)
        calling = calls.begin(
            name,
            key=key,
            kind=kind,
            args=args,
            returns=returns,
            on_doubt=doubt,
            on_failed=on_failed or self._on_failed,
            on_mismatch=on_mismatch,
            edited=edited,
        )
        if calls.files is not None and not calling.done and kind == "tool":
            self._files_before(calling, rolls_back=doubt == "rollback", alone=effects is not None)
        return calling

    def _files_before(self, calling: Calling, *, rolls_back: bool, alone: bool) -> None:
        """Look at the files before a call is made; put them back first where it was cut off."""
        raise NotImplementedError

    def enclosed(self, calling: Calling) -> contextlib.AbstractContextManager[None]:
        """Calls made meanwhile, here and in tasks started here, belong to this one."""
        return self._entered().enclosed(calling)

    def _approve(self, name: str, key: str | None, args: Any) -> Any:
        """Wait until a call is approved; the args that were approved instead, or None."""
        raise NotImplementedError

    # values that differ from one run of the code to the next

    def now(self, *, key: str | None = None) -> datetime:
        """The time, in UTC; recorded, so that a replay is given the same. Parallel calls need keys."""
        found: datetime = self._value("run.now", key, lambda: datetime.now(UTC))
        return found

    def uuid(self, *, key: str | None = None) -> uuid.UUID:
        """A random UUID; recorded, so that a replay is given the same. Parallel calls need keys."""
        found: uuid.UUID = self._value("run.uuid", key, uuid.uuid4)
        return found

    def random(self, *, key: str | None = None) -> float:
        """A number from 0 up to 1; recorded, so that a replay is given the same. Parallel calls need keys."""
        found: float = self._value("run.random", key, lambda: secrets.randbits(_RANDOM_BITS) / 2**_RANDOM_BITS)
        return found

    def _value(self, name: str, key: str | None, make: Callable[[], Any]) -> Any:
        # One write: such a value is never in doubt, because nothing outside happens.
        calls = self._entered()
        calling = calls.begin(name, key=key, kind=VALUE, args=None, on_doubt="ask", on_failed="raise")
        return calling.result if calling.done else calling.finish(make())
