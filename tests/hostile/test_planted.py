"""Stores that another program wrote: schemas that hang or delete, rows that mean nothing, counts and bytes without end.

Every command ends, within its time and memory, with an answer or an error of Backstay's.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import backstay
from backstay.backends.sqlite.connections import connect
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
    "a trigger that deletes history": ["CREATE TRIGGER t AFTER INSERT ON checkpoints BEGIN DELETE FROM checkpoints; END"],
    "a trigger with the name of a table": [
        "CREATE TRIGGER keyframes AFTER INSERT ON checkpoints BEGIN DELETE FROM rows; END",
        # SQLite lists what was made first first: move the trigger before the table whose name it has.
        *renamed(
            "UPDATE sqlite_schema SET rowid = rowid * 10",
            "UPDATE sqlite_schema SET rowid = (SELECT max(rowid) FROM sqlite_schema) + 1 "
            "WHERE type = 'table' AND name = 'keyframes'",
        ),
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
        "UPDATE sqlite_schema SET sql = replace(sql, 'marks INTEGER NOT NULL', 'marks INTEGER NOT NULL DEFAULT (random())')"
    ),
    "a check that computes": renamed(
        "UPDATE sqlite_schema SET sql = replace(sql, 'body BLOB NOT NULL', 'body BLOB NOT NULL CHECK(length(hex(body)))') "
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


@pytest.mark.parametrize("what", SCHEMAS)
def test_a_planted_schema_is_refused_by_every_command_and_stays_as_it_was(
    what: str, made: corpus.Place, tmp_path: Path
) -> None:
    place = planted(made, tmp_path, SCHEMAS[what])
    before = place.store.read_bytes()
    lines = [line for line in LINES if line[0] not in ("completion", "doctor")]
    codes = try_all(place, lines)
    assert before == place.store.read_bytes()
    if what != "a table at the page of another":
        assert set(codes) == {1}, dict(zip(lines, codes, strict=True))
        with pytest.raises(backstay.FormatError if "SQL" not in what else backstay.CorruptionError):
            place.open()
    else:
        assert 0 not in codes
