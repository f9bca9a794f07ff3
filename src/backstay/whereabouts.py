"""Who holds a lease, where, and for how long: this process as others can recognise it, and whether another lives.

The clock for leases is the machine's own, which no one sets and which goes on while the machine sleeps; it means
something only together with the boot it counts from. A process is looked for by its number only where that number
names the same process: on the same boot, in the same space of process numbers. Elsewhere only expiry counts.
Backends whose store has a clock of its own do not need the clock here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import secrets
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from backstay.errors import FencedError, LeaseHeldError

_TOKEN_BITS = 40
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


encode_claim = msgspec.msgpack.Encoder().encode
decode_claim = msgspec.msgpack.Decoder(Claim).decode


def clock_us() -> int:
    """Microseconds on the clock that nobody sets and that counts sleep."""
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


def claim(lease_us: int) -> Claim:
    """A lease for this process from now on."""
    return Claim(here(), lease_us, clock_us() + lease_us, time.time_ns() // 1000 + lease_us)


def token_after(token: int) -> int:
    """The token of the run after the one with this token, 0 if there was none.

    The first is drawn at random: where a session was deleted and its numbers are given out again, a run of the old one
    that wakes up late must not be taken for one of the new.
    """
    return token + 1 if token else 1 + secrets.randbits(_TOKEN_BITS)


def here() -> Holder:
    """This process."""
    return _holder(os.getpid())


@functools.lru_cache(maxsize=1)  # by pid, because a forked child is another
def _holder(pid: int) -> Holder:
    return Holder(_host(), _boot(), _space(), pid, _born(pid))


def is_live(claim: Claim | None) -> bool:
    """True if the lease counts: not expired, and its holder not known to be dead."""
    if claim is None:
        return False
    holder, ours = claim.holder, here()
    if holder.boot != ours.boot:
        # Another boot of this machine is over. On another machine, whose clock says nothing here, the calendar counts.
        return holder.host != ours.host and time.time_ns() // 1000 < claim.until_wall_us
    left_us = claim.until_us - clock_us()
    if not 0 < left_us <= claim.lease_us:  # more than it was ever given: a clock that began anew with another boot
        return False
    if holder.space != ours.space or holder == ours:
        return True
    return _is_running(holder.pid, holder.born)


def is_gone(holder: Holder) -> bool:
    """True if a process is known to be dead, for stores whose clock is not this machine's: same host, boot and space.

    Another boot of a host with this name proves nothing here: two machines may go by one name.
    """
    ours = here()
    near = (holder.host, holder.boot, holder.space) == (ours.host, ours.boot, ours.space)
    return near and bool(ours.boot) and holder != ours and not _is_running(holder.pid, holder.born)


def held(session: str, branch: str, claim: Claim) -> LeaseHeldError:
    """The error for who wants to write where a run is alive."""
    until = datetime.fromtimestamp(claim.until_wall_us / 1e6, UTC)
    message = (
        f"session {session!r}, branch {branch!r} is being run by process {claim.holder.pid} on {claim.holder.host}, "
        f"which holds the lease until {until:%Y-%m-%d %H:%M:%S} UTC"
    )
    return LeaseHeldError(message, hint="wait for it to end, or fork a branch of your own")


def fenced(session: str, branch: str) -> FencedError:
    """The error for a run that is no longer the one on its branch."""
    message = f"session {session!r}, branch {branch!r}: this run has lost its lease, and another may have gone on"
    return FencedError(message, hint="stop here; what this run did since is not recorded")


def _is_running(pid: int, born: int) -> bool:
    if sys.platform == "win32":
        return True  # asking would need rights and risks there: expiry decides
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is somebody's
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
