"""What every test shares: its tier, how hard Hypothesis tries, and where files lie.

Fixtures live beside the tests that use them.

Nothing here is about a disk: what a power cut leaves is worked out from the calls (`tests/crash/ring`), and a kill
takes nothing from the system's cache. So files lie in memory where there is room, and no test waits for an fsync.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 << 30  # many times what a run takes
# What `pytest -m quick` runs: the rooms whose tests are short, and single tests that carry the mark where they stand.
QUICK = (
    "tests/house/",
    "tests/unit/",
    "tests/backends/test_memory.py",
    "tests/backends/test_sqlite.py",
    "tests/store/test_checkpoints.py",
    "tests/store/test_damaged_store.py",
    "tests/store/test_deleting.py",
    "tests/store/test_expect.py",
    "tests/store/test_finding.py",
    "tests/store/test_going_back.py",
    "tests/store/test_listing.py",
    "tests/store/test_names.py",
    "tests/store/test_reading.py",
    "tests/store/test_refs.py",
    "tests/store/test_verify_runs.py",
    "tests/run/test_boundaries.py",
    "tests/run/test_calls.py",
    "tests/run/test_ends.py",
    "tests/run/test_values.py",
    "tests/crash/test_disk_full.py",
    "tests/crash/test_ring_neighbours.py",
    "tests/faces/cli/test_going_back.py",
    "tests/faces/cli/test_golden.py",
    "tests/faces/cli/test_recover.py",
    "tests/faces/cli/test_reference.py",
    "tests/faces/test_aio_parity.py",
)
LONGEST = ("tests/house/test_linters.py", "tests/store/test_machine.py", "tests/crash/")

# No deadline: an fsync on a busy machine takes as long as it takes, and says nothing about the code.
settings.register_profile(
    "usual", max_examples=60, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("usual"), max_examples=20)
settings.register_profile("exhaustive", settings.get_profile("usual"), max_examples=2_000)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile", default=None) is None:
        asked = config.getoption("markexpr", default="")
        settings.load_profile(asked if asked in {"quick", "exhaustive"} else "usual")
    forget_the_users_store()
    keep_bytecode()
    hear_interrupts()
    lie_in_memory()


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.startswith(QUICK) and item.get_closest_marker("exhaustive") is None:
        item.add_marker("quick")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: one that begins last keeps one worker busy and the other waiting."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def forget_the_users_store() -> None:
    """A test that opens a store without naming one must not find the developer's own."""
    os.environ.pop("BACKSTAY_URL", None)


def keep_bytecode() -> None:
    """Hundreds of children import the same modules; where bytecode is not kept, each compiles them anew."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def hear_interrupts() -> None:
    """What a script starts in its background ignores Ctrl-C, and so would the children that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def lie_in_memory() -> None:
    """Temporary files of this process and its children; TMPDIR and --basetemp are obeyed."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    if shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # worked out anew when it is next asked for


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process writes: a line of a journal that looks damaged is, and is not looked at again and again."""
    monkeypatch.setattr("backstay.backends.files.journal._SECOND_LOOKS_S", ())
