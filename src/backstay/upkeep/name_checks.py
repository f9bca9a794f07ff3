"""The names and the counts of a session looked at, and put right with `repair`: what leads to checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

from backstay.errors import ConflictError, CorruptionError, LeaseHeldError
from backstay.hints import repairs
from backstay.model import Problem, SessionId, counted
from backstay.port import EVERY, Ask, Backend, CheckpointRow, Decide, Kind, LaneRow, Row, SessionRow, TagRow, Unreadable
from backstay.rules.repair import Counts, point_back, point_back_ask, recount, remake, remake_ask
from backstay.store.fields import read_fields
from backstay.upkeep.call_checks import CallCheck
from backstay.upkeep.pages import pages, row_key

_TRIES = 5
_PAGE_ROWS = 100
_BEYOND = 2**40  # any sequence


class Listed:
    """Counts and sequences from the listing of checkpoints. `present` are those of `wanted` that are there."""

    def __init__(self, wanted: Collection[int]) -> None:
        self.wanted = wanted
        self.present: set[int] = set()
        self.lost: set[int] = set()
        self.error: Exception | None = None  # why no more could be listed
        self.checkpoints = 0
        self.unreadable = 0
        self.logical_bytes = 0

    def add(self, row: CheckpointRow | Unreadable) -> None:
        """The next one."""
        at = row.key if isinstance(row, Unreadable) else row.sequence
        self.checkpoints += 1
        if isinstance(row, Unreadable):
            self.unreadable += 1
        else:
            self.logical_bytes += row.size_bytes
        if at in self.wanted and isinstance(at, int):
            self.present.add(at)


def targets(row: Row | Unreadable) -> list[int]:
    """The checkpoints that a name needs."""
    if isinstance(row, LaneRow):
        return [at for at in (None if row.head is None else row.head.sequence, row.undo) if at is not None]
    return [row.sequence] if isinstance(row, TagRow) else []


def read_names(backend: Backend, session: str) -> tuple[SessionRow | None, list[Row | Unreadable]]:
    """A session's line and its names as of one moment; a name that cannot be read is Unreadable."""
    line: SessionRow | None = None
    rows: list[Row | Unreadable] = []
    for _ in range(_TRIES):
        try:
            view = backend.read(Ask(session, names=EVERY))
            return view.session, [*view.lanes.values(), *view.tags.values()]
        except CorruptionError:
            # One of them is damaged or missing: what is there is listed, and the line says whether that was a moment.
            line = backend.read(Ask(session)).session
            rows = []
            with contextlib.suppress(CorruptionError):
                for page in pages(backend, session, Kind.NAME):
                    rows += page
            if backend.read(Ask(session)).session == line:
                break
    return line, rows


