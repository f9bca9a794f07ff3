"""The tests' own PostgreSQL goes with the run that started it, however that ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.proxy import eventually
from tests.backends.server import NAMED, Server

ROOT = Path(__file__).parents[2]
KILLED = """
import os, sys, time
from pathlib import Path
from psycopg.conninfo import conninfo_to_dict

def test_that_is_killed(postgres_url):
    started = Path(sys.argv[-1])
    started.with_suffix(".part").write_text(conninfo_to_dict(postgres_url)["host"])
    started.with_suffix(".part").rename(started)
    time.sleep(600)
"""


@pytest.mark.skipif(NAMED in os.environ, reason="the server is not the tests' own")
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.exhaustive)])
def test_a_test_run_that_is_killed_leaves_no_server_behind(workers: str, tmp_path: Path, postgres_url: str) -> None:
    started = tmp_path / "started"
    (tmp_path / "test_killed.py").write_text(KILLED.replace("sys.argv[-1]", repr(str(started))))
    words = ["-m", "pytest", "-q", "-n", workers, "-p", "tests.backends.conftest", "-p", "no:cacheprovider"]
    run = subprocess.Popen(
        [sys.executable, *words, str(tmp_path / "test_killed.py")],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert eventually(started.exists, 60)
        folder = Path(started.read_text())
        number = int((folder / "postmaster.pid").read_text().split()[0])
        assert Path(f"{folder}.users").exists()
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()

    def is_gone() -> bool:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return not folder.exists() and not Path(f"{folder}.users").exists()
        return False

    assert eventually(is_gone, 30), f"the server {number} in {folder} is still there"


def test_a_server_that_is_closed_leaves_nothing_behind() -> None:
    server = Server(f"backstay-closed-{os.getpid()}")
    folder = server.folder
    server.close()
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(folder.name)]
