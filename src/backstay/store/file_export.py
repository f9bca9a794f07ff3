"""The files of a checkpoint written into a fresh folder.

Every folder is opened from its parent and no link is followed, so a list from elsewhere writes nothing outside.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backstay.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from backstay.hints import Hint
from backstay.listing import PERMISSIONS, FileEntry, Listing, shown
from backstay.model import counted

if TYPE_CHECKING:
    from backstay.store.file_contents import CheckpointFiles

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def export_files(files: CheckpointFiles, folder: str | os.PathLike[str], *, partial: bool = False) -> int:
    """Write all files into a folder that is new or empty; how many files and links that were."""
    target = Path(folder)
    if not partial:
        refuse_forgotten(files.forgotten, "nothing was written")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        message = f"{target} is not empty"
        raise AlreadyExistsError(message, hint="name a folder that is new or empty")
    root = os.open(target, _FOLDER)
    try:
        return _write_all(files, root)
    except OSError as error:
        message = f"the files could not be written to {target}: {error.strerror}"
        raise InvalidInputError(message) from error
    finally:
        os.close(root)


_NAMED = 10
_PARTIAL = Hint("partial=True takes the other files", "--partial takes the other files")


def refuse_forgotten(paths: Sequence[str], nothing: str) -> None:
    """NotFoundError if there are files that cannot come back."""
    if paths:
        names = ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else "")
        message = f"{nothing}: the contents of {counted(len(paths), 'file')} were forgotten: {names}"
        raise NotFoundError(message, hint=_PARTIAL)


def _write_all(files: CheckpointFiles, root: int) -> int:
    listing, count = files.listing, 0
    folders = sorted(_folders(listing))
    for path in folders:
        with opened(root, path.rpartition(b"/")[0]) as parent:
            os.mkdir(path.rpartition(b"/")[2], 0o700, dir_fd=parent)
    for path in [b"", *folders]:
        entries = [entry for entry in listing.folder(path).values() if entry.path != path]
        with opened(root, path) as parent:
            for entry in entries:
                count += _write(files, entry, parent)
    for path in reversed(folders):  # last: a folder that may not be written to is filled by now
        own = listing.folder(path).get(path)
        if own is not None:
            with opened(root, path) as here:
                os.fchmod(here, own.mode & PERMISSIONS)
    return count


def _folders(listing: Listing) -> set[bytes]:
    """All folders, with those above them."""
    found: set[bytes] = set()
    for path in listing.keys_by_folder:
        parts = path.split(b"/") if path else []
        found |= {b"/".join(parts[: at + 1]) for at in range(len(parts))}
    return found


def _write(files: CheckpointFiles, entry: FileEntry, parent: int) -> int:
    name = entry.path.rpartition(b"/")[2]
    if entry.kind == "link":
        os.symlink(entry.target, name, dir_fd=parent)
        return 1
    if not entry.has_contents or files.is_forgotten(entry):
        return 0
    contents = files.contents(entry)
    handle = os.open(name, _NEW, 0o600, dir_fd=parent)
    try:
        view = memoryview(contents)
        while view:
            view = view[os.write(handle, view) :]
        os.fchmod(handle, entry.mode & PERMISSIONS)
    finally:
        os.close(handle)
    return 1


@contextlib.contextmanager
def opened(root: int, folder: bytes) -> Iterator[int]:
    """A folder below a root, opened step by step without following any link."""
    here = os.dup(root)
    try:
        for part in folder.split(b"/") if folder else ():
            below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    except NotADirectoryError as error:
        message = f"{shown(folder)} is no folder"
        raise InvalidInputError(message) from error
    finally:
        os.close(here)
