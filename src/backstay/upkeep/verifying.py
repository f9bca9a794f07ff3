"""Verification: everything read again and compared with its digests, session by session, in one pass.

A history is paged through in order and each delta is done to the state before it, so that a checkpoint costs what
changed in it; of the lines that are open at a time the states are kept. A keyframe is decoded and compared as well. A
row that does not fit is read once more by itself, as of one moment, before it is told: a deletion may have come
between. All that fails because of the same damage belongs to one problem. Calls, names and counts are read along
(call_checks, name_checks). Nothing raised by damage leaves this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from backstay.delta.replay import Replay, stand_on
from backstay.errors import CorruptionError, NotFoundError
from backstay.hints import SALVAGE
from backstay.ids import sequence_of
from backstay.model import CheckpointId, Problem, SessionId, VerifyReport, counted
from backstay.port import Ask, Backend, CheckpointRow, Kind, SessionQuery, SessionRow, Unreadable
from backstay.rules import refusals
from backstay.sealing import open_delta, open_keyframe, spilled, unspill
from backstay.store.fields import read_fields
from backstay.store.reading import Loaded, load
from backstay.upkeep.call_checks import UNREADABLE, CallCheck, said
from backstay.upkeep.deletion import sweep
from backstay.upkeep.group_checks import GroupCheck
from backstay.upkeep.name_checks import Listed, NameCheck, read_names, targets
from backstay.upkeep.pages import Keyframes, pages, row_key
from backstay.upkeep.progress import Progress
from backstay.upkeep.states import Pieces, Tips

_SESSIONS_PAGE = 1000
_TIPS = 32  # lines whose state is kept at hand
_TIPS_BYTES = 64 * 1024 * 1024
_PIECES_BYTES = 32 * 1024 * 1024


def verify(
    backend: Backend, *, session: str | None = None, repair: bool = False, progress: Progress | None = None
) -> VerifyReport:
    """Read everything again, or one session; with `repair`, remove what is provably useless and mend what led to it."""
    repaired = [*sweep(backend), *backend.tend(repair=True)] if repair else []
    problems: list[Problem] = []
    lines = _lines(backend, problems) if session is None else _line(backend, session, problems)
    total, done = sum([line.checkpoints for line in lines]), 0
    forgotten: dict[bytes, int] = {}
    for line in lines:
        check = _SessionCheck(backend, line, repair=repair)
        for count in check.run():
            if progress is not None:
                progress(done + count, max(total, done + count))
        done += check.checked
        problems += check.problems()
        repaired += check.repaired
        forgotten |= check.groups.forgotten
    if progress is not None:
        progress(done, done)
    given_up = sum(forgotten.values())
    return VerifyReport(problems=tuple(problems), checked=done, repaired=tuple(repaired), forgotten=given_up)


# which sessions


def _line(backend: Backend, session: str, problems: list[Problem]) -> list[SessionRow]:
    """One session, if its line can be read."""
    try:
        line = backend.read(Ask(session)).session
    except UNREADABLE as error:
        cost = "its checkpoints were not checked"
        problems.append(_problem(session, said(error), cost=cost, remedy="verify the whole store"))
        return []
    if line is None:
        raise refusals.no_session(session)[1]
    return [line]


def _lines(backend: Backend, problems: list[Problem]) -> list[SessionRow]:
    """Pages and indexes are checked first; then all sessions, or as far as the list can be read."""
    try:
        problems += backend.check()
    except UNREADABLE as error:
        problems.append(Problem(what=said(error), cost="pages and indexes were not checked to their end"))
    found: list[SessionRow] = []
    before: int | None = None
    limit = _SESSIONS_PAGE
    while True:
        try:
            page = backend.sessions(SessionQuery(before=before, limit=limit))
        except UNREADABLE as error:
            if limit > 1:
                limit = 1  # as near to the damage as can be
                continue
            what = f"the list of sessions cannot be read: {said(error)}"
            problems.append(
                Problem(what=what, cost="a session there was not checked", remedy="restore it from an export")
            )
            before, limit = _behind(backend, before), _SESSIONS_PAGE
            if before is None:
                return found
            continue
        if not page:
            return found
        found += page
        before = page[-1].touched


def _behind(backend: Backend, before: int | None) -> int | None:
    """From where the list of sessions can be read again, behind one that cannot be; None if nowhere."""
    low, high = 0, before
    try:
        high = backend.read(Ask("")).fresh if high is None else high
        while high - low > 1:
            middle = (low + high) // 2
            try:
                backend.sessions(SessionQuery(before=middle, limit=1))
                low = middle
            except UNREADABLE:
                high = middle
    except UNREADABLE:
        return None
    return low or None


# one session


class _Damage:
    """One thing that is broken, and the checkpoints that it reaches."""

    __slots__ = ("after", "before", "lost", "root", "what")

    def __init__(self, root: int, before: int | None, what: str) -> None:
        self.root = root
        self.before = before
        self.what = what
        self.lost: list[int] = []
        self.after: str | None = None  # the first one behind it that can be read again


class _SessionCheck:
    """One session on its way through a verification."""

    def __init__(self, backend: Backend, line: SessionRow, *, repair: bool) -> None:
        self._backend = backend
        self._line = line
        self._session = line.id
        self._repair = repair
        self._tips = Tips(count=_TIPS, size_bytes=_TIPS_BYTES)
        self._pieces = Pieces(backend, size_bytes=_PIECES_BYTES)
        self._keyframes = Keyframes(backend, line.id)
        self.groups = GroupCheck(backend, line.id)
        self._calls = CallCheck(backend, line.id)
        self._listed = Listed(())
        self._ids: dict[int, str] = {}  # of checkpoints that are lost
        self._damages: list[_Damage] = []
        self._reached: dict[int, _Damage] = {}  # those lost, and those with a broken record to spare
        self._others: list[Problem] = []
        self._is_there = True
        self.repaired: list[str] = []
        self.checked = 0

    def run(self) -> Iterator[int]:
        """Check all; after each page, say how many were."""
        try:
            _, names = read_names(self._backend, self._session)
            self._listed = Listed({at for row in names for at in targets(row)})
            self._calls.read()
            try:
                for page in pages(self._backend, self._session, Kind.CHECKPOINT):
                    for row in page:
                        if isinstance(row, CheckpointRow | Unreadable):
                            self._check(row)
                    yield self.checked
            except UNREADABLE as error:
                self._listed.error = error
            check = NameCheck(self._backend, self._line, self._listed, self._calls, repair=self._repair)
            self._is_there = check.run()
            self._others += check.problems
            self.repaired += check.repaired
            self._calls.rest()
            self._others += self.groups.problems()
        except NotFoundError:
            self._is_there = False  # deleted since it was listed
        except UNREADABLE as error:
            self._listed.error = error
        if self._listed.error is not None:
            cost = f"only {counted(self.checked, 'checkpoint')} could be read and checked"
            self._others.append(_problem(self._session, said(self._listed.error), cost=cost, remedy="run verify again"))

    def problems(self) -> list[Problem]:
        """The problems found, one for each damage; nothing of a session that was deleted meanwhile."""
        if not self._is_there:
            return []
        return [self._told(damage) for damage in self._damages] + self._others + self._calls.problems

    # a row

    def _check(self, row: CheckpointRow | Unreadable) -> None:
        self.checked += 1
        self._listed.add(row)
        if isinstance(row, Unreadable):
            self._lose(int(row.key), row.parent, row.why)  # type: ignore[arg-type]
            return
        if row.parent in self._reached and row.parent_id and sequence_of(row.parent_id, self._line.uid) == row.parent:
            self._ids[row.parent] = row.parent_id
        state = None
        try:
            tip = self._replayed(row, self._keyframes.find(row.sequence) if row.keyframe else None)
            self._tips.put(row.sequence, tip, row.size_bytes)
            read_fields(row)
        except UNREADABLE:
            self._look_closer(row)
        else:
            state = tip.state
            if row.parent in self._listed.lost:
                self._intact_again(row)
        if row.took is not None:
            self._calls.taken(row, state)

    def _replayed(self, row: CheckpointRow, keyframe: bytes | None) -> Replay:
        """The state of a checkpoint by each of its records, all of which must give its digest."""
        tip, uid = None, self._line.uid
        if row.delta and row.parent is not None:
            tip = self._tips.take(row.parent) or self._read(row.parent)[1]
            data = unspill(row.delta, self._parts(row.delta))
            delta = open_delta(data, uid=uid, tail=row.tail, base=tip.digest, state=row.state_digest)
            self.groups.seen(delta.refs)
            tip.follow(delta, self._pieces.of(delta.refs) if delta.refs else {})
            if tip.digest != row.state_digest:
                raise _wrong_state()
        if keyframe is not None:
            data = unspill(keyframe, self._parts(keyframe))
            record = open_keyframe(data, uid=uid, tail=row.tail, state=row.state_digest)
            self.groups.seen(record.refs)
            tip = stand_on(record, self._pieces.of(record.refs))
            if tip.digest != row.state_digest:
                raise _wrong_state()
        elif row.keyframe:
            raise CorruptionError("its keyframe is missing")
        if tip is None:
            raise CorruptionError("it has no record")
        return tip

    def _parts(self, data: bytes) -> dict[bytes, bytes]:
        parts = spilled(data)
        return dict(self._backend.blobs(parts)) if parts else {}

    def _read(self, sequence: int) -> tuple[CheckpointRow, Replay]:
        """The state of one checkpoint by itself, in any way it can be read."""
        found = load(self._backend, self._session, sequence)
        if not isinstance(found, Loaded):
            if found.session is None:
                raise refusals.no_session(self._session)[1]
            raise _MissingError(f"checkpoint #{sequence} is missing")
        tip = Replay(found.state)
        if tip.digest != found.row.state_digest:
            raise _wrong_state()
        return found.row, tip

    # damage

    def _look_closer(self, row: CheckpointRow) -> None:
        """Find out whether a checkpoint whose records do not all fit can still be read."""
        self._tips.take(row.sequence)
        try:
            fresh, tip = self._read(row.sequence)
            read_fields(fresh)
        except _MissingError:
            return  # deleted since it was listed
        except UNREADABLE as error:
            self._ids[row.sequence] = row.id
            self._lose(row.sequence, row.parent, said(error))
            return
        self._tips.put(row.sequence, tip, tip.size_bytes)
        if row.parent in self._listed.lost:
            self._intact_again(row)
        try:
            # Once more: a deletion may have rewritten it between its page and the blobs that the page named.
            self._replay_apart(row.sequence)
        except _MissingError:
            return
        except UNREADABLE as error:
            self._ids[row.sequence] = row.id
            self._reach(row.sequence, row.parent, said(error))

    def _replay_apart(self, sequence: int) -> None:
        page = self._backend.scan(self._session, Kind.CHECKPOINT, after=sequence - 1, limit=1)
        row = page[0] if page and row_key(page[0]) == sequence else None
        if not isinstance(row, CheckpointRow):
            return
        if row.parent in self._listed.lost:
            if not row.keyframe:
                return  # nothing is left to compare its delta with
            row = msgspec.structs.replace(row, delta=b"")
        elif row.parent is not None:
            self._tips.take(row.parent)  # may have been left half done
        self._replayed(row, Keyframes(self._backend, self._session).find(sequence) if row.keyframe else None)

    def _lose(self, sequence: int, parent: int | None, why: str) -> None:
        self._reach(sequence, parent if parent in self._listed.lost else None, why, before=parent)
        self._reached[sequence].lost.append(sequence)
        self._listed.lost.add(sequence)

    def _reach(self, sequence: int, parent: int | None, why: str, *, before: int | None = None) -> None:
        damage = None if parent is None else self._reached.get(parent)
        if damage is None:
            why = why.removeprefix(f"session {self._session!r}: ")
            damage = _Damage(sequence, before, why)
            self._damages.append(damage)
        self._reached[sequence] = damage

    def _intact_again(self, row: CheckpointRow) -> None:
        damage = self._reached[row.parent or 0]
        damage.after = damage.after or row.id

    def _told(self, damage: _Damage) -> Problem:
        root = self._ids.get(damage.root)
        what = damage.what if root is None else f"checkpoint {root[:12]}: {damage.what}"
        if not damage.lost:
            cost = "nothing is lost: the same state can be read another way"
            return _problem(self._session, what, cost=cost, remedy="copy the session with export while it is whole")
        lost = [self._ids.get(at) for at in damage.lost]
        if len(lost) == 1:
            cost = "it cannot be loaded"
        else:
            first, last = [id_[:12] if id_ else f"#{at}" for at, id_ in zip(damage.lost, lost, strict=True)][
                :: len(lost) - 1
            ]
            cost = f"{counted(len(lost), 'checkpoint')}, {first} to {last}, cannot be loaded"
        cost += self._intact_part(damage)
        return _problem(self._session, what, checkpoints=[id_ for id_ in lost if id_], cost=cost, remedy=SALVAGE)

    def _intact_part(self, damage: _Damage) -> str:
        again = "" if damage.after is None else f" and again from {damage.after[:12]} on"
        if damage.before is None:
            return "; there is none before it" + again
        page = self._backend.scan(self._session, Kind.CHECKPOINT, after=damage.before - 1, limit=1)
        row = page[0] if page else None
        if isinstance(row, CheckpointRow) and row.sequence == damage.before:
            return f"; intact up to {row.id[:12]}" + again
        return "; what it rests on is missing" + again


class _MissingError(CorruptionError):
    """A checkpoint is not there."""


def _wrong_state() -> CorruptionError:
    return CorruptionError("its state does not match its digest")


def _problem(session: str, what: str, *, checkpoints: Sequence[str] = (), cost: str = "", remedy: str = "") -> Problem:
    ids = tuple([CheckpointId(id_) for id_ in checkpoints])
    return Problem(what=what, session_id=SessionId(session), checkpoints=ids, cost=cost, remedy=remedy)
