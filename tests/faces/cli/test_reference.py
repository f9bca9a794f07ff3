"""docs/cli.md is what the commands are: made again here, with every example run, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from backstay import cli
from backstay.shapes import SHAPES
from tests.faces.cli import reference, shell
from tests.house.tree import markdown_files, name_of


def test_the_page_about_the_command_line_is_what_the_commands_are_and_print() -> None:
    expected = reference.page()
    found = reference.PAGE.read_text("utf-8")
    if found != expected:
        pairs = zip(found.splitlines(), expected.splitlines(), strict=False)
        where = next((pair for pair in pairs if pair[0] != pair[1]), ("another length", ""))
        pytest.fail(f"write it anew with `python -m tests.faces.cli.reference`; first difference: {where}")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_says_what_it_does_and_shows_how(name: str) -> None:
    command = reference.command_of(name)
    assert command.help
    assert command.examples
    assert all(example.startswith(f"backstay {name}") for example in command.examples)
    assert not command.shape or command.shape.strip("*") in SHAPES


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_every_command_fits_a_terminal(name: str, tmp_path: Path) -> None:
    done = shell.run(name, "--help", folder=tmp_path)
    assert done.code == 0
    assert f"Usage: backstay {name}" in done.out
    assert [line for line in done.out.splitlines() if len(line) > 80] == []


def test_a_newcomer_finds_every_command_in_the_first_help(tmp_path: Path) -> None:
    out = shell.run("--help", folder=tmp_path).out
    assert [name for name in cli.COMMANDS if f"  {name} " not in out] == []
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_every_shape_is_used_and_every_word_in_one_is_known() -> None:
    words = {word for keys in SHAPES.values() for kind in keys.values() for word in kind.split()}
    plain = {"text", "number", "time", "true", "false", "or", "null", "list", "of", "any", "object"}
    assert words - plain <= SHAPES.keys()
    used = {reference.command_of(name).shape.strip("*") for name in cli.COMMANDS} | words
    assert SHAPES.keys() <= used


@pytest.mark.parametrize("page", markdown_files(), ids=name_of)
def test_what_a_page_shows_at_the_shell_is_what_is_printed(page: Path) -> None:
    if page == reference.PAGE:
        return  # made anew above
    for example, said in reference.examples_in(page.read_text("utf-8")):
        assert said == reference.printed(example), f"{name_of(page)}: {example}"
