"""At a real terminal: colour, width, the pager, and questions that are asked and answered."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

import backstay
from tests.faces.cli import shell

ESCAPE = "\x1b["


def test_a_terminal_has_colour_and_a_pipe_has_none(folder: Path) -> None:
    coloured = shell.Terminal("sessions", folder=folder)
    assert coloured.ends() == 0
    assert ESCAPE + "1;31mcrashed" in coloured.seen
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = shell.Terminal("sessions", folder=folder, env=env)
        assert plain.ends() == 0
        assert ESCAPE not in plain.seen
    assert ESCAPE not in shell.run("sessions", folder=folder).out
    assert ESCAPE in shell.run("sessions", folder=folder, FORCE_COLOR="1").out


@pytest.mark.parametrize("columns", [40, 50, 60, 79])
def test_on_a_narrow_terminal_every_line_is_still_one(columns: int, folder: Path) -> None:
    commands = ["sessions", "log ticket-42 --graph --all", "log ticket-42 --oneline", "branches ticket-42", "stats"]
    commands += ["show ticket-42", "show ticket-42 --state", "diff ticket-42 main what-if", "search EUR"]
    for command in commands:
        done = shell.run(*command.split(), folder=folder, columns=columns)
        assert done.code == 0
        assert [line for line in done.out.splitlines() if cell_len(line) > columns] == [], command


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_lines_are_as_wide_as_the_terminal_and_not_wider(columns: int, folder: Path) -> None:
    terminal = shell.Terminal(
        "log", "ticket-42", "--oneline", folder=folder, columns=columns, env={"NO_COLOR": "1", "PAGER": ""}
    )
    assert terminal.ends() == 0
    lines = terminal.seen.splitlines()
    assert max(map(len, lines)) <= columns
    if columns >= 80:
        assert max(map(len, lines)) == columns


def test_what_does_not_fit_a_screen_goes_through_the_pager(folder: Path) -> None:
    pager = "sed s/^/PAGED:/"
    long = shell.Terminal("log", "ticket-42", "--graph", "--all", folder=folder, env={"PAGER": pager})
    assert long.ends() == 0
    assert long.seen.count("PAGED:") > 20
    assert "Refund?" in long.seen.splitlines()[-1]
    for env in (
        {"PAGER": pager, "lines": "60"},
        {"PAGER": "cat"},
        {"PAGER": ""},
        {"PAGER": "/no/such"},
        {"PAGER": "'"},
    ):
        lines = int(env.pop("lines", "24"))
        short = shell.Terminal("log", "ticket-42", "--graph", "--all", folder=folder, lines=lines, env=env)
        assert short.ends() == 0
        assert "PAGED:" not in short.seen
        assert short.seen.startswith(ESCAPE)


def test_who_leaves_the_pager_has_seen_enough_and_broken_nothing(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db", durability="relaxed") as store:
        session = store.session("long")
        for number in range(3000):
            session.commit({"n": number}, step=number)
    left = shell.Terminal("log", "long", "--store", "store.db", folder=tmp_path, env={"PAGER": "head -3"})
    assert left.ends() == 0
    assert "step 2999" in left.seen
    assert "backstay:" not in left.seen


@pytest.mark.parametrize(
    ("answer", "code", "changed"),
    [
        ("y\n", 0, True),
        ("yes\n", 0, True),
        ("n\n", 1, False),
        ("\n", 1, False),
        ("\x04", 1, False),
        ("\x03", 130, False),
    ],
)
def test_a_question_is_answered_at_the_terminal(answer: str, code: int, changed: bool, folder: Path) -> None:
    terminal = shell.Terminal("restore", "ticket-42", "asked", folder=folder)
    terminal.until("? [y/N] ")
    with backstay.open(folder / ".backstay" / "store.db") as store:
        asked = store.session("ticket-42").checkpoint("asked").id[:8]
    assert f"Restore main to {asked}? [y/N] " in terminal.seen
    assert "-5 removed" in terminal.seen
    terminal.types(answer)
    assert terminal.ends() == code
    assert ("To take it back" in terminal.seen) is changed
    assert ("Nothing was changed.\n" in terminal.seen) is not changed
    with backstay.open(folder / ".backstay" / "store.db") as store:
        assert (len(store.session("ticket-42").load()["messages"]) == 1) is changed


def test_what_moved_while_the_question_stood_is_not_overwritten(folder: Path) -> None:
    terminal = shell.Terminal("restore", "ticket-42", "asked", folder=folder)
    terminal.until("[y/N] ")
    with backstay.open(folder / ".backstay" / "store.db") as store:
        store.session("ticket-42").commit({"somebody": "else"})
    terminal.types("y\n")
    assert terminal.ends() == 3
    assert "has moved since this was shown" in terminal.seen
    with backstay.open(folder / ".backstay" / "store.db") as store:
        assert store.session("ticket-42").load() == {"somebody": "else"}
