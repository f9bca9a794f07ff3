"""A restore of a branch together with the files of its workspace: a journaled call that can be killed anywhere.

    hold      the branch: no run, commit or other restore comes between; and the folder, by a lock in it
    capture   the folder as it is now, as a checkpoint of its own where it differs: what an undo goes back to
    plan      from the list of the disk to that of the target, path by path (backstay.listing)
    begin     the call `backstay.place` is in the journal
    stage     every content that is to come, verified and synced beside the folder; nothing is changed yet
    apply     each path, only where it is still what was captured
    commit    the target's state and the folder's list as it is now; in the same transaction the call goes

A kill before `begin` leaves the folder as it was. One after it leaves the call: the next run, restore or recover on
this machine does the same again, which changes only what is not done yet. Elsewhere the call stays in doubt.

A path that cannot be written is an error which names it, before anything is changed where that can be told. Where it
shows while files are put back, those that were are taken back first; so a restore has done all of it or nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from backstay.codec import Root, decode, encode_stored, held_in
from backstay.errors import FilesConflictError, InDoubtError, NotFoundError
from backstay.grouping import is_forgotten
from backstay.hints import Hint
from backstay.listing import (
    EMPTY,
    OUTSIDE,
    RESTORE,
    KeepMine,
    Listing,
    PlaceStep,
    RestorePlan,
    Wish,
    from_value,
    plan_restore,
    shown,
)
from backstay.model import ANY, Checkpoint
from backstay.port import Ask, CallRow
from backstay.port.lease import here
from backstay.port.rows import SKIPPED, STARTED
from backstay.rules import file_restore as rules
from backstay.rules import refusals
from backstay.rules.refusals import Lease
from backstay.run.file_versions import Versions
from backstay.run.files import SessionFiles, captured
from backstay.run.holding import HeldBranch
from backstay.sealing import open_value, pack_value
from backstay.store.fields import Given, read_fields
from backstay.store.file_contents import BlobSink, CheckpointFiles, remnants_of
from backstay.store.file_export import refuse_forgotten
from backstay.store.files import CapturedFiles
from backstay.store.history import History
from backstay.store.looks import Place
from backstay.store.reading import Loaded
from backstay.workspace.open_root import OpenRoot
from backstay.workspace.placement import Placed, Placement
from backstay.workspace.policy import Workspace
from backstay.workspace.writability import AGAIN, NOT_WRITABLE, OR_PARTIAL, not_writable, refuse_failed

BEFORE = "before going back"
_NAMED = 20
_ID_BYTES = 8
_OPTIONS = ("include", "exclude", "ignore", "max_file", "max_total", "secrets", "git")
_KEEP = Hint(
    "keep_mine=True keeps yours, keep_mine=False puts all back; paths=[…] names those to put back",
    "--mine keeps yours, --theirs puts all back; name paths behind -- to put back those alone",
)


class RestoreRequest(msgspec.Struct, frozen=True):
    """A restore as it was asked for, in its journaled call too. `talk` is False where only files are put back.

    `partial`: files whose contents were forgotten or are damaged, or that cannot be written, stay as they are, and the
    others are put back.
    """

    target: str
    trigger: str = "restore"
    talk: bool = True
    keep_mine: KeepMine = None
    paths: tuple[bytes, ...] | None = None
    partial: bool = False


class PlaceCall(msgspec.Struct, frozen=True):
    """The arguments of the call: what was asked, the checkpoint with the folder before it, and which folder it was."""

    request: RestoreRequest
    before: str
    host: str
    machine: str
    path: bytes
    device: int
    inode: int
    options: dict[str, Any]


class FileRestore:
    """Restores of one branch with its files. `outcome` says what became of the paths of the last one."""

    def __init__(self, history: History, branch: str, files: SessionFiles) -> None:
        self._history = history
        self._branch = branch
        self._files = files
        self.outcome = Placed()
        self._author = RESTORE  # of what is put back

    @contextlib.contextmanager
    def _held(self) -> Iterator[tuple[Lease, OpenRoot]]:
        """The branch and the folder, held: no run, commit or other restore comes between."""
        with (
            HeldBranch(self._history, self._branch, rules.RESTORE) as held,
            OpenRoot(self._files.workspace.path) as root,
            root.locked(),
        ):
            yield held.lease, root

    # looking only

    def plan(self, request: RestoreRequest) -> RestorePlan:
        """What a restore would do now; nothing is written."""
        history = self._history
        target, head = _with_files(history, request.target), history.load(self._branch)
        base = _listing(head)
        with OpenRoot(self._files.workspace.path) as root:
            disk, _ = self._files.capture(base, BlobSink(history.backend, dry=True))
            return self._planned(root, disk, target, head, request, on_disk=True)

    def _planned(
        self, root: OpenRoot, disk: Listing, target: Loaded, head: Loaded, request: RestoreRequest, *, on_disk: bool
    ) -> RestorePlan:
        _refuse_unknown(request.paths, disk, target)
        versions = Versions(self._history, head.row, target, disk, root if on_disk else None)
        self._author = f"{RESTORE}@{versions.since}" if versions.is_ancestor else RESTORE
        taken_ns = read_fields(target.row).at_us * 1000
        wish = Wish(request.keep_mine, request.paths, versions.since, folds(root), taken_ns)
        plan = plan_restore(disk, _listing(target), wish, versions.merged)
        files = CheckpointFiles(self._history.backend, target)
        lost = [
            step.path for step in plan.put if step.contents is None and step.after and files.is_forgotten(step.after)
        ]
        steps = tuple([step for step in plan.steps if step.path not in set(lost)]) if lost else plan.steps
        plan = self._without_lost(msgspec.structs.replace(plan, steps=steps, forgotten=tuple(lost)), disk)
        return msgspec.structs.replace(plan, blocked=not_writable(root, plan.steps))

    def _without_lost(self, plan: RestorePlan, disk: Listing) -> RestorePlan:
        """The plan without paths whose contents, as they are on the disk, are forgotten: no undo could bring them."""
        remnants = remnants_of(self._history.backend, held_in(disk.groups)) if plan.steps else {}
        kept = {
            step.path for step in plan.steps if step.before is not None and is_forgotten(disk, step.before, remnants)
        }
        steps = tuple([step for step in plan.steps if step.path not in kept])
        left = (*plan.without_contents, *sorted(kept))
        return msgspec.structs.replace(plan, steps=steps, without_contents=left) if kept else plan

    # doing it

    def restore(self, request: RestoreRequest, expect: Place) -> Checkpoint:
        """Put state and files back. FilesConflictError names what would be lost, and nothing is changed then."""
        history, branch = self._history, self._branch
        with self._held() as (lease, root):
            pending = _pending(history, branch)
            if pending is not None:
                self._finish(lease, root, pending)
            target, head = _with_files(history, request.target), history.load(branch)
            if pending is None and expect not in (ANY, head.row.id):
                raise refusals.moved(history.id, branch, head=head.row.id, expect=str(expect))[1]
            base, sink = _listing(head), self._files.sink()
            self._files.look_again()
            disk, _ = self._files.capture(base, sink)
            plan = self._planned(root, disk, target, head, request, on_disk=True)
            refuse_conflicts(plan, request.keep_mine)
            if not request.partial:
                refuse_forgotten([shown(path) for path in plan.forgotten], "nothing was put back")
                refuse_failed(dict.fromkeys(plan.blocked, NOT_WRITABLE), "nothing was put back", OR_PARTIAL)
            before = head.row.id
            if disk is not base or head.files is None:
                before = self._commit_before(head, captured(disk, sink), lease).id
            call = self._call(root, request, before)
            row = history.backend.write(rules.place_ask(lease), rules.begin(lease, call)).answer
            placement = Placement(root, call.id, plan.steps)
            try:
                self._stage(placement, target, partial=request.partial)
            except Exception:  # a full disk, damaged contents: nothing was changed
                placement.clear()
                history.backend.write(rules.place_ask(lease), rules.give_up(lease, row))
                raise
            return self._apply(placement, lease, row, request, plan, disk)

    def _commit_before(self, head: Loaded, files: CapturedFiles, lease: Lease) -> Checkpoint:
        """The folder as it is, with the head's own state: what an undo goes back to."""
        fields = read_fields(head.row)
        given = Given(
            "restore",
            label=BEFORE,
            status=fields.status,
            reason=fields.reason,
            step=fields.step,
            resume_hint=fields.resume_hint,
            summary=fields.summary,
            restored_from=head.row.id,  # the story (`ref^N`) does not count it as a step of its own
            loop=fields.loop,
            captured=True,
        )
        return self._history.write(
            self._branch,
            head.state,
            given,
            expect=head.row.id,
            lease=lease,
            keeps_journal=True,
            files=files,
        )

    def _stage(self, placement: Placement, target: Loaded, *, partial: bool) -> None:
        wanted = CheckpointFiles(self._history.backend, target)

        def contents(step: PlaceStep) -> Iterator[bytes]:
            assert step.after is not None  # noqa: S101 - only what comes is staged
            yield wanted.contents(step.after) if step.contents is None else step.contents

        placement.stage(contents, partial=partial)

    def _apply(
        self,
        placement: Placement,
        lease: Lease,
        call: CallRow,
        request: RestoreRequest,
        plan: RestorePlan,
        before: Listing,
    ) -> Checkpoint:
        history = self._history
        placed = placement.apply()
        if placed.failed and not request.partial:
            self._take_back(placement, lease, call, placed)
        authors = dict.fromkeys(placed.done, self._author) | dict.fromkeys(plan.merged, RESTORE)
        sink = self._files.sink()
        self._files.look_again()
        now, _ = self._files.capture(before, sink, author=lambda path: authors.get(path, OUTSIDE))
        target, head = history.load(request.target), history.load(self._branch)
        source = read_fields(target.row if request.talk else head.row)
        given = Given(
            request.trigger,
            status=source.status,
            reason=source.reason,
            step=source.step,
            label=None if request.talk else f"files of {target.row.id[:8]}",
            resume_hint=source.resume_hint,
            restored_from=target.row.id if request.talk else None,
            loop=source.loop,
            captured=True,
        )
        made = history.write(
            self._branch,
            target.state if request.talk else head.state,
            given,
            expect=head.row.id,
            undoable=True,
            takes_up=request.trigger == "undo",
            lease=lease,
            settles=call.at,
            files=captured(now, sink),
        )
        placement.clear()
        self.outcome = msgspec.structs.replace(placed, kept={**placed.kept, **dict.fromkeys(plan.kept, "yours")})
        return made

    def _take_back(self, placement: Placement, lease: Lease, call: CallRow, placed: Placed) -> NoReturn:
        """Some paths could not be written: those that were go back to what they were, and nothing is recorded.

        Where not even that can be done the call stays: the next run, restore or recover tries again.
        """
        back = placement.backwards(placed.done)
        placement.close()
        self._stage(back, self._history.load(place_call(call).before), partial=False)
        again = back.apply()
        refuse_failed(again.failed, "a restore stopped half way, and its files cannot be taken back either", AGAIN)
        back.clear()
        self._history.backend.write(rules.place_ask(lease), rules.give_up(lease, call))
        refuse_failed(placed.failed, "nothing was put back", OR_PARTIAL)
        raise AssertionError("only a placement that failed is taken back")

    # after a kill

    def finish(self) -> None:
        """Bring a restore of this branch to its end that was killed, if there is one."""
        with self._held() as (lease, root):
            call = _pending(self._history, self._branch)
            if call is not None:
                self._finish(lease, root, call)

    def _finish(self, lease: Lease, root: OpenRoot, call: CallRow) -> None:
        history, args = self._history, place_call(call)
        if here_is(args) != root.path:
            raise elsewhere(history.id, args, call)
        before, target = history.load(args.before), _with_files(history, args.request.target)
        disk = _listing(before)
        plan = self._planned(root, disk, target, before, args.request, on_disk=False)
        placement = Placement(root, call.id, plan.steps)
        self._stage(placement, target, partial=args.request.partial)
        self._apply(placement, lease, call, args.request, plan, disk)

    def _call(self, root: OpenRoot, request: RestoreRequest, before: str) -> CallRow:
        args = PlaceCall(
            request,
            before,
            here().host,
            machine_id(),
            os.fsencode(root.path),
            root.device,
            root.inode,
            _options(self._files.workspace),
        )
        packed = pack_value(encode_stored(msgspec.to_builtins(args, builtin_types=(bytes,)), (Root("args"),)))
        id_ = secrets.token_hex(_ID_BYTES)
        at_us = time.time_ns() // 1000
        return CallRow(0, 0, 0, id_, None, rules.PLACE, id_, 0, "tool", packed, bytes(16), STARTED, 0, at_us)


