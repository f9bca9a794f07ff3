"""Storage that fails when it is told to: killed, full, broken, torn, or without power.

`Faults` is the switch that every storage call passes; `mount` puts it beneath SQLite, and a backend with a file seam
of its own hands its calls to `Faults.meet`. A trace that was recorded becomes a `Timeline`: every state the disk may
be found in after a power cut. Nothing here knows a backend.

    faults = Faults(kill_at=17)
    with mount(faults):            # before the first store is opened in this process
        backstay.open("store.db")  # dies before its 17th write, sync, truncation or deletion
"""

from tests.faults.posix import Posix
from tests.faults.power import Crash, Moment, Timeline
from tests.faults.switch import SECTOR_BYTES, Call, Faults, Verb
from tests.faults.vfs import FaultVFS, mount
from tests.faults.wire import Messages

__all__ = [
    "SECTOR_BYTES",
    "Call",
    "Crash",
    "FaultVFS",
    "Faults",
    "Messages",
    "Moment",
    "Posix",
    "Timeline",
    "Verb",
    "mount",
]
