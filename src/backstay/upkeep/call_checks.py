"""Journaled calls looked at: whether each can be read and means something, and whether it is where it belongs.

A call that is damaged costs no state; but one that is pending keeps every run from its branch, because to make it again
might be to do it twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from backstay.codec import decode, encode_canonical
from backstay.digest import DIGEST_BYTES
from backstay.errors import CorruptionError, InvalidInputError, UnavailableError
from backstay.hints import Hint
from backstay.model import Problem, SessionId, StateDict, counted
from backstay.names import check_name
from backstay.port import Ask, Backend, CallRow, CheckpointRow, JournalKey, Kind, LaneRow, Unreadable
from backstay.port.rows import (
    ABANDONED,
    CANCELLED,
    CUT_OFF,
    DONE,
    FAILED,
    FOR_ANSWER,
    FOR_APPROVAL,
    FOR_CHILD,
    FOR_MESSAGE,
    FOR_TIME,
    IN_DOUBT,
    INBOX,
    MESSAGE,
    REJECTED,
    RETRY,
    SENT,
    SKIPPED,
    STARTED,
    TIMED_OUT,
    UNKNOWN,
    WAIT,
    WAITING,
    CallWait,
    Took,
)
from backstay.run.options import VALUE
from backstay.run.result_places import at_place
from backstay.sealing import MAX_ROW_BYTES, open_value
from backstay.store.fields import check_text, to_call
from backstay.upkeep.pages import pages

_DELETE = Hint(
    "session.delete() of the checkpoint it was made on, or of the branch",
    "`backstay delete SESSION REF` of the checkpoint it was made on, or of the branch",
)
_NOTHING_OR_DELETE = Hint(
    "nothing, or session.delete() of that checkpoint: the work goes on without it",
    "nothing, or `backstay delete SESSION REF` of that checkpoint: the work goes on without it",
)

UNREADABLE = (CorruptionError, InvalidInputError, UnavailableError)

_STATUSES = frozenset({CUT_OFF, STARTED, IN_DOUBT, DONE, FAILED, SKIPPED, UNKNOWN, RETRY, ABANDONED})
_STATUSES_BY_KIND = {
    "tool": _STATUSES,
    "llm": _STATUSES,
    VALUE: _STATUSES,
    WAIT: frozenset({WAITING, DONE, FAILED, REJECTED, TIMED_OUT, ABANDONED, CANCELLED}),
    MESSAGE: frozenset({SENT}),
}
_AWAITED = frozenset({FOR_ANSWER, FOR_APPROVAL, FOR_TIME, FOR_MESSAGE, FOR_CHILD})
_MAX_TIMES = 2**31
_MEANINGLESS = (ValueError, TypeError, ArithmeticError)


def check_call(call: CallRow) -> None:
    """CorruptionError or InvalidInputError if no run could have written this."""
    check_name(call.id, "a call id")
    check_name(call.name, "the name of a call")
    if call.parent is not None:
        check_name(call.parent, "a call id")
    if call.status not in _STATUSES_BY_KIND.get(call.kind, ()) or (call.kind == MESSAGE) != (call.journal == INBOX):
        raise CorruptionError(f"it is a call of kind {call.kind[:20]!r}, {call.status[:20]!r}")
    if not 0 <= call.nth < _MAX_TIMES or not 0 < len(call.args_digest) <= DIGEST_BYTES or call.token < 0:
        raise CorruptionError("its numbers cannot be")
    texts = [call.key, *(call.error or ())]
    for text in texts:
        check_text(text, "a text of a call")
    if sum([len(text) for text in texts if text]) > MAX_ROW_BYTES or len(call.place or b"") > MAX_ROW_BYTES:
        raise CorruptionError("it is larger than a call may be")
    if call.result is not None and call.place is not None:
        raise CorruptionError("it has two results")
    for data in (call.args, call.result, call.partial):
        check_value(data)
    _check_wait(call.kind, call.wait)
    try:
        to_call(call)
    except _MEANINGLESS as error:
        raise CorruptionError(f"it means nothing: {error}") from error


def _check_wait(kind: str, wait: CallWait | None) -> None:
    if (wait is None) != (kind != WAIT):
        raise CorruptionError("it does not say what it waits for")
    if wait is not None:
        if (
            wait.what not in _AWAITED
            or not -(2**62) < (wait.due_us or 0) < 2**62
            or not 0 <= (wait.message or 0) < 2**32
        ):
            raise CorruptionError("what it waits for cannot be")
        check_text(wait.by, "the name of who answered")
        check_value(wait.args)


def check_value(data: bytes | None) -> None:
    """CorruptionError or InvalidInputError if these bytes are not a packed value that could be stored."""
    if data is not None:
        encode_canonical(decode(open_value(data)))


def said(error: Exception) -> str:
    """The message of an error, without its hint."""
    return str(error.args[0]) if error.args else str(error)


class _Journal:
    """The calls under one journal, summed up."""

    __slots__ = ("count", "places", "rows", "why")

    def __init__(self, calls: Iterable[CallRow | Unreadable] = ()) -> None:
        self.count = self.rows = 0
        self.why: str | None = None  # the first thing that is wrong with one of them
        self.places: list[bytes] = []
        for call in calls:
            self.add(call)

    def add(self, call: CallRow | Unreadable) -> None:
        at = call.at if isinstance(call, CallRow) else call.key
        n = at[2] if isinstance(at, tuple) else 0
        if n != self.count and not (isinstance(at, tuple) and at[1] == INBOX):  # messages that were received are gone
            self.why = self.why or "a journaled call is missing"
        self.count = n + 1
        self.rows += 1
        if isinstance(call, Unreadable):
            self.why = self.why or call.why
            return
        try:
            check_call(call)
        except UNREADABLE as error:
            self.why = self.why or said(error)
        if call.place is not None:
            self.places.append(call.place)

    def misfit(self, count: int, state: StateDict | None = None) -> str | None:
        """Why these are not the calls that there must be: so many, with results that stand in the state."""
        if self.why is not None or self.count != count:
            return self.why or f"{counted(count, 'call')} must be there, and {self.count} can be read"
        try:
            for place in self.places if state is not None else ():
                at_place(state or {}, place)
        except CorruptionError as error:
            return said(error)
        return None


class CallCheck:
    """The journal of one session, read once; what seems wrong is read again before it is told."""

    def __init__(self, backend: Backend, session: str) -> None:
        self._backend = backend
        self._session = session
        self._journals: dict[JournalKey, _Journal] = {}
        self.problems: list[Problem] = []

    def read(self) -> None:
        """Read all calls."""
        try:
            for page in pages(self._backend, self._session, Kind.CALL):
                for call in page:
                    at = call.at if isinstance(call, CallRow) else call.key  # type: ignore[union-attr]
                    if isinstance(at, tuple):
                        self._journals.setdefault(at[:2], _Journal()).add(call)  # type: ignore[arg-type]
        except UNREADABLE as error:
            cost = "of those behind it, only what is pending or was taken in was checked"
            self._tell(f"its journal cannot be read to its end: {said(error)}", cost, "run verify again")

    def runs_at(self, journal: int) -> list[int]:
        """The runs that have calls under this number and that no checkpoint or branch has asked for so far."""
        return [run for run, number in self._journals if number == journal]

    def taken(self, row: CheckpointRow, state: StateDict | None) -> None:
        """The calls that belong to a checkpoint; those that it took in against its state, if that can be read."""
        for took in () if row.took is None else row.took.each:
            self._taken(row, took, state if took.left is None else None)

    def _taken(self, row: CheckpointRow, took: Took, state: StateDict | None) -> None:
        at = took.run, took.journal
        journal = self._journals.pop(at, None)
        if journal is not None and journal.misfit(took.count, state) is None:
            return
        try:
            view = self._backend.read(Ask(self._session, sequences=(row.sequence,), journals=(at,)))
            if row.sequence not in view.checkpoints:
                return  # deleted since it was listed
            why = _Journal(view.journals.get(at, ())).misfit(took.count, state)
        except UNREADABLE as error:
            why = said(error)
        if why is not None:
            what = f"checkpoint {row.id[:12]}: a call that it took in cannot be read: {why}"
            cost = "its state is not touched by this; its calls cannot be listed, and it cannot be exported"
            self._tell(what, cost, _NOTHING_OR_DELETE)

    def pending(self, lane: LaneRow) -> None:
        """The pending calls of a branch, and those that a restore parked."""
        if not lane.run:
            return
        self._messages(lane, self._journals.pop((lane.run, INBOX), None))
        journal = self._journals.pop((lane.run, lane.journal), None)
        parked = None if lane.undo_journal is None else self._journals.pop((lane.run, lane.undo_journal), None)
        try:
            check_value(lane.input)
            if _pending_misfit(lane, journal or _Journal()) is None and _parked_misfit(lane, parked) is None:
                return
            self._look_again(lane)
        except UNREADABLE as error:
            self._tell_pending(lane.name, said(error))

    def _messages(self, lane: LaneRow, inbox: _Journal | None) -> None:
        """The messages of a branch that none of its runs has received."""
        found = inbox or _Journal()
        if found.why is None and found.rows >= lane.inbox:
            return
        view = self._backend.read(Ask(self._session, names=(lane.name,), journals=((lane.run, INBOX),)))
        now, found = view.lanes.get(lane.name), _Journal(view.journals.get((lane.run, INBOX), ()))
        if now is None or now.run != lane.run or (found.why is None and found.rows >= now.inbox):
            return  # another process went on there
        why = found.why or f"{counted(now.inbox, 'message')} must be there, and {found.rows} can be read"
        what = f"branch {lane.name!r}: messages that were sent to it cannot be read: {why}"
        self._tell(what, "they are lost, and an export is an error", _DELETE)

    def _look_again(self, before: LaneRow) -> None:
        name, parked = before.name, () if before.undo_journal is None else ((before.run, before.undo_journal),)
        view = self._backend.read(Ask(self._session, names=(name,), pending=(name,), journals=parked))
        lane = view.lanes.get(name)
        if lane is None or (lane.journal, lane.undo_journal) != (before.journal, before.undo_journal):
            return  # another process went on there
        why = _pending_misfit(lane, _Journal(view.pending.get(name, ())))
        if why is not None:
            self._tell_pending(name, why)
        why = _parked_misfit(lane, _Journal(view.journals.get(parked[0], ())) if parked else None)
        if why is not None:
            cost = "an undo cannot take it up again, and an export is an error"
            remedy = _DELETE
            self._tell(f"branch {name!r}: a call that a restore parked cannot be read: {why}", cost, remedy)

    def rest(self) -> None:
        """The calls that no checkpoint recorded and no branch waits for."""
        damaged = [journal.why for journal in self._journals.values() if journal.why is not None]
        if damaged and not self.problems:
            what = f"a call that no checkpoint took in cannot be read: {damaged[0]}"
            remedy = _DELETE
            self._tell(what, "an export is an error", remedy)

    def _tell_pending(self, branch: str, why: str) -> None:
        what = f"branch {branch!r}: what is pending cannot be read: {why}"
        cost = "no run can go on there, lest a call be made twice; checkpoints are not touched by this"
        self._tell(what, cost, _give_up(branch))

    def _tell(self, what: str, cost: str, remedy: str) -> None:
        self.problems.append(Problem(what=what, session_id=SessionId(self._session), cost=cost, remedy=remedy))


def _pending_misfit(lane: LaneRow, journal: _Journal) -> str | None:
    """Why these are not the calls that are pending: no fewer than there were when a run last said."""
    fewer = f"{counted(lane.calls, 'call')} must be there, and {journal.count} can be read"
    return journal.why or (fewer if journal.count < lane.calls else None)


def _parked_misfit(lane: LaneRow, parked: _Journal | None) -> str | None:
    count = 0 if lane.undo_journal is None else lane.undo_calls
    return (parked or _Journal()).misfit(count)


def _give_up(branch: str) -> Hint:
    return Hint(
        f"find out what was done, then session.abandon({branch!r}, reason=…)",
        f"find out what was done, then `backstay recover SESSION --branch {quote(branch)} --abandon`",
    )
