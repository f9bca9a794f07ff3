"""One call that was asked for: its recorded outcome, or leave to make it and a place to say what came out."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import msgspec

from backstay.codec import Root, decode, encode_stored
from backstay.errors import BackstayError, FencedError, InDoubtError, InvalidInputError, MismatchError
from backstay.port import CallKey, CallRow
from backstay.port.rows import CUT_OFF, DONE, FAILED, IN_DOUBT, RETRY, SKIPPED, STARTED
from backstay.rules.refusals import StopAsked
from backstay.run.journal import Slot
from backstay.run.options import call_failed, not_storable, now_us, refuse_long, text_of_error
from backstay.run.typed_results import plain, typed
from backstay.sealing import pack_value

UNSTORABLE = "unstorable"  # the type of the error of a tool that was done with a result that cannot be stored


class Writing(Protocol):
    """The journal of the run that a call belongs to."""

    broken: BaseException | None

    def write(self, row: CallRow, at: CallKey | None) -> CallRow:
        """One line of the journal, on disk when this returns."""

    def succeeded(self, slot: Slot, row: CallRow, result: Any, data: bytes | None) -> None:
        """A call has an outcome."""

    def failed(self, slot: Slot, row: CallRow | None) -> None:
        """A call failed."""

    def unstorable(self, slot: Slot, row: CallRow) -> None:
        """A tool was done, and its result cannot be stored."""

    def stopped(self, slot: Slot) -> None:
        """The call is no longer being made, and has no outcome."""


class Calling:
    """A call that was asked for. `done`: it has an outcome, `result`. Otherwise it may be made now, and `finish`ed."""

    __slots__ = ("_at", "_calls", "_slot", "done", "id", "result", "row", "was")

    def __init__(
        self, calls: Writing, row: CallRow, slot: Slot, at: CallKey | None, *, was: CallRow | None = None
    ) -> None:
        self._calls = calls
        self.row = row
        self._slot = slot
        self._at = at
        self.was = was  # how it was recorded before this run began it
        self.id = row.id
        self.done = False
        self.result: Any = None

    def finish(self, value: Any) -> Any:
        """Record what came out. The recorded form is returned, the first time too, so that a replay cannot differ."""
        self._refuse_done()
        calls, row = self._calls, self.row
        try:
            data = encode_stored(value, (Root("result"),))
            refuse_long(data, f"the result of call {row.name!r}")
        except InvalidInputError as error:
            raise self._unstorable(error) from error
        now = msgspec.structs.replace(row, status=DONE, result=pack_value(data), partial=None, ended_us=now_us())
        self.write(now)
        self.result = decode(data)
        self.done = True
        calls.succeeded(self._slot, self.row, self.result, data)
        return self.result

    def finish_as(self, value: Any, kind: Any) -> Any:
        """As `finish`, and the recorded form as a type of the caller's.

        A tool was done, so its result is recorded before it is found not to fit. A model's answer that does not fit is
        no good answer: it is not recorded, and asked for again.
        """
        if kind is not None and self.row.kind != "tool":
            try:
                recorded = plain(value)
            except InvalidInputError as error:
                raise self._unstorable(error) from error
            try:
                typed(self.row, recorded, kind)
            except BaseException:
                self._calls.failed(self._slot, None)
                raise
        return typed(self.row, self.finish(value), kind)

    def _unstorable(self, error: InvalidInputError) -> InvalidInputError:
        row = self.row
        if row.kind == "tool":  # it was done all the same, and must not be done again
            now = msgspec.structs.replace(row, status=DONE, error=(UNSTORABLE, error.args[0]), ended_us=now_us())
            self.write(now)
            self.done = True
            self._calls.unstorable(self._slot, now)
        else:
            self._calls.stopped(self._slot)
        return not_storable(row, error.args[0])

    def give_up(self, error: BaseException) -> None:
        """`fn` raised: a tool's exception is recorded and becomes CallFailedError; an interruption leaves doubt."""
        self._refuse_done()
        ours = isinstance(error, InDoubtError | FencedError | MismatchError) or self._calls.broken is not None
        if ours or not isinstance(error, Exception):
            self.interrupt()
        elif self.row.kind == "tool":
            kind, text = type(error).__qualname__, text_of_error(error)
            now = msgspec.structs.replace(self.row, status=FAILED, error=(kind, text), ended_us=now_us())
            self.write(now)
            self.done = True
            self._calls.failed(self._slot, now)
            raise call_failed(now) from error
        else:
            self._calls.failed(self._slot, None)

    def keep_partial(self, chunks: list[Any]) -> None:
        """Keep what had come of a stream with the next word about its call."""
        if chunks:
            with contextlib.suppress(InvalidInputError):
                data = encode_stored(chunks, (Root("partial"),))
                refuse_long(data, "partial")
                self.row = msgspec.structs.replace(self.row, partial=pack_value(data))

    def keep_arrived(self, chunks: list[Any]) -> None:
        """Write down what has come of a stream so far, as if it were cut off here: a kill would cut it off here."""
        self.keep_partial(chunks)
        status = STARTED if self.row.kind == "tool" else CUT_OFF
        with contextlib.suppress(StopAsked):  # it is heeded at the next call or boundary; this one may go on
            self.write(msgspec.structs.replace(self.row, status=status))

    def cut_off(self, chunks: list[Any], *, failed: bool) -> None:
        """A stream was closed early: a model is asked again, a tool is in doubt. `failed`: by an exception."""
        self._refuse_done()
        self.keep_partial(chunks)
        if self.row.kind == "tool":
            self.interrupt()
            return
        if chunks:
            with contextlib.suppress(BackstayError):
                self.write(msgspec.structs.replace(self.row, status=CUT_OFF, ended_us=now_us()))
        self._calls.failed(self._slot, None) if failed else self._calls.stopped(self._slot)

    def interrupt(self) -> None:
        """The outcome is not known: the call is in doubt."""
        if self.row.kind == "tool":
            now = msgspec.structs.replace(self.row, status=IN_DOUBT)
            with contextlib.suppress(BackstayError):  # where it cannot be said it is known from what was not said
                self.write(now)
        self._calls.stopped(self._slot)

    def withdraw(self) -> None:
        """It was begun and then not made at all: it is what it was, or may be made without a decision."""
        if self.row.kind == "tool":
            with contextlib.suppress(BackstayError):
                self.write(self.was or msgspec.structs.replace(self.row, status=RETRY))
        self._calls.stopped(self._slot)

    def skip(self, status: str = SKIPPED) -> None:
        """It is passed over: the loop gets None."""
        self.write(msgspec.structs.replace(self.row, status=status, ended_us=now_us()))
        self.done = True
        self._calls.succeeded(self._slot, self.row, None, None)

    def write(self, row: CallRow) -> None:
        """Write down what became of it."""
        self.row = self._calls.write(row, self._at)
        self._at = self.row.at

    def _refuse_done(self) -> None:
        if self.done:
            message = f"call {self.row.name!r} has its outcome already"
            raise InvalidInputError(message, hint="look at call.done before making it")
