"""The waits of a run as its loop makes them: for a person, for a time, for a message.

A wait that has its outcome gives it. Any other leaves the run: `Waiting` goes up through the loop, the `with` swallows
it, the lease is free and the process may end. A later run of the same code comes to the same wait and gets the outcome.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from backstay.codec import decode
from backstay.errors import InvalidInputError
from backstay.port.rows import FOR_ANSWER, FOR_APPROVAL, FOR_MESSAGE, FOR_TIME
from backstay.run.call_making import CallMaking
from backstay.run.ends import Waiting
from backstay.run.wait_journal import ABSENT, Due, OpenWait, WaitOutcome
from backstay.sealing import open_value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_SECONDS = 100 * 365 * 86_400.0
_IDLE_LOOK_S = 0.01

SLEEP = "sleep"  # the name of a wait for time


class WaitMaking(CallMaking):
    """What a loop waits for. A Run is one that has a state, a lease and boundaries too."""

    def wait(
        self,
        name: str,
        ask: Any = None,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        default: Any = ABSENT,
        hold_s: float = 0.0,
    ) -> Any:
        """The value that someone gives with `session.answer(name, value)`. Until then the run is left, waiting.

        `ask` is shown to whoever answers, and the answer is bound to it. After `timeout_s` it is `default`, or a
        CallFailedError of type "timed_out"; a rejection is one of type "rejected". `hold_s`: stay that long first.
        """
        return self._wait_for(self.begin_wait(name, ask, key=key, timeout_s=timeout_s, default=default), hold_s)

    def sleep(self, seconds: float | None = None, *, until: datetime | None = None, hold_s: float = 0.0) -> None:
        """Go on after some seconds, or at a moment, by the calendar; the run is left meanwhile."""
        self._wait_for(self.begin_sleep(seconds, until=until), hold_s)

    def receive(
        self,
        name: str,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        default: Any = ABSENT,
        hold_s: float = 0.0,
    ) -> Any:
        """The next message of that name: each is received once, in the order in which they were sent."""
        return self._wait_for(self.begin_receive(name, key=key, timeout_s=timeout_s, default=default), hold_s)

    # the first halves

    def begin_wait(
        self, name: str, ask: Any = None, *, key: str | None, timeout_s: float | None, default: Any
    ) -> WaitOutcome | OpenWait:
        """The first half of `wait`: its outcome, or that it is open."""
        due = Due(_seconds(timeout_s, "timeout_s"))
        return self._entered().begin_wait(name, key=key, what=FOR_ANSWER, args=ask, due=due, default=default)

    def begin_receive(
        self, name: str, *, key: str | None, timeout_s: float | None, default: Any
    ) -> WaitOutcome | OpenWait:
        """The first half of `receive`."""
        due = Due(_seconds(timeout_s, "timeout_s"))
        return self._entered().begin_wait(name, key=key, what=FOR_MESSAGE, due=due, default=default)

    def begin_sleep(self, seconds: float | None, *, until: datetime | None) -> WaitOutcome | OpenWait:
        """The first half of `sleep`."""
        if (seconds is None) == (until is None):
            raise InvalidInputError("sleep takes seconds or until, one of them", hint="run.sleep(60)")
        if until is None:
            due = Due(_seconds(seconds, "seconds"))
        elif until.tzinfo is None:
            raise InvalidInputError("until must be a datetime with a time zone", hint="datetime.now(UTC) + …")
        else:
            due = Due(moment_us=(until - _EPOCH) // timedelta(microseconds=1))
        return self._entered().begin_wait(SLEEP, key=None, what=FOR_TIME, due=due)

    def begin_approval(self, name: str, *, key: str | None, args: Any) -> WaitOutcome | OpenWait:
        """The first half of the approval of a call, bound to its args."""
        return self._entered().begin_wait(name, key=key, what=FOR_APPROVAL, args=args, due=Due())

    # the second half

    def _wait_for(self, wait: WaitOutcome | OpenWait, hold_s: float = 0.0) -> Any:
        if isinstance(wait, WaitOutcome):
            return wait.value
        given = self.hold(wait, hold_s)
        if given is not None:
            return given.value
        while not self.leave_waiting():  # its parallel calls come to their end first
            time.sleep(_IDLE_LOOK_S)
        raise self.left()

    def hold(self, wait: OpenWait, hold_s: float) -> WaitOutcome | None:
        """Stay for a while, and give what comes in that time."""
        return self._entered().hold(wait, _seconds(hold_s, "hold_s") or 0.0)

    def leave_waiting(self) -> bool:
        """Let the run be left for what it waits for; False while a call is in flight."""
        return self._entered().leave_if_idle(self._make_waiting)

    def approved_args(self, wait: WaitOutcome) -> Any:
        """The args that were approved instead of those asked for; None if none were."""
        edited = None if wait.row.wait is None else wait.row.wait.args
        return None if edited is None else decode(open_value(edited))

    def _approve(self, name: str, key: str | None, args: Any) -> Any:
        given = self.begin_approval(name, key=key, args=args)
        if isinstance(given, OpenWait):
            self._wait_for(given)
        assert isinstance(given, WaitOutcome)  # noqa: S101 - an open one leaves the run
        return self.approved_args(given)

    def left(self) -> BaseException:
        """Raised by a run that is left."""
        leaving = self._entered().leaving
        assert leaving is not None  # noqa: S101 - set before
        return leaving

    def _make_waiting(self) -> Waiting:
        raise NotImplementedError


def _seconds(value: object, what: str) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= _MAX_SECONDS:  # type: ignore[operator]
        raise InvalidInputError(f"{what} must be a number of seconds from 0 to {_MAX_SECONDS:,.0f}, not {value!r:.40}")
    return float(value)  # type: ignore[arg-type]
