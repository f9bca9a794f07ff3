"""A hint speaks the language of where it is shown: calls and keywords in Python, commands and flags at the shell."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay
from backstay import hints
from backstay.hints import Hint, after, in_shell
from tests.house.tree import SRC, name_of, parsed, python_files

# A call (`session.log()`, `load(salvage=True)`), an attribute of what users hold, or a keyword (`keep_last=`).
PYTHON = re.compile(r"\w\(|\b(?:session|store|backstay|run|call)\.(?!db\b)\w|\b\w+=|\{old")
# Said only to code that runs in Python: a loop's own calls, adapters, strategies. `?schema=` is part
# of a URL, and the same in both.
ONLY_IN_PYTHON = ("adapters/", "aio/", "driving.py", "run/", "strategy.py", "testing/")
PARTS = {"hint", "remedy", "cost", "forms"}
PART_OF_A_URL = re.compile(r"\?schema=\S*")

SOURCES = [path for path in python_files("src") if not path.relative_to(SRC).as_posix().startswith(ONLY_IN_PYTHON)]


def text_of(node: ast.AST) -> str:
    """The fixed words of a text, wherever they stand in it; what is put into it is left out."""
    inside = {id(part) for each in ast.walk(node) if isinstance(each, ast.FormattedValue) for part in ast.walk(each)}
    words = [
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in inside
    ]
    return PART_OF_A_URL.sub("", " ".join(words))


def is_hint(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Hint"


def plain_hints(tree: ast.Module) -> Iterator[ast.expr]:
    """Each text given as `hint=`, `remedy=` or `cost=`, or named so, that is not a Hint: the same in both languages."""
    for node in ast.walk(tree):
        names: list[str | None] = []
        if isinstance(node, ast.keyword):
            names = [node.arg]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.keyword | ast.Assign) and not isinstance(node.value, ast.Call):
            yield from [node.value for name in names if name and name.strip("_").lower() in PARTS]


def shell_words(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_hint(node):
            assert len(node.args) == 2, f"line {node.lineno}: a Hint has two texts"
            yield node.args[1]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nobody_at_a_shell_is_told_to_call_python(path: Path) -> None:
    found = [
        f"{name_of(path)}:{node.lineno} {text_of(node)}"
        for node in plain_hints(parsed(path))
        if PYTHON.search(text_of(node))
    ]
    assert not found, "give it words for the shell (hints.Hint): " + "; ".join(found)


@pytest.mark.parametrize("path", python_files("src"), ids=name_of)
def test_words_for_the_shell_name_commands_and_flags(path: Path) -> None:
    found = [
        f"{name_of(path)}:{node.lineno} {text_of(node)}"
        for node in shell_words(parsed(path))
        if PYTHON.search(text_of(node))
    ]
    assert not found, "; ".join(found)


def test_every_command_that_a_hint_names_is_there() -> None:
    from backstay.cli import commands

    known = set(commands.list_commands(None))  # type: ignore[arg-type]
    named = {
        name
        for path in python_files("src")
        for node in shell_words(parsed(path))
        for name in re.findall(r"`backstay ([a-z]+)", text_of(node))
    }
    assert named
    assert named <= known


def test_a_hint_is_a_text_and_keeps_both_its_languages_when_it_is_copied_or_sent() -> None:
    hint = Hint("call it", "`backstay it`")
    assert hint == "call it"
    for other in (copy.copy(hint), copy.deepcopy(hint), pickle.loads(pickle.dumps(hint))):
        assert (other, in_shell(other)) == ("call it", "`backstay it`")
    error = pickle.loads(pickle.dumps(backstay.NotFoundError("no", hint=hint)))
    assert (str(error), in_shell(error.hint)) == ("no (call it)", "`backstay it`")


def test_words_before_a_hint_are_said_in_both_languages() -> None:
    both = after("nothing was exported", Hint("a()", "--a"))
    assert (both, in_shell(both)) == ("nothing was exported; a()", "nothing was exported; --a")
    assert after("nothing was exported", "") == "nothing was exported"
    assert in_shell(hints.repairs("counts again")) == "`backstay verify --repair` counts again"


@pytest.mark.parametrize(
    "text",
    ["f(hint='session.log() lists')", "hint = 'give keep_last='", "f(remedy=f'verify(repair={x})' if y else 'z')"],
)
def test_a_call_in_a_plain_hint_is_noticed(text: str) -> None:
    assert [node for node in plain_hints(ast.parse(text)) if PYTHON.search(text_of(node))]


def test_a_hint_that_names_no_call_is_let_be() -> None:
    for text in (
        "f(hint='run verify')",
        "f(hint=\"use 'postgresql://host/db?schema=name'\")",
        "hint = Hint('a()', 'a')",
    ):
        assert not [node for node in plain_hints(ast.parse(text)) if PYTHON.search(text_of(node))], text
