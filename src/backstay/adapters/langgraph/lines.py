"""The lines of a thread in its session: what each ends with, and how a row is put on top."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Any, NamedTuple

from backstay.adapters.langgraph.codec import Memo
from backstay.adapters.langgraph.inner_steps import InnerSteps
from backstay.adapters.langgraph.rows import LONG_NS, MINE, Entries, Held, branch_of, held, line_of, number_of
from backstay.adapters.langgraph.sharing import stray_writes_of
from backstay.adapters.langgraph.thread_status import status_of
from backstay.bookkeeping import checkpoint_of, visible
from backstay.errors import AlreadyExistsError, ConflictError, NotFoundError
from backstay.face import Session, Store
from backstay.messages import summarise
from backstay.model import Branch, StateDict
from backstay.port import EVERY, Ask, Backend, CheckpointRow
from backstay.store.fields import read_fields
from backstay.store.overview import find_row
from backstay.store.reading import Loaded, load
from backstay.store.refs import readable

_MANY_LINES = 8
_LINES_AT_ONCE = 4
_PAGE_ROWS = 64
_MANY_WAITING = 4096  # of steps whose checkpoints never come, such as those of a thread that was deleted
_MANY_ASKED = 256
_log = logging.getLogger("backstay.adapters.langgraph")


class LineEnd(NamedTuple):
    """What a line ended with when it was last seen: enough to write the next row without reading anything."""

    branch: str
    head: Held
    state: StateDict


class Place(NamedTuple):
    """Where a row goes: on top of `head`, or at the root of a new branch."""

    branch: str
    head: Held | None
    beside: bool = False  # where the line of another invocation goes on


class Thread:
    """One thread in the store. Hold `lock` while writing: a Session is one writer."""

    def __init__(self, store: Store, id_: str, agent: str | None, memo: Memo) -> None:
        self.session: Session = store.session(id_, agent=agent)
        self.backend: Backend = store.backend
        self._events = store.events
        self.asked: OrderedDict[str, None] = OrderedDict()  # checkpoints that were asked for by their ids
        self.id = self.session.id
        self.memo = memo
        self.lock = threading.RLock()
        self.tails: dict[str, LineEnd] = {}
        self.inner = InnerSteps()
        self._waiting: dict[str, Entries] = {}

    # reading

    def ask_for(self, checkpoint: str) -> None:
        """A checkpoint is read by its id: a line that begins there was meant."""
        self.asked[checkpoint] = None
        if len(self.asked) > _MANY_ASKED:
            self.asked.popitem(last=False)

    def lines(self, ns: str | None) -> dict[str, str]:
        """The branches of a namespace (None: of all) and their heads.

        Its lines are numbered, so a few names are asked for at a time: a thread may have thousands of namespaces.
        """
        if ns is None:
            lanes = self.backend.read(Ask(self.id, names=EVERY)).lanes.values()
            return {lane.name: lane.head.id for lane in lanes if lane.head is not None and line_of(lane.name)}
        result: dict[str, str] = {}
        first = 0
        while True:
            names = tuple([branch_of(ns, number) for number in range(first, first + _LINES_AT_ONCE)])
            view = self.backend.read(Ask(self.id, names=names))
            found = {lane.name: lane.head.id for lane in view.lanes.values() if lane.head is not None}
            result |= found
            if not found or view.session is None or view.session.lanes == len(result):
                return result
            first += _LINES_AT_ONCE

    def find(self, row_id: str) -> Held | None:
        """A row by its id."""
        row = find_row(self.backend, self.id, row_id)
        return None if row is None else held(row)

    def heads(self, ns: str) -> dict[str, Held]:
        """What each line of a namespace ends with. A line that was begun on another's checkpoint has nothing yet."""
        found = {branch: self.find(head) for branch, head in self.lines(ns).items()}
        return {branch: head for branch, head in found.items() if head is not None and head.ns in (ns, None)}

    def newest(self, ns: str) -> tuple[str | None, Held] | None:
        """The line whose checkpoint was put last: the order is the store's, not that of the time in an id.

        No line if it does not end with a row of ours.
        """
        lines = self.lines(ns)
        found = {branch: self.find(head) for branch, head in lines.items()}
        if None in found.values():
            return self._buried(ns)
        heads = {branch: head for branch, head in found.items() if head is not None and head.of and head.ns == ns}
        return max(heads.items(), key=lambda item: item[1].born) if heads else None

    def _buried(self, ns: str) -> tuple[None, Held] | None:
        """The same where somebody committed on a line with Backstay's own means: what is below still counts."""
        found: Held | None = None
        for row in self.rows(ns):
            if row.of and (found is None or row.born > found.born):
                found = row
            if row.of == row.id:  # all below were put before
                break
        return None if found is None else (None, found)

    def trace(self, checkpoint: str) -> tuple[Held | None, list[str]]:
        """The last row with a checkpoint's state and writes, and the rows of its writes that lie elsewhere."""
        rows = [id_ for id_ in self.ids(checkpoint) if checkpoint_of(id_) == checkpoint]
        strays = [id_ for id_ in rows if id_ != checkpoint and not number_of(id_)]
        own = [id_ for id_ in rows if id_ == checkpoint or number_of(id_)]
        # Each was written on top of the one before. A restored checkpoint has an id of the store's own making.
        return self.find(max(own, key=number_of, default=checkpoint)), strays

    def strays(self, ids: Iterable[str], *, born: int) -> tuple[Entries, Entries]:
        """The writes in these rows, in the store's order: those that came before their checkpoint, and those after."""
        rows = [row for id_ in ids if (row := find_row(self.backend, self.id, id_)) is not None]
        early: Entries = []
        late: Entries = []
        for row in sorted(rows, key=lambda row: row.sequence):
            (early if row.sequence < born else late).extend(stray_writes_of(self.state(row.id)))
        return early, late

    def about(self, row: Held) -> Held:
        """The row that says metadata, parent and time of the checkpoint whose state this one holds."""
        own = row if row.id == row.of else self.find(row.of)
        if own is not None:
            return own
        # Pruned. What every row has must do.
        return row._replace(metadata=row.metadata | {"source": "loop"}, parent=None)

    def ids(self, prefix: str) -> list[str]:
        """The rows whose ids begin like this."""
        return list(self.backend.read(Ask(self.id, prefix=prefix)).foreign)

    def state(self, row_id: str) -> StateDict:
        """The state at a row, verified; what a row holds never changes, so the last few are at hand."""
        for tail in self.tails.values():
            if tail.head.id == row_id:
                return tail.state
        row = find_row(self.backend, self.id, row_id)
        found = None if row is None else load(self.backend, self.id, row.sequence)
        if not isinstance(found, Loaded) or found.row.id != row_id:
            raise NotFoundError(f"thread {self.id!r} has no row {row_id!r}")
        return found.state

    def rows(self, ns: str | None) -> Iterator[Held]:
        """All rows of a namespace, newest first; what lies on several lines comes once."""
        before = -1
        for row in merge(*map(self._line, self.lines(ns).items()), key=lambda row: -row.sequence):
            if row.sequence != before and (found := held(row)) is not None and found.ns is not None:
                yield found
            before = row.sequence

    def _line(self, line: tuple[str, str]) -> Iterator[CheckpointRow]:
        """The rows of a line, newest first. That of a subgraph ends where it began, on a row of the graph around it."""
        branch, head_id = line
        own = line_of(branch)
        for row in self._ancestors(head_id):
            found = line_of(read_fields(row).branch)
            if own is not None and found is not None and found[0] != own[0]:
                return
            yield row

    def _ancestors(self, head_id: str) -> Iterator[CheckpointRow]:
        head = find_row(self.backend, self.id, head_id)
        at, last = None if head is None else head.sequence, head_id
        while at is not None:
            page = [readable(self.id, row) for row in self.backend.ancestors(self.id, at, limit=_PAGE_ROWS)]
            if not page:
                # Pruned since the page before was read: its last row rests on what is left.
                row = find_row(self.backend, self.id, last)
                if row is None or row.parent == at:
                    return
                at = row.parent
                continue
            yield from page
            at, last = page[-1].parent, page[-1].id

    # writing

    def wait(self, checkpoint: str, entries: Entries) -> None:
        """Keep writes until their checkpoint comes.

        A graph writes in the background, where the writes of a step may be faster than its checkpoint. A crash loses
        nothing with them, since there is nothing to resume. And writes that come late, from a graph whose thread was
        deleted under it, do not make the thread anew.
        """
        while len(self._waiting) >= _MANY_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[checkpoint] = self._waiting.get(checkpoint, []) + entries

    @property
    def is_awaiting(self) -> bool:
        """True if writes wait for a checkpoint."""
        return bool(self._waiting)

    def waited(self, checkpoint: str) -> Entries:
        """The writes that waited for a checkpoint, which is about to be put."""
        return self._waiting.get(checkpoint, [])

    def settled(self, checkpoint: str) -> None:
        """A checkpoint has come, and its early writes with it."""
        self._waiting.pop(checkpoint, None)

    def beginning(self, ns: str) -> Place:
        """Where the first checkpoint of a namespace goes: on what the graph around it stands at, if that is known.

        A subgraph is mostly given what that graph holds, so that the checkpoint costs what differs.
        """
        branch = branch_of(ns)
        begun = self.lines(ns).get(branch)
        if begun is not None:  # by a process that died before its first checkpoint
            return Place(branch, self.find(begun))
        outer = self.tails.get(ns.rpartition("|")[0]) if ns else None
        if outer is None:
            return Place(branch, None)
        self._fork(outer.head, branch)
        return Place(branch, outer.head)

    def at_end(self, branch: str, head: Held) -> Place:
        """The end of a line. One without a row of its own was just begun there, by an invocation that was overtaken."""
        own, its = line_of(branch), line_of(head.branch)
        is_begun = own != its and own is not None and its is not None and own[0] == its[0]
        return Place(branch, head, beside=is_begun and head.of not in self.asked)

    def on_top(self, ns: str, base: Held | None) -> Place:
        """Where a row goes that follows this one: at the end of its line, or on a new line that begins there."""
        lines = self.lines(ns)
        if base is not None:
            for branch, head_id in lines.items():
                if head_id == base.id:
                    return self.at_end(branch, base)
        if base is None and not lines:
            return Place(branch_of(ns), None)
        numbers = [name[1] for branch in lines if (name := line_of(branch)) is not None]
        branch = branch_of(ns, max(numbers, default=-1) + 1)
        if base is not None:
            self._fork(base, branch)
            if base.of not in self.asked:
                self._tell_overtaken(ns, branch, lines)
                return Place(branch, base, beside=True)
        return Place(branch, base)

    def _tell_overtaken(self, ns: str, branch: str, lines: Iterable[str]) -> None:
        """Two invocations at once: LangGraph would keep the last. Here the other goes on beside it, and says so."""
        where = f" in {ns!r}" if ns else ""
        text = "thread %r%s: overtaken by another invocation; this one goes on as branch %r beside %s"
        _log.warning(text, self.id, where, branch, ", ".join(map(repr, lines)))
        head = self.session.head(branch)
        if head is not None:
            self._events.emit("overtaken", Branch(branch, head))

    def _fork(self, base: Held, branch: str) -> None:
        try:
            self.session.fork(base.id, branch)
        except AlreadyExistsError as error:
            raise ConflictError(error.args[0]) from error  # another fork of the same moment: look again

    def put(
        self,
        ns: str,
        place: Place,
        state: StateDict,
        *,
        id_: str,
        metadata: dict[str, Any],
        parent: str | None,
        ts: str | int,
    ) -> None:
        """A checkpoint. What its row says anyway is not said again: it is written at every step."""
        trigger, step = str(metadata.get("source", "put")), metadata.get("step")
        step = step if type(step) is int else None
        said: dict[str, Any] = {"source": trigger, "step": step, "parents": {}}
        mine: dict[str, Any] = {"ts": ts}
        missing = [key for key in said if key not in metadata]
        if missing:
            mine["not"] = missing
        before = None if place.head is None else checkpoint_of(place.head.id)
        if parent != before:
            mine["parent"] = parent
        more = {key: value for key, value in metadata.items() if key not in said or said[key] != value}
        if MINE in more:
            mine["own"] = more[MINE]
        # An input is not in its channel yet; what the step before said is not said again.
        summary = "" if trigger == "input" else summarise(visible(state))
        self._commit(ns, place, state, id_=id_, trigger=trigger, step=step, summary=summary, more=more, mine=mine)

    def write(self, ns: str, place: Place, state: StateDict, *, id_: str, summary: str) -> None:
        """Writes, on top of the state that they find."""
        head, step = place.head, None
        mine: dict[str, Any] = {"of": ""}
        if head is not None:
            step = head.metadata.get("step")
            mine = {"born": head.born}
            if checkpoint_of(id_) != head.of:
                mine |= {"of": head.of, "number": head.number}
        self._commit(ns, place, state, id_=id_, trigger="writes", step=step, summary=summary, more={}, mine=mine)

    def _commit(
        self,
        ns: str,
        place: Place,
        state: StateDict,
        *,
        id_: str,
        trigger: str,
        step: int | None,
        summary: str | None,
        more: dict[str, Any],
        mine: dict[str, Any],
    ) -> None:
        """One row, on disk when this returns; ConflictError if its place has been taken."""
        if len(ns) > LONG_NS:
            mine["ns"] = ns
        is_beside = place.beside or (place.head is not None and place.head.beside and place.head.branch == place.branch)
        if is_beside:
            mine["beside"] = branch_of(ns)
        done = self.session.commit(
            state,
            branch=place.branch,
            expect=None if place.head is None else place.head.id,
            root=place.head is None,
            step=step,
            trigger=trigger,
            status=status_of(state),
            metadata={**more, MINE: mine},
            summary=summary,
            id=id_,
            frozen=True,
        )
        if len(self.tails) >= _MANY_LINES and ns not in self.tails:
            # Namespaces come and go with every task; the graph itself goes on.
            del self.tails[next(name for name in self.tails if name)]
        head = Held(
            id=done.id,
            sequence=done.sequence,
            of=mine.get("of", checkpoint_of(id_)),
            born=mine.get("born", done.sequence),
            branch=place.branch,
            number=mine.get("number", number_of(id_)),
            metadata={"step": step},
            parent=None,
            ts="",
            long_ns=mine.get("ns"),
            beside=is_beside,
        )
        self.tails[ns] = LineEnd(place.branch, head, state)
