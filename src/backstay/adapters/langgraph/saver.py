"""BackstaySaver: a LangGraph checkpointer over a Store, sync and async in one class.

What a checkpoint is as rows of a session is said in `rows`, what its values are as data in `codec`. Here is the order
of steps: a put or a write first tries the place where this process left the line; if somebody else has been there, it
looks again. Nothing is kept between two calls that another process could not have written.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, ParamSpec, Self, TypeVar
from weakref import WeakValueDictionary

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

import backstay
from backstay.adapters.langgraph.codec import Codec, Memo, listed
from backstay.adapters.langgraph.delta_channels import gathered, history, notes_of
from backstay.adapters.langgraph.folding import fold
from backstay.adapters.langgraph.importing import import_tuple
from backstay.adapters.langgraph.lines import LineEnd, Place, Thread
from backstay.adapters.langgraph.listing import checkpoints, made_by, outdated, stranded
from backstay.adapters.langgraph.opening import Done, SaverOpening, sync_store
from backstay.adapters.langgraph.placement import elsewhere, is_inner, merged, on_checkpoint, place_of, unchanged
from backstay.adapters.langgraph.rows import MINE, Entries, Held, in_order, short_ts
from backstay.adapters.langgraph.sharing import hoisted, referred, sent, unhoisted, unsent, writes_of
from backstay.aio import AsyncStore
from backstay.bookkeeping import INNER_PART, PARTS, WRITES_PART
from backstay.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError
from backstay.face import Store
from backstay.face.calls_beside import calls_session
from backstay.model import Durability, StateDict
from backstay.store.overview import session_row
from backstay.upkeep.copying import copy_session
from backstay.upkeep.pruning import drop

_THREADS = 128  # whose last states are kept at hand
_THREADS_AWAITING = 1024  # the same with those for which writes wait, of which some never get their checkpoint
_RACES = 100
_MOVED = (ConflictError, NotFoundError)  # somebody wrote, or pruned, since this was looked at
_WORKERS = 8
_OWN = ("id", "ts", "channel_values")  # kept elsewhere than in LangGraph's part of the state

P = ParamSpec("P")
T = TypeVar("T")
Config = Any


class BackstaySaver(BaseCheckpointSaver):  # type: ignore[misc]
    """Keeps the checkpoints of a graph in a Store: `graph.compile(checkpointer=BackstaySaver("sqlite:///agent.db"))`.

    It takes a Store, or the URL of one, which stays open as long as the saver does; `leave` closes it.

    Types that the graph's schema names are built again when they are read, and those on LangGraph's own safe list.
    `allow` names others, as classes or as (module, name); True is all. One that is unknown is UnsupportedError.

    With `subgraphs="fold"` the checkpoints of a subgraph go when the graph around it has put its next one.
    """

    def __init__(
        self,
        store: Store | AsyncStore | str | Path,
        *,
        serde: Any = None,
        allow: Collection[type | tuple[str, ...]] | bool = (),
        agent: str | None = None,
        subgraphs: Literal["keep", "fold"] = "keep",
    ) -> None:
        if subgraphs not in ("keep", "fold"):
            raise InvalidInputError(f'subgraphs must be "keep" or "fold", not {subgraphs!r}')
        if serde is None:
            serde = JsonPlusSerializer(allowed_msgpack_modules=True if allow is True else list(allow or ()) or None)
        super().__init__(serde=serde)
        self.store = backstay.open(store) if isinstance(store, str | Path) else sync_store(store)
        self._agent = agent
        self._folds = subgraphs == "fold"
        self._threads: OrderedDict[str, Thread] = OrderedDict()
        self._in_use: WeakValueDictionary[str, Thread] = WeakValueDictionary()
        self._guard = threading.Lock()
        # Of its own, because a graph's tools may fill the one that everybody uses, and wait there for this saver.
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="backstay-langgraph")

    @classmethod
    def open(
        cls,
        url: str | Path | None = None,
        *,
        durability: Durability = "full",
        serde: Any = None,
        allow: Collection[type | tuple[str, ...]] | bool = (),
        agent: str | None = None,
        subgraphs: Literal["keep", "fold"] = "keep",
    ) -> SaverOpening[Self]:
        """A saver with its own store: `with BackstaySaver.open("sqlite:///agent.db") as saver`, or `async with`."""
        opened = partial(backstay.open, url, durability=durability)
        return SaverOpening(lambda: cls(opened(), serde=serde, allow=allow, agent=agent, subgraphs=subgraphs))

    @classmethod
    def from_conn_string(cls, conn_string: str) -> SaverOpening[Self]:
        """As `open`, by the name that LangGraph's own savers have for it."""
        return cls.open(conn_string)

    def setup(self) -> Done:
        """Nothing is left to set up; it is here for code written for LangGraph's own savers, which may await it."""
        return Done()

    def leave(self) -> None:
        """Close the store that `open`, or a URL, opened."""
        self.store.close()
        self._pool.shutdown(wait=False)

    # reading

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the newest of its namespace."""
        thread = self._thread(config["configurable"]["thread_id"])
        ns: str = config["configurable"].get("checkpoint_ns", "")
        wanted = get_checkpoint_id(config)
        with thread.lock:
            for _ in range(_RACES):
                with contextlib.suppress(NotFoundError):  # pruned between two looks
                    return self._get(thread, ns, wanted)
        raise _busy(thread)

    def _get(self, thread: Thread, ns: str, wanted: object) -> CheckpointTuple | None:
        if wanted:
            thread.ask_for(str(wanted))
            row, strays = thread.trace(str(wanted))
            return None if row is None or row.ns != ns else self._tuple(thread, row, strays)
        found = thread.newest(ns)
        if found is None:
            return None
        branch, row = found
        if branch is None:
            last, strays = thread.trace(row.of)
            return self._tuple(thread, last or row, strays)
        tail = thread.tails.get(ns)
        if tail is None or tail.head.id != row.id:
            thread.tails[ns] = LineEnd(branch, row, thread.state(row.id))
        thread.memo.begin(ns)
        return self._tuple(thread, row)

    def get_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Any:
        """What delta channels are rebuilt from: seed and writes, which a checkpoint of this saver holds itself."""
        thread = self._thread(config["configurable"]["thread_id"])
        ns: str = config["configurable"].get("checkpoint_ns", "")
        wanted = get_checkpoint_id(config)
        with thread.lock:
            found = thread.newest(ns) if not wanted else (None, thread.trace(str(wanted))[0])
            row = None if found is None else found[1]
            state = {} if row is None or row.ns != ns else thread.state(row.id)
            result, missing = {}, []
            for channel in channels:
                told = history(state, channel, partial(self._items, ns, thread.memo))
                if told is None:
                    missing.append(channel)
                    continue
                seed, writes = told
                result[channel] = {"writes": [(task, channel, value) for task, value in writes]}
                result[channel] |= {"seed": seed[0]} if seed else {}
        return result | super().get_delta_channel_history(config=config, channels=missing) if missing else result

    def _items(self, ns: str, memo: Memo, channel: str, value: Any) -> Any:
        return self.codec.channels(ns, {channel: value}, memo)[channel]

    def list(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the interface's own word
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints that match, newest first in the order of the store; each state is read when its turn comes."""
        asked = {} if config is None else config["configurable"]
        threads = [info.id for info in self.store.sessions()] if config is None else [asked["thread_id"]]
        left = 2**62 if limit is None else limit
        bound = None if before is None else get_checkpoint_id(before)
        for thread_id in threads:
            thread = self._thread(thread_id)
            for row, strays in checkpoints(thread, asked, bound):
                if left <= 0:
                    return
                if filter:
                    metadata = self.codec.revive(thread.about(row).metadata)
                    if any([metadata.get(key) != listed(value) for key, value in filter.items()]):
                        continue
                with thread.lock:
                    try:
                        found = self._tuple(thread, row, strays)
                    except NotFoundError:  # pruned in the meantime, or only its last row was
                        found = self.get_tuple(_config(thread.id, row.ns or "", row.of))
                if found is not None:
                    left -= 1
                    yield found

    def _tuple(self, thread: Thread, row: Held, strays: Collection[str] = ()) -> CheckpointTuple | None:
        ns, state = row.ns or "", thread.state(row.id)
        mine, about = state.get(MINE, {}), thread.about(row)
        if "cp" not in mine:  # somebody else's session, which was taken back
            return None
        entries = writes_of(state)
        if strays:
            early, late = thread.strays(strays, born=row.born)
            entries = merged(merged(early, entries), late)
        revive = self.codec.revive
        start = mine.get("start", [])
        apart = {MINE, *PARTS, *notes_of(state), *start}  # what a delta channel holds is asked for by itself
        values = self.codec.channels(ns, {key: value for key, value in state.items() if key not in apart}, thread.memo)
        for name in mine.get("snapshots", ()):
            values[name] = _DeltaSnapshot(values[name])
        values.update(revive(unsent(unhoisted(state.get(INNER_PART, {}), start, state), state)))
        checkpoint = {key: revive(value) for key, value in mine["cp"]}
        checkpoint |= {"id": row.of, "ts": about.ts, "channel_values": values}
        write = self.codec.write
        writes = [(task, channel, write(channel, value)) for _, task, _, channel, value in in_order(entries)]
        parent = _config(thread.id, ns, about.parent) if about.parent else None
        here = _config(thread.id, ns, row.of)
        return CheckpointTuple(here, checkpoint, revive(about.metadata), parent, writes)

    # writing

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:  # noqa: ARG002
        """Record a checkpoint; one that is there already is left as it is."""
        asked = config["configurable"]
        thread = self._thread(asked["thread_id"])
        ns: str = asked.get("checkpoint_ns", "")
        id_, parent, memo = checkpoint["id"], asked.get("checkpoint_id"), thread.memo
        with thread.lock:
            snapshots = [name for name, value in checkpoint["channel_values"].items() if type(value) is _DeltaSnapshot]
            whole = {name: checkpoint["channel_values"][name].value for name in snapshots}
            values = memo.channels(ns, {**checkpoint["channel_values"], **whole})
            rest = {key: memo.plain(value) for key, value in checkpoint.items() if key not in _OWN}
            inner = {key: values.pop(key) for key in [*values] if key == MINE or is_inner(key)}
            mine: StateDict = {"snapshots": snapshots} if snapshots else {}
            plain = listed(memo.plain(dict(get_checkpoint_metadata(config, metadata))))
            ts = short_ts(checkpoint["ts"])

            def write(place: Place, early: Entries) -> None:
                versions = rest.get("channel_versions", {})
                base = {} if place.head is None else thread.state(place.head.id)
                before = base if place.head is not None and place.head.of == parent else {}
                deltas, notes = gathered(before, versions, values, plain)
                same = unchanged(before, versions, {**values, **deltas})
                left, start = hoisted(inner, {**values, **same, **deltas}, base)
                shown = {**values, **same, **deltas, **start}
                # A tuple is one value: it is written anew each time, but packs to almost nothing beside the one before.
                own = {**mine, "cp": tuple(rest.items())}
                own |= {"delta": notes} if notes else {}
                own |= {"start": list(start)} if start else {}
                state = {**shown, MINE: own, WRITES_PART: referred(early, shown), INNER_PART: sent(left, shown)}
                thread.put(ns, place, state, id_=id_, metadata=plain, parent=parent, ts=ts)
                thread.settled(id_)

            self._put(thread, ns, id_, parent, write)
            if self._folds:
                thread.inner.note(ns, plain)
                fold(thread, thread.inner.done(ns, parent, plain))
        return _config(asked["thread_id"], ns, id_)

    def _put(
        self, thread: Thread, ns: str, id_: str, parent: str | None, write: Callable[[Place, Entries], None]
    ) -> None:
        tail = thread.tails.get(ns)
        early = merged([], thread.waited(id_))
        if tail is not None and tail.head.of == parent:
            with contextlib.suppress(*_MOVED):
                return write(Place(tail.branch, tail.head), early)
        for _ in range(_RACES):
            heads = thread.heads(ns)
            row, _ = thread.trace(id_)
            if row is not None and row.ns != ns:
                message = f"thread {thread.id!r} has a checkpoint {id_!r} already, in namespace {row.ns!r}"
                raise AlreadyExistsError(message, hint="give each checkpoint an id of its own")
            if row is not None:
                thread.settled(id_)
                return self._put_writes(thread, ns, id_, early) if early else None
            with contextlib.suppress(*_MOVED):
                return write(place_of(thread, ns, heads, parent), early)
        raise _busy(thread)

    def put_writes(self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Record what a task wrote. Special writes (errors, interrupts, resume) replace, others stay as first made."""
        asked = config["configurable"]
        thread = self._thread(asked["thread_id"])
        ns: str = asked.get("checkpoint_ns", "")
        with thread.lock:
            entries = [
                [task_path, task_id, WRITES_IDX_MAP.get(channel, at), channel, thread.memo.value(value)]
                for at, (channel, value) in enumerate(writes)
            ]
            if entries:
                self._put_writes(thread, ns, str(asked["checkpoint_id"]), entries)

    def _put_writes(self, thread: Thread, ns: str, id_: str, entries: Entries) -> None:
        tail = thread.tails.get(ns)
        if tail is not None and tail.head.of == id_:
            with contextlib.suppress(*_MOVED):
                return on_checkpoint(thread, ns, tail, entries)
        for _ in range(_RACES):
            heads = thread.heads(ns)
            with contextlib.suppress(*_MOVED):
                for branch, head in heads.items():
                    if head.of == id_:
                        return on_checkpoint(thread, ns, LineEnd(branch, head, thread.state(head.id)), entries)
                return elsewhere(thread, ns, heads, id_, entries)
        raise _busy(thread)

    def holds(self, thread_id: object, checkpoint_id: str) -> bool:
        """True if a checkpoint is in the store; a graph may be a step ahead, since it writes in the background."""
        return self._thread(thread_id).trace(checkpoint_id)[0] is not None

    # upkeep

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread; nothing of it is left behind."""
        calls = calls_session(str(thread_id))
        # Somebody may have a thread of that name; it is not this one's to delete.
        is_thread = bool(self._thread(calls).lines(""))
        for session in [str(thread_id)] if is_thread else [calls, str(thread_id)]:
            with contextlib.suppress(NotFoundError):
                self.store.delete(session)
        self._forget(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs made, in every thread; writes of others that lie among them stay."""
        wanted = {str(run_id) for run_id in run_ids}
        if not wanted:
            return
        for info in self.store.sessions():
            thread = self._thread(info.id)
            with thread.lock:
                orphans = stranded(thread, wanted)
                if drop(self.store.backend, info.id, partial(made_by, wanted)):
                    self._forget(info.id)
            thread = self._thread(info.id)
            for ns, checkpoint, entries in orphans:
                with thread.lock:
                    self._put_writes(thread, ns, checkpoint, entries)
        self.store.backend.tend()

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all it has: namespaces, forks, parents, writes, and the journal of its tools."""
        source, target = str(source_thread_id), str(target_thread_id)
        # The journal first: a crash in between leaves a journal without a thread, never a thread that pays twice.
        for here, there in [(calls_session(source), calls_session(target)), (source, target)]:
            if session_row(self.store.backend, here) is not None:
                try:
                    copy_session(self.store.backend, here, there)
                except AlreadyExistsError as error:
                    message = f"there is a thread {target!r} already"
                    raise AlreadyExistsError(message, hint="copy to another thread_id, or delete_thread it") from error

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace with its writes, or ("delete") nothing."""
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            thread = self._thread(thread_id)
            with thread.lock:
                drop(self.store.backend, thread.id, partial(outdated, thread))
            self._forget(thread_id)
        self.store.backend.tend()

    def get_next_version(self, current: Any, channel: None = None) -> Any:  # noqa: ARG002 - the interface's own
        """Versions count up. A thread that came from another saver keeps the kind that it has."""
        if not isinstance(current, str):
            return 1 if current is None else current + 1
        return f"{int(current.split('.')[0]) + 1:032}.{random.random():016}"  # noqa: S311 - told apart, not secret

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """The same saver, which builds these types too."""
        found: Self = super().with_allowlist(extra_allowlist)
        return found

    def import_from(self, saver: Any) -> int:
        """Copy all that is in another saver: checkpoints, parents and writes. What is here already is left as it is."""
        found = [tup.config["configurable"] for tup in saver.list(None)]
        for asked in sorted(found, key=itemgetter("checkpoint_id")):
            tup = saver.get_tuple({"configurable": asked})
            if tup is not None:
                import_tuple(self, tup)
        return len(found)

    async def aimport_from(self, saver: Any) -> int:
        """As `import_from`, for savers that are async."""
        found = [tup.config["configurable"] async for tup in saver.alist(None)]
        for asked in sorted(found, key=itemgetter("checkpoint_id")):
            tup = await saver.aget_tuple({"configurable": asked})
            if tup is not None:
                await self._threaded(import_tuple, self, tup)
        return len(found)

    # the same, awaited

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await self._threaded(self.get_tuple, config)

    async def alist(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the interface's own word
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (tup := await self._threaded(next, found, None)) is not None:
            yield tup

    async def aput(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """As `put`."""
        return await self._threaded(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        await self._threaded(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await self._threaded(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await self._threaded(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await self._threaded(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        await self._threaded(partial(self.prune, thread_ids, strategy=strategy))

    async def aget_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Any:
        """As `get_delta_channel_history`."""
        return await self._threaded(partial(self.get_delta_channel_history, config=config, channels=channels))

    async def _threaded(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        here = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(here.run, partial(fn, *args, **kwargs)))

    # what is at hand

    @property
    def codec(self) -> Codec:
        """How values become data and back, by the serializer that this saver has."""
        return Codec(self.serde)

    def _thread(self, thread_id: object) -> Thread:
        id_ = str(thread_id)
        with self._guard:
            # One object for each thread in use, because writes may wait in it.
            thread = self._in_use.get(id_) or Thread(self.store, id_, self._agent, self.codec.memo())
            self._in_use[id_] = self._threads[id_] = thread
            self._threads.move_to_end(id_)
            if len(self._threads) > _THREADS:
                most = len(self._threads) > _THREADS_AWAITING
                gone = next((name for name, old in self._threads.items() if most or not old.is_awaiting), id_)
                del self._threads[gone]
        return thread

    def _forget(self, thread_id: object) -> None:
        with self._guard:
            self._threads.pop(str(thread_id), None)
            self._in_use.pop(str(thread_id), None)


def _config(thread_id: object, ns: str, checkpoint_id: str) -> Config:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def _busy(thread: Thread) -> ConflictError:
    message = f"thread {thread.id!r} moved {_RACES} times while this write was tried"
    return ConflictError(message, hint="try again")
