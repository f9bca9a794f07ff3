"""fork, tag, restore, undo, delete: what is shown is what happens, and nothing happens unasked."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import backstay
from tests.faces.cli import shell, story


def store_in(folder: Path) -> backstay.Store:
    return backstay.open(folder / ".backstay" / "store.db")


CHANGING = [
    ["restore", "ticket-42", "asked"],
    ["undo", "ticket-42"],
    ["delete", "ticket-42"],
    ["delete", "ticket-42", "main~1"],
    ["delete", "ticket-42", "--branch", "what-if"],
    ["prune", "--keep-last", "1"],
    ["prune", "ticket-42", "--keep-last", "1"],
]
DELETING = [args for args in CHANGING if args[0] in ("delete", "prune")]


@pytest.mark.parametrize("args", CHANGING, ids=" ".join)
def test_where_nobody_can_be_asked_nothing_is_changed(args: list[str], folder: Path) -> None:
    with store_in(folder) as store:
        before = [point.id for point in store.session("ticket-42").log()], list(store.session("ticket-42").branches())
    done = shell.run(*args, folder=folder)
    assert done.code == 1
    assert done.err == "backstay: nothing was changed: there is no terminal to ask at (-y does it without asking)\n"
    assert done.out, "what would have changed is not shown"
    with store_in(folder) as store:
        after = [point.id for point in store.session("ticket-42").log()], list(store.session("ticket-42").branches())
    assert before == after


@pytest.mark.parametrize("args", DELETING, ids=" ".join)
def test_a_dry_run_shows_what_would_go_asks_nothing_and_removes_nothing(args: list[str], folder: Path) -> None:
    with store_in(folder) as store:
        before = store.stats().checkpoints, store.session("ticket-42").branches()
    shown = shell.run(*args, folder=folder).out
    done = shell.run(*args, "--dry-run", folder=folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(shown)
    told = shell.run(*args, "--dry-run", "--json", folder=folder)
    assert (told.code, told.err) == (0, "")
    assert json.loads(told.out)["dry_run"] is True
    with store_in(folder) as store:
        assert before == (store.stats().checkpoints, store.session("ticket-42").branches())


@pytest.mark.parametrize("args", DELETING, ids=" ".join)
def test_a_program_is_told_what_went_and_nothing_else(args: list[str], folder: Path) -> None:
    (expected,) = shell.run(*args, "--dry-run", "--json", folder=folder).out.splitlines()
    asked = shell.run(*args, "--json", folder=folder)
    assert (asked.code, asked.out) == (1, "")
    done = shell.run(*args, "--json", "-y", folder=folder)
    assert (done.code, done.err) == (0, "")
    was, is_ = json.loads(expected), json.loads(done.out)
    assert is_.pop("dry_run") is False
    assert was.pop("dry_run") is True
    if args[0] == "prune":
        del was["freed_bytes"], is_["freed_bytes"]  # that of the files, page by page
    assert was == is_


@pytest.mark.parametrize(
    ("args", "least", "most"),
    [
        (["prune", "--keep-last", "1"], 3_000_000, 3_100_000),
        (["delete", "large"], 4_000_000, 4_100_000),
        (["delete", "large", "main~2"], 1_000_000, 1_100_000),
    ],
)
def test_what_goes_is_shown_with_its_large_values(args: list[str], least: int, most: int, tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db", durability="relaxed") as store:
        for number in range(4):
            store.session("large").commit({"page": random.Random(number).randbytes(1_000_000)})
    told = shell.run(*args, "--dry-run", "--json", "--store", "store.db", folder=tmp_path)
    assert least < json.loads(told.out)["freed_bytes"] < most
    shown = shell.run(*args, "--dry-run", "--store", "store.db", folder=tmp_path).out
    assert f"{least // 1_000_000}.0 MB" in shown


def test_the_largest_sessions_are_weighed_with_their_large_values(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db", durability="relaxed") as store:
        for number in range(4):
            store.session("large").commit({"page": random.Random(number).randbytes(1_000_000)})
        store.session("small").commit({"n": 1})
    told = json.loads(shell.run("stats", "--top", "1", "--json", "--store", "store.db", folder=tmp_path).out)
    (weight,) = told["largest"]
    assert weight["session"] == "large"
    assert 4_000_000 < weight["written_bytes"] < 4_100_000


def test_a_session_that_was_just_touched_was_touched_just_now(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        store.session("s").commit({"n": 1})
    shown = shell.run("delete", "s", "--dry-run", "--store", "store.db", folder=tmp_path).out
    assert "last touched just now" in shown


def test_a_restore_shows_what_leaves_the_head_and_says_how_to_undo_it(folder: Path) -> None:
    done = shell.run("restore", "ticket-42", "asked", "-y", folder=folder)
    assert done.code == 0
    assert "6 checkpoints" in done.out
    assert "-5 removed" in done.out
    assert done.out.splitlines()[-1] == "To take it back: backstay undo ticket-42"
    with store_in(folder) as store:
        assert len(store.session("ticket-42").load()["messages"]) == 1
    assert shell.run("undo", "ticket-42", "-y", folder=folder).code == 0
    with store_in(folder) as store:
        assert len(store.session("ticket-42").load()["messages"]) == 6


def test_a_restore_on_another_branch_leaves_main_where_it_is(folder: Path) -> None:
    with store_in(folder) as store:
        main = store.session("ticket-42").checkpoint("main").id
    done = shell.run("restore", "ticket-42", "main", "--branch", "what-if", "-y", folder=folder)
    assert done.out.splitlines()[-1] == "To take it back: backstay undo ticket-42 --branch what-if"
    assert "It is not among the checkpoints that led to the head." in done.out
    with store_in(folder) as store:
        session = store.session("ticket-42")
        assert session.checkpoint("main").id == main
        assert not session.diff("main", "what-if")


def test_there_is_nothing_to_undo_where_nothing_was_restored(folder: Path) -> None:
    done = shell.run("undo", "nightly", "-y", folder=folder)
    assert (done.code, done.out) == (1, "")
    assert "has no restore to undo" in done.err


def test_a_fork_and_a_tag_stand_where_they_were_put(folder: Path) -> None:
    assert shell.run("fork", "ticket-42", "main~3", "again", folder=folder).code == 0
    assert shell.run("tag", "ticket-42", "again", "here", folder=folder).code == 0
    with store_in(folder) as store:
        session = store.session("ticket-42")
        assert session.checkpoint("again") == session.checkpoint("here") == session.checkpoint("main~3")
    assert "here" in shell.run("tag", "ticket-42", folder=folder).out
    assert shell.run("tag", "ticket-42", "-d", "here", folder=folder).code == 0
    assert "here" not in shell.run("tag", "ticket-42", folder=folder).out
    taken = shell.run("fork", "ticket-42", "main", "again", folder=folder)
    assert taken.code == 1
    assert "again" in taken.err


def test_what_is_deleted_is_what_was_shown(folder: Path) -> None:
    shown = shell.run("delete", "ticket-42", "main~1", folder=folder).out
    done = shell.run("delete", "ticket-42", "main~1", "-y", folder=folder)
    assert done.out.startswith(shown)
    gone = done.out.splitlines()[-1].split()[2].strip(".:")
    with store_in(folder) as store:
        assert gone not in [point.id[:8] for point in store.session("ticket-42").log()]
        assert store.verify().ok
    assert shell.run("delete", "ticket-42", "--branch", "what-if", "-y", folder=folder).code == 0
    assert shell.run("log", "ticket-42", "what-if", folder=folder).code == 1
    assert shell.run("delete", "ticket-42", "-y", folder=folder).code == 0
    with store_in(folder) as store:
        assert "ticket-42" not in [info.id for info in store.sessions()]
        assert store.stats().sessions == 2


def test_the_head_of_a_branch_goes_back_when_it_is_deleted(folder: Path) -> None:
    with store_in(folder) as store:
        parent = store.session("ticket-42").checkpoint("what-if~1").id
    done = shell.run("delete", "ticket-42", "what-if", "-y", folder=folder)
    assert f"what-if moves back to {parent[:8]}" in done.out
    with store_in(folder) as store:
        assert store.session("ticket-42").checkpoint("what-if").id == parent


def test_what_is_tagged_is_not_deleted_and_the_way_to_do_it_is_told(folder: Path) -> None:
    done = shell.run("delete", "ticket-42", "asked", "-y", folder=folder)
    assert (done.code, done.out) == (1, "")
    assert "backstay tag SESSION -d NAME" in done.err


@pytest.mark.parametrize(
    "args",
    [
        ["tag", "ticket-42", "main"],
        ["tag", "ticket-42", "main", "x", "-d", "asked"],
        ["delete", "ticket-42", "main", "--branch", "main"],
        ["recover", "--retry"],
        ["recover", "ticket-43", "--retry", "--skip"],
        ["recover", "ticket-43", "--result", "not json"],
        ["search", ""],
        ["log", "ticket-42", "-n", "0"],
    ],
    ids=" ".join,
)
def test_a_line_that_cannot_be_meant_is_explained(args: list[str], folder: Path) -> None:
    done = shell.run(*args, folder=folder)
    assert (done.code, done.out) == (2, "")
    assert "Usage: backstay" in done.err


@pytest.mark.parametrize("name", [[], ["refund"], ["nothing"]], ids=str)
def test_an_editor_is_not_opened_where_there_is_no_terminal(name: list[str], folder: Path) -> None:
    story.wait_too(folder / ".backstay" / "store.db")
    done = shell.run("answer", "ticket-44", *name, "--yes", "--edit", folder=folder, EDITOR="/bin/false")
    assert (done.code, done.out) == (2, "")
    assert "--edit needs the arguments as JSON" in done.err