def place_call(call: CallRow) -> PlaceCall:
    """The arguments of a call that puts files back."""
    return msgspec.convert(decode(open_value(call.args or b"")), PlaceCall, builtin_types=(bytes,))


def _pending(history: History, branch: str) -> CallRow | None:
    view = history.backend.read(Ask(history.id, names=(branch,), pending=(branch,)))
    return rules.placing(view.pending.get(branch, ()))


def finish_files(history: History, branch: str) -> bool:
    """Bring a restore of a branch to its end that was killed, on the machine and in the folder where that was.

    False if there is none. InDoubtError where it was elsewhere.
    """
    call = _pending(history, branch)
    if call is None:
        return False
    if call.status == SKIPPED:
        with HeldBranch(history, branch, rules.RESTORE) as held:
            history.backend.write(rules.place_ask(held.lease), rules.give_up(held.lease, call))
        return True
    args = place_call(call)
    path = here_is(args)
    if path is None:
        raise elsewhere(history.id, args, call)
    files = SessionFiles(history, Workspace(path, **args.options))
    FileRestore(history, branch, files).finish()
    return True


def _listing(loaded: Loaded) -> Listing:
    return EMPTY if loaded.files is None else from_value(loaded.files)


def _with_files(history: History, ref: str) -> Loaded:
    found = history.load(ref)
    if found.files is None:
        message = f"session {history.id!r}: checkpoint {found.row.id[:12]} has no files"
        raise NotFoundError(message, hint=_NO_FILES)
    return found


