"""Upkeep from the shell: verify, prune, export, import, and the bar that shows how far they are."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import backstay
from backstay.cli.bar import Bar
from tests.faces.cli import shell


def run(folder: Path, *args: str, **env: str) -> shell.Done:
    return shell.run(*args, folder=folder, columns=80, **env)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with backstay.open(tmp_path / "store.db") as store:
        session = store.session("../s\x1b[31m")
        for number in range(20):
            session.commit({"n": number, "text": str(number) * 50})
    return tmp_path


def test_a_sound_store_is_said_to_be_sound(folder: Path) -> None:
    done = run(folder, "verify", "--store", "store.db")
    assert (done.code, done.err) == (0, "")
    assert "20 checkpoints checked, 0 problems" in done.out
    assert run(folder, "verify", "--repair", BACKSTAY_URL="store.db").code == 0


def test_damage_is_told_by_words_and_by_the_exit_code(folder: Path) -> None:
    with backstay.open(folder / "store.db"):
        connection = apsw.Connection(str(folder / "store.db"), vfs="cksmvfs")
        connection.execute("UPDATE checkpoints SET body = zeroblob(10) WHERE key & 4294967295 = 3")
        connection.close()
    done = run(folder, "verify", "--store", "store.db")
    assert done.code == 4
    assert "1 problem" in done.out
    assert "\x1b" not in done.out


def test_a_dry_run_and_a_real_one_say_the_same(folder: Path) -> None:
    said = run(folder, "prune", "--keep-last", "5", "--dry-run", "--store", "store.db")
    done = run(folder, "prune", "--keep-last", "5", "-y", "--store", "store.db")
    assert said.code == done.code == 0
    assert said.out.splitlines()[1] == done.out.splitlines()[1]
    assert said.out.splitlines()[1].split() == ["../s\\x1b[31m", "15", "checkpoints"]
    assert run(folder, "prune", "--store", "store.db").code == 1


def test_sessions_go_out_and_come_in(folder: Path) -> None:
    assert run(folder, "export", "all.backstay", "--store", "store.db").code == 0
    assert run(folder, "export", "all.backstay", "--store", "store.db").code == 1
    assert run(folder, "import", "all.backstay", "--store", "file:other").code == 0
    assert run(folder, "import", "all.backstay", "--rename", "t", "--store", "other.db").code == 0
    with backstay.open(folder / "other.db") as store:
        assert store.session("t").load()["n"] == 19
    again = run(folder, "import", "all.backstay", "--rename", "t", "--store", "other.db")
    assert again.code == 1
    assert "t" in again.err


def test_an_export_is_looked_into_by_every_command_that_reads(folder: Path) -> None:
    assert run(folder, "export", "all.backstay", "--store", "store.db").code == 0
    before = sorted(folder.iterdir())
    for command in (["sessions"], ["stats"], ["verify"], ["search", "19"]):
        told = [run(folder, *command, "--store", store) for store in ("all.backstay", "store.db")]
        assert [one.code for one in told] == [0, 0], told
    told = [run(folder, "sessions", "--json", "--store", store) for store in ("all.backstay", "store.db")]
    assert told[0].out == told[1].out
    refused = run(folder, "prune", "--keep-last", "5", "-y", "--store", "all.backstay")
    assert refused.code != 0
    assert "backstay import" in refused.err
    assert sorted(folder.iterdir()) == before


def test_a_bar_is_drawn_at_a_terminal_and_only_after_a_second() -> None:
    code = (
        "import time; from backstay.cli.bar import Bar\n"
        "with Bar('verify') as bar:\n"
        "    for n in range(16):\n        bar(n, 16); time.sleep(0.1)\n"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=os.environ | {"TERM": "xterm"}) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:
                break
            if not chunk:
                break
            seen += chunk
        process.wait()
    os.close(ours)
    assert b"verify" in seen


def test_nothing_is_drawn_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("verify") as bar:
        bar(1, 2)
    assert capsys.readouterr().err == ""
