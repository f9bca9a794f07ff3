"""Where the parts of a project's hooks meet: its folder, the socket of its helper, and the list of what went wrong.

Every hook loads this module, so it imports little.
"""

from __future__ import annotations

import os
import stat
import sys
import time

TYPE_CHECKING = False  # `typing`, `contextlib` and `socket` take longer to load than all of this needs to run
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    Problems = list[dict[str, object]]

FILE, FOLDER = "hook-problems", ".backstay"
_PROBLEM_BYTES = 16 * 1024  # the file has this size from the beginning: a full disk can still be told of
_MOST_PROBLEMS = 20
_TEXT_CHARS = 400


def project_of(start: str) -> str:
    """The folder of the project that a folder belongs to: the nearest one with a `.backstay/`, or the folder itself."""
    here = os.path.realpath(start)
    above = here
    while True:
        if os.path.isdir(os.path.join(above, FOLDER)):  # noqa: PTH112, PTH118
            return above
        parent = os.path.dirname(above)  # noqa: PTH120
        if parent == above:
            return here
        above = parent


def socket_folder() -> str | None:
    """A folder for sockets that only this user can enter; None where there is none to be had."""
    if not hasattr(os, "getuid"):
        return None
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the folder in it is checked
    for folder in ([f"{runtime}/backstay"] if runtime else []) + [f"{temporary}/backstay-{os.getuid()}"]:
        try:
            os.mkdir(folder, 0o700)  # noqa: PTH102
        except FileExistsError:
            pass
        except OSError:
            continue
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return os.path.realpath(folder)
    return None


def socket_name(project: str, url: str | None) -> str:
    """The name of the socket of a project's helper, in the folder of sockets: by its folder, store and Python."""
    import binascii  # noqa: PLC0415 - see above; a better digest costs every hook some milliseconds

    found = os.stat(project)  # noqa: PTH116
    rest = "\0".join([project, url or "", sys.prefix]).encode("utf-8", "surrogateescape")
    return f"{found.st_dev:x}-{found.st_ino:x}-{binascii.crc32(rest):08x}"


def peer_uid(connection: _socket.socket) -> int | None:
    """The user at the other end of a socket; None where the system does not say."""
    if sys.platform == "linux":  # struct ucred, by SO_PEERCRED: process, user, group
        data = connection.getsockopt(1, 17, 12)
    elif sys.platform == "darwin":  # struct xucred, by LOCAL_PEERCRED: version, user
        data = connection.getsockopt(0, 1, 76)
    else:
        return None
    return int.from_bytes(data[4:8], sys.byteorder)


# what went wrong


def note_problem(project: str, what: str, *, session: str = "") -> bool:
    """Write down what a hook could not do, for `backstay status`; False where not even that can be done."""
    text = "".join([c if c.isprintable() else " " for c in what])[:_TEXT_CHARS]
    entry = {"at": int(time.time()), "session": session[:200], "what": text}
    return any(_change(path, lambda kept: [*kept, entry]) for path in _files(project, make=True))  # the first that can


def prepare_problems(project: str) -> None:
    """Make the file while there is room for it."""
    for path in _files(project, make=True)[:1]:
        _change(path, lambda kept: kept)


def problems_of(project: str) -> Problems:
    """What hooks could not do, oldest first."""
    found: Problems = []
    for path in _files(project):
        handle = _opened(path, os.O_RDONLY)
        if handle is not None:
            found += _parsed(os.read(handle, _PROBLEM_BYTES))
            os.close(handle)
    return sorted(found, key=lambda entry: str(entry.get("at")))


def forget_problems(project: str, session: str | None = None) -> None:
    """Forget what went wrong in a session, because a later checkpoint has all of it; or everything."""
    for path in _files(project):
        if os.path.exists(path):  # noqa: PTH110
            _change(path, lambda kept: [each for each in kept if session is not None and each["session"] != session])


def own_folder(project: str, *, make: bool = False) -> str | None:
    """The `.backstay/` of a project; None if there is none, or it leads elsewhere, or another user made it."""
    folder = f"{project}/{FOLDER}"
    try:
        if make and not os.path.lexists(folder):
            os.mkdir(folder, 0o700)  # noqa: PTH102
            from backstay.workspace.git_ignore import keep_from_git  # noqa: PLC0415 - see above

            keep_from_git(folder)
        found = os.lstat(folder)
    except OSError:
        return None
    return folder if stat.S_ISDIR(found.st_mode) and found.st_uid == _user() else None


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _files(project: str, *, make: bool = False) -> list[str]:
    """In the project; where that cannot be written, beside the sockets."""
    import binascii  # noqa: PLC0415 - see above

    own, beside = own_folder(project, make=make), socket_folder()
    name = f"{binascii.crc32(os.fsencode(project)):08x}.problems"
    return [f"{own}/{FILE}"] * bool(own) + [f"{beside}/{name}"] * bool(beside)


def _opened(path: str, flags: int) -> int | None:
    """A file of ours, opened: no link is followed, and no pipe waited for."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(path, flags, 0o600)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    return None


def _change(path: str, change: Callable[[Problems], Problems]) -> bool:
    import json  # noqa: PLC0415 - see above

    handle = _opened(path, os.O_RDWR | os.O_CREAT)
    if handle is None:
        return False
    try:
        _lock(handle)
        kept = change(_parsed(os.read(handle, _PROBLEM_BYTES)))[-_MOST_PROBLEMS:]
        data = json.dumps(kept).encode()
        while len(data) > _PROBLEM_BYTES:
            kept = kept[1:]
            data = json.dumps(kept).encode()
        os.lseek(handle, 0, os.SEEK_SET)
        return os.write(handle, data.ljust(_PROBLEM_BYTES)) == _PROBLEM_BYTES  # in place: needs no room
    except OSError:
        return False
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    fcntl.flock(handle, fcntl.LOCK_EX)


def _parsed(data: bytes) -> Problems:
    import json  # noqa: PLC0415 - see above

    try:
        found = json.loads(data.strip() or b"[]")
    except ValueError:
        return []
    return [each for each in found if isinstance(each, dict) and {"at", "session", "what"} <= each.keys()]
