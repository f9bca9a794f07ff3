"""The rooms as pyproject.toml tells them to import-linter: complete, and pure where they must be."""

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.house.tree import SRC, name_of, parsed, project, python_files

PURE = {"codec", "model"}  # a word from each pure room; its whole layer is meant
CLOCK = {"now", "today", "utcnow", "uuid1", "uuid4", "urandom"}


def contract(name: str) -> dict[str, Any]:
    (found,) = (each for each in project()["tool"]["importlinter"]["contracts"] if each["id"] == name)
    return dict(found)


def pure_modules() -> list[str]:
    layers: list[set[str]] = [
        {word.strip().strip("()") for word in layer.replace("|", ":").split(":")}
        for layer in contract("rooms")["layers"]
    ]
    return sorted(word for layer in layers if layer & PURE for word in layer)


def files_of(module: str) -> list[Path]:
    single = SRC / f"{module}.py"
    return [single] if single.exists() else python_files(f"src/backstay/{module}")


@pytest.mark.parametrize("module", pure_modules())
def test_no_pure_module_escapes_the_ban_on_files_clocks_and_chance(module: str) -> None:
    if files_of(module):
        assert f"backstay.{module}" in contract("study")["source_modules"], (
            f"add backstay.{module} to the contract `study` in pyproject.toml"
        )


@pytest.mark.parametrize("module", pure_modules())
def test_the_same_state_gives_the_same_bytes_at_any_hour(module: str) -> None:
    asked = [
        f"{name_of(path)}:{node.lineno} .{node.func.attr}()"
        for path in files_of(module)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCK
    ]
    assert not asked, "a pure module asks a clock or a die: " + ", ".join(asked)
