"""Words that would mislead a reader, or open a door to whoever can write to a store."""

import ast
import re
from pathlib import Path

import pytest

from tests.house.tree import ROOT, checkout_files, name_of, parsed, python_files

SOURCES = python_files("src")
EVERYTHING = python_files("src", "tests", "bench")

EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
# Nobody guesses what is in them; each has a word of the trade (group_commit, rewrite, heartbeat, pool, exporter, …).
RIDDLES = {
    "desk",
    "leaning",
    "anew",
    "drawers",
    "shelf",
    "wire",
    "plain",
    "texts",
    "found",
    "shown",
    "standing",
    "ending",
    "wording",
    "keeping",
    "pulse",
    "lineage",
    "whereabouts",
    "placing",
    "choosing",
    "arriving",
    "leaving",
    "growing",
    "asking",
    "talking",
    "where",
}
# Letters in brackets, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X|H[A]CK)\b")
FORMER_NAME = re.compile(rb"hold[-_ ]?f[a]st", re.IGNORECASE)
RUNS_DATA = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "code", "codeop"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return {(node.module or "").partition(".")[0]}
    return set()


def called(node: ast.AST) -> set[str]:
    return {node.func.id} if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else set()


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_the_name_of_a_file_says_what_is_in_it(path: Path) -> None:
    words = {*path.relative_to(ROOT).with_suffix("").parts}
    assert not words & EMPTY_NAMES, f"{name_of(path)}: {words & EMPTY_NAMES} says nothing"


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_nothing_is_shipped_half_done(path: Path) -> None:
    left = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not left, "\n".join(left)


def test_a_reader_meets_one_name_of_the_project() -> None:
    files = checkout_files()
    if not files:
        pytest.skip("this is not a git checkout")
    spoken = [
        name_of(path)
        for path in files
        if FORMER_NAME.search(name_of(path).encode()) or FORMER_NAME.search(path.read_bytes())
    ]
    assert not spoken, f"the former name is in {spoken}"


def test_the_former_name_is_found_however_it_is_spelt() -> None:
    for joint in ("", "-", "_", " "):
        assert FORMER_NAME.search(f"a Hold{joint}Fast store".encode())


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_tells_a_newcomer_what_lives_there(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), f"{name_of(path)} has no module docstring"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_stored_byte_can_ever_become_running_code(path: Path) -> None:
    found = [
        f"{name_of(path)}:{getattr(node, 'lineno', 0)} {word}"
        for node in ast.walk(parsed(path))
        for word in (imported(node) & RUNS_DATA) | (called(node) & RUNS_TEXT)
    ]
    assert not found, ", ".join(found)


# names


def test_no_two_classes_of_the_package_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert not shared, f"one name, one meaning: {shared}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_stranger_can_guess_what_a_module_is_about(path: Path) -> None:
    words = {*path.relative_to(ROOT).with_suffix("").parts}
    assert not words & RIDDLES, f"{name_of(path)}: the trade has a word for it"
