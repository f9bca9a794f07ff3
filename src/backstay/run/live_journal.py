"""The journal of a live run: what is written when, and what the loop is given.

`begin` is all that comes before a function may run, `Calling.finish` and `give_up` all that comes after; between them
nothing is held. Threads may be inside at once: the lock guards what is held in memory, never a write, so that parallel
calls share their syncs.
"""

from __future__ import annotations

import contextlib
import contextvars
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import msgspec

from backstay.codec import Root, decode, encode_stored
from backstay.delta import Known, advance, know
from backstay.errors import (
    BackstayError,
    ClosedError,
    ConflictError,
    FencedError,
    InDoubtError,
    InvalidInputError,
    MismatchError,
)
from backstay.hints import DECIDE_CALLS, Hint
from backstay.loops import text_of
from backstay.model import Call, StateDict
from backstay.names import check_name
from backstay.port import Ask, Backend, CallKey, CallRow, View
from backstay.port.lease import clock_us
from backstay.port.rows import CUT_OFF, FAILED, IN_DOUBT, RETRY, SKIPPED, STARTED, UNKNOWN
from backstay.rules import runs
from backstay.rules.refusals import StopAsked, fenced, in_doubt
from backstay.rules.runs import Entered
from backstay.run.calling import UNSTORABLE, Calling
from backstay.run.comparing import compared
from backstay.run.guard import GuardedLoop
from backstay.run.journal import Journal, Slot
from backstay.run.options import (
    DIGEST_BYTES,
    VALUE,
    OnDoubt,
    OnFailed,
    OnMismatch,
    call_failed,
    check_choices,
    check_mismatch,
    digest_of,
    doubt,
    not_storable,
    now_us,
    refuse_long,
    shown,
)
from backstay.run.result_places import MIN_BYTES
from backstay.run.state_parts import pack_parts
from backstay.sealing import open_value, pack_value
from backstay.store.events import Events
from backstay.store.fields import check_text, to_call
from backstay.strategy import Event

_GIVE_UP = Hint(
    "run the code that made them, or give them up: session.abandon()",
    "run the code that made them, or give them up: `backstay recover SESSION --abandon`",
)

enclosing: contextvars.ContextVar[tuple[object, str] | None] = contextvars.ContextVar("backstay_call", default=None)


