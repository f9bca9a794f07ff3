"""A Run: a loop that survives. It holds the lease, keeps the journal, and records boundaries as its strategy says.

The order of every step that matters is here. A tool call: *started* is on disk, then the function runs, then the
outcome is on disk, then the loop gets it. A boundary: state, counters and the calls that led there, in one transaction.
A crash between any two leaves a journal from which the same code, run again from the last boundary, is given the
outcomes it had (docs/design/006-runs.md lists the schedules). A write that fails ends the run.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

import msgspec

from backstay.codec import Root, decode, encode_stored
from backstay.errors import BackstayError, FencedError, InDoubtError, InvalidInputError
from backstay.ids import UID_BYTES
from backstay.loops import LoopGuard
from backstay.model import NOTHING, Call, Checkpoint, SessionId, StateDict, Usage
from backstay.port import Ask, CallRow, Decide, LaneRow
from backstay.port.lease import here
from backstay.port.rows import FOR_MESSAGE
from backstay.rules import runs, waiting
from backstay.rules.refusals import Lease, StopAsked
from backstay.run.calling import Calling
from backstay.run.children import ChildMaking, ReplayedJournal, before_end
from backstay.run.counters import Counters, encode_counters, read_counters
from backstay.run.ends import RunCancelled, RunEnded, Waiting, ends, handled_cancellation, interrupts, reason_of
from backstay.run.entering import Entered, enter, going_on
from backstay.run.guard import GuardedLoop
from backstay.run.heartbeat import heartbeat
from backstay.run.options import OnDoubt, OnFailed, check_options
from backstay.run.result_places import places
from backstay.run.state_keeping import StateKeeping
from backstay.run.wait_journal import WaitJournal
from backstay.run.wait_words import reason_for, to_wait
from backstay.sealing import open_value, pack_value
from backstay.store.fields import Given, check_text, decode_usage
from backstay.store.history import History
from backstay.strategy import Event, Moment, Strategy

if TYPE_CHECKING:
    from logging import Logger

    from backstay.run.files import RunFiles, SessionFiles, WriteFound

_NONCE_BYTES = 8


def _log() -> Logger:
    import logging  # noqa: PLC0415 - what is seldom said need not be waited for

    return logging.getLogger("backstay")


class SessionHandle(Protocol):
    """The Session that a run was made by, as far as a run knows it."""

    @property
    def id(self) -> SessionId:
        """Its id."""

    def calls(self, ref: str | Checkpoint = "main", *, pending: bool = False) -> list[Call]:
        """The calls of a checkpoint, or those pending on a branch."""

    def below(self, name: str) -> Any:
        """The session of a child."""


class Run(StateKeeping, ChildMaking):
    """One live execution of a session. Made by `session.run()` or `store.run()`, entered by `with`."""

    def __init__(
        self,
        session: SessionHandle,
        history: History,
        *,
        strategy: Strategy,
        branch: str,
        input: Any,
        restart: bool,
        lease_s: float,
        on_doubt: OnDoubt,
        on_failed: OnFailed,
        loops: LoopGuard | None,
        files: SessionFiles | None = None,
    ) -> None:
        check_options(strategy, lease_s, loops)
        super().__init__(on_doubt=on_doubt, on_failed=on_failed)
        self.session = session
        self._history = history
        self.branch = branch
        self.lease_s = float(lease_s)
        self.state: StateDict = {}
        self.input: Any = input
        self._restart = bool(restart)
        self.resumed, self.iteration = False, 0
        self.head: Checkpoint | None = None
        self.usage = Usage()
        self.resume_hint: str | None = None
        self.crashes = 0
        self._strategy = strategy
        self._loop = GuardedLoop(loops, self._progress)
        self._counters, self._used = Counters(), Usage()
        self._recorded_iteration, self._recorded_at = 0, 0.0
        self.end: RunEnded | None = None
        self._session_files = files
        self.files: RunFiles | None = None
        self.made_elsewhere: Collection[str] | None = None  # see `going_on`
        self._lock = threading.RLock()

    @property
    def stopping(self) -> str | None:
        """The reason, once this run has heard that it is to stop: a long function may look and return early."""
        return self._entered().stop

    @property
    def warning(self) -> str | None:
        """The verdict of the loop guard."""
        return self._loop.warning

    def _progress(self) -> tuple[int, float]:
        """The iterations and the cost since this run began to count."""
        return self.iteration - self._counters.first_iteration, self.usage.cost - self._counters.first_cost

    def __repr__(self) -> str:
        return f"<Run {self.session.id!r} {self.branch} iteration {self.iteration}>"

    # entering and leaving

    def __enter__(self) -> Self:
        if self._calls is None or self._calls.closed:  # recover enters it before
            self.enter()
        return self

    def enter(self, *, expect_token: int | None = None, parent: str | None = None, caller: str = "") -> None:
        """Take the lease and go to the last recorded boundary. `with` does this."""
        if self._calls is not None:
            raise InvalidInputError("this run was entered before", hint="make another: store.run(…)")
        backend, history = self._history.backend, self._history
        intent = runs.Enter(
            session=history.id,
            branch=self.branch,
            uid=secrets.token_bytes(UID_BYTES),
            nonce=secrets.token_bytes(_NONCE_BYTES),
            holder=here(),
            agent=history.agent,
            lease_us=int(self.lease_s * 1_000_000),
            at_us=time.time_ns() // 1000,
            input=None if self.input is None else pack_value(encode_stored(self.input, (Root("input"),))),
            expect_token=expect_token,
            about=history.about,
            restart=self._restart,
            parent=parent,
            caller=caller,
        )
        entered = enter(history, intent, self._session_files)
        calls = self._journal(WaitJournal, entered)
        try:
            self._go_to(entered)
            if self._session_files is not None:
                by = () if self.made_elsewhere is None else going_on(entered.calls, self.made_elsewhere)
                self.files = self._session_files.of_run(self.branch, by=by, is_new=not entered.calls)
        except BaseException as error:
            status, reason = ("failed", reason_of(error)) if isinstance(error, Exception) else (None, None)
            with contextlib.suppress(BackstayError):
                backend.write(runs.leave_ask(calls.lease), runs.leave(calls.lease, status=status, reason=reason))
            raise
        self._calls = calls
        calls.files = self.files
        heartbeat.add(calls)
        for call in self.in_doubt:
            history.events.emit("in_doubt", call)

    def _files_before(self, calling: Calling, *, rolls_back: bool, alone: bool) -> None:
        assert self.files is not None  # noqa: S101 - asked only where there are files
        if rolls_back and calling.was is not None:
            self.files.roll_back(self._history, self.branch, calling.was, self.state)
        try:
            before = self.files.began(calling.row, None if self.in_doubt else self._found, alone=alone)
            if before is not None:  # on disk before anything is changed
                calling.write(msgspec.structs.replace(calling.row, files=before))
        except BaseException:
            calling.withdraw()
            raise

    def _found(self, write: WriteFound) -> None:
        calls = self._entered()
        with calls.writing():
            self.head = write(self.head, encode_counters(self._counters), calls.lease, calls.look)

    def _journal(self, kind: type[WaitJournal], entered: Entered) -> WaitJournal:
        history = self._history
        return kind(
            history.backend,
            history.events,
            entered,
            lease_s=self.lease_s,
            loop=self._loop,
            state=lambda: self.state,
            halt=self.halt,
            cancelled=self._stopped,
            on_fenced=lambda: history.events.emit("fenced", self),
        )

    def enter_ended(self, head: str | None, began_at: str | None) -> None:
        """Be a child that has ended, from the last boundary before its end: it gives what was recorded, and no more."""
        history = self._history
        calls: tuple[CallRow, ...] = ()
        if head is not None:
            self.head, self.state, calls = before_end(history, head, began_at)
            self.usage = self.head.total_usage
        lease = Lease(history.id, self.branch, 0, 0, int(self.lease_s * 1_000_000))
        self._calls = self._journal(ReplayedJournal, Entered(lease, None, LaneRow(self.branch), calls))
        self.resumed = True

    @property
    def token(self) -> int:
        """The number that proves its lease: a later run on the branch has a larger one."""
        return self._entered().lease.token

    def _go_to(self, entered: Entered) -> None:
        """The state of the last recorded boundary, and the counters as they stood there."""
        before = entered.before
        self.resumed = before is not None and (before.unfinished or bool(entered.calls))
        self.crashes = entered.lane.crashes
        kept = None if entered.lane.input is None else decode(open_value(entered.lane.input))
        self.input = kept
        if entered.lane.head is not None:
            found = self._history.load(self.branch)
            fields = self._history.remember(self.branch, found).fields
            assert fields is not None  # noqa: S101 - it was just read
            self.head, self.state = self._history.checkpoint(found.row, fields), found.state
            self.usage = decode_usage(fields.total)
            self.resume_hint = fields.resume_hint
            self._counters = read_counters(fields)
            self.iteration = self._counters.iteration
            if not self.resumed or fields.status == "completed":
                self._counters = Counters(self.iteration, self.iteration, self.usage.cost)
            elif before is None or before.entered:
                self._loop.watch = self._counters.watch
            # A caller who starts it again after it failed or was halted has looked at it: the guard starts again.
        self._recorded_iteration, self._recorded_at = self.iteration, time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.leave(error)

    def leave(self, error: BaseException | None = None) -> bool:
        """End the run as `with` does: normally, or by what was raised. True if that needs to go no further."""
        calls = self._entered()
        ours = ends(error, self)
        try:
            heartbeat.discard(calls)
            if error is None and self.end is None:
                self._complete(calls)
            elif calls.fenced:
                calls.closed = True
            elif self.end is not None and (error is None or ours or self.end.status == "cancelled"):
                self._give_back(calls, self.end.status, self.end.reason)
            elif error is None or interrupts(error, self):
                self._give_back(calls, None, None)
            else:
                self._give_back(calls, "failed", reason_of(error))
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

    def _complete(self, calls: WaitJournal) -> None:
        try:
            calls.refuse_ended()
            with calls.boundary("the run cannot end"):
                unasked = calls.unasked()
                if unasked and calls.stop is None:
                    raise calls.mismatch(unasked)
                if calls.stop is None and self._is_unchanged(calls):
                    self._give_back(calls, "completed", None)
                else:
                    self._record_end(calls)
        except FencedError:
            raise
        except BackstayError as error:
            doubtful = isinstance(error, InDoubtError)
            with contextlib.suppress(BackstayError):  # what is wrong with the store is told already
                self._give_back(calls, None if doubtful else "failed", None if doubtful else reason_of(error))
            raise

    def _record_end(self, calls: WaitJournal) -> None:
        """The last boundary. One that was asked to stop is no completed run, but what it did is recorded."""
        if calls.stop is None:
            try:
                self._record(calls, trigger="completed", status="completed", ends_run=True)
            except StopAsked:
                pass
            else:
                return
        if not calls.unasked():
            self._record(calls, trigger="cancelled")
        self._give_back(calls, "cancelled", calls.stop)

    def _is_unchanged(self, calls: WaitJournal) -> bool:
        if self.head is None or self.head.status.value != "completed" or not calls.nothing_asked():
            return False
        same = (self.iteration, self._used, self.resume_hint) == (
            self._recorded_iteration,
            Usage(),
            self.head.resume_hint,
        )
        return same and self._history.is_at_head(self.branch, self.state)

    def end_with(self, status: str, reason: str) -> None:
        """Leave at once with this status, nothing recorded."""
        calls = self._entered()
        heartbeat.discard(calls)
        self._give_back(calls, status, reason)

    def _give_back(self, calls: WaitJournal, status: str | None, reason: str | None) -> None:
        calls.closed = True
        with calls.heeding_fence():
            ask, rule = self._leaving(calls, status, reason)
            view = self._history.backend.write(ask, rule)
        stopped = view.answer
        if status == "waiting" and stopped is None and view.session is not None:
            for wait in calls.open_waits.values():
                self._history.events.emit("waiting", to_wait(view.session, self.branch, wait.row))
        if stopped is not None and not isinstance(self.end, RunCancelled):
            self.end = RunCancelled(self, stopped)

    def _leaving(self, calls: WaitJournal, status: str | None, reason: str | None) -> tuple[Ask, Decide]:
        at_us, nonce = time.time_ns() // 1000, secrets.token_hex(_NONCE_BYTES)
        if status != "waiting":
            rule = runs.leave(calls.lease, status=status, reason=reason, at_us=at_us, nonce=nonce)
            return runs.leave_ask(calls.lease), rule
        waits = list(calls.open_waits.values())
        sent = min([wait.sent for wait in waits if wait.row.wait and wait.row.wait.what == FOR_MESSAGE], default=0)
        rows = tuple([wait.row for wait in waits])
        left = waiting.Left(calls.lease, rows, reason or "", sent, at_us, nonce)
        return left.ask, waiting.leave(left)

    def end_waiting(self, reason: str) -> Waiting:
        """The end of a run whose framework waits by itself, for `leave`: the session is listed as waiting for this."""
        self.end = self._entered().ended = Waiting(self, reason)
        return self.end

    def _make_waiting(self) -> Waiting:
        rows = [wait.row for wait in self._entered().open_waits.values()]
        self.end = self._entered().ended = Waiting(self, reason_for(rows))
        return self.end

    def halt(self, reason: str) -> NoReturn:
        """End the run: halted, for this reason. No state is recorded; the next run goes on from the last boundary."""
        self._stop("halted", reason)

    def fail(self, reason: str) -> NoReturn:
        """End the run: failed, for this reason."""
        self._stop("failed", reason)

    def pause(self, reason: str = "paused") -> NoReturn:
        """End the run, still in progress: what was recorded stays on its branch for the next one to go on with."""
        self._stop("in_progress", reason)

    def cancel(self, reason: str) -> NoReturn:
        """End the run: cancelled, what is pending given up. The next run begins anew.

        In the handler of an asyncio cancellation it raises that again, so that the task ends as it was told to.
        """
        self._entered().refuse_ended()
        check_text(reason, "reason", required=True)
        end = self._stopped(reason)
        raise handled_cancellation() or end

    def _stopped(self, reason: str) -> RunCancelled:
        """This run is cancelled: what is to be raised."""
        self.end = self._entered().ended = self._entered().leaving = RunCancelled(self, reason)
        return self.end

    def _stop(self, status: str, reason: str) -> NoReturn:
        self._entered().refuse_ended()
        check_text(reason, "reason", required=True)
        self.end = RunEnded(self, status, reason)
        self._entered().ended = self.end
        raise self.end

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
            calls.reported(event)
            try:
                due = calls.stop is not None or self._strategy.due(self._moment(calls, event))
                if due and not calls.unasked():
                    recorded = self._record(calls, trigger=event.value)
            except InvalidInputError:
                self.iteration = before  # nothing was written, and the loop may try again
                raise
        calls.heed_stop()
        self._stop_loops()
        return recorded

    def checkpoint(self, label: str | None = None) -> Checkpoint | None:
        """Record the state here, whatever the strategy says. While recorded calls are unasked: nothing, and `head`."""
        calls = self._entered()
        calls.refuse_ended()
        check_text(label, "label")
        with calls.boundary("'checkpoint' is no boundary"):
            point = self.head if calls.unasked() else self._record(calls, trigger="checkpoint", label=label)
        calls.heed_stop()
        return point

    def _moment(self, calls: WaitJournal, event: Event) -> Moment:
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
        calls: WaitJournal,
        *,
        trigger: str,
        label: str | None = None,
        status: str = "in_progress",
        ends_run: bool = False,
    ) -> Checkpoint:
        if isinstance(calls, ReplayedJournal) and self.head is not None:
            return self.head
        check_text(self.resume_hint, "resume_hint")
        counters = msgspec.structs.replace(self._counters, iteration=self.iteration, watch=self._loop.watch)
        given = Given(
            trigger,
            self._used,
            status,
            step=self.iteration,
            label=label,
            resume_hint=self.resume_hint,
            loop=encode_counters(counters),
        )
        kept = calls.keys_of(places(self.state, calls.results)) if calls.results else {}
        files = None if self.files is None else self.files.boundary()
        with calls.writing():
            point = self._history.write(
                self.branch,
                self.state,
                given,
                expect=NOTHING if self.head is None else self.head.id,
                lease=calls.lease,
                places=kept,
                ends_run=ends_run,
                received=tuple(sorted(calls.received)),
                look=calls.look,
                files=files,
                root=self.head is None and files is not None,  # a rollback may have made a branch before this one
            )
            # Still inside: a run that is interrupted here must not go on from the boundary before.
            calls.taken_in(closed=ends_run)
            if self.files is not None:
                self.files.recorded()
            self.head, self._counters, self._used = point, counters, Usage()
            self._recorded_iteration, self._recorded_at = self.iteration, time.monotonic()
        return point

    def _stop_loops(self) -> None:
        reason = self._loop.heed()
        if reason is not None:
            self.halt(reason)


__all__ = ["Run", "RunCancelled", "RunEnded", "SessionHandle", "Waiting"]
