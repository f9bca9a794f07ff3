"""Leases: this process as others can recognise it, whether the holder of a lease lives, and until when it holds.

The clock for leases is the machine's own, which no one sets and which goes on while the machine sleeps; it means
something only together with the boot it counts from. A process is looked for by its number only where that number
names the same process: on the same boot, in the same space of process numbers. Elsewhere only expiry counts.
A backend whose store has a clock of its own uses that instead of the clock here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from pathlib import Path

import msgspec

_STARTED_AT = 19  # among the fields behind the name in /proc/<pid>/stat


class Holder(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A process. `born` tells it from a later one with the same number; 0 where that cannot be known."""

    host: str
    boot: str
    space: int
    pid: int
    born: int


class Claim(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A lease as it is written down: who, and until when by the clock of its boot, and by the calendar for people."""

    holder: Holder
    lease_us: int
    until_us: int
    until_wall_us: int


def clock_us() -> int:
    """Microseconds on the monotonic clock that also counts sleep."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    if hasattr(time, "CLOCK_MONOTONIC"):  # counts sleep on macOS, where time.monotonic does not
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    return time.monotonic_ns() // 1000


@functools.cache
def _host() -> str:
    if hasattr(os, "uname"):
        return os.uname().nodename  # what socket.gethostname() says, without loading sockets
    import socket  # noqa: PLC0415 - Windows

    return socket.gethostname()


def here() -> Holder:
    """This process."""
    return _holder(os.getpid())


@functools.lru_cache(maxsize=1)  # by pid, because a forked child is another
def _holder(pid: int) -> Holder:
    return Holder(_host(), _boot(), _space(), pid, _born(pid))


def is_live(claim: Claim | None, *, now_us: int, wall_us: int, server_clock: bool = False) -> bool:
    """True if a lease counts: not expired, and its holder not known to be dead.

    With `server_clock` the store has a clock of its own, which all its leases go by.
    """
    if claim is None:
        return False
    holder, ours = claim.holder, here()
    if not server_clock and holder.boot != ours.boot:
        # Another boot of this machine is over. On another machine, whose clock says nothing here, the calendar counts.
        return holder.host != ours.host and wall_us < claim.until_wall_us
    left_us = claim.until_us - now_us
    if left_us <= 0 or (left_us > claim.lease_us and not server_clock):
        return False  # more than it was ever given: a clock that began again with another boot
    if server_clock:  # two machines may go by one name: only this very boot is looked into
        near = bool(ours.boot) and (holder.host, holder.boot, holder.space) == (ours.host, ours.boot, ours.space)
    else:
        near = holder.space == ours.space
    return holder == ours or not near or _is_running(holder.pid, holder.born)


def _is_running(pid: int, born: int) -> bool:
    if sys.platform == "win32":
        return True  # asking would need rights and risks there: expiry decides
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user has that number
    now = _born(pid)
    # A process that has ended and was not yet waited for by its parent answers, too, but it will write no more.
    return now >= 0 and (not born or not now or born == now)


def _born(pid: int) -> int:
    """When a process began, in ticks of the boot; 0 if that cannot be told, -1 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    if fields[:1] in (["Z"], ["X"]):
        return -1
    return int(fields[_STARTED_AT]) if len(fields) > _STARTED_AT else 0


def _space() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return _boot_of_darwin() if sys.platform == "darwin" else ""


def _boot_of_darwin() -> str:
    size = ctypes.c_size_t(64)
    text = ctypes.create_string_buffer(size.value)
    library = ctypes.CDLL(None)
    failed = library.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0)
    return "" if failed else text.value.decode()
