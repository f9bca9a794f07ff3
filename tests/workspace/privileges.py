"""A thread without the privileges of root, so that permissions hold where tests are run as root."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

_VERSION_3 = 0x20080522
_OVERRIDE = 0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER


@contextlib.contextmanager
def as_anyone() -> Iterator[None]:
    """Permissions of files count in this thread meanwhile, also for root."""
    if os.geteuid() != 0:
        yield
        return
    header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0
    before = sets[0]
    sets[0] = before & ~_OVERRIDE
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0
