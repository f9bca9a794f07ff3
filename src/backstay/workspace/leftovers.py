"""What lies aside of a placement: the old or the new version of a path goes, anything else is a person's and goes back.

A leftover folder of a killed placement says by its plan what each file in it is. `s<n>` was written for the nth change
and may have changed places with what was there; `o<n>` was moved out. Contents that are neither the old nor the new
version of their path were saved at the very moment, or through a descriptor that was still open. They go back to their
path or, where another thing is there by now, to `.backstay/kept/`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

import msgspec

from backstay.listing import FileEntry, PlaceStep
from backstay.workspace.open_root import BlockedError, OpenRoot, is_folder, look_in, same
from backstay.workspace.system_calls import exchange, move

TMP, KEPT, PLAN = b"tmp", b"kept", b"plan"
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def clear_leftovers(root: OpenRoot, rescued: dict[bytes, str]) -> None:
    """Empty `.backstay/tmp/`: give back what is a person's, remove the rest. The root must be locked."""
    above = root.own_folder(TMP)
    try:
        for name in names_in(above):
            tmp = os.open(name, _FOLDER, dir_fd=above)
            try:
                _clear_one(root, tmp, rescued)
            finally:
                os.close(tmp)
            os.rmdir(name, dir_fd=above)
    finally:
        os.close(above)


def _clear_one(root: OpenRoot, tmp: int, rescued: dict[bytes, str]) -> None:
    plan = _read_plan(tmp)
    names = names_in(tmp)
    for name in names:
        if name[:1] in (b"s", b"o") and name[1:].isdigit() and int(name[1:]) < len(plan):
            settle(root, tmp, name, plan[int(name[1:])], rescued)
    for name in names:  # the plan goes last: without it a file here could not be told
        if name != PLAN:
            discard(tmp, name)
    discard(tmp, PLAN)


def _read_plan(tmp: int) -> Sequence[PlaceStep]:
    """The changes that were under way; none where nothing was exchanged yet."""
    try:
        descriptor = os.open(PLAN, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=tmp)
    except FileNotFoundError:
        return ()
    with os.fdopen(descriptor, "rb") as file:
        try:
            return msgspec.msgpack.decode(file.read(), type=list[PlaceStep])
        except msgspec.MsgspecError:
            return ()


def settle(root: OpenRoot, tmp: int, aside: bytes, step: PlaceStep, rescued: dict[bytes, str]) -> bool:
    """One thing that lies aside: the old or the new version of a path goes, anything else goes back to its path.

    True if it was something else.
    """
    try:
        item = look_in(tmp, aside, root.device)
    except BlockedError:
        item = FileEntry(aside, stat.S_IFBLK)  # it cannot be read, so it cannot be told
    if item is None:
        return False
    if aside[:1] == b"o" and step.after is not None and same(item, step.before):
        _give_back(root, tmp, aside, step)  # killed between two moves: its name is free, or taken by the new version
        discard(tmp, aside)
        return False
    if same(item, step.before) or (aside[:1] == b"s" and same(item, step.after)) or is_folder(item):
        with contextlib.suppress(OSError):  # a folder that is not empty is none that was expected
            discard(tmp, aside)
            return False
    if not _give_back(root, tmp, aside, step):
        kept = root.own_folder(KEPT)
        try:
            where = b"%d-%b" % (os.getpid(), os.urandom(4).hex().encode())
            move(tmp, aside, kept, where)
            rescued[step.path] = os.fsdecode(b"/".join((b".backstay", KEPT, where)))
        finally:
            os.close(kept)
    return True


def _give_back(root: OpenRoot, tmp: int, aside: bytes, step: PlaceStep) -> bool:
    """Put a thing that lies aside back to its path, if nothing or our own version is there."""
    try:
        with root.parent_of(step.path) as (folder, name):
            now = look_in(folder, name, root.device)
            if now is None:
                move(tmp, aside, folder, name)
                return True
            if aside[:1] == b"o" or not same(now, step.after) or not exchange(tmp, aside, folder, name):
                return False
            if same(look_in(tmp, aside, root.device), step.after):
                discard(tmp, aside)
                return True
            exchange(tmp, aside, folder, name)  # a save at that very moment is the newer one: it stays
            return False
    except (BlockedError, FileExistsError):
        return False


def names_in(folder: int) -> list[bytes]:
    """The names in an open folder, sorted."""
    return sorted(map(os.fsencode, os.listdir(folder)))


def discard(folder: int, name: bytes) -> None:
    """Remove a file, a link or an empty folder, if it is there."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        os.rmdir(name, dir_fd=folder)
