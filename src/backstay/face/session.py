"""A Session: one agent's history. Made by `store.session(id)`; nothing is written until the first commit or run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from backstay.codec import settle
from backstay.errors import CorruptionError, InvalidInputError, NotFoundError
from backstay.face.editing import Edit
from backstay.face.files_of_session import files_of
from backstay.face.rewinding import Rewinding
from backstay.hints import NEWEST_INTACT
from backstay.model import (
    NOTHING,
    Call,
    Checkpoint,
    ForgetReport,
    Mark,
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
)
from backstay.names import check_name
from backstay.port import EVERY, Ask, Backend, CheckpointRow
from backstay.retention import Retention
from backstay.rules import branches
from backstay.rules.sessions import About
from backstay.run import Run, deciding
from backstay.run.deciding import UNDECIDED
from backstay.store import describing, overview
from backstay.store.appending import Appended
from backstay.store.events import Events
from backstay.store.fields import Given, check_given, check_text
from backstay.store.history import History
from backstay.store.intact import newest_intact
from backstay.store.looks import Place
from backstay.store.recent import RecentHeads
from backstay.store.refs import Ref, readable
from backstay.strategy import ALWAYS, Strategy

if TYPE_CHECKING:
    import os

    from backstay.difference import Diff
    from backstay.loops import LoopGuard
    from backstay.run.options import OnDoubt, OnFailed
    from backstay.upkeep.files_limit import FilesLimit
    from backstay.workspace.policy import Workspace

_PAGE_ROWS = 100
_NOTHING_SAID = Given("manual")

Expect = str | Checkpoint | Mark | None


class Session(Rewinding):
    """One agent's history: branches over checkpoints."""

    def __init__(
        self,
        backend: Backend,
        events: Events,
        id_: str,
        *,
        agent: str | None,
        owner: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        recent: RecentHeads | None = None,
        workspace: Workspace | str | os.PathLike[str] | None = None,
        limit: Callable[[], FilesLimit] | None = None,
    ) -> None:
        self.id = SessionId(check_name(id_, "a session id"))
        self.agent = None if agent is None else check_name(agent, "an agent name")
        self._backend = backend
        self._history = History(backend, events, self.id, agent=self.agent, recent=recent)
        self._limit = limit
        self._files = files_of(self._history, workspace, limit)
        if owner is not None or title is not None or metadata:
            self._history.about = About(**describing.checked(owner=owner, title=title, metadata=metadata or {}))

    def __repr__(self) -> str:
        return f"<Session {self.id!r}>"

    def describe(
        self,
        *,
        title: str | UnsetType | None = UNSET,
        owner: str | UnsetType | None = UNSET,
        metadata: Mapping[str, Any] | UnsetType | None = UNSET,
    ) -> SessionInfo:
        """Say something else of the session; what is not given stays, None takes it away. Its line as it is then."""
        return describing.describe(self._backend, self.id, title=title, owner=owner, metadata=metadata)

    # writing

    def commit(
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
        """Record a state as the new head of a branch. When this returns it is on disk.

        The files of the session's workspace are recorded with it, unless `files` is False.

        `expect` is the checkpoint the branch must still be at, NOTHING or ANY; by default where the state was loaded,
        or where you last saw the branch. `id` is for callers with ids of their own: one that is taken is a
        ConflictError. With `root` the branch must not exist yet and begins here, without a parent. `frozen` promises
        that nothing in the state will be changed in place: the same object in the next one is then the same value.
        """
        if branch != "main":
            check_name(branch, "a branch name")
        if id is not None:
            check_name(id, "a checkpoint id")
        given = _NOTHING_SAID
        said = (step, label, status, usage, metadata, resume_hint, summary)
        if trigger != "manual" or not all(map(is_, said, repeat(None))):
            given = check_given(
                step=step,
                label=label,
                trigger=trigger,
                status=status,
                usage=usage,
                metadata=metadata,
                resume_hint=resume_hint,
                summary=summary,
            )
        wanted = self._expected(state, branch, expect)
        root = root or expect is NOTHING
        found = None if self._files is None or not files else self._files.committed(branch)
        made = self._history.write(branch, state, given, expect=wanted, id_=id, root=root, frozen=frozen, files=found)
        if isinstance(state, State) and state.at is not None and state.at[:2] == (self.id, branch):
            state.at = (self.id, branch, made.id)
        return made

    def _expected(self, state: object, branch: str, expect: Expect) -> Place:
        if isinstance(expect, Checkpoint):
            return expect.id
        if isinstance(expect, Mark):
            return expect
        if expect is not None:
            return check_name(expect, "expect")
        if isinstance(state, State) and state.at is not None and state.at[:2] == (self.id, branch):
            return state.at[2]
        return self._history.looks.expected(branch)

    def append(
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
        """Put items behind a list of the state, on whatever head the branch has; tried again when it is overtaken.

        A list is several items, anything else is one. Nothing else of the state is compared, so this costs what is new.
        With `unique`, an item whose value at that key an item of the list already has is left out; where nothing is
        left, nothing is written and you get the head. A branch without a state begins with this list.
        """
        if branch != "main":
            check_name(branch, "a branch name")
        check_text(part, "part", required=True)
        check_text(unique, "unique")
        given = _NOTHING_SAID
        said = (step, label, status, usage, metadata, resume_hint, summary)
        if trigger != "manual" or not all(map(is_, said, repeat(None))):
            given = check_given(
                step=step,
                label=label,
                trigger=trigger,
                status=status,
                usage=usage,
                metadata=metadata,
                resume_hint=resume_hint,
                summary=summary,
            )
        several = items if isinstance(items, list) else [items]
        settled = [settle(item, (part, at)) for at, item in enumerate(several)]
        return self._history.append(branch, Appended(part, settled, unique), given)

    @contextlib.contextmanager
    def edit(self, branch: str = "main", *, wait_s: float = 30.0) -> Iterator[State]:
        """Load, change, commit: `with session.edit() as state:`. A new session begins with an empty state.

        Edits of a branch take turns, in all processes; one that waits for longer than `wait_s` is a LeaseHeldError. A
        commit does not wait: your changes are made again on top of it, or it is a ConflictError where both changed the
        same. An exception out of the block commits nothing.
        """
        edit = self.begin_edit(branch, wait_s)
        while not edit.try_begin():
            time.sleep(edit.pause_s())
        try:
            yield edit.state
        except BaseException:
            edit.give_up()
            raise
        edit.finish()

    def begin_edit(self, branch: str, wait_s: float) -> Edit:
        """The parts of an edit, for a face that waits in another way."""
        return Edit(self._history, check_name(branch, "a branch name"), wait_s)

    def delete_branch(self, name: str) -> None:
        """Forget a branch; its checkpoints stay and can be read by their ids."""
        check_name(name, "a branch name")
        self._backend.write(branches.name_ask(self.id, name), branches.delete_branch(self.id, name))
        self._history.looks.forget(name)
        self._history.forget(name)

    def tag(self, ref: Ref, name: str) -> None:
        """Give a checkpoint a name that does not move."""
        row = self._history.refs.row(ref)
        ask = branches.naming_ask(self.id, check_name(name, "a tag"), row.sequence)
        self._backend.write(ask, branches.tag(self.id, name, sequence=row.sequence, id_=row.id))

    def untag(self, name: str) -> None:
        """Take a tag away."""
        check_name(name, "a tag")
        self._backend.write(branches.name_ask(self.id, name), branches.untag(self.id, name))

    def delete(self, ref: Ref) -> int:
        """Delete one checkpoint; its descendants stay readable, branches on it move to its parent. How many went."""
        from backstay.upkeep.deletion import delete_some

        row = self._history.refs.row(ref)
        count = delete_some(self._backend, self.id, [row.sequence])
        self._history.forget()
        self._history.recent.drop(self.id)
        for name, lane in self._backend.read(Ask(self.id, names=EVERY)).lanes.items():
            if lane.head is not None and lane.head.sequence == row.parent:
                self._history.looks.followed(name, row.id, lane.head.id)
        return count

    def prune(self, retention: Retention, *, dry_run: bool = False) -> PruneReport:
        """Forget what a retention allows of this session; with `dry_run`, say exactly what that would be."""
        from backstay.upkeep import pruning

        report = pruning.prune(self._backend, retention, session=self.id, dry_run=dry_run)
        if not dry_run:
            self._history.forget()
            self._history.recent.drop(self.id)
        return report

    def forget_files(self, *paths: str, before: Ref | None = None, dry_run: bool = False) -> ForgetReport:
        """Forget the contents of files: lists, digests and the conversation stay, and say that they are forgotten.

        A path names a file, a folder, or several by `*` and `?`: its contents go from all checkpoints, or from those
        before a ref, and from the bytes of the store. Without paths, the files of checkpoints before a ref go that
        no branch, tag, label or undo leads to. With `dry_run`, only say what would go. This cannot be undone.
        """
        from backstay.upkeep.forget_files import forget_files

        sequence = None if before is None else self._history.refs.row(before).sequence
        report = forget_files(self._backend, self.id, paths, before=sequence, dry_run=dry_run)
        if not dry_run:
            self._history.forget()
            self._history.recent.drop(self.id)
        return report

    # reading

    def load(self, ref: Ref = "main", *, salvage: bool = False) -> State:
        """The state at a ref, verified. With `salvage`, damaged items are marked instead of being an error."""
        try:
            found = self._history.load(ref, salvage=salvage)
        except NotFoundError:
            self._saw_nothing(ref)
            raise
        if found.lane is None:
            return State(found.state)
        branch = found.lane.name
        self._history.looks.saw(branch, found.row.id)
        return State(found.state, (self.id, branch, found.row.id))

    def checkpoint(self, ref: Ref = "main") -> Checkpoint:
        """The checkpoint at a ref; NotFoundError if there is none."""
        return self._history.checkpoint(self._resolved(ref))

    def _resolved(self, ref: Ref) -> CheckpointRow:
        try:
            row, branch = self._history.refs.resolve(ref)
        except NotFoundError:
            self._saw_nothing(ref)
            raise
        if branch is not None:
            self._history.looks.saw(branch, row.id)
        return row

    def _saw_nothing(self, ref: object) -> None:
        """A look that found nothing has seen that there is nothing."""
        if isinstance(ref, str) and "~" not in ref and "^" not in ref:
            self._history.looks.saw(ref, NOTHING)

    def head(self, branch: str = "main") -> Checkpoint | None:
        """The head of a branch, or None."""
        check_name(branch, "a branch name")
        view = self._backend.read(Ask(self.id, names=(branch,), heads=True))
        lane = view.lanes.get(branch)
        if lane is None or lane.head is None:
            self._history.looks.saw(branch, NOTHING)
            return None
        row = view.checkpoints.get(lane.head.sequence)
        if row is None:
            raise _missing_head(self.id, branch, lane.head.sequence)
        self._history.looks.saw(branch, lane.head.id)
        return self._history.checkpoint(readable(self.id, row))

    def log(self, ref: Ref = "main", *, limit: int | None = None) -> Iterator[Checkpoint]:
        """Checkpoints from a ref along their parents, newest first; read in pages."""
        if limit is not None and limit < 0:
            raise InvalidInputError(f"limit must not be negative, and is {limit}")
        return self._log(self._resolved(ref), limit if limit is not None else 2**62)

    def _log(self, row: CheckpointRow, left: int) -> Iterator[Checkpoint]:
        last, sequence = row, row.sequence
        while left > 0:
            page = self._backend.ancestors(self.id, sequence, limit=min(left, _PAGE_ROWS))
            if not page and sequence == row.sequence:
                page = [row]  # as it was resolved: it was pruned since, and the line still begins there
            for found in page:
                last = readable(self.id, found)
                yield self._history.checkpoint(last)
            left -= len(page)
            parent = last.parent if page else self._parent_now(last)
            if parent is None or (not page and parent == sequence):
                return
            sequence = parent

    def _parent_now(self, row: CheckpointRow) -> int | None:
        """Whatever stands before a checkpoint, if those that stood there were pruned meanwhile."""
        now = self._backend.read(Ask(self.id, sequences=(row.sequence,))).checkpoints.get(row.sequence)
        return now.parent if isinstance(now, CheckpointRow) else None

    def history(self, *, before: Ref | None = None, limit: int | None = None) -> Iterator[Checkpoint]:
        """The checkpoints of all branches, newest first, those older than `before`; read in pages."""
        if limit is not None and limit < 0:
            raise InvalidInputError(f"limit must not be negative, and is {limit}")
        at = None if before is None else self._history.refs.row(before).sequence
        rows = overview.history(self._backend, self.id, before=at, limit=limit)
        return map(self._history.checkpoint, rows)

    def branches(self) -> dict[str, Checkpoint]:
        """All branches and where they are."""
        view = self._backend.read(Ask(self.id, names=EVERY, heads=True))
        at = {lane.name: lane.head.sequence for lane in view.lanes.values() if lane.head is not None}
        return self._named(view.checkpoints, at)

    def tags(self) -> dict[str, Checkpoint]:
        """All tags and what they hold."""
        view = self._backend.read(Ask(self.id, names=EVERY, heads=True))
        return self._named(view.checkpoints, {tag.name: tag.sequence for tag in view.tags.values()})

    def _named(self, rows: Any, at: dict[str, int]) -> dict[str, Checkpoint]:
        found: dict[str, Checkpoint] = {}
        made: dict[int, Checkpoint] = {}  # many branches may be at one checkpoint
        for name, sequence in sorted(at.items()):
            row = rows.get(sequence)
            if row is None:
                raise _missing_head(self.id, name, sequence)
            if sequence not in made:
                made[sequence] = self._history.checkpoint(readable(self.id, row))
            found[name] = made[sequence]
        return found

    def diff(self, a: Ref, b: Ref | Workspace) -> Diff:
        """The difference between two states, part by part, and of their files; with a Workspace, to the folder now."""
        from backstay.run.comparing_files import compared

        return compared(self._history, a, b, files=self._files)

    def newest_intact(self, branch: str = "main") -> Checkpoint | None:
        """The newest checkpoint on a branch whose state can be read and verified in full; None if there is no branch.

        CorruptionError if there is one but nothing of it is intact.
        """
        row = newest_intact(self._history, check_name(branch, "a branch name"))
        return None if row is None else self._history.checkpoint(row)

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
    ) -> Run:
        """A loop that survives: `with session.run() as run`. The same line starts and resumes it; see docs/runs.md.

        The files of the `workspace`, by default the session's, are recorded with every boundary.
        """
        check_name(branch, "a branch name")
        return Run(
            self,
            self._history,
            strategy=strategy,
            branch=branch,
            input=input,
            restart=restart,
            lease_s=lease_s,
            on_doubt=on_doubt,
            on_failed=on_failed,
            loops=loops,
            files=self._files if workspace is None else files_of(self._history, workspace, self._limit),
        )

    def runs(self) -> list[RunInfo]:
        """The runs that have not come to their end: alive, crashed, or ended with work left for the next one."""
        return overview.runs(self._backend, self.id)

    def below(self, name: str) -> Session:
        """The session of a child."""
        return Session(self._backend, self._history.events, f"{self.id}/{name}", agent=self.agent, limit=self._limit)

    def calls(self, ref: Ref = "main", *, pending: bool = False) -> list[Call]:
        """The calls that the checkpoint at a ref took in; with `pending`, those on a branch since its head."""
        return deciding.calls(self._history, ref, pending=pending)

    def resolve(
        self,
        call_id: str,
        decision: Literal["retry", "rollback", "skip"] | None = None,
        *,
        result: Any = UNDECIDED,
        failed: str | None = None,
    ) -> None:
        """Decide a call in doubt: "retry" it, "skip" it (it gives None), or say its result, or how it failed.

        "rollback", for a call with `effects="files"`: the files are put back as they were before it, then as "retry".
        """
        deciding.resolve(self._history, call_id, decision, result=result, failed=failed, files=self._files)

    def cancel(self, branch: str = "main", *, reason: str) -> bool:
        """Stop the run of a branch: at its next call or boundary if it is alive, else at once. False: there is none."""
        check_text(reason, "reason", required=True)
        return deciding.cancel(self._history, check_name(branch, "a branch name"), reason=reason)

    def abandon(self, branch: str = "main", *, reason: str) -> None:
        """Give up what is pending on a branch; the calls stay in history as abandoned."""
        check_text(reason, "reason", required=True)
        deciding.abandon(self._history, check_name(branch, "a branch name"), reason=reason)


def _missing_head(session: str, name: str, sequence: int) -> CorruptionError:
    message = f"session {session!r}: {name!r} names checkpoint #{sequence}, which is missing"
    return CorruptionError(message, hint=NEWEST_INTACT)
