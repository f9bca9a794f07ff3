"""show: a checkpoint by its id alone, one value of a state, and that value in a file."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backstay
from backstay.cli.path import parse, value_at, written
from tests.faces.cli import shell

STATE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "first\nsecond"}, {"role": "assistant", "content": "last"}],
    "plan": {"due date": "friday", "7": "text", "a.b": [1, 2, 3], "empty": {}},
    "picture": b"\x89PNG\x00\xff",
    "n": 3.5,
}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with backstay.open(tmp_path / "store.db") as store:
        store.session("s").commit(STATE)
    return tmp_path


def show(folder: Path, *args: str) -> shell.Done:
    return shell.run("show", *args, "--store", "store.db", folder=folder)


@pytest.mark.parametrize("length", [32, 12, 8])
def test_a_checkpoint_is_found_by_its_id_alone(length: int, folder: Path) -> None:
    with backstay.open(folder / ".backstay" / "store.db") as store:
        point = store.session("ticket-42").checkpoint("asked")
    done = shell.run("show", point.id[:length], folder=folder)
    assert done == shell.run("show", "ticket-42", "asked", folder=folder)
    assert done.code == 0
    assert shell.run("show", point.id[:length], "messages[0].role", folder=folder).out == "user\n"


def test_a_session_wins_over_a_checkpoint_and_what_is_neither_is_said(folder: Path) -> None:
    with backstay.open(folder / ".backstay" / "store.db") as store:
        point = store.session("ticket-42").checkpoint("asked")
        store.session(point.id[:8]).commit({"n": "the session"})
    assert "the session" in shell.run("show", point.id[:8], folder=folder).out
    none = shell.run("show", "ffffffffffff", folder=folder)
    assert (none.code, none.out) == (1, "")
    assert "there is no session 'ffffffffffff'" in none.err
    both = shell.run("show", point.id, "main", "messages", folder=folder)
    assert both.code == 2
    assert "is a checkpoint: give a PATH behind it, and no REF" in both.err


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("messages[0].content", "first\nsecond\n"),
        ("messages.0.content", "first\nsecond\n"),
        ("messages[-1].content", "last\n"),
        ("messages[-1]", "[0] assistant\n    last\n"),
        ('plan["due date"]', "friday\n"),
        ("plan.7", "text\n"),
        ("plan['a.b'][1]", "2\n"),
        ("plan.empty", "{}\n"),
        ("picture", "<6 bytes>\n"),
        ("n", "3.5\n"),
    ],
)
def test_one_value_of_a_state_is_shown_whole(path: str, shown: str, kept: Path) -> None:
    done = show(kept, "s", "main", path)
    assert (done.code, done.out, done.err) == (0, shown, "")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("mesages", "the state has no 'mesages' (did you mean messages? it has messages, plan, picture, n)"),
        ("messages[9]", "messages has no item 9 (it has 0 to 1)"),
        ("messages.role", "messages is a list, and has no 'role' (write messages[0])"),
        ("n.x", "n is a float, with nothing inside"),
        ("[[", "is no place in a state"),
        (".messages", "is no place in a state"),
        ("plan.empty.x", "plan.empty has no 'x'"),
    ],
)
def test_a_place_that_is_not_there_says_what_is(path: str, says: str, kept: Path) -> None:
    done = show(kept, "s", "main", path)
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert len(done.err.splitlines()) == 1


@given(st.lists(st.one_of(st.integers(0, 9), st.text(min_size=1, max_size=8)), min_size=1, max_size=4))
def test_what_is_written_is_read_again(path: list[str | int]) -> None:
    text = written(path)
    if all(isinstance(step, int) or not set(step) & set("\"'\\") for step in path) and text.isprintable():
        assert parse(text) == path


def test_what_search_prints_can_be_shown(kept: Path) -> None:
    out = shell.run("search", "friday", "--store", "store.db", folder=kept).out
    place = out.splitlines()[1].strip()
    assert place == 'plan["due date"]'
    assert show(kept, "s", "main", place).out == "friday\n"
    assert value_at(STATE, place) == "friday"


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (["picture"], b"\x89PNG\x00\xff"),
        (["messages[0].content"], b"first\nsecond"),
        (["plan"], b'{"due date": "friday", "7": "text", "a.b": [1, 2, 3], "empty": {}}\n'),
    ],
)
def test_a_value_goes_into_a_file_that_only_its_owner_can_read(path: list[str], data: bytes, kept: Path) -> None:
    done = show(kept, "s", "main", *path, "--out", "value")
    assert (done.code, done.err) == (0, "")
    assert (kept / "value").read_bytes() == data
    assert (kept / "value").stat().st_mode & 0o777 == 0o600
    again = show(kept, "s", "main", "n", "--out", "value")
    assert (again.code, again.out) == (1, "")
    assert "is there already; nothing was written" in again.err
    assert (kept / "value").read_bytes() == data


def test_a_value_is_never_written_through_a_link(kept: Path) -> None:
    (kept / "elsewhere").write_text("mine")
    (kept / "link").symlink_to(kept / "elsewhere")
    (kept / "dangling").symlink_to(kept / "not there")
    for name in ("link", "dangling"):
        done = show(kept, "s", "main", "n", "--out", name)
        assert (done.code, done.out) == (1, "")
    assert (kept / "elsewhere").read_text() == "mine"
    assert not (kept / "not there").exists()


def test_a_whole_state_goes_into_a_file_and_a_value_into_a_pipe(kept: Path) -> None:
    assert show(kept, "s", "--out", "state.json").code == 0
    assert json.loads((kept / "state.json").read_text())["n"] == 3.5
    command = [*shell.CLI, "show", "s", "main", "picture", "--out", "-", "--store", "store.db"]
    done = subprocess.run(command, cwd=kept, capture_output=True, check=True, env=shell.plain_environment())
    assert done.stdout == b"\x89PNG\x00\xff"


# A disk that is full after a few bytes: what was begun is taken away again, and the line says why.
FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
from backstay.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="this system cannot limit files")
def test_a_file_that_does_not_fit_on_the_disk_is_not_left_half_written(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        store.session("s").commit({"text": "x" * 5000})
        store.export(tmp_path / "all.backstay")
    done = subprocess.run(
        [sys.executable, "-c", FULL, "show", "s", "main", "text", "--out", "text", "--store", "all.backstay"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=shell.plain_environment(),
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert os.strerror(27) in done.stderr
    assert not (tmp_path / "text").exists()
