"""`--json` is a promise to programs: every command, parsed and held against the shape that the page tells."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import backstay
from backstay import cli
from backstay.shapes import SHAPES, dump, plain
from backstay.shapes.text import brief
from tests.faces.cli import hostile, shell, story
from tests.faces.cli.reference import command_of
from tests.faces.formats import made as foreign
from tests.unit.values import values

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
READING = {
    "sessions": "sessions",
    "log": "log ticket-42 --all",
    "show": "show ticket-42 main~4",
    "diff": "diff ticket-42 main what-if",
    "branches": "branches ticket-42",
    "files": "files fix-bug",
    "du": "du fix-bug",
    "blame": "blame fix-bug src/main.py",
    "bisect": "bisect fix-bug --good main~1 mkdir notes.txt",  # works where there is no such file yet
    "tag": "tag ticket-42",
    "recover": "recover",
    "search": "search EUR",
    "status": "status",
    "waiting": "waiting",
    "stats": "stats",
    "verify": "verify",
    "prune": "prune --keep-last 1 --dry-run",
    "doctor": "doctor",
}
WRITING = {
    "demo": "demo",
    "init": "init new.db",
    "fork": "fork ticket-42 main~2 again",
    "cancel": "cancel ticket-43",
    "answer": "answer ticket-44 --yes",
    "send": "send ticket-42 inbox 1",
    "restore": "restore ticket-42 asked -y",
    "rewind": "rewind fix-bug main~1 -y",
    "undo": "undo ticket-42 -y",
    "delete": "delete ticket-42 main~1 -y",
    "forget-files": "forget-files fix-bug src/main.py -y",
    "export": "export all.backstay",
    "import": "import checkpoints",
    "completion": "completion fish",
    "help": "help",
}
EVERY = READING | WRITING
SERVING = {"web", "watch"}  # go on until they are stopped, or a command ends: tests of their own ask them
SILENT = {"hook"}  # what it prints would be heard by the agent
# Other ways of the same commands, whose JSON has the same shape.
MORE = [
    "tag ticket-42 main~1 here",
    "tag ticket-42 -d asked",
    "recover ticket-43 --retry",
    "recover ticket-43 --skip",
    "cancel ticket-42",
    "answer ticket-44 refund --no --by ana",
    "delete ticket-42 -y",
    "delete ticket-42 --branch what-if -y",
    "delete ticket-42 --dry-run",
    "prune --keep-last 1 -y",
    "export ares ticket-42 out",
    "export --html ticket.html ticket-42",
    "import checkpoints --dry-run",
    "log ticket-42 --graph --all",
]


def fits(value: Any, kind: str) -> bool:
    """Whether a value is what a shape says it is."""
    if " or " in kind and kind != "true or false":
        return any(fits(value, each) for each in kind.split(" or "))
    if kind.startswith("list of "):
        return isinstance(value, list) and all(fits(each, kind.removeprefix("list of ")) for each in value)
    if kind in SHAPES:
        return isinstance(value, dict) and wrong(value, kind) == []
    return {
        "text": isinstance(value, str),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "time": isinstance(value, str) and TIME.fullmatch(value) is not None,
        "true or false": isinstance(value, bool),
        "null": value is None,
        "list": isinstance(value, list),
        "object": isinstance(value, dict),
        "any": True,
    }[kind]


def wrong(found: dict[str, Any], shape: str) -> list[str]:
    keys = SHAPES[shape]
    missing = [f"{shape} has {sorted(found)}, not {sorted(keys)}"] if found.keys() != keys.keys() else []
    return missing + [
        f"{shape}.{k}: {found[k]!r}" for k, kind in keys.items() if k in found and not fits(found[k], kind)
    ]


@pytest.mark.parametrize("name", sorted(cli.COMMANDS.keys() - SILENT))
def test_every_command_can_be_read_by_programs(name: str) -> None:
    assert command_of(name).shape
    assert any("--json" in each.opts for each in command_of(name).params)
    assert name in EVERY.keys() | SERVING


@pytest.mark.parametrize("line", [*EVERY.values(), *MORE])
def test_what_is_printed_has_the_shape_that_is_promised(line: str, folder: Path) -> None:
    name = line.partition(" ")[0]
    foreign.ares(folder / "checkpoints", [foreign.ares_step(0), foreign.ares_step(1)])
    if name in ("waiting", "answer"):
        story.wait_too(folder / ".backstay" / "store.db")
    if "fix-bug" in line:
        story.files_too(folder / ".backstay" / "store.db", folder)
    done = shell.run(*shlex.split(line), "--json", folder=folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()
    lines = [json.loads(line) for line in done.out.splitlines()]
    shape = command_of(name).shape
    assert lines, "nothing was printed"
    assert shape.endswith("*") or len(lines) == 1
    assert [each for line in lines for each in wrong(line, shape.strip("*"))] == []


OF_ONE = {"doctor", "diff", "show", "tag", "log", "branches", "files", "du", "bisect", "blame"}


@pytest.mark.parametrize("name", sorted(READING.keys() - OF_ONE))
def test_an_empty_store_gives_no_lines_or_an_object_of_nothing(name: str, tmp_path: Path) -> None:
    backstay.open(tmp_path / "empty.db").close()
    done = shell.run(*shlex.split(READING[name]), "--json", "--store", "empty.db", folder=tmp_path)
    assert done.code == (1 if name == "search" else 0)
    assert done.err == ""
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len(lines) == (0 if command_of(name).shape.endswith("*") else 1)


def test_no_text_in_a_store_gets_out_of_its_json(tmp_path: Path) -> None:
    hostile.make(tmp_path / "store.db")
    for command in ("sessions", "log -- -x", "show -- -x", "branches -- -x", "search wide", "diff -- -x main main~3"):
        words = shlex.split(command)
        words[1:1] = ["--json", "--store", "store.db"]
        done = shell.run(*words, folder=tmp_path)
        assert (done.code, done.err) == (0, ""), command
        assert done.out.isascii()
        assert done.out.replace("\n", "").isprintable()
        assert [json.loads(line) for line in done.out.splitlines()]


@given(values)
def test_every_value_that_a_state_can_hold_has_a_form_in_json_and_one_for_the_eye(value: Any) -> None:
    json.loads(dump(plain(value)))
    shown = brief(value)
    assert "\n" not in shown
    assert shown.replace("\u200d", "").isprintable()


def test_a_state_of_odd_keys_is_told_whole(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        store.session("s").commit({"$odd": {1: b"x"}, "n": float("nan")})
    done = shell.run("show", "s", "--raw", "--store", "store.db", folder=tmp_path)
    odd = {"$dict": [[1, {"$bytes": "eA=="}]]}
    assert json.loads(done.out) == {"$dict": [["$odd", odd], ["n", {"$float": "nan"}]]}
