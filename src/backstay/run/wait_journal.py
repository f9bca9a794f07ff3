"""The waits of a live run: how one is written down, what gives it its outcome, and what is left open when it is left.

An answer, a message or the time of a wait may come while the run is alive, or long after it was left: `begin` looks the
same for both. Of an answer and a timeout at one moment the first that is written counts.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from backstay.codec import Root, decode, encode_stored
from backstay.errors import ConflictError, CorruptionError, InvalidInputError
from backstay.hints import RUN_VERIFY
from backstay.names import check_name
from backstay.port import Ask, CallRow, Kind
from backstay.port.rows import (
    DONE,
    FOR_ANSWER,
    FOR_APPROVAL,
    FOR_CHILD,
    FOR_MESSAGE,
    FOR_TIME,
    INBOX,
    TIMED_OUT,
    WAIT,
    WAITING,
    CallWait,
    wait_slot,
)
from backstay.rules import runs
from backstay.rules.refusals import StopAsked
from backstay.run.calling import Calling
from backstay.run.journal import Slot
from backstay.run.live_journal import LiveJournal, enclosing
from backstay.run.options import DIGEST_BYTES, OnDoubt, call_failed, changed, child_ended, now_us, refuse_long
from backstay.sealing import open_value, pack_value
from backstay.store.fields import check_text, to_datetime

_PAGE_ROWS = 100
_LOOK_S = 0.3  # how often a run that holds on looks, where nothing tells it


class Absent:
    """The mark for a default that was not given, because None is one."""

    def __repr__(self) -> str:
        return "…"


ABSENT = Absent()


class OpenWait(msgspec.Struct):
    """A wait without an outcome. `sent`: how many messages its branch had been sent when it was looked at."""

    row: CallRow
    slot: Slot
    default: Any = ABSENT
    sent: int = 0


class WaitOutcome(msgspec.Struct, frozen=True):
    """The outcome of a wait."""

    row: CallRow
    value: Any


class CallWatch(Protocol):
    """Sees the files that a call changes."""

    def ended(self, call: CallRow) -> None:
        """A call has its outcome."""

    def left(self, call_id: str) -> None:
        """A call is no longer being made, and has none."""


class WaitJournal(LiveJournal):
    """A live journal with its waits. `open_waits` are those that the run would be left for."""

    files: CallWatch | None = None

    def _decide(self, call: CallRow, slot: Slot, on_doubt: OnDoubt) -> Calling | None:
        """A call that is to be rolled back is made again, if it can be: the run puts its files back before it is.

        It cannot where the row has no files, and where a call made inside it is done: that one is not made again.
        """
        if on_doubt == "rollback":
            can = self.files is not None and call.files is not None and not self._journal.encloses(call.id)
            on_doubt = "retry" if can else "ask"
        return super()._decide(call, slot, on_doubt)

    def succeeded(self, slot: Slot, row: CallRow, result: Any, data: bytes | None) -> None:
        """A call has an outcome; its files are looked at once that is on disk."""
        super().succeeded(slot, row, result, data)
        if self.files is not None:
            self.files.ended(row)

    def failed(self, slot: Slot, row: CallRow | None) -> None:
        """A call failed; a tool that fails may have changed files all the same."""
        super().failed(slot, row)
        if self.files is not None and row is not None:
            self.files.ended(row)

    def stopped(self, slot: Slot) -> None:
        """The call is no longer being made, and has no outcome."""
        id_ = self._journal.flying(slot)
        super().stopped(slot)
        if self.files is not None and id_ is not None:
            self.files.left(id_)

    def unstorable(self, slot: Slot, row: CallRow) -> None:
        """A tool was done, and what came out cannot be kept."""
        super().unstorable(slot, row)
        if self.files is not None:
            self.files.ended(row)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.open_waits: dict[Slot, OpenWait] = {}
        self._inbox: dict[str, deque[CallRow]] = {}
        self._inbox_read = -1

    def begin_wait(
        self,
        name: str,
        *,
        key: str | None,
        what: str,
        args: Any = None,
        due: Due,
        default: Any = ABSENT,
        note: bytes | None = None,
    ) -> WaitOutcome | OpenWait:
        """The outcome of a wait if it has one by now; otherwise it is on disk, with a `note`, and open."""
        row, slot, is_new = self._find_wait(name, key, what, args)
        wait = OpenWait(row if note is None or not is_new else msgspec.structs.replace(row, result=note), slot, default)
        try:
            if is_new:
                self._write_new(wait, due)
            given = self.settle(wait)
        except StopAsked as asked:
            self.stopped(slot)
            raise self._cancelled(asked.reason) from None
        except BaseException:
            self.stopped(slot)
            raise
        if given is None:
            self.open_waits[slot] = wait
            return wait
        return given

    def _find_wait(self, name: str, key: str | None, what: str, args: Any) -> tuple[CallRow, Slot, bool]:
        outer = enclosing.get()
        if outer is not None and outer[0] is self:
            message = f"wait {name!r} inside the function of a call: that call would be left in doubt"
            raise InvalidInputError(message, hint="ask before the call: approve=True, or run.wait first")
        check_name(name, "the name of a wait")
        check_text(key, "the key of a wait")
        self.heed_stop()
        slot = None, wait_slot(name), key
        bound = what == FOR_APPROVAL or (what in (FOR_ANSWER, FOR_CHILD) and args is not None)
        with self._lock:
            if self._recording:
                raise InvalidInputError(f"wait {name!r} cannot begin while a boundary is being recorded")
            data, digest, parts = self._args(args) if bound else (None, bytes(DIGEST_BYTES), b"")
            nth, row = self._journal.begin(slot)
            if row is None:
                new = CallRow(
                    *(0, 0, 0, secrets.token_hex(8), None, name, key, nth, WAIT, data, digest, WAITING),
                    *(self.lease.token, now_us()),
                    parts=parts,
                    wait=CallWait(what),
                )
            elif row.args_digest != digest or (row.wait is not None and row.wait.what != what):
                raise changed(row, WAIT, digest, data, parts)
            self._journal.start(slot, (row or new).id)
        return row or new, slot, row is None

    def _write_new(self, wait: OpenWait, due: Due) -> None:
        """A wait that was never asked for. A message that is there already is received with the same write."""
        view = self._backend.read(Ask(self.lease.session, names=(self.lease.branch,)))
        row = wait.row
        assert row.wait is not None  # noqa: S101 - it is a wait
        row = msgspec.structs.replace(row, wait=msgspec.structs.replace(row.wait, due_us=due.at_us(view.wall_us)))
        if row.wait is not None and row.wait.what == FOR_MESSAGE:
            lane = view.lanes.get(self.lease.branch)
            wait.sent = 0 if lane is None else lane.sent
            row = self._received(row) or row
        kept = self._write_wait(row, is_new=True)
        assert kept is not None  # noqa: S101 - of a new one nothing can have been decided
        wait.row = kept

    def settle(self, wait: OpenWait) -> WaitOutcome | None:
        """The outcome of a wait, if it has one by now."""
        while wait.row.status == WAITING:
            before = wait.row
            view = self._backend.read(Ask(self.lease.session, names=(self.lease.branch,), calls=(before.at,)))
            now = view.calls.get(before.at)
            if not isinstance(now, CallRow) or now.id != before.id:
                raise CorruptionError(f"wait {before.name!r} ({before.id}) is missing", hint=RUN_VERIFY)
            wait.row = now
            if now.status != WAITING:
                break
            lane = view.lanes.get(self.lease.branch)
            after = self._outcome(now, wait, sent=0 if lane is None else lane.sent, wall_us=view.wall_us)
            if after is None:
                return None
            wait.row = self._write_wait(after, is_new=False) or now  # else it was answered in this very moment
        return WaitOutcome(wait.row, self._give(wait))

    def _outcome(self, row: CallRow, wait: OpenWait, *, sent: int, wall_us: int) -> CallRow | None:
        """A wait with what came of it here: a message, or its time."""
        what, due_us = ("", None) if row.wait is None else (row.wait.what, row.wait.due_us)
        if what == FOR_MESSAGE:
            wait.sent = sent  # before the inbox is looked through: what comes later makes the run ready
            received = self._received(row)
            if received is not None:
                return received
        if due_us is None or wall_us < due_us:
            return None
        if what == FOR_TIME:
            return msgspec.structs.replace(row, status=DONE, ended_us=now_us())
        if isinstance(wait.default, Absent):
            error = "timed_out", f"nothing came before {to_datetime(due_us):%Y-%m-%d %H:%M:%S} UTC"
            return msgspec.structs.replace(row, status=TIMED_OUT, error=error, ended_us=now_us())
        data = encode_stored(wait.default, (Root("default"),))
        refuse_long(data, "default")
        return msgspec.structs.replace(row, status=TIMED_OUT, result=pack_value(data), ended_us=now_us())

    def _received(self, row: CallRow) -> CallRow | None:
        """A wait with the first message of its name that no call has received."""
        with self._lock:
            message = self._next_message(row.name)
            if message is None:
                return None
            self.received.add(message.n)
        wait = CallWait(FOR_MESSAGE, None if row.wait is None else row.wait.due_us, message=message.n)
        return msgspec.structs.replace(row, status=DONE, result=message.result, wait=wait, ended_us=now_us())

    def _next_message(self, name: str) -> CallRow | None:
        place = self.lease.run, INBOX
        while not self._inbox.get(name):
            page: Sequence[Any] = self._backend.scan(
                self.lease.session, Kind.CALL, after=(*place, self._inbox_read), limit=_PAGE_ROWS
            )
            for message in page:
                key = message.at if isinstance(message, CallRow) else message.key
                if key[:2] != place:
                    return None
                if not isinstance(message, CallRow):
                    raise CorruptionError(f"session {self.lease.session!r}: a message is damaged", hint=RUN_VERIFY)
                self._inbox_read = message.n
                if message.n not in self.received:
                    self._inbox.setdefault(message.name, deque()).append(message)
            if not page:
                return None
        return self._inbox[name].popleft()

    def _write_wait(self, row: CallRow, *, is_new: bool) -> CallRow | None:
        """A wait, or its outcome, on disk; None if it was decided from outside meanwhile."""
        at = None if is_new else row.at
        with self.writing():
            try:
                view = self._backend.write(runs.journal_ask(self.lease, at), runs.journal(self.lease, row, at=at))
            except ConflictError:
                return None
            kept: CallRow = view.answer
            with self._lock:
                self._journal.note(kept)
            self.look(view)
        return kept

    def _give(self, wait: OpenWait) -> Any:
        row = wait.row
        with self._lock:
            self._journal.note(row)
            self.answered(wait.slot, row)
            self.open_waits.pop(wait.slot, None)
        self._tell(row)
        if row.error is not None:
            raise child_ended(row) if row.wait is not None and row.wait.what == FOR_CHILD else call_failed(row)
        return None if row.result is None else decode(open_value(row.result))

    def finish_wait(self, wait: OpenWait, row: CallRow) -> None:
        """Give a wait its outcome from here: a child has ended."""
        wait.row = self._write_wait(row, is_new=False) or row
        with self._lock:
            self.answered(wait.slot, wait.row)
            self.open_waits.pop(wait.slot, None)
        self._tell(wait.row)

    def forget_wait(self, wait: OpenWait) -> None:
        """It is no longer waited for here; what is recorded of it stays."""
        self.stopped(wait.slot)
        self.open_waits.pop(wait.slot, None)

    def hold(self, wait: OpenWait, hold_s: float) -> WaitOutcome | None:
        """Stay for a while, and give what comes in that time."""
        until = time.monotonic() + hold_s
        while (left_s := until - time.monotonic()) > 0:
            since = self._backend.changes()
            given = self.settle(wait)
            if given is not None:
                return given
            self.heed_stop()
            self._backend.wait(min(left_s, _LOOK_S), since=since)
        return None


class Due(msgspec.Struct, frozen=True):
    """When a wait ends by itself: after some seconds, at a moment, or never."""

    seconds: float | None = None
    moment_us: int | None = None

    def at_us(self, wall_us: int) -> int | None:
        """That moment by the calendar, for a wait that begins now."""
        if self.seconds is None:
            return self.moment_us
        return wall_us + int(self.seconds * 1_000_000)