class LiveJournal:
    """The journal of a live run, in memory and on disk; and whether the run may still write."""

    def __init__(
        self,
        backend: Backend,
        events: Events,
        entered: Entered,
        *,
        lease_s: float,
        loop: GuardedLoop,
        state: Callable[[], StateDict],
        halt: Callable[[str], NoReturn],
        cancelled: Callable[[str], BaseException],
        on_fenced: Callable[[], None],
    ) -> None:
        self.lease = entered.lease
        self.lease_s = lease_s
        self.closed = False
        self.fenced = False
        self.ended: BaseException | None = None
        self.stop: str | None = None  # why it was asked to stop
        self.leaving: BaseException | None = None  # raised by whatever is asked of a run that waits or was cancelled
        self.broken: BaseException | None = None
        self.results: dict[str, tuple[Any, bytes]] = {}
        self.tool_calls = self.llm_responses = 0
        self._backend = backend
        self._events = events
        self._loop = loop
        self._state = state
        self._halt = halt
        self._cancelled = cancelled
        self._on_fenced = on_fenced
        self._journal = Journal(entered.calls, token=entered.lease.token)
        self.received = {row.wait.message for row in entered.calls if row.wait and row.wait.message is not None}
        self._known: Known | None = None
        self._renewed_us = clock_us()
        self._lock = threading.RLock()
        self._makes_tools = self._asks_models = False
        self._recording = False

    @contextlib.contextmanager
    def enclosed(self, calling: Calling) -> Iterator[None]:
        """Calls made meanwhile, here and in tasks started here, belong to this one."""
        token = enclosing.set((self, calling.id))
        try:
            yield
        finally:
            enclosing.reset(token)

    # what the run asks

    def refuse_ended(self) -> None:
        """An error if the run may not go on."""
        if self.fenced:
            raise fenced(self.lease)[1]
        if self.broken is not None:
            message = f"this run has ended: a write failed ({self.broken})"
            raise ClosedError(
                message, hint="start it again; it goes on from the last recorded boundary"
            ) from self.broken
        if self.leaving is not None and not self.closed:
            raise self.leaving
        if self.closed or self.ended is not None:
            raise ClosedError("this run has ended", hint="start it again: store.run(…)")

    @contextlib.contextmanager
    def boundary(self, what: str) -> Iterator[None]:
        """Around a boundary. InvalidInputError if a call is being made; none can begin meanwhile."""
        # One that did would go into the checkpoint without its outcome, and no later run would know of the doubt.
        with self._lock:
            names = ["another boundary"] if self._recording else [*map(repr, self._journal.in_flight())]
            if names:
                hint = "wait for parallel calls before a boundary, and make none inside a call"
                raise InvalidInputError(f"{what}: {', '.join(names)} still in flight", hint=hint)
            self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def is_busy(self) -> bool:
        """True while a call that does something is being made, or a boundary recorded."""
        return self._recording or bool(self._journal.in_flight(waits=False))

    def leave_if_idle(self, end: Callable[[], BaseException]) -> bool:
        """Let the run be left for others to go on with, unless it is busy; from then on nothing can begin."""
        # To raise in one task of a group cancels the others: a call in flight there would be in doubt.
        with self._lock:
            if self.leaving is None and not self.is_busy():
                self.leaving = end()
            return self.leaving is not None

    def unasked(self) -> list[CallRow]:
        """Recorded calls that the loop has not asked for yet."""
        with self._lock:
            return self._journal.unasked()

    def nothing_asked(self) -> bool:
        """True if no call was made or given again since the last boundary."""
        return self._journal.is_empty()

    def mismatch(self, unasked: list[CallRow]) -> BackstayError:
        """The error for a loop that ends without asking for what was recorded."""
        names = ", ".join([shown(call) for call in unasked[:8]])
        if any(in_doubt(call, self.lease.token) for call in unasked):
            message = f"the run was to end while calls are in doubt or unasked: {names}"
            return InDoubtError(message, hint=DECIDE_CALLS)
        message = f"the run was to end, and did not ask for calls that were recorded before the crash: {names}"
        return MismatchError(message, hint=_GIVE_UP)

    def doubtful(self) -> list[Call]:
        """The calls in doubt."""
        with self._lock:
            rows = self._journal.doubtful()
        return [to_call(row, status=IN_DOUBT) for row in rows]

    def reported(self, event: Event) -> None:
        """A loop that does not make its calls here says that one is done: a strategy counts it as if it had been."""
        with self._lock:
            self.tool_calls += event is Event.TOOL_CALL_COMPLETE
            self.llm_responses += event is Event.LLM_RESPONSE

    def keys_of(self, places: Mapping[str, bytes]) -> dict[CallKey, bytes]:
        """Places in the state by the keys of the calls whose results stand there."""
        rows = [(self._journal.row(id_), place) for id_, place in places.items()]
        return {row.at: place for row, place in rows if row is not None}

    def taken_in(self, *, closed: bool) -> None:
        """A boundary was recorded."""
        with self._lock:
            self._journal.taken_in()
            self.results.clear()
            self.received.clear()
            self.tool_calls = self.llm_responses = 0
            self.closed = self.closed or closed

    # making a call

    def begin(
        self,
        name: str,
        *,
        key: str | None,
        kind: str,
        args: Any,
        on_doubt: OnDoubt,
        on_failed: OnFailed,
        on_mismatch: OnMismatch = "raise",
        returns: Any = None,
        edited: Any = None,
    ) -> Calling:
        """The recorded outcome of a call, or the word that it may be made. `edited`: the args it was approved with."""
        outer = enclosing.get()
        parent = outer[1] if outer is not None and outer[0] is self else None
        check_name(name, "the name of a call")
        check_text(key, "the key of a call")
        check_choices(on_doubt, on_failed)
        check_mismatch(on_mismatch, kind)
        self.heed_stop()
        slot = parent, name, key
        with self._lock:
            if self._recording:
                raise InvalidInputError(f"call {name!r} cannot begin while a boundary is being recorded")
            data, digest, parts = self._args(args) if kind != VALUE else (None, bytes(DIGEST_BYTES), b"")
            if edited is not None:  # compared by what the code asks for, shown as it is made
                data = self._args(edited)[0]
            nth, recorded = self._journal.begin(slot)
            if recorded is not None:
                again = on_mismatch == "again"
                recorded = compared(recorded, kind, (data, digest, parts), again=again, returns=returns)
                calling = self._find_outcome(recorded, slot, on_doubt, on_failed)
                if calling.done:
                    return calling
                row = self._begun(calling.row)
                calling = Calling(self, row, slot, recorded.at, was=calling.row)
            else:
                self._refuse_doubtful(name, digest, kind)
                reason = self._loop.heed()
                if reason is not None:
                    self._halt(reason)
                id_ = secrets.token_hex(8) if kind != "llm" else self._journal.id_of_model_call((*slot, nth))
                asked = (data, digest, STARTED, self.lease.token, now_us())
                row = CallRow(0, 0, 0, id_, parent, name, key, nth, kind, *asked, parts=parts)
                calling = Calling(self, row, slot, None)
            self._journal.start(slot, row.id)
        try:
            if kind == "tool":
                calling.write(row)
            else:
                self.check_fence()
                self.heed_stop()
        except StopAsked as asked:
            self.stopped(slot)
            raise self._cancelled(asked.reason) from None
        except BaseException:
            self.stopped(slot)
            raise
        return calling

    def _args(self, args: Any) -> tuple[bytes | None, bytes, bytes]:
        """Arguments as they are kept, and the digest by which a replay is compared: of the state, if none are given."""
        if args is None:
            if self._known is None:
                self._known = know(self._state())
            else:
                self._known = advance(self._known, self._state())[2]
            return None, self._known.digest[:DIGEST_BYTES], pack_parts(self._known.tree.children)
        data = encode_stored(args, (Root("args"),))
        refuse_long(data, "args")
        return pack_value(data), digest_of(args), b""

    def _refuse_doubtful(self, name: str, digest: bytes, kind: str) -> None:
        for call in self._journal.doubtful() if kind == "tool" else ():
            if (call.name, call.args_digest) == (name, digest):
                raise doubt(call, self.lease.session)

    def _begun(self, call: CallRow) -> CallRow:
        """A recorded call that this run makes again."""
        blank = {"ended_us": None, "result": None, "error": None}
        return msgspec.structs.replace(call, status=STARTED, token=self.lease.token, started_us=now_us(), **blank)

    def _find_outcome(self, call: CallRow, slot: Slot, on_doubt: OnDoubt, on_failed: OnFailed) -> Calling:
        """A recorded call as the loop gets it: done, or (not done) to be made again because that was decided."""
        if in_doubt(call, self.lease.token):
            call = self._look_again(call)
        if in_doubt(call, self.lease.token):
            calling = self._decide(call, slot, on_doubt)
            # None: it was decided from outside meanwhile.
            return calling or self._find_outcome(call, slot, on_doubt, on_failed)
        calling = Calling(self, call, slot, call.at)
        if call.status in (RETRY, CUT_OFF) or (call.status == FAILED and on_failed == "retry"):
            return calling
        calling.done = True
        if call.status == FAILED:
            self.failed(slot, call)
            raise call_failed(call)
        if call.error is not None and call.error[0] == UNSTORABLE:
            self.unstorable(slot, call)
            raise not_storable(call, call.error[1])
        data = None if call.status in (SKIPPED, UNKNOWN) or call.result is None else open_value(call.result)
        calling.result = None if data is None else decode(data)
        self.succeeded(slot, call, calling.result, data)
        return calling

    def _decide(self, call: CallRow, slot: Slot, on_doubt: OnDoubt) -> Calling | None:
        if on_doubt == "ask":
            raise doubt(call, self.lease.session)
        calling = Calling(self, call, slot, call.at)
        self._journal.start(slot, call.id)  # so that the lease is kept while a function finds out
        try:
            with self.enclosed(calling):  # what it asks to find out belongs to the call, and is not asked again
                said = on_doubt(to_call(call, status=IN_DOUBT)) if callable(on_doubt) else None
            if not self._make_ours(call):
                return None
            if callable(on_doubt):
                calling.finish(said)
            elif on_doubt in ("skip", "unknown"):
                calling.skip(SKIPPED if on_doubt == "skip" else UNKNOWN)
            return calling
        finally:
            self._journal.stop(slot)

    def _make_ours(self, call: CallRow) -> bool:
        """Take a call in doubt for this run to settle; False if it has been decided since it was looked at."""
        with self.writing():
            self._renew()
            try:
                now = self._begun(call)
                settled = runs.settle(self.lease.session, self.lease.branch, before=call, after=now)
                self._backend.write(runs.settle_ask(self.lease.session, self.lease.branch, call.at), settled)
            except ConflictError:
                return False
        return True

    def _look_again(self, recorded: CallRow) -> CallRow:
        """A call may have been decided since this run was entered."""
        now = self._backend.read(Ask(self.lease.session, calls=(recorded.at,))).calls.get(recorded.at)
        if isinstance(now, CallRow) and now.id == recorded.id:
            self._journal.note(now)
            return now
        return recorded

    # what became of it

    def succeeded(self, slot: Slot, row: CallRow, result: Any, data: bytes | None) -> None:
        """A call has an outcome, now or from the journal; `data` is its result as it is stored."""
        with self._lock:
            self.answered(slot, row)
            if row.kind == VALUE:
                return
            if row.kind == "llm":
                self.llm_responses += 1
                self._asks_models = True
            else:
                self.tool_calls += 1
                self._makes_tools = True
            if data is not None and len(data) >= MIN_BYTES:
                self.results[row.id] = result, data
            if self._loop.looks:
                if row.kind == "llm" or not self._asks_models:
                    self._loop.answered(
                        text_of(result) if row.kind == "llm" else f"{row.name} {row.key} {text_of(result)}"
                    )
                if row.kind == "tool" or not self._makes_tools:
                    self._loop.succeeded()
                self._loop.heed()
        self._tell(row)

    def failed(self, slot: Slot, row: CallRow | None) -> None:
        """A call failed, now or according to the journal; a model's failure (None) is not recorded."""
        with self._lock:
            if row is None:
                self._journal.stop(slot)
            else:
                self.answered(slot, row)
                self.tool_calls += 1
                self._makes_tools = True
            self._loop.failed()
            self._loop.heed()
        if row is not None:
            self._tell(row)

    def unstorable(self, slot: Slot, row: CallRow) -> None:
        """A tool was done, and what came out cannot be kept."""
        with self._lock:
            self.answered(slot, row)
            self.tool_calls += 1
            self._makes_tools = True
        self._tell(row)

    def _tell(self, row: CallRow) -> None:
        if self._events.listeners["call"]:
            self._events.emit("call", to_call(row))

    def answered(self, slot: Slot, row: CallRow) -> None:
        """The loop knows the outcome."""
        with self._lock:
            self._journal.stop(slot)
            self._journal.answered(slot, row.id)

    def stopped(self, slot: Slot) -> None:
        """The call is no longer being made, and has no outcome."""
        with self._lock:
            self._journal.stop(slot)

    # writing

    def write(self, row: CallRow, at: CallKey | None) -> CallRow:
        """One line of the journal, on disk when this returns."""
        with self.writing():
            rule = runs.journal(self.lease, row, at=at)
            view = self._backend.write(runs.journal_ask(self.lease, at), rule)
            kept: CallRow = view.answer
            with self._lock:
                self._journal.note(kept)
            self.look(view)
        return kept

    def look(self, view: View) -> None:
        """After each write: was this run asked to stop? It notes that, and goes on to its next call or boundary."""
        lane = view.lanes.get(self.lease.branch)
        if lane is not None and lane.stop is not None and lane.token == self.lease.token:
            self.stop = lane.stop

    def heed_stop(self) -> None:
        """RunCancelled if this run was asked to stop; an error if it may not go on for another reason."""
        self.refuse_ended()
        if self.stop is not None:
            raise self._cancelled(self.stop)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Around every write: a failed write ends the run, because it is not known how much of it is recorded."""
        self.refuse_ended()
        try:
            yield
        except FencedError as error:  # as `heeding_fence` does, without a second context for every call
            self._note_fenced()
            raise fenced(self.lease)[1] from error
        except StopAsked as asked:
            self.stop = asked.reason
            raise
        except BaseException as error:
            if not isinstance(error, InvalidInputError):  # refused before anything was written
                self.broken = error
            raise
        self._renewed_us = clock_us()

    @contextlib.contextmanager
    def heeding_fence(self) -> Iterator[None]:
        """Around every write, the last one too: a fence is noted and told."""
        try:
            yield
        except FencedError as error:
            self._note_fenced()
            raise fenced(self.lease)[1] from error

    def check_fence(self) -> None:
        """Before a model is asked: a run that was silent for as long as its lease may have lost it."""
        if clock_us() - self._renewed_us > self.lease.lease_us * 9 // 10:
            with self.writing():
                self._renew()

    def _renew(self) -> None:
        self.look(self._backend.write(runs.lease_ask(self.lease), runs.renew(self.lease)))

    def beat(self) -> None:
        """Renew while a call takes long; see pulse."""
        # Without the lock: it may be held for as long as a person decides about a call in doubt.
        if self.closed or self.fenced or self.broken is not None or not self._journal.is_busy():
            return
        if clock_us() - self._renewed_us < self.lease.lease_us // 3:
            return
        try:
            self._renew()
            self._renewed_us = clock_us()
        except FencedError:
            self._note_fenced()
        except Exception:  # noqa: BLE001, S110 - a store that does not answer is asked again; a closed one has no run
            pass

    def _note_fenced(self) -> None:
        if not self.fenced:
            self.fenced = True
            self._on_fenced()