def _refuse_unknown(paths: tuple[bytes, ...] | None, disk: Listing, target: Loaded) -> None:
    """NotFoundError for a path that was asked for and that neither the checkpoint nor the folder has."""
    lists = disk, _listing(target)
    unknown = [path for path in paths or () if path and not any(next(files.below(path), None) for files in lists)]
    if unknown:
        names = ", ".join(map(shown, unknown[:_NAMED]))
        message = f"nothing was put back: checkpoint {target.row.id[:12]} has no {names}, nor is it captured here"
        raise NotFoundError(message, hint=_SPELLING)


_SPELLING = Hint(
    "checkpoint.files has the paths, as they are beneath the workspace",
    "`backstay files SESSION REF` has the paths; a path is taken as it is called in the folder that you are in",
)
_NO_FILES = Hint(
    "session(workspace=…) captures a folder from its next commit on; restore(…, files=False) goes back without",
    "`backstay restore` without --files goes back without files",
)


def refuse_conflicts(plan: RestorePlan, keep_mine: KeepMine) -> None:
    """FilesConflictError if a restore would lose what is a person's, or cannot be told."""
    if not plan.conflicts:
        return
    paths = [shown(path) for path in plan.conflicts]
    names = ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")
    why = "changed by others than this session" if keep_mine is None else "changed by you and by calls"
    raise FilesConflictError(f"nothing was put back: {names}: {why} since", hint=_KEEP, paths=tuple(paths))


