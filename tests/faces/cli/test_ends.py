"""How commands end: exit codes, damage, stores that are not there or busy, pipes that close, Ctrl-C anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import backstay
from backstay import cli
from backstay.cli.exit_codes import DAMAGED, FAILED, HELD, code_of, words_of
from tests.faces.cli import shell
from tests.store.rows import spoil

LOOKING = ["sessions", "status", "log x", "show x", "search x", "branches x", "recover", "stats", "verify", "undo x -y"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (backstay.ConflictError("x"), HELD),
        (backstay.LeaseHeldError("x"), HELD),
        (backstay.FencedError("x"), HELD),
        (backstay.CorruptionError("x"), DAMAGED),
        (backstay.NotFoundError("x"), FAILED),
        (backstay.InDoubtError("x"), FAILED),
        (backstay.UnavailableError("x"), FAILED),
    ],
)
def test_an_exit_code_says_what_a_script_can_do_next(error: backstay.BackstayError, code: int) -> None:
    assert code_of(error) == code


def test_a_person_at_the_shell_is_told_commands_and_a_caller_in_python_calls(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store, pytest.raises(backstay.NotFoundError) as refused:
        store.delete("gone")
    assert str(refused.value) == "there is no session 'gone' (store.sessions() lists those there are)"
    assert words_of(refused.value) == "there is no session 'gone' (`backstay sessions` lists those there are)"
    assert words_of(backstay.NotFoundError("no", hint="try again")) == "no (try again)"
    assert words_of(backstay.NotFoundError("no")) == "no"


@pytest.mark.parametrize("command", LOOKING)
def test_looking_for_a_store_makes_none(command: str, tmp_path: Path) -> None:
    done = shell.run(*command.split(), folder=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "`backstay init` makes one" in done.err
    named = shell.run(*command.split(), "--store", "nowhere.db", folder=tmp_path)
    assert (named.code, len(named.err.splitlines())) == (1, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_found_from_a_folder_below(folder: Path) -> None:
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    assert shell.run("sessions", folder=below).out == shell.run("sessions", folder=folder).out
    assert list(below.iterdir()) == []


def test_the_option_wins_over_the_variable(folder: Path) -> None:
    backstay.open(folder / "other.db").close()
    assert shell.run("sessions", folder=folder, BACKSTAY_URL="other.db").out == "No sessions.\n"
    for words in (("sessions", "--store", "other.db"), ("--store", "other.db", "sessions")):
        assert shell.run(*words, folder=folder).out == "No sessions.\n"
    both = shell.run("sessions", "--store", ".backstay/store.db", folder=folder, BACKSTAY_URL="other.db")
    assert "ticket-42" in both.out


def test_a_store_can_be_made_once_and_is_left_alone_then(tmp_path: Path) -> None:
    assert shell.run("init", folder=tmp_path).out.startswith("Made a store (sqlite): ")
    assert (tmp_path / ".backstay").stat().st_mode & 0o777 == 0o700
    assert shell.run("init", folder=tmp_path).out.startswith("There is a store (sqlite): ")
    assert shell.run("init", "file:plain", folder=tmp_path).code == 0
    assert shell.run("sessions", "--store", "file:plain", folder=tmp_path).out == "No sessions.\n"
    assert shell.run("init", "nonsense", folder=tmp_path).code == 1


@pytest.mark.parametrize("command", ["sessions", "status", "recover", "stats", "verify", "doctor"])
def test_an_empty_store_is_nothing_to_be_afraid_of(command: str, tmp_path: Path) -> None:
    backstay.open(tmp_path / "empty.db").close()
    done = shell.run(command, "--store", "empty.db", folder=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out


def damage(file: Path, *, session: str = "ticket-42") -> None:
    """Change what is stored behind the back of its digests."""
    with backstay.open(file) as store:
        points = [point for point in store.session(session).log() if point.sequence > 3]
        for point in points:
            spoil(store, "fields", point)


def test_damage_is_exit_code_4_and_the_rest_stays_readable(folder: Path) -> None:
    damage(folder / ".backstay" / "store.db")
    for command in ("log ticket-42", "show ticket-42", "verify", "verify ticket-42"):
        done = shell.run(*command.split(), folder=folder)
        assert done.code == 4, command
        assert "Traceback" not in done.out + done.err
    assert len(shell.run("log", "ticket-42", folder=folder).err.splitlines()) == 1
    assert shell.run("log", "ticket-43", folder=folder).code == 0
    assert shell.run("sessions", folder=folder).code == 0
    assert shell.run("show", "ticket-42", "asked", folder=folder).code == 0


def test_a_branch_can_be_brought_back_from_a_head_that_is_damaged(folder: Path) -> None:
    file = folder / ".backstay" / "store.db"
    with backstay.open(file) as store:
        session = store.session("nightly report/06-01")
        session.commit({"text": "x" * 2000})
        head = session.checkpoint("main").id
        spoil(store, "delta", session.checkpoint("main"))
    assert shell.run("show", "nightly", folder=folder).code == 4
    told = shell.run("verify", folder=folder)
    assert told.code == 4
    assert head[:12] in told.out
    assert "session." not in told.out, "a remedy for Python at a shell"
    done = shell.run("restore", "nightly", "main~1", "-y", folder=folder)
    assert done.code == 0, done
    assert "is damaged, and gives way" in done.out
    assert "'write'" in shell.run("show", "nightly", "--state", folder=folder).out


def test_a_file_full_of_noise_is_never_a_traceback(folder: Path) -> None:
    file = folder / ".backstay" / "store.db"
    data = bytearray(file.read_bytes())
    data[8192:] = os.urandom(len(data) - 8192)
    file.write_bytes(bytes(data))
    for command in ("sessions", "status", "log ticket-42", "search x", "stats", "verify", "recover", "doctor"):
        done = shell.run(*command.split(), folder=folder)
        assert done.code == 4, (command, done)
        assert "Traceback" not in done.out + done.err
        assert "a bug in Backstay" not in done.err


def test_what_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("dear diary")
    done = shell.run("sessions", "--store", "notes.db", folder=tmp_path)
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert (tmp_path / "notes.db").read_text() == "dear diary"


def test_a_store_that_others_write_to_can_be_looked_at_all_the_while(folder: Path) -> None:
    file, stop = folder / ".backstay" / "store.db", threading.Event()

    def write() -> None:
        with backstay.open(file) as store:
            session = store.session("busy")
            while not stop.is_set():
                session.commit({"at": time.monotonic()})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for command in (
            "sessions",
            "status",
            "stats",
            "verify",
            "log ticket-42 --graph --all",
            "search EUR",
            "log busy",
        ):
            done = shell.run(*command.split(), folder=folder)
            assert done.code == 0, (command, done)
    finally:
        stop.set()
        writer.join()


def test_somebody_who_reads_one_line_is_given_one_line(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db", durability="relaxed") as store:
        for number in range(1500):
            store.session(f"session-{number:04}").commit({"n": number})
    command = f"{sys.executable} -m backstay sessions --store store.db | head -1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("SESSION")
    assert done.stderr == ""


# Interrupts itself when the store is asked for the second page, or a state, or a commit: in the middle of work.
INTERRUPTED = """
import os, signal, sys
from backstay.backends.sqlite import SqliteBackend
from backstay.cli import main
name, args = sys.argv[1], sys.argv[2:]
whole = getattr(SqliteBackend, name)
def cut(self, *a, **k):
    os.kill(os.getpid(), signal.SIGINT)
    return whole(self, *a, **k)
