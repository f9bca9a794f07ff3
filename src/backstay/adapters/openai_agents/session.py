"""A session of the Agents SDK in a store. The items are `state["messages"]`; every change is a checkpoint.

Without hooks each change is a commit on the head it was made from, tried again when somebody else was faster. With
hooks it is a boundary of the run that is on its way.
"""

from __future__ import annotations

import asyncio
import copy
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

from agents import SessionSettings, TResponseInputItem
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

from backstay import errors
from backstay.adapters.openai_agents.items import PART, Items, items_of, joined, mended, only_added, own, take_in
from backstay.adapters.openai_agents.live import Change, Context, Live, key_of, lives, visits
from backstay.aio import AsyncSession, AsyncStore
from backstay.aio.threads import InOrder, Threads
from backstay.face import Session, Store
from backstay.model import NOTHING, Call, Checkpoint
from backstay.port import Ask
from backstay.run import Run
from backstay.store.refs import Ref

_TRIES, _PAUSE_S = 500, 0.005

_threads_of: weakref.WeakKeyDictionary[Store, Threads] = weakref.WeakKeyDictionary()


class BackstaySession:
    """A session of the Agents SDK, in a store that `backstay.open` or `backstay.aio.open` gave."""

    def __init__(
        self,
        session_id: str,
        store: Store | AsyncStore,
        *,
        branch: str = "main",
        agent: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id, self.branch, self.agent = session_id, branch, agent
        self.session_settings: SessionSettings | None = coerce_session_settings(session_settings or {})
        if isinstance(store, AsyncStore):
            self.store, self.threads = store.sync, store.threads
        else:
            self.store, self.threads = store, _threads_of.setdefault(store, Threads())
        self._session = self.fresh()
        self._turns = InOrder(self.threads)
        self._known: tuple[str | None, dict[str, Any]] | None = None  # the head as we saw it last, and its state
        self._is_ours = False  # its messages were looked at, and are items

    def __repr__(self) -> str:
        return f"<BackstaySession {self.session_id!r} {self.branch}>"

    # what the SDK calls. It passes its context to those who have a `wrapper`: it tells which run is calling

    async def get_items(self, limit: int | None = None, *, wrapper: Context = None) -> list[TResponseInputItem]:
        """The conversation, or its last `limit` items. After a crash: with what the journal has of the last run."""
        if wrapper is not None:
            await self._own_run(wrapper)
        limit = resolve_session_limit(limit, self.session_settings)
        items = await self._turns.run(self._read)
        return items if limit is None or limit < 0 else items[len(items) - min(limit, len(items)) :]

    async def add_items(self, items: list[TResponseInputItem], *, wrapper: Context = None) -> None:
        """Add items, all or none; on disk when this returns."""
        new = own(items)
        if not new:
            return
        live = await self._own_run(wrapper)
        if live is None and only_added(new):
            await self._turns.finish(self._append, new)
        else:
            await self._changed(live, lambda old: (joined(old, new), None), "add_items")

    async def pop_item(self, *, wrapper: Context = None) -> TResponseInputItem | None:
        """Take the last item away. The checkpoint before still has it: `restore`."""
        return await self._change(lambda old: (old[:-1], old[-1]) if old else (None, None), wrapper, "pop_item")

    async def clear_session(self, *, wrapper: Context = None) -> None:
        """Take all items away. The checkpoint before still has them: `restore`."""
        await self._change(lambda old: ([] if old else None, None), wrapper, "clear_session")

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """What `OpenAIResponsesCompactionSession` asks for: a kill finds the long history or the short one."""
        if type(self) is not BackstaySession:
            return False  # a subclass may see to every item that is added; then it is told, as of any other
        new = own(items)
        await self._change(lambda _: (new, None), None, "compaction")
        return True

    async def fork(self, ref: Ref, name: str) -> BackstaySession:
        """A new branch at a checkpoint, as a session of its own to run on; nothing is copied."""
        await self._turns.finish(self.fresh().fork, ref, name)
        other = copy.copy(self)
        other.branch, other._known, other._session, other._turns = name, None, self.fresh(), InOrder(self.threads)
        return other

    async def restore(self, ref: Ref) -> Checkpoint:
        """The items as they were at a checkpoint, as a new checkpoint."""
        await self._change(lambda _: (None, None), None, "restore")  # what a crash left is taken in before
        return await self._turns.finish(self.fresh().restore, ref, branch=self.branch)

    def log(self, ref: Ref | None = None, *, limit: int | None = None) -> AsyncIterator[Checkpoint]:
        """Checkpoints, newest first, for `async for`."""
        return AsyncSession(self.fresh(), self.threads).log(self.branch if ref is None else ref, limit=limit)

    # reading and writing without a run of ours; in a thread, one at a time

    def fresh(self) -> Session:
        """The session in the store, as one that has seen nothing yet."""
        return self.store.session(self.session_id, agent=self.agent)

    def _left_behind(self) -> tuple[list[Call], bool]:
        """The calls in the journal that no checkpoint has taken in, or that a run is alive that will do that."""
        branch = self.branch
        view = self.store.backend.read(Ask(self.session_id, names=(branch,), pending=(branch,)))
        live = branch in view.live
        return [] if live or not view.pending.get(branch) else self._session.calls(branch, pending=True), live

    def _read(self) -> Items:
        for _ in range(_TRIES):
            id_, state = self._look()
            left, _ = self._left_behind()
            items = items_of(state)
            self._is_ours = True
            if not left:
                return items
            if id_ == self._look()[0]:  # otherwise it may have taken in what we add here
                return mended(items, left)
        raise errors.ConflictError(f"{self!r} moved {_TRIES} times while it was read", hint="try again")

    def _look(self) -> tuple[str | None, dict[str, Any]]:
        """The head of the branch and its state; nothing where there is none yet."""
        try:
            state = self._session.load(self.branch)
        except errors.NotFoundError:
            return None, {}
        return (state.at[2] if state.at is not None else None), state

    def _append(self, new: Items) -> None:
        """Items behind those there are, whatever they are: this costs what is new."""
        if not self._is_ours:  # looked at once: others may have made it
            items_of(self._look()[1])
            self._is_ours = True
        left, live = self._left_behind()
        if not left and not live:
            self._known = None
            try:
                self._session.append(new, part=PART, branch=self.branch, trigger="add_items")
            except (errors.ConflictError, errors.InDoubtError, errors.LeaseHeldError):
                pass  # a run has begun, or has left something
            else:
                return
        self._write(lambda old: (joined(old, new), None), "add_items")

    def _write(self, change: Change, trigger: str) -> Any:
        if trigger != "add_items":
            self._known = None  # what is taken away must be what is there now, also if that is nothing
        for attempt in range(_TRIES):
            left, live = self._left_behind()
            if live:  # a commit now might come just after its end, and pass by what it has left
                if self.live is not None or attempt > _TRIES // 2:
                    raise errors.LeaseHeldError(f"{self!r} is being run", hint="wait for that to end, or fork")
                time.sleep(_PAUSE_S)  # it may be another's `_write_leased`, which is soon over
                continue
            if self._known is None:
                self._known = self._look()
            id_, state = self._known
            items, result = change(items_of(state))
            if items is None and not left:
                return result
            state = {**state, PART: items}
            try:
                if left:
                    return self._write_leased(change)
                place = NOTHING if id_ is None else id_
                point = self._session.commit(state, branch=self.branch, expect=place, trigger=trigger)
            except (errors.ConflictError, errors.InDoubtError, errors.LeaseHeldError):
                self._known = None  # somebody was faster: on what he has written, then
                time.sleep(_PAUSE_S)
            else:
                self._known = point.id, state
                return result
        raise errors.ConflictError(f"{self!r} moved {_TRIES} times while this was tried", hint="try again")

    def _write_leased(self, change: Change) -> Any:
        """A change that must see no other in between: the first after a crash."""
        self._known = None
        with self._session.run(branch=self.branch) as run:
            take_in(run)
            items, result = change(items_of(run.state))
            if items is not None:
                run.state[PART] = items
        return result

    async def _change(self, change: Change, wrapper: Context, trigger: str) -> Any:
        return await self._changed(await self._own_run(wrapper), change, trigger)

    async def _changed(self, live: Live | None, change: Change, trigger: str) -> Any:
        if live is None:
            return await self._turns.finish(self._write, change, trigger)
        return await self.threads.finish(live.change, change)

    def new_run(self, lease_s: float) -> Run:
        """A run on this branch, which knows what this session knows of its head."""
        return self._session.run(branch=self.branch, lease_s=lease_s)

    async def _own_run(self, wrapper: Context) -> Live | None:
        """The run of this caller, if it has one. One that ended without a word is left now.

        The SDK does not say when `Runner.run` fails. It has, if the task that awaited it is done or is calling here,
        or nobody holds what it ran with.
        """
        task, live = asyncio.current_task(), self.live
        if wrapper is not None:
            visits[wrapper] = self, task
            if live is not None and live.key is key_of(wrapper):
                live.accompany(wrapper, task)
                return live
        elif live is not None and live.session is self and live.task is None and not live.is_over:
            return live  # its run came without a context: the SDK speaks to a session that wraps this one
        if live is not None and (live.task is task or live.is_over or (wrapper is not None and live.has_ended())):
            await self.threads.finish(live.leave, None)
        return None

    @property
    def live(self) -> Live | None:
        """The run that hooks have begun on this branch, if it has not ended."""
        return lives.get(self.store, {}).get((self.session_id, self.branch))
