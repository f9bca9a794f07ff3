"""A Session: one writer's view of one history. Every guarantee about a single session is kept here.

A Session remembers where it last saw each branch and refuses to write over what it has not seen. It keeps what is
known of the heads it wrote (see tip), so that a commit costs what changed. Threads share the Store, not the Session.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from backstay import run as running
from backstay.backend import Backend, Deletion, Lease, Rewrite, Row
from backstay.delta import advance, rebuild, whole
from backstay.digest import state_digest
from backstay.errors import ConflictError, CorruptionError, InvalidInputError, NotFoundError
from backstay.lineage import check_name
from backstay.messages import summarise
from backstay.model import Branch, Call, Checkpoint, Outcome, PruneReport, SessionId, State, Status, Usage
from backstay.retention import Retention
from backstay.run import deciding
from backstay.run.deciding import UNDECIDED
from backstay.store.fields import (
    Fields,
    check_state,
    check_status,
    check_step,
    check_text,
    check_usage,
    encode_metadata,
    encode_usage,
    read_fields,
    to_checkpoint,
    total_of,
)
from backstay.store.reading import read_chain
from backstay.store.refs import Ref, Refs
from backstay.store.tip import Plan, Tip, blind_tip, tip_of
from backstay.strategy import ALWAYS, Strategy

if TYPE_CHECKING:
    from backstay.difference import Diff
    from backstay.loops import LoopGuard
    from backstay.run import Run
    from backstay.run.wording import OnDoubt, OnFailed
    from backstay.store import Store

_RACES = 100  # tries of a commit that expects nothing before it gives up and reports the conflict
_PAGE_ROWS = 100


class Session:
    """One agent's history: branches over checkpoints. Made by `store.session(id)`."""

    def __init__(self, store: Store, backend: Backend, id_: str, *, agent: str | None) -> None:
        self._store = store
        self._backend = backend
        self.id = SessionId(check_name(id_, "a session id"))
        self.agent = None if agent is None else check_name(agent, "an agent name")
        self._refs = Refs(backend, self.id)
        self._seen: dict[str, str] = {}
        self._tips: dict[str, Tip] = {}

    def __repr__(self) -> str:
        return f"<Session {self.id!r}>"

    # writing

    def commit(
        self,
        state: State,
        *,
        branch: str = "main",
        expect: Ref | None = None,
        step: int | None = None,
        label: str | None = None,
        trigger: str = "manual",
        status: Status | Outcome | str | None = None,
        usage: Usage | dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        resume_hint: str | None = None,
        summary: str | None = None,
        id: str | None = None,
        root: bool = False,
        frozen: bool = False,
    ) -> Checkpoint:
        """Record a state as the new head of a branch. When this returns it is on disk.

        `expect` is the checkpoint the branch must still stand at, by default where this Session last saw it. `id` is
        for who has names of his own: a checkpoint whose id is taken is a ConflictError. With `root` the branch must
        not exist yet and begins here, without a parent. `frozen` promises that nothing in the state will be changed in
        place: the same object in the next one is then the same value.
        """
        check_name(branch, "a branch name")
        if id is not None:
            check_name(id, "a checkpoint id")
        for name, text in (("label", label), ("resume_hint", resume_hint), ("summary", summary)):
            check_text(text, name)
        check_text(trigger, "trigger", required=True)
        check_step(step)
        chosen, used, meta = check_status(status), check_usage(usage), encode_metadata(metadata)

        def fields(parent: Fields | None) -> Fields:
            now, reason = chosen or ((parent.status, parent.reason) if parent else ("in_progress", None))
            return self._fields(
                parent,
                state,
                branch=branch,
                trigger=trigger,
                status=now,
                reason=reason,
                step=step,
                label=label,
                used=used,
                metadata=meta,
                resume_hint=resume_hint,
                summary=summary,
                loop=parent.loop if parent else b"",
            )

        head = None if expect is None else _ref_id(expect)
        return self._write(branch, state, fields, expect=head, id_=id, root=root, frozen=frozen)

    def _fields(
        self,
        parent: Fields | None,
        state: State,
        *,
        branch: str,
        trigger: str,
        status: str,
        reason: str | None = None,
        step: int | None,
        label: str | None,
        used: Usage,
        metadata: bytes = b"",
        resume_hint: str | None,
        loop: bytes,
        summary: str | None = None,
    ) -> Fields:
        return Fields(
            at_us=time.time_ns() // 1000,
            branch=branch,
            trigger=trigger,
            status=status,
            step=step,
            label=label,
            reason=reason,
            agent=self.agent or (parent.agent if parent else None),
            usage=encode_usage(used),
            total=total_of(parent, used),
            metadata=metadata,
            resume_hint=resume_hint,
            summary=summarise(state) if summary is None else summary,
            loop=loop,
        )

    def restore(self, ref: Ref, *, branch: str = "main") -> Checkpoint:
        """Bring a branch back to an earlier state, as a new checkpoint; `undo` takes it back."""
        target = self._refs.row(ref)
        return self._go_back(target, branch, "restore")

    def undo(self, *, branch: str = "main") -> Checkpoint:
        """The branch as it stood before its last restore or undo; so undo twice is redo."""
        found = self._backend.find_branch(self.id, check_name(branch, "a branch name"))
        if found is None:
            raise self._refs.no_branch(branch)
        if found.undo_id is None:
            message = f"branch {branch!r} has no restore to undo"
            raise NotFoundError(message, hint="session.restore(ref) goes back to any checkpoint")
        return self._go_back(self._refs.row_by_id(found.undo_id), branch, "undo")

    def fork(self, ref: Ref, branch: str) -> Branch:
        """A new branch at a checkpoint; nothing is copied."""
        row = self._refs.row(ref)
        check_name(branch, "a branch name")
        self._backend.fork(self.id, id_=row.id, branch=branch)
        self._seen[branch] = row.id
        for tip in self._tips.values():
            if tip.row.id == row.id:
                self._tips[branch] = tip
                break
        return Branch(branch, self._checkpoint(row))

    def delete_branch(self, name: str) -> None:
        """Forget a branch; its checkpoints stay and can be had by their ids."""
        self._backend.delete_branch(self.id, branch=check_name(name, "a branch name"))
        self._seen.pop(name, None)
        self._tips.pop(name, None)

    def tag(self, ref: Ref, name: str) -> None:
        """Give a checkpoint a name that does not move."""
        self._backend.tag(self.id, id_=self._refs.row(ref).id, name=check_name(name, "a tag"))

    def untag(self, name: str) -> None:
        """Take a tag away."""
        self._backend.untag(self.id, name=check_name(name, "a tag"))

    def delete(self, ref: Ref) -> None:
        """Delete one checkpoint; its descendants stay readable, branches on it move to its parent."""
        row = self._refs.row(ref)
        for _ in range(_RACES):
            rewrites = tuple([self._rewrite(child) for child in self._backend.children(self.id, row.id)])
            try:
                self._backend.delete_checkpoints(Deletion(self.id, (row.id,), rewrites))
            except ConflictError:
                continue  # somebody committed on it in between
            break
        else:
            message = f"checkpoint {row.id[:12]} is being committed on; it was not deleted"
            raise ConflictError(message, hint="try again")
        self._tips.clear()
        for branch, seen in list(self._seen.items()):
            if seen == row.id and row.link_id is not None:
                self._seen[branch] = row.link_id

    def prune(self, retention: Retention, *, dry_run: bool = False) -> PruneReport:
        """Forget what a retention allows of this session; with `dry_run`, say exactly what that would be."""
        report = self._store.prune(retention, session=self.id, dry_run=dry_run)
        if not dry_run:
            self._tips.clear()
        return report

    # reading

    def load(self, ref: Ref = "main", *, salvage: bool = False) -> State:
        """The state at a ref, verified. With `salvage`, damaged items are marked instead of being an error."""
        row, branch = self._refs.resolve(ref)
        self._checkpoint(row)
        state = self._read(row.id, salvage=salvage)
        if branch is not None:
            self._seen[branch] = row.id
        return state

    def checkpoint(self, ref: Ref = "main") -> Checkpoint:
        """The checkpoint at a ref; NotFoundError if there is none."""
        return self._checkpoint(self._refs.row(ref))

    def head(self, branch: str = "main") -> Checkpoint | None:
        """Where a branch stands, or None."""
        found = self._backend.find_branch(self.id, check_name(branch, "a branch name"))
        return None if found is None else self._checkpoint(self._refs.row_by_id(found.head_id))

    def log(self, ref: Ref = "main", *, limit: int | None = None) -> Iterator[Checkpoint]:
        """Checkpoints from a ref along their parents, newest first; read in pages."""
        if limit is not None and limit < 0:
            message = f"limit must not be negative, and is {limit}"
            raise InvalidInputError(message)
        return self._log(self._refs.row(ref).id, limit)

    def _log(self, next_id: str | None, limit: int | None) -> Iterator[Checkpoint]:
        left = limit if limit is not None else 2**62
        while next_id is not None and left > 0:
            page = self._backend.line(self.id, next_id, limit=min(left, _PAGE_ROWS))
            for row in page:
                yield self._checkpoint(row)
            left -= len(page)
            next_id = page[-1].link_id

    def branches(self) -> dict[str, Checkpoint]:
        """All branches and where they stand."""
        names = self._backend.names(self.id)
        return {branch.name: self._checkpoint(self._refs.row_by_id(branch.head_id)) for branch in names.branches}

    def tags(self) -> dict[str, Checkpoint]:
        """All tags and what they hold."""
        names = self._backend.names(self.id)
        return {tag.name: self._checkpoint(self._refs.row_by_id(tag.id)) for tag in names.tags}

    def diff(self, a: Ref, b: Ref) -> Diff:
        """What differs between two states, part by part."""
        from backstay.difference import difference

        before, after = self._refs.row(a), self._refs.row(b)
        for row in (before, after):
            read_fields(row)  # verified, as by every other read
        names = [ref if isinstance(ref, str) else ref.id[:8] for ref in (a, b)]
        return difference(self._state(before), self._state(after), a=names[0], b=names[1])

    def newest_intact(self, branch: str = "main") -> Checkpoint | None:
        """The newest checkpoint on a branch whose state can be read and verified in full; None if there is no branch.

        CorruptionError if there is one but nothing of it is intact.
        """
        found = self._backend.find_branch(self.id, check_name(branch, "a branch name"))
        if found is None:
            return None
        next_id: str | None = found.head_id
        try:
            while next_id is not None:
                row = self._refs.row_by_id(next_id)
                if self._is_intact(row):
                    return self._checkpoint(row)
                next_id = row.link_id
        except (CorruptionError, NotFoundError):
            # The way back is cut: what was committed on this branch before can still be had one by one.
            for id_ in reversed(self._backend.ids(self.id)):
                with contextlib.suppress(CorruptionError, NotFoundError):
                    row = self._refs.row_by_id(id_)
                    if self._checkpoint(row).branch == branch and self._is_intact(row):
                        return self._checkpoint(row)
        message = f"session {self.id!r}: no checkpoint of branch {branch!r} is intact"
        raise CorruptionError(message, hint="run verify, or load(salvage=True)")

    # runs

    def run(
        self,
        *,
        strategy: Strategy = ALWAYS,
        branch: str = "main",
        input: Any = None,
        lease_s: float = 30.0,
        on_doubt: OnDoubt = "ask",
        on_failed: OnFailed = "raise",
        loops: LoopGuard | None = None,
    ) -> Run:
        """A loop that survives: `with session.run() as run`. The same line starts it and resumes it."""
        check_name(branch, "a branch name")
        return running.make(
            self,
            strategy=strategy,
            branch=branch,
            input=input,
            lease_s=lease_s,
            on_doubt=on_doubt,
            on_failed=on_failed,
            loops=loops,
        )

    def calls(self, ref: Ref = "main", *, pending: bool = False) -> list[Call]:
        """The calls that the checkpoint at a ref took in; with `pending`, those on a branch since its head."""
        return deciding.calls(self, ref, pending=pending)

    def resolve(
        self, call_id: str, decision: str | None = None, *, result: Any = UNDECIDED, failed: str | None = None
    ) -> None:
        """Decide a call in doubt: "retry" it, "skip" it (it gives None), or say its result, or how it failed."""
        deciding.resolve(self, call_id, decision, result=result, failed=failed)

    def abandon(self, branch: str = "main", *, reason: str) -> None:
        """Give up what is pending on a branch; the calls stay in history as abandoned."""
        check_text(reason, "reason", required=True)
        self._backend.abandon(self.id, check_name(branch, "a branch name"), reason=reason)

    def _is_intact(self, row: Row) -> bool:
        try:
            return state_digest(self._state(row)) == row.state_digest
        except CorruptionError:
            return False

    # how states are read and written

    def _checkpoint(self, row: Row, fields: Fields | None = None) -> Checkpoint:
        return to_checkpoint(row, self.id, lambda: self._state(row), fields)

    def _state(self, row: Row) -> State:
        return self._read(row.id)

    def _read(self, id_: str, *, salvage: bool = False) -> State:
        try:
            chain, pieces = read_chain(self._backend, self.id, id_, salvage=salvage)
            return rebuild(chain.records, pieces, salvage=salvage).state
        except CorruptionError as error:
            message = f"session {self.id!r}: the state of checkpoint {id_[:12]} is damaged: {error.args[0]}"
            hint = "session.newest_intact() finds the newest one that is whole"
            raise CorruptionError(message, hint=hint) from error

    def _rewrite(self, child: str) -> Rewrite:
        record, blobs = whole(self._read(child))
        return Rewrite(child, record, blobs)

    def _tip(self, branch: str, head_id: str) -> Tip:
        """What is known of a head: kept from our own last commit, or read."""
        tip = self._tips.get(branch)
        if tip is None or tip.row.id != head_id:
            try:
                chain, pieces = read_chain(self._backend, self.id, head_id)
                tip = tip_of(chain, rebuild(chain.records, pieces))
            except CorruptionError:
                tip = blind_tip(self._refs.row_by_id(head_id))
        return tip

    def _stand_at(self, branch: str, head_id: str) -> tuple[Checkpoint, State, Fields]:
        """Where a run begins: the head of its branch, the state there, and its fields."""
        chain, pieces = read_chain(self._backend, self.id, head_id)
        rebuilt = rebuild(chain.records, pieces)
        tip = self._tips[branch] = tip_of(chain, rebuilt)
        self._seen[branch] = head_id
        return self._checkpoint(tip.row, tip.fields), rebuilt.state, tip.fields

    def _is_at_head(self, branch: str, state: State) -> bool:
        """True if a state is the one that was last written or read on the branch."""
        tip = self._tips.get(branch)
        return tip is not None and tip.known is not None and advance(tip.known, state)[2].digest == tip.known.digest

    def _write(
        self,
        branch: str,
        state: State,
        fields: Callable[[Fields | None], Fields],
        *,
        expect: str | None,
        id_: str | None = None,
        root: bool = False,
        frozen: bool = False,
        undo_of: str | None = None,
        lease: Lease | None = None,
        kept: Mapping[str, bytes] | None = None,
        ends_run: bool = False,
        keeps_undo: bool = False,
    ) -> Checkpoint:
        """Commit on the expected head; with nothing expected, on whatever head there is."""
        check_state(state)
        wanted = expect if expect is not None else self._seen.get(branch)
        for _ in range(_RACES):
            head_id = None if root else wanted if wanted is not None else self._head_id(branch)
            try:
                tip = None if head_id is None else self._tip(branch, head_id)
            except NotFoundError:
                if wanted is None:
                    continue  # deleted since it was looked up
                message = f"session {self.id!r}: branch {branch!r} is expected at {wanted[:12]}, which is not here"
                raise ConflictError(message, hint="load the branch again, then decide") from None
            plan = Plan(
                tip,
                state,
                session=self.id,
                id_=id_ or secrets.token_hex(12),
                fields=fields(None if tip is None else tip.fields),
                undo_to=head_id if keeps_undo else None,
                take_up=undo_of,
                lease=lease,
                kept=kept or {},
                ends_run=ends_run,
                frozen=frozen,
            )
            try:
                row = self._backend.commit(plan.commit)
            except ConflictError:
                if wanted is not None or id_ is not None or root:
                    raise
                continue  # nobody was promised a head: take the new one
            if (row.fields, row.state_digest) != (plan.commit.fields, plan.commit.state_digest):
                # Of a commit that comes twice the backend gives the first. With an id of our own making that is the
                # same one; with a caller's it may be another's.
                message = f"session {self.id!r}: there is already a checkpoint {row.id!r}"
                raise ConflictError(message, hint="load it; or choose another id")
            self._tips[branch] = plan.tip(row)
            self._seen[branch] = row.id
            checkpoint = self._checkpoint(row, self._tips[branch].fields)
            self._store._emit("checkpoint", checkpoint)  # noqa: SLF001 - the store's own room
            return checkpoint
        message = f"session {self.id!r}: branch {branch!r} moved {_RACES} times while this commit was tried"
        raise ConflictError(message, hint="try again, or use a branch of its own")

    def _head_id(self, branch: str) -> str | None:
        found = self._backend.find_branch(self.id, branch)
        if found is not None:
            return found.head_id
        if self._backend.find_session(self.id) is None or not self._backend.ids(self.id):
            return None
        # Another writer may have made session and branch between the two looks.
        found = self._backend.find_branch(self.id, branch)
        if found is None:
            raise self._refs.no_branch(branch)
        return found.head_id

    def _go_back(self, target: Row, branch: str, trigger: str) -> Checkpoint:
        check_name(branch, "a branch name")
        source = self._checkpoint(target)
        state = self._state(target)
        if self._backend.find_branch(self.id, branch) is None:
            raise self._refs.no_branch(branch)

        def fields(parent: Fields | None) -> Fields:
            return Fields(
                at_us=time.time_ns() // 1000,
                branch=branch,
                trigger=trigger,
                status=source.status.value,
                step=source.step,
                reason=source.reason,
                agent=self.agent or (parent.agent if parent else None),
                total=total_of(parent, Usage()),
                resume_hint=source.resume_hint,
                restored_from=target.id,
                summary=summarise(state),
                loop=read_fields(target).loop,
            )

        undone = target.id if trigger == "undo" else None
        return self._write(branch, state, fields, expect=None, keeps_undo=True, undo_of=undone)


def _ref_id(expect: Ref) -> str:
    return expect.id if isinstance(expect, Checkpoint) else check_name(expect, "expect")
