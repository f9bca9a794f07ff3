"""The files of a checkpoint written into a fresh folder.

Every folder is opened from its parent and no link is followed, so a list from elsewhere writes nothing outside. What
such a list names in `.git/` or `.backstay/` is left out: git would run it, and Backstay would trust it. With `git`,
for a caller who captures it, `.git/` is written too.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backstay.errors import AlreadyExistsError, CorruptionError, InvalidInputError, NotFoundError
from backstay.hints import RUN_VERIFY, Hint
from backstay.listing import PERMISSIONS, FileEntry, Listing, shown, unsafe
from backstay.model import counted

if TYPE_CHECKING:
    from backstay.store.file_contents import CheckpointFiles

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


Share = Callable[[FileEntry, int], bool]  # fills an empty open file from one that is on the disk already, if it can


def _share_nothing(_entry: FileEntry, _handle: int) -> bool:
    return False


def export_files(
    files: CheckpointFiles,
    folder: str | os.PathLike[str],
    *,
    partial: bool = False,
    share: Share = _share_nothing,
    git: bool = False,
) -> int:
    """Write all files into a folder that is new or empty; how many files and links that were."""
    target = Path(folder)
    if not partial:
        refuse_forgotten(files.forgotten, "nothing was written")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        message = f"{target} is not empty"
        raise AlreadyExistsError(message, hint="name a folder that is new or empty")
    root = os.open(target, _FOLDER)
    damaged: list[bytes] = []
    try:
        count = _write_all(files, root, share, damaged, git=git)
    except OSError as error:
        message = f"the files could not be written to {target}: {error.strerror}"
        raise InvalidInputError(message) from error
    finally:
        os.close(root)
    if damaged:
        names = ", ".join(map(shown, damaged[:_NAMED]))
        message = (
            f"the kept contents of {counted(len(damaged), 'file')} are damaged; all others were written to {target}"
        )
        if not partial:
            raise CorruptionError(f"{message}: {names}", hint=RUN_VERIFY)
        logging.getLogger("backstay").warning("%s: %s", message, names)
    return count


_NAMED = 10
_PARTIAL = Hint("partial=True takes the other files", "--partial takes the other files")


def refuse_forgotten(paths: Sequence[str], nothing: str) -> None:
    """NotFoundError if there are files that cannot come back."""
    if paths:
        names = ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else "")
        message = f"{nothing}: the contents of {counted(len(paths), 'file')} were forgotten: {names}"
        raise NotFoundError(message, hint=_PARTIAL)


def _write_all(files: CheckpointFiles, root: int, share: Share, damaged: list[bytes], *, git: bool) -> int:
    listing, count = files.listing, 0
    folders = sorted([path for path in _folders(listing) if unsafe(path, git=git) is None])
    for path in folders:
        with opened(root, path.rpartition(b"/")[0]) as parent:
            os.mkdir(path.rpartition(b"/")[2], 0o700, dir_fd=parent)
    for path in [b"", *folders]:
        entries = [entry for entry in listing.folder(path).values() if entry.path != path]
        with opened(root, path) as parent:
            for entry in entries:
                if entry.kind != "folder" and unsafe(entry.path, git=git) is None:
                    try:
                        count += _write(files, entry, parent, share)
                    except CorruptionError:
                        damaged.append(entry.path)
                        os.unlink(entry.path.rpartition(b"/")[2], dir_fd=parent)
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


def _write(files: CheckpointFiles, entry: FileEntry, parent: int, share: Share) -> int:
    name = entry.path.rpartition(b"/")[2]
    if entry.kind == "link":
        os.symlink(entry.target, name, dir_fd=parent)
        return 1
    if not entry.has_contents or files.is_forgotten(entry):
        return 0
    handle = os.open(name, _NEW, 0o600, dir_fd=parent)
    try:
        if not share(entry, handle):
            view = memoryview(files.contents(entry))
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
