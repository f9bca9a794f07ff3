"""Verification: everything read again and compared with its digests, session by session, in one pass.

A history is paged through in order and each delta is done to the state before it, so a checkpoint costs what changed
in it; of the lines that are open at a time the states are kept. A whole copy is decoded and compared as well. Where a
page cannot be read, its checkpoints are looked at one by one: each that can be had in no way belongs to a problem, and
all that fail because of the same damage to the same one. The journal of its calls is read along with it (see
auditing). Nothing raised by damage leaves this module.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from backstay.backend import Backend, Kept, Row, SessionRow
from backstay.delta import Record, rebuild
from backstay.delta.replay import Replay, stand_on
from backstay.errors import CorruptionError, InvalidInputError, NotFoundError, UnavailableError
from backstay.model import CheckpointId, Problem, SessionId, VerifyReport
from backstay.store.fields import read_fields
from backstay.store.reading import read_chain
from backstay.upkeep import auditing
from backstay.upkeep.progress import Progress

_FIRST_PAGE_ROWS = 16
_PAGE_ROWS = 1000
_PAGE_BYTES = 8 * 1024 * 1024
_SESSIONS_PAGE = 1000
_TIPS = 32  # lines whose state is kept at hand
_TIPS_BYTES = 64 * 1024 * 1024
_PIECES_BYTES = 32 * 1024 * 1024

_UNREADABLE = (CorruptionError, InvalidInputError, UnavailableError)


def verify(
    backend: Backend, *, session: str | None = None, repair: bool = False, progress: Progress | None = None
) -> VerifyReport:
    """Read everything again, or one session; with `repair`, first remove what is provably useless."""
    repaired = tuple(backend.repair()) if repair else ()
    problems: list[Problem] = []
    lines = _lines(backend, problems) if session is None else _line(backend, session, problems)
    total, done = sum([line.checkpoints for line in lines]), 0
    for line in lines:
        check = _SessionCheck(backend, line.id)
        for count in check.run():
            if progress is not None:
                progress(done + count, max(total, done + count))
        done += check.checked
        problems += check.problems()
    if progress is not None:
        progress(done, done)
    return VerifyReport(problems=tuple(problems), checked=done, repaired=repaired)


def _line(backend: Backend, session: str, problems: list[Problem]) -> list[SessionRow]:
    """One session, if its line can be read."""
    try:
        line = backend.find_session(session)
    except _UNREADABLE as error:
        cost = "its checkpoints were not checked"
        problems.append(_problem(session, _said(error), cost=cost, remedy="verify the whole store"))
        return []
    if line is None:
        message = f"there is no session {session!r}"
        raise NotFoundError(message, hint="store.sessions() lists those there are")
    return [line]


def _lines(backend: Backend, problems: list[Problem]) -> list[SessionRow]:
    """What lies below the sessions is checked first; then all sessions, or as far as the list can be read."""
    try:
        problems += backend.check()
    except _UNREADABLE as error:
        problems.append(Problem(what=_said(error), cost="what lies below the sessions was not checked to its end"))
    found: list[SessionRow] = []
    limit = _SESSIONS_PAGE
    while True:
        before = found[-1].touched if found else None
        try:
            page = backend.sessions(before=before, limit=limit, status=None, agent=None)
        except _UNREADABLE as error:
            if limit > 1:
                limit = 1  # as near to the damage as can be
                continue
            what = f"the list of sessions cannot be read: {_said(error)}"
            cost = f"{len(found)} sessions were found before it and checked; those behind it were not"
            problems.append(Problem(what=what, cost=cost, remedy="verify the others by their names"))
            return found
        found += page
        if len(page) < limit:
            return found


class _Damage:
    """One thing that is broken, and the checkpoints that it reaches."""

    __slots__ = ("after", "before", "lost", "root", "what")

    def __init__(self, root: str, before: str | None, what: str) -> None:
        self.root = root
        self.before = before
        self.what = what
        self.lost: list[str] = []
        self.after: str | None = None  # the first one behind it that can be read again

    def problem(self, session: str) -> Problem:
        what = f"checkpoint {self.root[:12]}: {self.what}"
        if not self.lost:
            cost = "nothing is lost: what it stands for can be read another way"
            return _problem(session, what, cost=cost, remedy="copy the session with export while it is whole")
        if len(self.lost) == 1:
            cost = "it cannot be loaded"
        else:
            cost = f"{len(self.lost)} checkpoints, {self.lost[0][:12]} to {self.lost[-1][:12]}, cannot be loaded"
        cost += "; there is none before it" if self.before is None else f"; intact up to {self.before[:12]}"
        cost += "" if self.after is None else f" and again from {self.after[:12]} on"
        remedy = "carry on from session.newest_intact(), or load(salvage=True)"
        return _problem(session, what, checkpoints=self.lost, cost=cost, remedy=remedy)


class _SessionCheck:
    """One session on its way through a verification."""

    def __init__(self, backend: Backend, session: str) -> None:
        self._backend = backend
        self._session = session
        self._tips = _Tips()
        self._pieces = _Pieces(backend)
        self._damages: list[_Damage] = []
        self._reached: dict[str, _Damage] = {}  # by checkpoint: those lost, and those with a broken record to spare
        self._lost: set[str] = set()
        self._others: list[Problem] = []
        self._journal = auditing.Recheck(backend, session)
        self._last: str | None = None
        self.checked = 0

    def run(self) -> Iterator[int]:
        """Check all; after each page, say how many were."""
        after, limit = 0, _FIRST_PAGE_ROWS
        try:
            while True:
                try:
                    page = self._backend.history(self._session, after=after, limit=limit)
                except _UNREADABLE:
                    limit = _FIRST_PAGE_ROWS
                    found = self._one_by_one(after, limit)
                    if found is None:
                        break
                    after = found
                    yield self.checked
                    continue
                for kept in page:
                    self._check(kept)
                if page:
                    after, self._last = page[-1].row.sequence, page[-1].row.id
                    yield self.checked
                if len(page) < limit:
                    break
                weight = sum([_weight(kept.delta) + _weight(kept.whole) for kept in page]) // len(page) + 1
                limit = max(1, min(8 * limit, _PAGE_ROWS, _PAGE_BYTES // weight))
            self._names()
            self._journal.between()
        except NotFoundError:
            return  # deleted since it was listed
        except _UNREADABLE as error:
            cost = f"{self.checked} checkpoints were checked before; the others could not be listed"
            self._others.append(_problem(self._session, _said(error), cost=cost, remedy="run verify again"))

    def problems(self) -> list[Problem]:
        """What was found, one problem for each damage."""
        return [damage.problem(self._session) for damage in self._damages] + self._others + self._journal.problems

    # a page that can be read

    def _check(self, kept: Kept) -> None:
        self.checked += 1
        row, state = kept.row, None
        try:
            tip = self._replayed(kept)
            self._tips.put(row.id, tip, kept.size_bytes)
            read_fields(row)
        except _UNREADABLE:
            self._look_closer(row)
        else:
            state = tip.state
            if row.link_id in self._lost:
                self._intact_again(row)
        if kept.took is not None:
            self._journal.taken_by(row.id, state)

    def _replayed(self, kept: Kept) -> Replay:
        """The state of a checkpoint by each of its records, all of which must give its digest."""
        row, tip, found = kept.row, None, kept.whole
        if kept.delta is not None and row.link_id is not None:
            tip = self._tips.take(row.link_id)
            if tip is None:
                tip = self._read(row.link_id)
            refs = kept.delta.refs
            tip.follow(kept.delta, self._pieces.of(refs) if refs else {})
            if tip.digest != row.state_digest:
                raise _wrong_state()
        if found is not None:
            copy = stand_on(found, self._pieces.of(found.refs))
            if copy.digest != row.state_digest:
                raise _wrong_state()
            tip = copy
        if tip is None:
            message = "it has no record"
            raise CorruptionError(message)
        return tip

    def _read(self, id_: str) -> Replay:
        chain, pieces = read_chain(self._backend, self._session, id_)
        tip = Replay(rebuild(chain.records, pieces).state)
        if tip.digest != chain.row.state_digest:
            raise _wrong_state()
        return tip

    # damage

    def _one_by_one(self, after: int, limit: int) -> int | None:
        """The next checkpoints each by itself; how far that went, or None at the end."""
        ids = self._backend.ids(self._session)
        start = ids.index(self._last) + 1 if self._last in ids else 0
        met = 0
        for id_ in ids[start:]:
            try:
                row = self._backend.find_row(self._session, id_)
                if row is None or row.sequence <= after:
                    continue
                after = row.sequence
                self._alone(row)
            except _UNREADABLE as error:
                self.checked += 1
                self._lose(id_, None, error)
            self._last = id_
            met += 1
            if met == limit:
                return after
        return None if not met else after

    def _alone(self, row: Row) -> None:
        try:
            page = self._backend.history(self._session, after=row.sequence - 1, limit=1)
        except _UNREADABLE:
            self.checked += 1
            self._look_closer(row)
            self._journal.taken_by(row.id, None)
            return
        if page and page[0].row.id == row.id:
            self._check(page[0])

    def _look_closer(self, row: Row) -> None:
        """Find out whether a checkpoint whose records do not all fit can be had in any way."""
        self._tips.take(row.id)
        try:
            tip = self._read(row.id)
            self._tips.put(row.id, tip, tip.size_bytes)
            read_fields(row)
        except NotFoundError:
            return  # deleted since it was listed
        except _UNREADABLE as error:
            self._lose(row.id, row.link_id, error)
            return
        if row.link_id in self._lost:
            self._intact_again(row)
        try:
            # Once more: a deletion may have packed it anew between its page and the blobs that the page named.
            for kept in self._backend.history(self._session, after=row.sequence - 1, limit=1):
                if kept.row.id == row.id and not (kept.row.link_id in self._lost and kept.whole is None):
                    self._replayed_apart(kept)
        except NotFoundError:
            return
        except _UNREADABLE as error:
            self._spare(row, error)

    def _replayed_apart(self, kept: Kept) -> None:
        link, delta = kept.row.link_id, kept.delta
        if link in self._lost:
            delta = None  # nothing is left to compare it with
        elif link is not None:
            self._tips.take(link)  # may have been left half done
        self._replayed(Kept(kept.row, kept.size_bytes, delta, kept.whole))

    def _lose(self, id_: str, link: str | None, error: Exception) -> None:
        damage = self._reached.get(link) if link is not None and link in self._lost else None
        if damage is None:
            damage = _Damage(id_, link, _said(error))
            self._damages.append(damage)
        damage.lost.append(id_)
        self._lost.add(id_)
        self._reached[id_] = damage

    def _spare(self, row: Row, error: Exception) -> None:
        damage = None if row.link_id is None else self._reached.get(row.link_id)
        if damage is None:
            damage = _Damage(row.id, row.link_id, _said(error))
            self._damages.append(damage)
        self._reached[row.id] = damage

    def _intact_again(self, row: Row) -> None:
        damage = self._reached[str(row.link_id)]
        damage.after = damage.after or row.id

    def _names(self) -> None:
        names = self._backend.names(self._session)
        targets = [(branch.name, branch.head_id) for branch in names.branches] + [(t.name, t.id) for t in names.tags]
        for name, id_ in targets:
            if self._backend.find_row(self._session, id_) is None:
                what = f"{name!r} points at {id_[:12]}, which is not there"
                remedy = "verify(repair=True) moves it to its newest intact ancestor"
                self._others.append(_problem(self._session, what, remedy=remedy))


class _Tips:
    """The states at the ends of the lines that were followed last."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Replay, int]] = {}  # the one used longest ago first
        self._bytes = 0

    def take(self, id_: str) -> Replay | None:
        found = self._kept.pop(id_, None)
        if found is None:
            return None
        self._bytes -= found[1]
        return found[0]

    def put(self, id_: str, tip: Replay, size_bytes: int) -> None:
        kept = self._kept
        kept[id_] = tip, size_bytes
        self._bytes += size_bytes
        while len(kept) > _TIPS or (self._bytes > _TIPS_BYTES and len(kept) > 1):
            self.take(next(iter(kept)))


class _Pieces:
    """Blobs, each read and verified when it is first needed; the last ones stay at hand."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def of(self, refs: Sequence[bytes]) -> dict[bytes, bytes]:
        found = {ref: self._kept[ref] for ref in refs if ref in self._kept}
        missing = [ref for ref in refs if ref not in found]
        if missing:
            fresh = self._backend.blobs(missing)
            found.update(fresh)
            for ref, content in fresh.items():
                self._kept[ref] = content
                self._bytes += len(content)
            while self._bytes > _PIECES_BYTES and self._kept:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return found


def _weight(record: Record | None) -> int:
    return 0 if record is None else record.size_bytes


def _said(error: Exception) -> str:
    return str(error.args[0]) if error.args else str(error)


def _wrong_state() -> CorruptionError:
    return CorruptionError("its state does not match its digest")


def _problem(session: str, what: str, *, checkpoints: Sequence[str] = (), cost: str = "", remedy: str = "") -> Problem:
    ids = tuple([CheckpointId(id_) for id_ in checkpoints])
    return Problem(what=what, session_id=SessionId(session), checkpoints=ids, cost=cost, remedy=remedy)
