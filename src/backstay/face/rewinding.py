"""The half of a Session that goes back: restore, undo and fork, with the files of its workspace or without."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from backstay.errors import InvalidInputError, NotFoundError
from backstay.face.inbox import Inbox
from backstay.hints import Hint
from backstay.model import Branch, Checkpoint
from backstay.names import check_name
from backstay.port import Ask
from backstay.rules import branches, refusals
from backstay.store import restoring
from backstay.store.refs import Ref

if TYPE_CHECKING:
    from backstay.listing import KeepMine, RestorePlan
    from backstay.run.blaming import BlamedLine
    from backstay.run.file_restore import FileRestore
    from backstay.run.files import SessionFiles
    from backstay.store.file_contents import CheckpointFiles

Paths = Iterable[str | os.PathLike[str]]
_WORKSPACE = Hint(
    "store.session(id, workspace=folder) says which folder its files are in",
    "run it in the folder that the files are in, or name it by --workspace",
)


class Rewinding(Inbox):
    """Going back. `restore` brings an earlier state as a new checkpoint, `undo` takes the last restore back."""

    _files: SessionFiles | None

    @overload
    def restore(
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
    def restore(
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

    def restore(
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
        """Bring a branch back to an earlier state, as a new checkpoint; `undo` takes it back.

        With `files` the workspace goes back too ("only": the files alone), but for what others than this session's
        calls changed since: without `keep_mine` that is a FilesConflictError which names it. True keeps it, and puts
        changes of both together line by line; "always" also keeps what cannot be put together; False puts all back.
        What was there is in a checkpoint of its own first. `paths` puts back these alone, whoever changed them.
        Files that cannot be written, or whose contents were forgotten or are damaged, are an error that names them, and
        nothing is changed; `partial` puts back the others.
        With `dry_run` nothing is written: the plan says what would be.
        """
        check_name(branch, "a branch name")
        if not files:
            if paths is not None or keep_mine is not None or dry_run or partial:
                message = "paths, keep_mine, partial and dry_run are about files, and files are not asked for"
                raise InvalidInputError(message)
            return restoring.restore(self._history, ref, branch)
        from backstay.run.file_restore import RestoreRequest

        request = RestoreRequest(
            self._history.refs.row(ref).id,
            talk=files != "only",
            keep_mine=keep_mine,
            paths=None if paths is None else tuple(self._beneath(path) for path in paths),
            partial=partial,
        )
        work = self._file_restore(branch)
        if dry_run:
            return work.plan(request)
        return work.restore(request, self._history.looks.expected(branch))

    def undo(
        self, *, branch: str = "main", files: bool = True, keep_mine: KeepMine = True, partial: bool = False
    ) -> Checkpoint:
        """The branch as it was before its last restore or undo; so undo twice is redo.

        Files come back too if that restore moved files, unless `files` is False; what you changed since is kept, as
        with `restore`. `partial` as there. A restore whose process died comes to its end first, and is the one that is
        taken back.
        """
        self.finish_files(branch=branch)
        row = restoring.undone(self._history, branch) if files else None
        if row is None:
            return restoring.undo(self._history, branch)
        from backstay.run.file_restore import RestoreRequest

        request = RestoreRequest(row.id, trigger="undo", keep_mine=keep_mine, partial=partial)
        return self._file_restore(branch).restore(request, self._history.looks.expected(branch))

    def undo_moves_files(self, *, branch: str = "main") -> bool:
        """True if `undo` puts files back, because the restore that it takes back did."""
        return restoring.undone(self._history, check_name(branch, "a branch name")) is not None

    def fork(
        self, ref: Ref, branch: str, *, into: str | os.PathLike[str] | None = None, partial: bool = False
    ) -> Branch:
        """A new branch at a checkpoint; nothing is copied.

        With `into` its files are written to a folder that is new or empty: the workspace of the new branch. Where
        contents were forgotten, `partial` writes the other files.
        """
        row = self._history.refs.row(ref)
        check_name(branch, "a branch name")
        if into is not None:
            files = self._history.files_of(row)
            if files is None:
                raise NotFoundError(f"session {self.id!r}: checkpoint {row.id[:12]} has no files")
            if branch in self._backend.read(Ask(self.id, names=(branch,))).lanes:
                raise refusals.name_taken(branch)[1]
            self._export(files, os.fspath(into), partial=partial)
        ask = branches.naming_ask(self.id, branch, row.sequence)
        self._backend.write(ask, branches.fork(self.id, branch, sequence=row.sequence, id_=row.id))
        self._history.looks.saw(branch, row.id)
        self._history.remember_as(branch, row.id)
        return Branch(branch, self._history.checkpoint(row))

    def bisect(
        self,
        *,
        good: Ref,
        bad: Ref = "main",
        test: Sequence[str],
        into: str | os.PathLike[str] | None = None,
        link: Iterable[str] = (),
        on_try: Callable[[Checkpoint, str], None] | None = None,
    ) -> Checkpoint:
        """The first checkpoint between a good and a bad one whose files fail a test.

        `test` is a command; it is run in a folder with the files of one checkpoint after another, and says good by 0,
        skip by 125, bad by another code up to 127. `into` is a folder to use and to keep. `link` names paths of the
        workspace that are not captured and that the test needs (`.venv`): the folder gets links to them.
        `on_try` is told of each try: the checkpoint, and "good", "bad" or "skip".
        """
        from backstay.run.bisection import bisect

        names = [os.fsdecode(self._beneath(name)) for name in link]
        if names and self._files is None:
            raise InvalidInputError("link names paths of a workspace, and this session has none", hint=_WORKSPACE)
        links = [(name, str(Path(self._files.workspace.path, name))) for name in names if self._files is not None]
        rows = self._history.refs.row(good), self._history.refs.row(bad)
        folder = None if into is None else os.fspath(into)
        return bisect(self._history, *rows, test, into=folder, links=links, told=on_try)

    def blame(self, path: str | os.PathLike[str], ref: Ref = "main") -> list[BlamedLine]:
        """The lines of a file at a checkpoint: which step wrote each, by which call, after which prompt; or you."""
        from backstay.run.blaming import blame

        return blame(self._history, self._history.refs.row(ref), self._beneath(path))

    def finish_files(self, *, branch: str = "main") -> bool:
        """Bring a restore with files to its end whose process died; False if there is none. Runs and restores do so."""
        from backstay.run.file_restore import finish_files

        return finish_files(self._history, check_name(branch, "a branch name"))

    def _export(self, files: CheckpointFiles, into: str, *, partial: bool) -> None:
        """Write files to a folder of their own; those that the workspace still has share blocks where that can be."""
        if self._files is None:
            files.export_to(into, partial=partial)
            return
        from backstay.store.file_export import export_files
        from backstay.workspace.sharing import SharedFiles

        workspace = self._files.workspace
        with SharedFiles(workspace.path) as share:
            export_files(files, into, partial=partial, share=share, git=workspace.git == "capture")

    def _file_restore(self, branch: str) -> FileRestore:
        if self._files is None:
            raise InvalidInputError("this session has no workspace to put files into", hint=_WORKSPACE)
        from backstay.run.file_restore import FileRestore

        return FileRestore(self._history, branch, self._files)

    def _beneath(self, path: str | os.PathLike[str]) -> bytes:
        """A path beneath the workspace as a list has it."""
        given = os.fspath(path)
        if self._files is not None and Path(given).is_absolute():
            given = os.path.relpath(given, self._files.workspace.path)
        found = os.path.normpath(given)
        if found == ".":
            return b""
        if found == ".." or found.startswith(("../", "/")):
            raise InvalidInputError(f"{os.fspath(path)!r} is not beneath the workspace", hint="give paths inside it")
        return os.fsencode(found)
