"""What people see, kept in files that people have looked at; and what no line of it may do."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.faces.cli import golden, hostile, shell, story


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The two stores; nothing here writes to them."""
    found = {}
    for name, make in (("story", story.make), ("hostile", hostile.make)):
        folder = found[name] = tmp_path_factory.mktemp(name)
        (folder / ".backstay").mkdir(mode=0o700)
        make(folder / ".backstay" / "store.db")
    return found


CASES = [
    (store, name, columns)
    for store, names in (("story", golden.COMMANDS), ("hostile", golden.HOSTILE))
    for name, columns in itertools.product(names, golden.COLUMNS)
]


@pytest.mark.parametrize(("store", "name", "columns"), CASES)
def test_people_see_what_they_saw(folders: dict[str, Path], store: str, name: str, columns: int) -> None:
    command = {**golden.COMMANDS, **golden.HOSTILE}[name]
    said = golden.printed(command, columns, folders[store])
    assert said == golden.file_of(name, columns).read_text("utf-8"), "python -m tests.faces.cli.golden, then look"
    lines = said.splitlines()
    wide = [line for line in lines if cell_len(line) > columns and not line.startswith("backstay: ")]
    assert wide == []
    assert [line for line in lines if line != line.rstrip()] == []
    harmless = said.replace("\n", "").replace("\u200d", "")
    assert harmless.isprintable(), [char for char in harmless if not char.isprintable()]


def test_no_golden_output_is_left_of_a_command_that_is_gone() -> None:
    expected = {golden.file_of(name, columns) for _, name, columns in CASES}
    assert set(golden.FOLDER.iterdir()) == expected


@pytest.mark.parametrize(
    "args", [["show", "long"], ["show", "long", "main~1"], ["log", "long"], ["show", "long", "--state"]]
)
def test_a_message_of_a_megabyte_is_folded_and_says_so(args: list[str], tmp_path: Path) -> None:
    hostile.make_long(tmp_path / "store.db")
    done = shell.run(*args, "--store", "store.db", folder=tmp_path)
    assert done.code == 0
    assert len(done.out) < 5_000
    assert max(map(cell_len, done.out.splitlines())) <= 80
    if args[0] == "show" and "--state" not in args:
        assert "more characters (--full)" in done.out


def test_all_of_a_message_of_a_megabyte_can_be_had(tmp_path: Path) -> None:
    hostile.make_long(tmp_path / "store.db")
    done = shell.run("show", "long", "main~1", "--messages", "--full", "--store", "store.db", folder=tmp_path)
    assert done.out.count("word") == 200_000
    found = shell.run("search", "needle", "--store", "store.db", folder=tmp_path)
    assert "word needle" in found.out
    assert found.code == 0
