"""Sessions, awaited: each method is one line over the sync face, in the order the calls were made."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from msgspec import UNSET, UnsetType

from backstay.aio.run import AsyncRun
from backstay.aio.threads import InOrder, Threads
from backstay.difference import Diff
from backstay.face import Session
from backstay.face.rewinding import Paths
from backstay.face.session import Expect
from backstay.loops import LoopGuard
from backstay.model import (
    Branch,
    Call,
    Checkpoint,
    ForgetReport,
    Outcome,
    PruneReport,
    RunInfo,
    SessionId,
    SessionInfo,
    State,
    StateDict,
    Status,
    StatusName,
    Usage,
    Wait,
)
from backstay.retention import Retention
from backstay.run.blaming import BlamedLine
from backstay.run.deciding import UNDECIDED
from backstay.run.options import OnDoubt, OnFailed
from backstay.store.refs import Ref
from backstay.strategy import ALWAYS, Strategy

if TYPE_CHECKING:
    import os

    from backstay.listing import KeepMine, RestorePlan
    from backstay.workspace.policy import Workspace


class AsyncSession:
    """One agent's history, awaited, for one writer. Made by `store.session(id)`, which does no I/O.

    Calls that overlap run one after another, in the order they were made. One that is cancelled before its turn has
    come does nothing; one that has begun is finished, and the next waits for that.
    """

    def __init__(self, session: Session, threads: Threads) -> None:
        self._session = session
        self._threads = threads
        self._turns = InOrder(threads)

    def __repr__(self) -> str:
        return f"<Async{repr(self._session)[1:]}"

    @property
    def id(self) -> SessionId:
        return self._session.id

    @property
    def agent(self) -> str | None:
        return self._session.agent

    async def describe(
        self,
        *,
        title: str | UnsetType | None = UNSET,
        owner: str | UnsetType | None = UNSET,
        metadata: Mapping[str, Any] | UnsetType | None = UNSET,
    ) -> SessionInfo:
        return await self._turns.run(self._session.describe, title=title, owner=owner, metadata=metadata)

    # writing

    async def commit(
        self,
        state: StateDict,
        *,
        branch: str = "main",
        expect: Expect = None,
        step: int | None = None,
        label: str | None = None,
        trigger: str = "manual",
        status: Status | Outcome | StatusName | None = None,
        usage: Usage | dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        resume_hint: str | None = None,
        summary: str | None = None,
        id: str | None = None,
        root: bool = False,
        frozen: bool = False,
        files: bool = True,
    ) -> Checkpoint:
        """Record a state. It is read in a thread: leave it alone until this returns, or is known to have finished."""
        return await self._turns.run(
            self._session.commit,
            state,
            branch=branch,
            expect=expect,
            step=step,
            label=label,
            trigger=trigger,
            status=status,
            usage=usage,
            metadata=metadata,
            resume_hint=resume_hint,
            summary=summary,
            id=id,
            root=root,
            frozen=frozen,
            files=files,
        )

    async def append(
        self,
        items: Any,
        *,
        part: str = "messages",
        unique: str | None = None,
        branch: str = "main",
        step: int | None = None,
        label: str | None = None,
        trigger: str = "manual",
        status: Status | Outcome | str | None = None,
        usage: Usage | dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        resume_hint: str | None = None,
        summary: str | None = None,
    ) -> Checkpoint:
        """Put items behind a list of the state, on whatever head the branch has; tried again when it is overtaken."""
        return await self._turns.run(
            self._session.append,
            items,
            part=part,
            unique=unique,
            branch=branch,
            step=step,
            label=label,
            trigger=trigger,
            status=status,
            usage=usage,
            metadata=metadata,
            resume_hint=resume_hint,
            summary=summary,
        )

    @contextlib.asynccontextmanager
    async def edit(self, branch: str = "main", *, wait_s: float = 30.0) -> AsyncIterator[State]:
        """Load, change, commit: `async with session.edit() as state:`. Edits of a branch take turns."""
        edit = self._session.begin_edit(branch, wait_s)
        try:
            while not await self._turns.finish(edit.try_begin):  # noqa: ASYNC110 - another process may have it
                await asyncio.sleep(edit.pause_s())
            yield edit.state
        except BaseException:
            await self._turns.finish(edit.give_up)
            raise
        await self._turns.finish(edit.finish)

    @overload
    async def restore(
        self,
        ref: Ref,
        *,
        branch: str = "main",
        files: bool | Literal["only"] = False,
        keep_mine: KeepMine = None,
        paths: Paths | None = None,
        partial: bool = False,
        dry_run: Literal[False] = False,
    ) -> Checkpoint: ...

    @overload
    async def restore(
        self,
        ref: Ref,
        *,
        branch: str = "main",
        files: bool | Literal["only"] = False,
        keep_mine: KeepMine = None,
        paths: Paths | None = None,
        partial: bool = False,
        dry_run: Literal[True],
    ) -> RestorePlan: ...

    async def restore(
        self,
        ref: Ref,
        *,
        branch: str = "main",
        files: bool | Literal["only"] = False,
        keep_mine: KeepMine = None,
        paths: Paths | None = None,
        partial: bool = False,
        dry_run: bool = False,
    ) -> Checkpoint | RestorePlan:
        restore: Callable[..., Checkpoint | RestorePlan] = self._session.restore
        options: dict[str, Any] = {"files": files, "keep_mine": keep_mine, "paths": paths, "dry_run": dry_run}
        return await self._turns.run(restore, ref, branch=branch, partial=partial, **options)

    async def undo(
        self, *, branch: str = "main", files: bool = True, keep_mine: KeepMine = True, partial: bool = False
    ) -> Checkpoint:
        options: dict[str, Any] = {"files": files, "keep_mine": keep_mine, "partial": partial}
        return await self._turns.run(self._session.undo, branch=branch, **options)

    async def undo_moves_files(self, *, branch: str = "main") -> bool:
        return await self._turns.run(self._session.undo_moves_files, branch=branch)

    async def bisect(
        self,
        *,
        good: Ref,
        bad: Ref = "main",
        test: Sequence[str],
        into: str | os.PathLike[str] | None = None,
        link: Iterable[str] = (),
        on_try: Callable[[Checkpoint, str], None] | None = None,
    ) -> Checkpoint:
        bisect = self._session.bisect
        return await self._turns.run(bisect, good=good, bad=bad, test=test, into=into, link=link, on_try=on_try)

    async def blame(self, path: str | os.PathLike[str], ref: Ref = "main") -> list[BlamedLine]:
        return await self._turns.run(self._session.blame, path, ref)

    async def finish_files(self, *, branch: str = "main") -> bool:
        return await self._turns.run(self._session.finish_files, branch=branch)

    async def fork(
        self, ref: Ref, branch: str, *, into: str | os.PathLike[str] | None = None, partial: bool = False
    ) -> Branch:
        return await self._turns.run(self._session.fork, ref, branch, into=into, partial=partial)

    async def delete_branch(self, name: str) -> None:
        await self._turns.run(self._session.delete_branch, name)

    async def tag(self, ref: Ref, name: str) -> None:
        await self._turns.run(self._session.tag, ref, name)

    async def untag(self, name: str) -> None:
        await self._turns.run(self._session.untag, name)

    async def prune(self, retention: Retention, *, dry_run: bool = False) -> PruneReport:
        return await self._turns.run(self._session.prune, retention, dry_run=dry_run)

    async def forget_files(self, *paths: str, before: Ref | None = None, dry_run: bool = False) -> ForgetReport:
        return await self._turns.run(self._session.forget_files, *paths, before=before, dry_run=dry_run)

    async def delete(self, ref: Ref) -> int:
        return await self._turns.run(self._session.delete, ref)

    # reading

    async def load(self, ref: Ref = "main", *, salvage: bool = False) -> State:
        """The state at a ref. Use this and not `checkpoint.state`, which would read on the event loop."""
        return await self._turns.run(self._session.load, ref, salvage=salvage)

    async def checkpoint(self, ref: Ref = "main") -> Checkpoint:
        return await self._turns.run(self._session.checkpoint, ref)

    async def head(self, branch: str = "main") -> Checkpoint | None:
        return await self._turns.run(self._session.head, branch)

    def log(self, ref: Ref = "main", *, limit: int | None = None) -> AsyncIterator[Checkpoint]:
        return self._turns.pages(self._session.log, ref, limit=limit)

    def history(self, *, before: Ref | None = None, limit: int | None = None) -> AsyncIterator[Checkpoint]:
        return self._turns.pages(self._session.history, before=before, limit=limit)

    async def branches(self) -> dict[str, Checkpoint]:
        return await self._turns.run(self._session.branches)

    async def tags(self) -> dict[str, Checkpoint]:
        return await self._turns.run(self._session.tags)

    async def diff(self, a: Ref, b: Ref | Workspace) -> Diff:
        return await self._turns.run(self._session.diff, a, b)

    async def newest_intact(self, branch: str = "main") -> Checkpoint | None:
        return await self._turns.run(self._session.newest_intact, branch)

    # runs

    def run(
        self,
        *,
        strategy: Strategy = ALWAYS,
        branch: str = "main",
        input: Any = None,
        restart: bool = False,
        lease_s: float = 30.0,
        on_doubt: OnDoubt = "ask",
        on_failed: OnFailed = "raise",
        loops: LoopGuard | None = None,
        workspace: Workspace | str | os.PathLike[str] | None = None,
    ) -> AsyncRun:
        """A loop that survives. Does no I/O before `async with`."""
        run = self._session.run(
            strategy=strategy,
            branch=branch,
            input=input,
            restart=restart,
            lease_s=lease_s,
            on_doubt=on_doubt,
            on_failed=on_failed,
            loops=loops,
            workspace=workspace,
        )
        return AsyncRun(run, self._threads)

    async def runs(self) -> list[RunInfo]:
        return await self._turns.run(self._session.runs)

    async def calls(self, ref: Ref = "main", *, pending: bool = False) -> list[Call]:
        return await self._turns.run(self._session.calls, ref, pending=pending)

    async def resolve(
        self,
        call_id: str,
        decision: Literal["retry", "rollback", "skip"] | None = None,
        *,
        result: Any = UNDECIDED,
        failed: str | None = None,
    ) -> None:
        await self._turns.run(self._session.resolve, call_id, decision, result=result, failed=failed)

    async def children(self) -> list[SessionInfo]:
        return await self._turns.run(self._session.children)

    @property
    def parent(self) -> Awaitable[SessionId | None]:
        """The session whose child this one is: `await session.parent`."""
        return self._turns.run(lambda: self._session.parent)

    async def cancel(self, branch: str = "main", *, reason: str) -> bool:
        return await self._turns.run(self._session.cancel, branch, reason=reason)

    async def waiting(self, branch: str = "main") -> list[Wait]:
        return await self._turns.run(self._session.waiting, branch)

    async def answer(
        self, name: str, value: Any, *, branch: str = "main", by: str | None = None, args: dict[str, Any] | None = None
    ) -> None:
        await self._turns.run(self._session.answer, name, value, branch=branch, by=by, args=args)

    async def reject(self, name: str, reason: str, *, branch: str = "main", by: str | None = None) -> None:
        await self._turns.run(self._session.reject, name, reason, branch=branch, by=by)

    async def send(self, name: str, value: Any, *, branch: str = "main") -> None:
        await self._turns.run(self._session.send, name, value, branch=branch)

    async def abandon(self, branch: str = "main", *, reason: str) -> None:
        await self._turns.run(self._session.abandon, branch, reason=reason)
