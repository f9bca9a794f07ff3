"""Stores that another program wrote: schemas that hang or delete, rows that mean nothing, counts and bytes without end.

Every command ends, within its time and memory, with an answer or an error of Backstay's.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest

import backstay
from backstay.backends.sqlite.connections import connect
from tests.faces.cli import shell
from tests.hostile import commands, corpus, forged

LINES = [line for lines in commands.LINES.values() for line in lines if line[0] != "demo"]

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


def renamed(words: str, *more: str) -> list[str]:
    """Change the words of the schema itself, as no statement would."""
    return ["PRAGMA writable_schema = ON", words, *more, "PRAGMA writable_schema = RESET"]


SCHEMAS: dict[str, list[str]] = {
    "a view beside the tables": [f"CREATE VIEW more AS {ENDLESS} i FROM n"],
    "a view in the place of a table": [
        "ALTER TABLE rows RENAME TO true_rows",
        f"CREATE VIEW rows AS {ENDLESS} i AS sid, 0 AS kind, '' AS name, 0 AS marks, x'' AS body FROM n",
    ],
    "a trigger that deletes history": [
        "CREATE TRIGGER t AFTER INSERT ON checkpoints BEGIN DELETE FROM checkpoints; END"
    ],
    "a trigger with the name of a table": [
        "CREATE TRIGGER keyframes AFTER INSERT ON checkpoints BEGIN DELETE FROM rows; END",
        # SQLite lists what was made first first: move the trigger before the table whose name it has.
        *renamed("UPDATE sqlite_schema SET rowid = 1000 WHERE type = 'table' AND name = 'keyframes'"),
    ],
    "another table": ["CREATE TABLE more(x)"],
    "a table of SQLite's own": ["ANALYZE"],
    "another index": ["CREATE INDEX more ON rows(body)"],
    "an index that computes": ["CREATE INDEX more ON rows(length(hex(body)) + abs(-9223372036854775807))"],
    "a virtual table": ["CREATE VIRTUAL TABLE more USING fts5(x)"],
    "another column": ["ALTER TABLE rows ADD COLUMN more"],
    "a column that computes": ["ALTER TABLE rows ADD COLUMN more GENERATED ALWAYS AS (hex(body)) VIRTUAL"],
    "a missing table": ["DROP TABLE keyframes"],
    "another word": renamed("UPDATE sqlite_schema SET sql = replace(sql, 'body BLOB', 'body TEXT')"),
    "a default that calls": renamed(
        "UPDATE sqlite_schema SET sql = replace(sql, 'marks INTEGER', 'marks INTEGER DEFAULT (random())')"
    ),
    "a check that computes": renamed(
        "UPDATE sqlite_schema SET sql = replace(sql, 'body BLOB', 'body BLOB CHECK(length(hex(body)))') "
        "WHERE name = 'checkpoints'"
    ),
    "words that are no SQL": renamed("UPDATE sqlite_schema SET sql = 'nonsense' WHERE name = 'keyframes'"),
    "a table at the page of another": renamed(
        "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'rows') "
        "WHERE name = 'lookup'"
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> corpus.Place:
    place = corpus.Place(tmp_path_factory.mktemp("made"), corpus.SQLITE)
    place.make()
    return place


def planted(made: corpus.Place, folder: Path, statements: list[str]) -> corpus.Place:
    """A copy of a store to which another program did this."""
    place = corpus.Place(folder, corpus.SQLITE)
    shutil.copytree(made.here, place.here, dirs_exist_ok=True)
    with contextlib.closing(connect(place.store, durability="full")) as connection:
        for setting in (apsw.SQLITE_DBCONFIG_DEFENSIVE, apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA):
            connection.config(setting, int(setting == apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA))
        for setting in (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, apsw.SQLITE_DBCONFIG_ENABLE_VIEW):
            connection.config(setting, 1)
        for statement in statements:
            connection.execute(statement).fetchall()
    return place


def try_all(place: corpus.Place, lines: list[tuple[str, ...]]) -> list[int]:
    outside = commands.surroundings(place.outside)
    codes = [commands.run(line, place.here, place.url).code for line in lines]
    assert commands.surroundings(place.outside) == outside
    return codes


NEED_A_STORE = [line for line in LINES if line[0] not in ("completion", "doctor", "help")]


@pytest.mark.parametrize("what", SCHEMAS)
def test_a_planted_schema_is_refused_and_stays_as_it_was(what: str, made: corpus.Place, tmp_path: Path) -> None:
    try_schema(what, made, tmp_path, random.Random(what).sample(NEED_A_STORE, 5))


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", SCHEMAS)
def test_a_planted_schema_is_refused_by_every_command(what: str, made: corpus.Place, tmp_path: Path) -> None:
    try_schema(what, made, tmp_path, NEED_A_STORE)


def try_schema(what: str, made: corpus.Place, folder: Path, lines: list[tuple[str, ...]]) -> None:
    place = planted(made, folder, SCHEMAS[what])
    before = place.store.read_bytes()
    codes = try_all(place, lines)
    assert before == place.store.read_bytes()
    damaged = "no SQL" in what  # SQLite itself cannot read that
    assert set(codes) == {4 if damaged else 1}, dict(zip(lines, codes, strict=True))
    with pytest.raises(backstay.CorruptionError if damaged else backstay.FormatError):
        place.open()


# rows that mean nothing


ODD_VALUES = ("NULL", "-1", "'text'", "x'ff'", "1.5", "9223372036854775807", "''", "char(55296)", "1e300")


def columns(place: corpus.Place) -> list[tuple[str, str]]:
    with contextlib.closing(connect(place.store, durability="full")) as connection:
        tables: list[Any] = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return [(table, row[1]) for (table,) in tables for row in connection.execute(f"PRAGMA table_info({table})")]


def try_odd_values(made: corpus.Place, folder: Path, lines: list[tuple[str, ...]], chosen: list[Any]) -> int:
    changed = 0
    for number, (table, column, value) in enumerate(chosen):
        (folder / str(number)).mkdir()
        try:
            place = planted(made, folder / str(number), [f"UPDATE OR IGNORE {table} SET {column} = {value}"])
        except apsw.Error:  # the table itself says no
            continue
        changed += 1
        try_all(place, lines)
        shutil.rmtree(folder / str(number))
    return changed


def test_an_odd_value_in_any_column_is_damage_and_never_a_bug(made: corpus.Place, tmp_path: Path) -> None:
    rng = random.Random(made.store.name)
    every = [(*column, value) for column in columns(made) for value in ODD_VALUES]
    assert try_odd_values(
        made, tmp_path, [("status",), ("log", "s"), ("fork", "s", "main~1", "new")], rng.sample(every, 25)
    )


@pytest.mark.exhaustive
def test_an_odd_value_in_any_column_is_damage_for_every_command(made: corpus.Place, tmp_path: Path) -> None:
    every = [(*column, value) for column in columns(made) for value in ODD_VALUES]
    assert try_odd_values(made, tmp_path, LINES, every) > len(every) / 2


# lines of a journal that mean nothing, sealed as they should be


ODD_JSON: tuple[Any, ...] = (None, -1, 2**63, 2**70, 1.5, "text", "\\ud800", [], {}, [1, 2, 3], True)


def forge_line(journal: Path, number: int, where: str, value: Any) -> None:
    """Change a field of a line, or of its first row, and seal it again."""
    lines = journal.read_bytes().split(b"\n")
    line = json.loads(lines[number])
    del line["sum"]
    if where in line:
        line[where] = value
    elif line.get("rows"):
        line["rows"][0][where] = value
    text = json.dumps(line, separators=(",", ":")).encode()[:-1]
    lines[number] = text + b',"sum":"' + sha256(text).hexdigest()[:16].encode() + b'"}'
    journal.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize("count", [10, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_a_forged_line_of_a_journal_costs_its_session_and_is_never_a_bug(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.backends.files.journal._SECOND_LOOKS_S", ())  # no other process is writing
    place = corpus.Place(tmp_path, corpus.FILES)
    place.make()
    with place.open() as store:
        store.session("other").commit({"n": 1})
    journal = max((place.store / "sessions").iterdir(), key=lambda file: file.stat().st_size)
    content = journal.read_bytes()
    fields = ("n", "first", "prev", "to", "rows", "drops", "kind", "key", "body", "id", "parent", "foreign", "refs")
    every = [(number, where, value) for number in (0, 1, 4) for where in fields for value in ODD_JSON]
    for change in random.Random(7).sample(every, count):
        journal.write_bytes(content)
        forge_line(journal, *change)
        try_all(place, [("sessions",), ("log", "s"), ("fork", "s", "main", "new"), ("verify",)])
        with place.open() as store:
            assert store.session("other").load() == {"n": 1}
            assert len(list(store.sessions())) == 2, change


# bombs: one child tries them all, and says how much memory it ever took


KINDS = (corpus.SQLITE, corpus.FILES, "export")
MOST_MB = 300
TRY_ALL = """
import sys
from pathlib import Path
from tests.hostile import commands
for folder in sorted(Path(sys.argv[1]).iterdir()):
    store = next(folder.iterdir())
    url = f"file:{store}" if store.is_dir() else str(store)
    for line in sys.argv[2].split(";"):
        words = tuple(line.split())
        if words[0] == "import":
            words, url = ("import", str(store), "--on-exists", "skip"), f"file:{folder}-imported"
        commands.run(words, folder, url)
        peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
        print(int(peak.split()[1]) // 1024, folder.name, *words, flush=True)
"""


def try_bombs(folder: Path, kinds: Mapping[str, tuple[str, ...]], lines: list[tuple[str, ...]]) -> None:
    root = Path(__file__).parents[2]
    for name, chosen in kinds.items():
        for kind in chosen:
            place = folder / f"{name} {kind}"
            place.mkdir()
            forged.write(forged.BOMBS[name], kind, place / ("store.db" if kind == corpus.SQLITE else "store"))
    told = ";".join([" ".join(line) for line in lines])
    environment = shell.plain_environment(PYTHONPATH=f"{root / 'src'}:{root}")
    done = subprocess.run(
        [sys.executable, "-c", TRY_ALL, str(folder), told],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=root,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert len(said) == len(lines) * sum(map(len, kinds.values()))
    costly = [line for line in said if int(line.split()[0]) > MOST_MB]
    assert not costly, costly[0]


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says how much was taken")


@needs_proc
def test_a_short_store_or_export_takes_neither_memory_nor_time_without_end(tmp_path: Path) -> None:
    chosen = ("keyframe_of_dicts", "numbers_without_end", "salvage_without_end", "one_blob_many_times")
    kinds = {name: (KINDS[number % len(KINDS)],) for number, name in enumerate(chosen)}
    try_bombs(tmp_path, kinds, [("show", "s", "--salvage"), ("verify",)])


@needs_proc
@pytest.mark.exhaustive
def test_an_import_takes_two_hundred_megabytes_at_most_beside_the_largest_state(tmp_path: Path) -> None:
    try_bombs(tmp_path, dict.fromkeys(forged.BOMBS, ("export",)), [("import",)])


@needs_proc
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_no_command_at_all_takes_memory_or_time_without_end(kind: str, tmp_path: Path) -> None:
    try_bombs(tmp_path, dict.fromkeys(forged.BOMBS, (kind,)), [line for line in LINES if line[0] != "import"])
