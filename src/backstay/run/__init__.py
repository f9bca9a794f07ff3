"""A Run: a loop that survives. It holds the lease, keeps the journal, and records boundaries as its strategy says.

The order of every step that matters is here. A tool call: *started* is on disk, then the function runs, then the
outcome is on disk, then the loop gets it. A boundary: state, counters and the calls that led there, in one transaction.
A crash between any two leaves a journal from which the same code, run again from the last boundary, is given the
outcomes it had (docs/design/006-runs.md lists the schedules). A write that fails ends the run.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import msgspec

from backstay.backend import CallRow, Entered, Entry
from backstay.codec import Root, decode, encode_stored
from backstay.errors import BackstayError, FencedError, InDoubtError, InvalidInputError
from backstay.loops import LoopGuard, Watch
from backstay.model import Call, Checkpoint, State, Usage
from backstay.run.calling import Calling, Calls
from backstay.run.counters import Counters, encode_counters, read_counters
from backstay.run.keeping import places
from backstay.run.pulse import pulse
from backstay.run.wording import OnDoubt, OnFailed, check_choices, check_options
from backstay.store.fields import Fields, check_text, check_usage, decode_usage, to_call
from backstay.strategy import Event, Moment, Strategy

if TYPE_CHECKING:
    from logging import Logger

    from backstay.store.session import Session

_enclosing: contextvars.ContextVar[tuple[Run, str] | None] = contextvars.ContextVar("backstay_call", default=None)
_REASON_CHARS = 1000


def _log() -> Logger:
    import logging  # noqa: PLC0415 - what is seldom said need not be waited for

    return logging.getLogger("backstay")


class RunEnded(BaseException):
    """Raised by `run.halt`, `run.fail` and `run.pause`, and swallowed by the `with` of their run."""

    def __init__(self, run: Run, status: str, reason: str) -> None:
        super().__init__(f"the run has {status}: {reason}")
        self.run, self.status, self.reason = run, status, reason


class Run:
    """One live execution of a session. Made by `session.run()` or `store.run()`, entered by `with`."""

    def __init__(
        self,
        session: Session,
        *,
        strategy: Strategy,
        branch: str,
        input: Any,
        lease_s: float,
        on_doubt: OnDoubt,
        on_failed: OnFailed,
        loops: LoopGuard | None,
    ) -> None:
        self.session = session
        self.branch = branch
        self.lease_s = lease_s
        self.state: State = {}
        self.input: Any = input
        self.resumed = False
        self.head: Checkpoint | None = None
        self.iteration = 0
        self.usage = Usage()
        self.warning: str | None = None
        self.resume_hint: str | None = None
        self._crashes = 0
        self._strategy = strategy
        self._on_doubt, self._on_failed = on_doubt, on_failed
        self._guard = loops
        self._counters = Counters()
        self._watch = Watch()
        self._used = Usage()
        self._recorded_iteration = 0
        self._recorded_at = 0.0
        self._end: RunEnded | None = None
        self._calls: Calls | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<Run {self.session.id!r} {self.branch} iteration {self.iteration}>"

    # entering and leaving

    def __enter__(self) -> Self:
        if self._calls is None or self._calls.closed:  # recover enters it before
            self._enter()
        return self

    def _enter(self, *, expect_token: int | None = None) -> None:
        """Take the lease and go to the last recorded boundary. `with` does this."""
        if self._calls is not None:
            raise InvalidInputError("this run was entered before", hint="make another: store.run(…)")
        session, backend = self.session, self.session._backend
        entry = Entry(
            session=session.id,
            branch=self.branch,
            agent=session.agent,
            lease_us=int(self.lease_s * 1_000_000),
            at_us=time.time_ns() // 1000,
            input=None if self.input is None else encode_stored(self.input, (Root("input"),)),
            expect_token=expect_token,
        )
        entered = backend.enter(entry)
        calls = Calls(self, backend, entered)
        try:
            self._go_to(entered, calls)
        except BaseException as error:
            failed = isinstance(error, Exception)
            with contextlib.suppress(BackstayError):
                backend.leave(
                    entered.lease, status="failed" if failed else None, reason=_reason(error) if failed else None
                )
            raise
        self._calls = calls
        pulse.add(calls)
        for call in self.in_doubt:
            session._store._emit("in_doubt", call)

    def _go_to(self, entered: Entered, calls: Calls) -> None:
        """The state of the last recorded boundary, and the counters as they stood there."""
        before = entered.before
        self.resumed = before is not None and (before.unfinished or bool(entered.calls))
        self._crashes = entered.run.crashes
        kept = None if entered.run.input is None else decode(entered.run.input)
        if self.input is not None and kept != self.input:
            _log().warning("%r goes on with the input it was begun with, not the one given now", self)
        self.input = kept
        if entered.head_id is not None:
            self.head, self.state, fields = self.session._stand_at(self.branch, entered.head_id)
            self.usage = decode_usage(fields.total)
            self.resume_hint = fields.resume_hint
            self._counters = read_counters(fields)
            self.iteration = self._counters.iteration
            calls.stand_at(self.head.sequence)
            if not self.resumed or fields.status == "completed":
                self._counters = Counters(self.iteration, self.iteration, self.usage.cost)
            elif before is None or before.entered:
                self._watch = self._counters.watch
            # Whoever starts it again after it had failed or was halted has looked at it: the guard begins anew.
        self._recorded_iteration, self._recorded_at = self.iteration, time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._leave(error)

    def _leave(self, error: BaseException | None = None) -> bool:
        """End the run as `with` does: normally, or by what was raised. True if that needs to go no further."""
        calls = self._entered()
        ours = isinstance(error, RunEnded) and error.run is self
        try:
            pulse.discard(calls)
            if error is None and self._end is None:
                self._complete(calls)
            elif calls.fenced:
                calls.closed = True
            elif self._end is not None and (error is None or ours):
                self._give_back(calls, self._end.status, self._end.reason)
            elif isinstance(error, InDoubtError) or not isinstance(error, Exception):
                self._give_back(calls, None, None)
            else:
                self._give_back(calls, "failed", _reason(error))
        except BackstayError:
            if error is None or ours:
                raise
            _log().warning("%r could not give its lease back", self, exc_info=True)
        except BaseException:  # interrupted while it was leaving: the lease is not kept for that
            with contextlib.suppress(BackstayError):
                self._give_back(calls, None, None)
            raise
        finally:
            calls.closed = True
        return ours

    def _complete(self, calls: Calls) -> None:
        try:
            calls.refuse_ended()
            with calls.boundary("the run cannot end"):
                unasked = calls.unasked()
                if unasked:
                    raise calls.mismatch(unasked)
                if self._is_unchanged(calls):
                    self._give_back(calls, "completed", None)
                else:
                    self._record(calls, trigger="completed", status="completed", ends_run=True)
        except FencedError:
            raise
        except BackstayError as error:
            doubtful = isinstance(error, InDoubtError)
            with contextlib.suppress(BackstayError):  # what is wrong with the store is told already
                self._give_back(calls, None if doubtful else "failed", None if doubtful else _reason(error))
            raise

    def _is_unchanged(self, calls: Calls) -> bool:
        if self.head is None or self.head.status.value != "completed" or not calls.nothing_asked():
            return False
        same = (self.iteration, self._used, self.resume_hint) == (
            self._recorded_iteration,
            Usage(),
            self.head.resume_hint,
        )
        return same and self.session._is_at_head(self.branch, self.state)

    def _end_with(self, status: str, reason: str) -> None:
        """Leave at once with this status, nothing recorded."""
        calls = self._entered()
        pulse.discard(calls)
        self._give_back(calls, status, reason)

    def _give_back(self, calls: Calls, status: str | None, reason: str | None) -> None:
        calls.closed = True
        with calls.heeding_fence():
            self.session._backend.leave(calls.lease, status=status, reason=reason)

    def halt(self, reason: str) -> NoReturn:
        """End the run: halted, for this reason. No state is recorded; the next run goes on from the last boundary."""
        self._stop("halted", reason)

    def fail(self, reason: str) -> NoReturn:
        """End the run: failed, for this reason."""
        self._stop("failed", reason)

    def pause(self, reason: str = "paused") -> NoReturn:
        """End the run, still in progress: what was recorded stays on its branch for the next one to go on with."""
        self._stop("in_progress", reason)

    def _stop(self, status: str, reason: str) -> NoReturn:
        self._entered().refuse_ended()
        check_text(reason, "reason", required=True)
        self._end = RunEnded(self, status, reason)
        self._entered().ended = self._end
        raise self._end

    def _entered(self) -> Calls:
        if self._calls is None:
            raise InvalidInputError("this run was not entered", hint="use it as: with store.run(…) as run:")
        return self._calls

    # calls

    @property
    def in_doubt(self) -> list[Call]:
        """The calls of which nobody knows whether they happened; they came from a crash."""
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
    ) -> Any:
        """The outcome of `fn()`, journaled: given again after a crash, not made again. See docs/runs.md."""
        calling = self._begin(name, key=key, kind=kind, args=args, on_doubt=on_doubt, on_failed=on_failed)
        if calling.done:
            return calling.result
        with self._enclosed(calling):
            try:
                value = fn()
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
        calling = self._begin(name, key=key, kind=kind, args=args, on_doubt=on_doubt, on_failed=on_failed)
        with self._enclosed(calling):
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

    def _begin(
        self,
        name: str,
        *,
        key: str | None = None,
        kind: str = "tool",
        args: Any = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
    ) -> Calling:
        """The first half of `call`: the recorded outcome, or the word that the function may run now."""
        outer = _enclosing.get()
        return self._entered().begin(
            name,
            parent=outer[1] if outer is not None and outer[0] is self else None,
            key=key,
            kind=kind,
            args=args,
            on_doubt=on_doubt or self._on_doubt,
            on_failed=on_failed or self._on_failed,
        )

    @contextlib.contextmanager
    def _enclosed(self, calling: Calling) -> Iterator[None]:
        """Calls made meanwhile, here and in tasks started here, belong to this one."""
        token = _enclosing.set((self, calling.id))
        try:
            yield
        finally:
            _enclosing.reset(token)

    def append(self, message: Any, part: str = "messages") -> None:
        """Add a message to a list in the state."""
        items = self.state.setdefault(part, [])
        if type(items) is not list:
            message_ = f"state[{part!r}] is a {type(items).__name__}, not a list"
            raise InvalidInputError(message_, hint="append(message, part=…) names the list to add to")
        items.append(message)

    def use(self, *, tokens_in: int = 0, tokens_out: int = 0, cost: float = 0.0, **extra: Any) -> None:
        """Count what was used since the last boundary; other numbers go to `usage.extra`."""
        tasks = extra.pop("tasks_completed", 0)
        used = check_usage(
            {"tokens_in": tokens_in, "tokens_out": tokens_out, "cost": cost, "tasks_completed": tasks, "extra": extra}
        )
        with self._lock:
            self._used += used
            self.usage += used

    # boundaries

    def step(self) -> Checkpoint | None:
        """One iteration is done: a boundary. The checkpoint, if the strategy had one recorded."""
        return self.event(Event.ITERATION)

    def event(self, event: Event) -> Checkpoint | None:
        """A boundary reported by a loop that someone else drives; the state must be one to start from."""
        try:
            event = Event(event)
        except ValueError:
            raise InvalidInputError(f"{event!r} is not an event", hint=f"one of {', '.join(Event)}") from None
        calls = self._entered()
        calls.refuse_ended()
        recorded, before = None, self.iteration
        with calls.boundary(f"{event.value!r} is no boundary"):
            self.iteration += event is Event.ITERATION
            try:
                if not calls.unasked() and self._strategy.due(self._moment(calls, event)):
                    recorded = self._record(calls, trigger=event.value)
            except InvalidInputError:
                self.iteration = before  # nothing was written, and the loop may try again
                raise
        self._stop_loops()
        return recorded

    def checkpoint(self, label: str | None = None) -> Checkpoint | None:
        """Record the state here, whatever the strategy says. While recorded calls are unasked: nothing, and `head`."""
        calls = self._entered()
        calls.refuse_ended()
        check_text(label, "label")
        with calls.boundary("'checkpoint' is no boundary"):
            return self.head if calls.unasked() else self._record(calls, trigger="checkpoint", label=label)

    def _moment(self, calls: Calls, event: Event) -> Moment:
        return Moment(
            event=event,
            iteration=self.iteration,
            recorded_iteration=self._recorded_iteration,
            tool_calls=calls.tool_calls,
            llm_responses=calls.llm_responses,
            elapsed_s=time.monotonic() - self._recorded_at,
        )

    def _record(
        self,
        calls: Calls,
        *,
        trigger: str,
        label: str | None = None,
        status: str = "in_progress",
        ends_run: bool = False,
    ) -> Checkpoint:
        check_text(self.resume_hint, "resume_hint")
        counters = msgspec.structs.replace(self._counters, iteration=self.iteration, watch=self._watch)

        def fields(parent: Fields | None) -> Fields:
            return self.session._fields(
                parent,
                self.state,
                branch=self.branch,
                trigger=trigger,
                status=status,
                step=self.iteration,
                label=label,
                used=self._used,
                resume_hint=self.resume_hint,
                loop=encode_counters(counters),
            )

        kept = places(self.state, calls.results) if calls.results else {}
        with calls.writing():
            point = self.session._write(
                self.branch,
                self.state,
                fields,
                expect=None if self.head is None else self.head.id,
                lease=calls.lease,
                kept=kept,
                ends_run=ends_run,
            )
            # Still inside: a run that is interrupted here must not go on from the boundary before.
            calls.taken_in(point.sequence, closed=ends_run)
            self.head, self._counters, self._used = point, counters, Usage()
            self._recorded_iteration, self._recorded_at = self.iteration, time.monotonic()
        return point

    def _stop_loops(self) -> None:
        halt = self._heed()
        if halt is not None:
            self.halt(halt)

    def _heed(self) -> str | None:
        """Let the guard look at what was seen: `warning` is its word to the loop; the reason to stop is returned."""
        if self._guard is None:
            return None
        verdict = self._guard.verdict(
            self._watch,
            iteration=self.iteration - self._counters.first_iteration,
            cost=self.usage.cost - self._counters.first_cost,
        )
        self.warning = verdict.warning
        return verdict.halt

    def _tell(self, event: str, row: CallRow | None) -> None:
        """Let who listens to the store know."""
        store = self.session._store
        if store._listeners[event]:
            store._emit(event, self if row is None else to_call(row))


def _reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"[:_REASON_CHARS]
    return text.encode("utf-8", "replace").decode()


def make(
    session: Session,
    *,
    strategy: Strategy,
    branch: str,
    input: Any,
    lease_s: float,
    on_doubt: OnDoubt,
    on_failed: OnFailed,
    loops: LoopGuard | None,
) -> Run:
    """A run that is yet to be entered; InvalidInputError for options that cannot be."""
    check_options(strategy, lease_s, loops)
    check_choices(on_doubt, on_failed)
    return Run(
        session,
        strategy=strategy,
        branch=branch,
        input=input,
        lease_s=float(lease_s),
        on_doubt=on_doubt,
        on_failed=on_failed,
        loops=loops,
    )
