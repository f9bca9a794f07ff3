"""Children: a run inside a run, on a session of its own. To its parent it is one journaled call.

The call is a wait: it is never in doubt, because the child has a journal of its own and is resumed. A child that waits
or is cancelled does that to its parent, too. One that ended is not made again: the code of its block is replayed from
what the child recorded, and can do nothing new.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from backstay.codec import Root, decode, encode_stored
from backstay.errors import MismatchError
from backstay.model import Checkpoint, StateDict, Usage
from backstay.names import check_name
from backstay.port import Ask, Backend, CallKey, CallRow
from backstay.port.rows import DONE, FAILED, FOR_CHILD
from backstay.run.ends import RunCancelled, Waiting, ends, interrupts
from backstay.run.options import child_ended, now_us, text_of_error
from backstay.run.result_places import at_place
from backstay.run.streaming import StreamMaking
from backstay.run.wait_journal import Due, OpenWait, WaitJournal, WaitOutcome
from backstay.sealing import open_value, pack_value
from backstay.store.history import History
from backstay.store.overview import calls_taken

if TYPE_CHECKING:
    from backstay.run import Run

_IDLE_LOOK_S = 0.01


class ReplayedJournal(WaitJournal):
    """The journal of a child that has ended: it gives what was recorded, and writes nothing."""

    def write(self, row: CallRow, at: CallKey | None) -> CallRow:  # noqa: ARG002 - the same for every call
        """Refuse a call that was not recorded."""
        raise self._other(row.name)

    def check_fence(self) -> None:
        """A model that was not asked then is not asked now."""
        raise self._other("a model")

    def _write_wait(self, row: CallRow, *, is_new: bool) -> CallRow | None:  # noqa: ARG002 - as `write`
        raise self._other(row.name)

    def _other(self, name: str) -> MismatchError:
        message = f"child {self.lease.session!r} has ended, and now asks for {name!r}, which it did not ask for then"
        return MismatchError(message, hint="the block of a child must do the same when it is run again from its state")


class ChildCall(msgspec.Struct):
    """A child that is being run: its Run, and the wait that it is to its parent."""

    run: Any
    wait: OpenWait | None
    began_at: str | None  # the head of the child when it was called


class ChildMaking(StreamMaking):
    """The children of a run. A Run is one that has a state, a lease and boundaries too."""

    session: Any
    branch: str
    head: Any
    _history: History

    @contextlib.contextmanager
    def child(self, name: str, *, input: Any = None) -> Iterator[Run]:
        """A run on session `<id>/<name>`, linked to this one: `with run.child("research", input=…) as sub:`.

        Its usage is counted here, once. If it waits, this run waits; a child that failed or was halted is a
        ChildEndedError.
        """
        begun = self.begin_child(name, input)
        try:
            yield begun.run
        except BaseException as error:  # noqa: BLE001 - raised again, or as what it is to the parent
            raised = self.end_child(begun, error)
            if raised is None:
                while not self.leave_waiting():
                    time.sleep(_IDLE_LOOK_S)
                raise self.left() from None
            raise raised from (None if raised is error else error)
        raised = self.end_child(begun, None)
        if raised is not None:
            raise raised

    def begin_child(self, name: str, input: Any) -> ChildCall:
        """The first half of `child`: the run of the child, entered; or what it recorded, if it has ended."""
        check_name(name, "the name of a child")
        below = self.session.below(name)
        before = below.head(self.branch)
        note = pack_value(encode_stored({"from": None if before is None else before.id}, (Root("child"),)))
        found = self._entered().begin_wait(name, key=None, what=FOR_CHILD, args=input, due=Due(), note=note)
        if isinstance(found, WaitOutcome):
            return self._replay(below, found.value, input)
        assert found.row.result is not None  # noqa: S101 - written with it
        began_at = decode(open_value(found.row.result))["from"]
        try:
            caller, is_over = _called_by(self._history.backend, below.id, self.branch)
            if is_over and caller == found.row.id:
                # The child came to its end, and its parent died before it could say so.
                return self._replay(below, self._record_child(found, below.head(self.branch), began_at), input)
            self._fork(below, name)
            run = below.run(branch=self.branch, input=input, restart=caller != found.row.id)
            run.enter(parent=self.session.id, caller=found.row.id)
        except BaseException:
            self._entered().forget_wait(found)
            raise
        return ChildCall(run, found, began_at)

    def _fork(self, below: Any, name: str) -> None:
        """On a branch of its own the parent goes on with the child as it was at the fork."""
        known = below.branches()
        if self.head is None or not known or self.branch in known:
            return
        for point in self.session.log(self.head):
            for call in reversed(self.session.calls(point)):
                if (call.kind, call.name, call.status) == ("wait", name, "done") and isinstance(call.result, dict):
                    below.fork(call.result["head"], self.branch)
                    return

    def _replay(self, below: Any, value: dict[str, Any], input: Any) -> ChildCall:
        """A run that gives what a child recorded which has ended; its usage counts here."""
        run = below.run(branch=self.branch, input=input)
        run.enter_ended(value["head"], value["from"])
        self._count(Usage(**value["usage"]))
        return ChildCall(run, None, value["from"])

    def end_child(self, begun: ChildCall, error: BaseException | None) -> BaseException | None:
        """The second half: the child is left as its block was, and its parent told. None for an error: wait."""
        run = begun.run
        if begun.wait is None:
            return error
        run.leave(error)
        end = run.end
        if isinstance(end, RunCancelled):
            return self._stopped(end.reason)
        if error is None:
            self._count(Usage(**self._record_child(begun.wait, run.head, begun.began_at)["usage"]))
            return None
        if isinstance(end, Waiting) and ends(error, run):
            return None
        if not ends(error, run) and interrupts(error, run):
            return error
        kind, text = (end.status, end.reason) if end is not None else (type(error).__qualname__, text_of_error(error))
        row = begun.wait.row
        failed = msgspec.structs.replace(row, status=FAILED, error=(kind, text), result=None, ended_us=now_us())
        self._entered().finish_wait(begun.wait, failed)
        return child_ended(failed)

    def _record_child(self, wait: OpenWait, head: Any, began_at: str | None) -> dict[str, Any]:
        used: dict[str, Any] = {}
        if head is not None:
            below = self.session.below(wait.row.name)
            before = Usage() if began_at is None else below.checkpoint(began_at).total_usage
            used = _used_between(before, head.total_usage)
        value = {"head": None if head is None else head.id, "from": began_at, "usage": used}
        data = pack_value(encode_stored(value, (Root("child"),)))
        done = msgspec.structs.replace(wait.row, status=DONE, result=data, ended_us=now_us())
        self._entered().finish_wait(wait, done)
        return value

    def _count(self, used: Usage) -> None:
        raise NotImplementedError

    def _stopped(self, reason: str) -> RunCancelled:
        raise NotImplementedError


def before_end(history: History, head: str, began_at: str | None) -> tuple[Checkpoint, StateDict, tuple[CallRow, ...]]:
    """The end of a child: its last checkpoint, the state it went on from, and the calls that led to the end."""
    row = history.refs.row(head)
    point, state = history.checkpoint(row), history.state_of(row)
    if point.trigger != "completed" or head == began_at:
        return point, state, ()
    calls = []
    for call in calls_taken(history.backend, history.id, row):
        result = call.result if call.place is None else pack_value(encode_stored(at_place(state, call.place)))
        calls.append(msgspec.structs.replace(call, result=result, place=None))
    start = {} if row.parent_id is None else history.state_of(history.refs.row(row.parent_id))
    return point, start, tuple(calls)


def _used_between(before: Usage, after: Usage) -> dict[str, Any]:
    """The usage that came between two totals, as fields of a Usage."""
    extra = {
        key: value - before.extra.get(key, 0) if isinstance(value, int | float) else value
        for key, value in after.extra.items()
    }
    return {
        "tokens_in": after.tokens_in - before.tokens_in,
        "tokens_out": after.tokens_out - before.tokens_out,
        "cost": after.cost - before.cost,
        "tasks_completed": after.tasks_completed - before.tasks_completed,
        "extra": extra,
    }


def _called_by(backend: Backend, session: str, branch: str) -> tuple[str, bool]:
    """The call of its parent that the last run of a child was made for, and whether that run has ended."""
    lane = backend.read(Ask(session, names=(branch,))).lanes.get(branch)
    return ("", False) if lane is None else (lane.caller, not lane.unfinished and not lane.entered)
