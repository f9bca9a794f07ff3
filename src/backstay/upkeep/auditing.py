"""Journals looked at: call by call, whether it can be read and means something, and whether it is in its place.

`Arriving` is shown the journal of a session that comes in a file, and refuses what no run could have written.
`Recheck` reads that of a session in the store again, for verify. A call that is damaged costs no state; but one that is
pending keeps every run from its branch, because to make it again might be to do it twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from backstay.backend import (
    ABANDONED,
    DONE,
    FAILED,
    IN_DOUBT,
    MAX_ROW_BYTES,
    RETRY,
    SKIPPED,
    STARTED,
    Backend,
    CallRow,
    Journaled,
    Kept,
    RunRow,
)
from backstay.codec import decode, encode_canonical
from backstay.errors import BackstayError, CorruptionError, InvalidInputError, NotFoundError, UnavailableError
from backstay.names import check_name
from backstay.model import Problem, SessionId, StateDict
from backstay.run.result_places import at_place
from backstay.store.fields import to_call
from backstay.upkeep.journals import Arrived, Took

_STATUSES = frozenset({STARTED, IN_DOUBT, DONE, FAILED, SKIPPED, RETRY, ABANDONED})
_KINDS = frozenset({"tool", "llm"})
_MAX_NUMBER = 2**62
_MAX_TIMES = 2**31
_MAX_DIGEST_BYTES = 32

_UNREADABLE = (CorruptionError, InvalidInputError, UnavailableError)
_MEANINGLESS = (ValueError, TypeError, ArithmeticError)


def check_call(call: CallRow) -> None:
    """CorruptionError or InvalidInputError if no run could have written this."""
    check_name(call.id, "a call id")
    check_name(call.name, "the name of a call")
    if call.parent is not None:
        check_name(call.parent, "a call id")
    if call.status not in _STATUSES or call.kind not in _KINDS:
        message = f"it is a call of kind {call.kind[:20]!r}, {call.status[:20]!r}"
        raise CorruptionError(message)
    if not 0 <= call.nth < _MAX_TIMES or not 0 < len(call.args_digest) <= _MAX_DIGEST_BYTES:
        raise CorruptionError("its numbers cannot be")
    if _weight(call) > MAX_ROW_BYTES:
        raise CorruptionError("it is larger than a call may be")
    if call.result is not None and call.place is not None:
        raise CorruptionError("it has two results")
    for data in (call.args, call.result):
        check_value(data)
    try:
        to_call(call)
    except _MEANINGLESS as error:
        message = f"it means nothing: {error}"
        raise CorruptionError(message) from error


def _weight(call: CallRow) -> int:
    values = [call.args, call.result, call.place]
    texts = [call.key, *(call.error or ())]
    return sum([len(data) for data in values if data is not None]) + sum([len(text) for text in texts if text])


def check_value(data: bytes | None) -> None:
    """CorruptionError or InvalidInputError if these bytes are not a value that could be stored."""
    if data is not None:
        encode_canonical(decode(data))


class Arriving:
    """The journal of one session as it comes: in blocks, among the checkpoints whose calls it has."""

    def __init__(self) -> None:
        self._branches: dict[int, str] = {}  # of each run that has a branch
        self._awaited: dict[str, Took] = {}  # by checkpoints that are yet to come
        self._taken: dict[Took, bool] = {}  # whether the checkpoint has come
        self._groups: dict[Took, list[CallRow]] = {}  # of which the checkpoint, or the end, is yet to come
        self._ids: set[str] = set()

    def take(self, arrived: Arrived) -> None:
        """The next block."""
        for row in arrived.runs:
            self._take_run(row)
        for id_, took in arrived.took:
            check_name(id_, "a checkpoint id")
            if id_ in self._awaited or took in self._taken:
                raise CorruptionError(f"checkpoint {id_[:12]!r}: its calls are taken in twice")
            self._awaited[id_] = took
            self._taken[took] = False
        for journaled in arrived.calls:
            try:
                self._take_call(journaled)
            except BackstayError as error:
                raise CorruptionError(f"call {journaled.call.id[:24]!r}: {error}") from error

    def _take_run(self, row: RunRow) -> None:
        check_name(row.branch, "a branch")
        if not 0 < row.run < _MAX_NUMBER or row.run in self._branches or row.branch in self._branches.values():
            raise CorruptionError(f"the run on branch {row.branch[:64]!r} comes twice, or has no number")
        if len(row.input or b"") > MAX_ROW_BYTES:
            raise CorruptionError(f"the input of the run on branch {row.branch[:64]!r} is larger than one may be")
        check_value(row.input)
        self._branches[row.run] = row.branch

    def _take_call(self, journaled: Journaled) -> None:
        call, took = journaled.call, (journaled.run, journaled.after)
        if not 0 < journaled.run < _MAX_NUMBER or not 0 <= journaled.after < _MAX_NUMBER:
            raise CorruptionError("its numbers cannot be")
        if call.id in self._ids:
            raise CorruptionError("it comes twice")
        if self._taken.get(took):
            raise CorruptionError("it comes after the checkpoint that took it in")
        if took not in self._taken and journaled.run not in self._branches:
            raise CorruptionError("its run is not here")
        check_call(call)
        self._ids.add(call.id)
        self._groups.setdefault(took, []).append(call)

    def show(self, kept: Kept, *, branch: str, stood: int | None, state: StateDict) -> None:
        """A checkpoint has come. `stood` is the sequence of the one it was committed on, None if that is gone."""
        took = self._awaited.pop(kept.row.id, None)
        if took is None:
            return
        run, after = took
        self._taken[took] = True
        group = self._groups.pop(took, [])
        if not group:
            raise CorruptionError("it took in calls that do not come")
        if after >= kept.row.sequence or (stood is not None and after != stood):
            raise CorruptionError("it took in calls that were not made on the checkpoint before it")
        if self._branches.get(run, branch) != branch:
            raise CorruptionError("it took in the calls of another branch")
        _check_family(group)
        for call in group:
            if call.place is not None:
                at_place(state, call.place)

    def finish(self, sequences: Collection[int]) -> None:
        """No more comes. `sequences` is those of the checkpoints that came."""
        if self._awaited:
            raise CorruptionError(f"calls were taken in by checkpoint {next(iter(self._awaited))[:12]!r}, not here")
        for (_, after), group in self._groups.items():
            if after and after not in sequences:
                raise CorruptionError(f"call {group[0].id[:24]!r} was made on a checkpoint that is not here")
            if any(call.place is not None for call in group):
                raise CorruptionError("a call stands in a state, and no checkpoint took it in")
            _check_family(group)


def _check_family(group: Iterable[CallRow]) -> None:
    """No call is inside itself, and no two are the same that a run would have to tell apart."""
    parents = {call.id: call.parent for call in group}
    told = [(call.parent, call.name, call.key, call.nth) for call in group if call.status != ABANDONED]
    if len(set(told)) != len(told):
        raise CorruptionError("two of its calls cannot be told apart")
    rooted: set[str | None] = {None}
    for id_ in parents:
        path: list[str | None] = []
        at: str | None = id_
        while at not in rooted and at in parents:
            path.append(at)
            rooted.add(at)
            at = parents[at]
        if at in path:
            raise CorruptionError(f"call {id_[:24]!r} was made inside itself")


class Recheck:
    """The journal of a session in the store, read again."""

    def __init__(self, backend: Backend, session: str) -> None:
        self._backend = backend
        self._session = session
        self.problems: list[Problem] = []

    def taken_by(self, id_: str, state: StateDict | None) -> None:
        """The calls that a checkpoint took in; against its state, if that can be read."""
        try:
            for journaled in self._backend.calls(self._session, id_):
                check_call(journaled.call)
                if journaled.call.place is not None and state is not None:
                    at_place(state, journaled.call.place)
        except NotFoundError:
            return  # deleted since it was listed
        except _UNREADABLE as error:
            what = f"checkpoint {id_[:12]}: a call that it took in cannot be read: {_said(error)}"
            cost = "its state is not touched by this; session.calls() of it is an error, and so is an export"
            self._tell(what, cost, "nothing, or session.delete() of that checkpoint: the work goes on without it")

    def between(self) -> None:
        """The runs, what is pending on their branches, and then all that is left."""
        before = len(self.problems)
        try:
            branches = [row.branch for row in self._backend.runs(self._session)]
        except _UNREADABLE as error:
            self._tell(f"its runs cannot be read: {_said(error)}", "none of them can go on", "session.abandon(branch)")
            return
        for branch in branches:
            self._pending_on(branch)
        if len(self.problems) > before:
            return
        try:
            for journaled in self._backend.entries(self._session):
                check_call(journaled.call)
        except NotFoundError:
            return
        except _UNREADABLE as error:
            if not self.problems:
                what = f"a call that no checkpoint took in cannot be read: {_said(error)}"
                cost = "an undo cannot take it up again, and an export is an error"
                self._tell(what, cost, "session.delete() of the checkpoint it was made on, or of the branch")

    def _pending_on(self, branch: str) -> None:
        try:
            found = self._backend.pending(self._session, branch)
            check_value(None if found.run is None else found.run.input)
            for journaled in found.calls:
                check_call(journaled.call)
        except NotFoundError:
            return
        except _UNREADABLE as error:
            what = f"branch {branch!r}: what is pending cannot be read: {_said(error)}"
            cost = "no run can go on there, lest a call be made twice; checkpoints are not touched by this"
            self._tell(what, cost, f"find out what was done, then session.abandon({branch!r}, reason=…)")

    def _tell(self, what: str, cost: str, remedy: str) -> None:
        self.problems.append(Problem(what=what, session_id=SessionId(self._session), cost=cost, remedy=remedy))


def _said(error: Exception) -> str:
    return str(error.args[0]) if error.args else str(error)