def here_is(args: PlaceCall) -> str | None:
    """The folder that files were being put into, if that is here and still the same one."""
    path = os.fsdecode(args.path)
    if (here().host, machine_id()) != (args.host, args.machine) or os.path.realpath(path) != path:
        return None
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return path if (found.st_dev, found.st_ino) == (args.device, args.inode) else None


def elsewhere(session: str, args: PlaceCall, call: CallRow) -> InDoubtError:
    """For a restore that was killed elsewhere, or whose folder is gone."""
    where = f"{shown(args.path)} on {args.host}"
    message = f"session {session!r}: files were being put back in {where}, and that folder is not here"
    return InDoubtError(message, hint=_THERE, call_id=call.id, session_id=session)


_THERE = Hint(
    "open the session there, or decide: session.resolve(call_id, 'skip')",
    "run `backstay recover` there, or decide here: `backstay recover SESSION --call ID --skip`",
)


def _options(workspace: Workspace) -> dict[str, Any]:
    """What decides which files belong, to make the same Workspace again."""
    found = {name: getattr(workspace, name) for name in _OPTIONS}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def machine_id() -> str:
    """The number of this machine, where it has one."""
    with contextlib.suppress(OSError):
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    return ""


def folds(root: OpenRoot) -> bool:
    """True if the folder's file system does not tell names apart that differ only in case."""
    os.close(root.own_folder())
    try:
        found = os.stat(b".BACKSTAY", dir_fd=root.descriptor, follow_symlinks=False)
    except OSError:
        return False
    own = os.stat(b".backstay", dir_fd=root.descriptor, follow_symlinks=False)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
