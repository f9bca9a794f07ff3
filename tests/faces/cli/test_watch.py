"""`backstay watch`: any command, its folder recorded, its terminal and its exit code left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import backstay
from tests.faces.cli import shell


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "old.txt").write_text("old\n")
    return made


def test_each_time_the_folder_comes_to_rest_is_a_checkpoint_of_the_command(folder: Path) -> None:
    # The command goes on only when its last change is in the store: no clock decides what is seen.
    script = """
import pathlib, subprocess, sys, time
import backstay
def wait(count):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with backstay.open(pathlib.Path(".backstay/store.db")) as store:
            if len(list(store.session("w").log())) >= count:
                return
        time.sleep(0.05)
    sys.exit(99)
pathlib.Path("a.txt").write_text("a")
wait(2)
pathlib.Path("old.txt").unlink()
wait(3)
print("said to the terminal")
sys.exit(7)
"""
    done = shell.process("watch", "--session", "w", "--", shell.CLI[0], "-c", script, folder=folder)
    assert (done.code, done.out, done.err) == (7, "said to the terminal\n", "")
    (folder / "mine.txt").write_text("mine")
    with backstay.open(folder / ".backstay" / "store.db") as store:
        session = store.session("w", workspace=folder)
        points = list(session.log())[::-1]
        assert [sorted(point.files) for point in points if point.files is not None] == [
            ["old.txt"],
            ["a.txt", "old.txt"],
            ["a.txt"],
            ["a.txt"],
        ]
        assert session.load()["exit_code"] == 7
        assert session.checkpoint().status.value == "completed"
        session.restore(points[0], files=True, keep_mine=True)
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["mine.txt", "old.txt"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_commands_and_what_it_then_does_is_recorded(folder: Path, number: signal.Signals) -> None:
    script = (
        "import pathlib, signal, sys\n"
        "def end(*_):\n    pathlib.Path('last.txt').write_text('last'); sys.exit(5)\n"
        "signal.signal(signal.SIGINT, end); signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    words = [*shell.CLI, "watch", "--session", "w", "--", shell.CLI[0], "-c", script]
    env = shell.plain_environment()
    with subprocess.Popen(
        words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == b"ready\n"
        # Ctrl-C comes to all processes at the terminal, a `kill` to the one that is named.
        os.killpg(watching.pid, number) if number == signal.SIGINT else watching.send_signal(number)
        _, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (5, b"")
    with backstay.open(folder / ".backstay" / "store.db") as store:
        files = store.session("w").checkpoint().files
        assert files is not None
        assert files["last.txt"].author.startswith("call:")
        assert store.crashed() == []


def test_a_command_that_cannot_be_run_or_dies_says_so_by_its_exit_code(folder: Path) -> None:
    lost, odd, killed = ["no-such-command"], [str(folder / "old.txt")], ["sh", "-c", "echo x > x; kill -9 $$"]
    for number, (words, code) in enumerate([(lost, 127), (odd, 126), (killed, 137)]):
        assert shell.run("watch", "--session", f"s{number}", "--", *words, folder=folder).code == code
    with backstay.open(folder / ".backstay" / "store.db") as store:
        ends = [store.session(f"s{number}").checkpoint() for number in range(3)]
        assert [end.state["exit_code"] for end in ends] == [127, 126, 137]
        told = [(info.status.value, info.reason) for info in sorted(store.sessions(), key=lambda info: info.id)]
        assert told == [
            ("failed", "no-such-command: No such file or directory"),
            ("failed", f"{folder / 'old.txt'}: Permission denied"),
            ("failed", "sh was ended by signal 9"),
        ]
        assert ends[2].files is not None
        assert ends[2].files["x"].author.startswith("call:")
    said = shell.run("watch", "--json", "--session", "w", "--", "true", folder=folder)
    assert json.loads(said.out) == {"session": "w", "exit_code": 0, "checkpoints": 2, "problem": None}


def test_a_folder_that_cannot_be_captured_is_refused_before_the_command_runs(folder: Path) -> None:
    done = shell.run("watch", "--session", "w", "--workspace", "/", "--", "touch", "made", folder=folder)
    assert done.code != 0
    assert "too much" in done.err
    assert [path.name for path in folder.iterdir()] == ["old.txt"], "nothing was made, no store either"
    done = shell.run("watch", "--", "touch", "made", folder=folder, HOME=str(folder))
    assert "it is your home" in done.err
    with (folder / "old.txt").open("r+") as file:
        file.truncate(2**26 - 1)
    for number in range(32):
        os.link(folder / "old.txt", folder / f"{number}.bin")
    done = shell.run("watch", "--", "touch", "made", folder=folder)
    assert "to capture" in done.err
    assert not {"made", ".backstay"} & {path.name for path in folder.iterdir()}