setattr(SqliteBackend, name, cut)
sys.exit(main(args))
"""


@pytest.mark.parametrize(
    ("verb", "command"),
    [
        ("sessions", "sessions"),
        ("ancestors", "log ticket-42"),
        ("state", "show ticket-42"),
        ("scan", "search EUR"),
        ("write", "restore ticket-42 asked -y"),
        ("scan", "export out.backstay"),
    ],
)
def test_ctrl_c_anywhere_ends_a_command_without_a_word_and_without_harm(verb: str, command: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, verb, *command.split()],
        cwd=folder,
        env=shell.plain_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (130, "")
    assert not (folder / "out.backstay").exists()
    with backstay.open(folder / ".backstay" / "store.db") as store:
        assert store.verify().ok


def test_ctrl_c_while_the_command_line_is_loading_is_quiet_too(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = shell.process("sessions", folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.code, done.err) == (128 + signal.SIGINT, "")


def test_a_bug_is_told_as_one_and_shown_only_when_asked_for(folder: Path) -> None:
    class BrokenError(Exception):
        pass

    def broken() -> None:
        raise BrokenError

    import click

    cli.commands.add_command(click.Command("broken", callback=broken))
    try:
        done = shell.run("broken", folder=folder)
        assert (done.code, len(done.err.splitlines())) == (1, 1)
        assert "a bug in Backstay: BrokenError" in done.err
        assert "Traceback" in shell.run("broken", folder=folder, BACKSTAY_DEBUG="1").err
    finally:
        del cli.commands.commands["broken"]


def test_a_doctor_finds_a_folder_that_cannot_be_written_and_leaves_nothing_behind(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    done = shell.run("doctor", "--json", folder=folder)
    found = {each["check"]: each["verdict"] for each in map(json.loads, done.out.splitlines())}
    assert done.code == 0
    assert {"sqlite", "checksums", "writing", "file system", "disk space", "syncing", "store"} <= found.keys()
    assert "bad" not in found.values()
    assert "not covered" in found.values()
    assert [path for path in sorted(folder.rglob("*")) if path not in before and "store.db" not in path.name] == []
    nowhere = shell.run("doctor", "--store", "/proc/self/nothing.db", folder=folder)
    assert nowhere.code == 1
    assert "bad" in nowhere.out


@pytest.mark.parametrize(
    "line", [("export", "pipe", "--overwrite"), ("export", "--html", "pipe", "ticket-42", "--overwrite")]
)
def test_an_export_takes_the_place_of_no_pipe_and_no_device(line: tuple[str, ...], folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    done = shell.run(*line, folder=folder)
    assert done.code == 1
    assert "is no file" in done.err
    assert (folder / "pipe").is_fifo()
