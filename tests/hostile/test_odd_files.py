"""Links, pipes, sockets and folders in every place of a store: no command follows, awaits, changes or removes one."""

from __future__ import annotations

import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from backstay import cli
from tests.hostile import commands, corpus

LINES = [line for lines in commands.LINES.values() for line in lines if line[0] != "demo"]
PLACES = list(corpus.odd_places())


def test_every_command_is_tried() -> None:
    assert set(commands.LINES) == set(cli.COMMANDS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, corpus.Place]:
    found = {}
    for kind in (corpus.SQLITE, corpus.FILES):
        found[kind] = corpus.Place(tmp_path_factory.mktemp(kind), kind)
        found[kind].make()
    return found


def copy_of(made: dict[str, corpus.Place], kind: str, folder: Path) -> corpus.Place:
    place = corpus.Place(folder, kind)
    shutil.copytree(made[kind].here, place.here, dirs_exist_ok=True)
    return place


def try_all(place: corpus.Place, lines: list[tuple[str, ...]]) -> None:
    """Nothing outside is changed; nothing odd here is replaced or removed."""
    outside = commands.surroundings(place.outside)
    odd = {name: left for name, left in commands.surroundings(place.here).items() if not _is_ours(left)}
    for line in lines:
        commands.run(line, place.here, place.url)
        assert commands.surroundings(place.outside) == outside, line
        now = commands.surroundings(place.here)
        assert {name: now.get(name) for name in odd} == odd, line


def _is_ours(left: commands.Left) -> bool:
    return stat.S_ISREG(left.mode) or stat.S_ISDIR(left.mode)


def _try(made: dict[str, corpus.Place], folder: Path, at: tuple[str, str, Callable[[Path, Path], None]]) -> None:
    kind, name, odd = at
    place = copy_of(made, kind, folder)
    corpus.plant(place, name, odd)
    seed = f"{kind} {name} {odd.__name__}"
    try_all(place, [("sessions",), *random.Random(seed).sample(LINES, 2)])


OF_FILES = ("files", "rewind", "bisect", "blame")


@pytest.mark.parametrize("at", PLACES, ids=lambda at: f"{at[2].__name__} at {at[1]}")
def test_what_is_odd_in_a_store_is_neither_followed_nor_waited_for_nor_changed(
    at: tuple[str, str, Callable[[Path, Path], None]], made: dict[str, corpus.Place], tmp_path: Path
) -> None:
    _try(made, tmp_path, at)


@pytest.mark.exhaustive
@pytest.mark.parametrize("line", [*LINES, *commands.LINES["demo"]], ids=" ".join)
def test_no_command_at_all_follows_waits_for_or_changes_what_is_odd(
    line: tuple[str, ...], made: dict[str, corpus.Place], tmp_path: Path
) -> None:
    for number, (kind, name, odd) in enumerate(PLACES):
        (tmp_path / str(number)).mkdir()
        place = copy_of(made, kind, tmp_path / str(number))
        corpus.plant(place, name, odd)
        try_all(place, [line])
        shutil.rmtree(tmp_path / str(number))


@pytest.mark.parametrize("kind", [corpus.SQLITE, pytest.param(corpus.FILES, marks=pytest.mark.exhaustive)])
def test_every_line_does_what_it_should_where_no_harm_is_meant(
    kind: str, made: dict[str, corpus.Place], tmp_path: Path
) -> None:
    for number, line in enumerate(LINES):
        (tmp_path / str(number)).mkdir()
        place = copy_of(made, kind, tmp_path / str(number))
        done = commands.run(line, place.here, place.url)
        # The session is there already; it waits for nothing, and has no files; a page for all comers needs a token.
        refused = line == ("import", "in.backstay") or line[0] in ("answer", "web", *OF_FILES)
        assert done.code == (1 if refused else 0), (line, done)


@pytest.mark.parametrize("line", [("delete", "s", "-y"), ("verify", "--repair"), ("prune", "s", "--keep-last", "1")])
def test_no_blob_behind_a_link_is_removed(line: tuple[str, ...], made: dict[str, corpus.Place], tmp_path: Path) -> None:
    place = copy_of(made, corpus.FILES, tmp_path)
    corpus.plant(place, "store/blobs/*", corpus.link)
    try_all(place, [line])


@pytest.mark.parametrize("kind", [corpus.SQLITE, corpus.FILES])
def test_no_command_touches_what_is_not_the_stores(kind: str, made: dict[str, corpus.Place], tmp_path: Path) -> None:
    place = copy_of(made, kind, tmp_path)
    corpus.lay_traps(place)
    traps = [
        path for path in place.here.rglob("*") if path.name in ("results.csv", "0123456789abcdef.txt", "notes.bak")
    ]
    before = {path: path.read_bytes() for path in traps}
    for line in [*LINES, ("prune", "--keep-last", "1"), ("verify", "--repair")]:
        commands.run(line, place.here, place.url)
    assert {path: path.read_bytes() for path in traps if path.exists()} == before


@pytest.mark.parametrize("kind", [corpus.SQLITE, corpus.FILES])
def test_a_command_that_only_reads_leaves_every_byte_as_it_was(
    kind: str, made: dict[str, corpus.Place], tmp_path: Path
) -> None:
    place = copy_of(made, kind, tmp_path)
    before = commands.surroundings(tmp_path)
    for name in sorted(commands.ONLY_READ):
        for line in commands.LINES[name]:
            assert commands.run(line, place.here, place.url).code == (name in OF_FILES), line
            assert commands.surroundings(tmp_path) == before, line
