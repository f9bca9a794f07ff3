"""A reader holds a file of 500 lines and a function of 70 in the head; beyond that, bugs hide."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import name_of, parsed, python_files

FILE_LINES = 500
FUNCTION_LINES = 70

SOURCES = python_files("src")

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[AnyFunction]:
    return (node for node in ast.walk(tree) if isinstance(node, AnyFunction))


def length(function: AnyFunction) -> int:
    """Lines from `def` to the last statement, without the docstring, which is welcome to be long."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_reader_can_take_in_each_file_at_one_sitting(path: Path) -> None:
    lines = len(path.read_text("utf-8").splitlines())
    assert lines <= FILE_LINES, f"{name_of(path)} has {lines} lines, {FILE_LINES} are allowed"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_reader_can_take_in_each_function_at_one_look(path: Path) -> None:
    culprits = [
        f"{name_of(path)}:{function.lineno} {function.name} has {length(function)} lines"
        for function in functions(parsed(path))
        if length(function) > FUNCTION_LINES
    ]
    assert not culprits, f"{FUNCTION_LINES} are allowed: " + "; ".join(culprits)


def test_a_docstring_is_not_counted_against_its_function() -> None:
    tree = ast.parse('def f():\n    """One\n\n    two.\n    """\n    return 1\n')
    assert [length(function) for function in functions(tree)] == [2]