class NameCheck:
    """The names of one session against what was met among its checkpoints."""

    def __init__(self, backend: Backend, before: SessionRow, listed: Listed, calls: CallCheck, *, repair: bool) -> None:
        self._backend = backend
        self._session = before.id
        self._before = before
        self._listed = listed
        self._calls = calls
        self._repair = repair
        self.problems: list[Problem] = []
        self.repaired: list[str] = []

    def run(self) -> bool:
        """Check all; False if the session is no longer the one that was listed."""
        line, rows = read_names(self._backend, self._session)
        if line is None or line.uid != self._before.uid:
            return False
        for row in rows:
            if isinstance(row, LaneRow):
                self._calls.pending(row)
        unreadable = [row for row in rows if isinstance(row, Unreadable)]
        for row in unreadable:
            self._unreadable(row)
        if unreadable and self._repair:
            line, rows = read_names(self._backend, self._session)
        if line is not None:
            self._counts(line, rows)
        for row in rows:
            if isinstance(row, LaneRow | TagRow):
                self._nowhere(row)
        return True

    def _unreadable(self, row: Unreadable) -> None:
        name = str(row.key)
        cost = "no run and no commit can go on there; its checkpoints are intact, and are read by their ids"
        remedy = repairs("makes the branch again at its newest intact checkpoint")
        if not self._repair:
            self._tell(row.why, cost=cost, remedy=remedy)
            return
        to, run = None, 0
        for found in self._intact(_BEYOND, branch=name):
            to = found.sequence if to is None else to
            run = run or (0 if found.took is None else found.took.run)
            if run:
                break
        waiting = [] if to is None else self._calls.runs_at(to)
        rule = remake(self._session, name, to=to, run=waiting[0] if waiting else run)
        self._mend(remake_ask(self._session, to=to), rule, row.why, cost=cost, remedy=remedy)

    def _counts(self, line: SessionRow, rows: list[Row | Unreadable]) -> None:
        listed, before = self._listed, self._before
        lanes = sum([isinstance(row, LaneRow) for row in rows])
        tags = sum([isinstance(row, TagRow) for row in rows])
        wrong = []
        if len(rows) == lanes + tags:
            wrong += [] if lanes == line.lanes else [f"has {counted(lanes, 'branch')} and counts {line.lanes}"]
            wrong += [] if tags == line.tags else [f"has {counted(tags, 'tag')} and counts {line.tags}"]
        # Only what nothing was committed to or deleted from meanwhile can be counted in pages. Of an unreadable one it
        # may not be known whether it is there at all.
        quiet = (line.sequence, line.checkpoints) == (before.sequence, before.checkpoints)
        fewer = listed.checkpoints < line.checkpoints
        if quiet and (fewer or (listed.checkpoints != line.checkpoints and not listed.unreadable)):
            wrong.append(f"has {counted(listed.checkpoints, 'checkpoint')} and counts {line.checkpoints}")
            listed.error = None  # that they are missing may have been it
        if not wrong:
            return
        counts = Counts(listed.checkpoints if quiet else line.checkpoints, lanes, tags, listed.logical_bytes)
        remedy = repairs("counts again what is there")
        rule = recount(self._session, counts, touched=line.touched)
        cost = "what is missing is lost, unless it is told here why"
        self._mend(Ask(self._session), rule, "it " + ", ".join(wrong), cost=cost, remedy=remedy, done="counted again")

    def _nowhere(self, row: LaneRow | TagRow) -> None:
        for at in targets(row):
            if at in self._listed.present or self._find(at) is not None or not self._leads(row.name, at):
                continue
            is_head = isinstance(row, LaneRow) and row.head is not None and row.head.sequence == at
            label = row.head.id[:12] if isinstance(row, LaneRow) and row.head is not None and is_head else f"#{at}"
            what = f"{row.name!r} points at {label}, which is not there"
            if isinstance(row, LaneRow) and not is_head:
                what = f"branch {row.name!r} has an undo that leads to {label}, which is not there"
            to = self._newest_before(at, row.name) if is_head else None
            remedy = repairs("moves it to its newest intact ancestor")
            ask = point_back_ask(self._session, row.name, nowhere=at, to=to)
            self._mend(ask, point_back(self._session, row.name, nowhere=at, to=to), what, remedy=remedy)

    def _leads(self, name: str, sequence: int) -> bool:
        """True if a name still leads there: another process may have moved it, and then deleted its old target."""
        view = self._backend.read(Ask(self._session, names=(name,)))
        row = view.lanes.get(name) or view.tags.get(name)
        return row is not None and sequence in targets(row)

    def _find(self, sequence: int) -> CheckpointRow | Unreadable | None:
        page = self._backend.scan(self._session, Kind.CHECKPOINT, after=sequence - 1, limit=1)
        row = page[0] if page and row_key(page[0]) == sequence else None
        return row if isinstance(row, CheckpointRow | Unreadable) else None

    def _newest_before(self, sequence: int, branch: str) -> int | None:
        """The rest of a branch's line: its newest intact checkpoint, or else the newest of any."""
        for found in (self._intact(sequence, branch=branch), self._intact(sequence)):
            for row in found:
                return row.sequence
        return None

    def _intact(self, before: int, *, branch: str | None = None) -> Iterator[CheckpointRow]:
        """The intact checkpoints before a sequence, newest first; of one branch, or of all."""
        while page := self._page_before(before):
            for row in page:
                intact = isinstance(row, CheckpointRow) and row.sequence not in self._listed.lost
                if isinstance(row, CheckpointRow) and intact and branch in (None, read_fields(row).branch):
                    yield row
            before = int(row_key(page[-1]))  # type: ignore[arg-type]

    def _page_before(self, before: int) -> Sequence[Row | Unreadable]:
        for limit in (_PAGE_ROWS, 1):  # where rows are missing, those at the end come one by one
            with contextlib.suppress(CorruptionError):
                return self._backend.scan(self._session, Kind.CHECKPOINT, before=before, limit=limit)
        return ()

    def _mend(self, ask: Ask, rule: Decide, what: str, *, cost: str = "", remedy: str, done: str = "") -> None:
        """Put it right, or tell it."""
        if not self._repair:
            self._tell(what, cost=cost, remedy=remedy)
            return
        try:
            answer = self._backend.write(ask, rule).answer or done
        except (ConflictError, CorruptionError, LeaseHeldError) as error:
            self._tell(
                what, cost=f"{cost}; it could not be repaired: {error.args[0]}".removeprefix("; "), remedy=remedy
            )
            return
        if answer:
            self.repaired.append(f"session {self._session!r}: {answer}")

    def _tell(self, what: str, *, cost: str = "", remedy: str) -> None:
        self.problems.append(Problem(what=what, session_id=SessionId(self._session), cost=cost, remedy=remedy))
