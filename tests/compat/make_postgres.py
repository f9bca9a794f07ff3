"""How the golden store of these tables was made: `python -m tests.compat.make_postgres URL FOLDER`.

Run once for each layout of the tables in PostgreSQL, when it is new; what it wrote is then kept for ever, as SQL that
makes the schema again, and never made again. `pg_dump` must be on the path.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg

import backstay
from backstay.backends.postgres import PostgresBackend
from backstay.backends.postgres.schema import LAYOUT
from tests.compat.make_golden import branching, foreign_ids, large_values, long_talk, pruned
from tests.compat.make_journal import fill, seen
from tests.compat.portrait import portrait

SCHEMA = "the_schema_of_the_golden_store"  # a name that stands for nothing else, since another is put in its place
RUNS = ("crashed", "given up", "done")


def uuids(store: backstay.Store) -> None:
    """Ids like LangGraph's, those that only look like them, and one among them that another has lost as its parent."""
    session = store.session("uuids")
    one = "1ef4f797-8335-6428-8001-8a1503f9b87"
    ids = [
        f"{one}5",
        f"{one}5+1",
        f"{one}5!\1ä",
        f"{one}6",
        f"{one}6".upper(),
        f"{one}7"[:35],
        f"{one}7".replace("-", ""),
    ]
    ids += [
        "f" * 8 + "-ffff-ffff-ffff-" + "f" * 12,
        "f" * 8 + "-ffff-ffff-ffff-fe" + "0" * 10,
        "0" * 8 + "-0000-0000-0000-" + "0" * 12,
    ]
    made = []
    for number, id_ in enumerate(ids):
        with patch("backstay.store.session.secrets.token_hex", return_value=id_):
            made.append(session.commit({"n": number}))
    session.delete(made[1])
    session.delete(made[7])


def told(store: backstay.Store) -> dict[str, Any]:
    """What everybody can see of it, as JSON holds it."""
    calls = {name: calls for name, calls in seen(store).items() if name in RUNS}
    found: dict[str, Any] = json.loads(json.dumps({"sessions": portrait(store), "calls": calls}))
    return found


def dumped(url: str) -> bytes:
    """The schema as SQL that any server understands: without what only psql or only this version knows."""
    words = ["pg_dump", "--inserts", "--no-owner", "--no-privileges", f"--schema={SCHEMA}", url]
    lines = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout.splitlines(keepends=True)
    return b"".join([line for line in lines if not line.startswith((b"\\", b"SET ", b"--"))])


def make(url: str, folder: Path) -> Path:
    """The store and what it must give, side by side."""
    file = folder / f"postgres-{LAYOUT}.sql.gz"
    if file.exists():
        message = f"{file} is there already, and is kept for ever"
        raise FileExistsError(message)
    try:
        with backstay.Store(PostgresBackend(url, schema=SCHEMA)) as store:
            for write in (large_values, long_talk, branching, pruned, foreign_ids, uuids, fill):
                write(store)
            assert store.verify().ok
            found = told(store)
        file.write_bytes(gzip.compress(dumped(url), mtime=0))
        (folder / f"postgres-{LAYOUT}.json").write_text(json.dumps(found, separators=(",", ":")) + "\n", "ascii")
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    return file


if __name__ == "__main__":
    print(make(sys.argv[1], Path(sys.argv[2])))
