"""smooth's SQLite store, read without exporter a trace beside it, and written anew.

A database is copied, log and all, to a folder of our own and read there: opening it where it is would leave a lock
and files beside it. Only rows are read; nothing that the schema of a stranger's file could ask for is run.
"""

from __future__ import annotations

import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

from backstay.errors import UnavailableError
from backstay.formats.dialect import AFTER_LAST_SECOND, DamagedError, JsonWriter, has_plus, parse, parse_object
from backstay.formats.exporter import Exporter, micros, own
from backstay.formats.model import FoundPoint, Reading
from backstay.formats.smooth.talk import (
    HAS_EXPONENT,
    NAME,
    check_conversation,
    conversation_of,
    iteration_of,
    make_point,
    metadata_of,
)
from backstay.formats.source import Entry, Source
from backstay.formats.target import Target, safe_parts
from backstay.model import Checkpoint, StateDict, counted

_MAGIC = b"SQLite format 3\0"
_TABLE = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'checkpoints'"
_COLUMNS = {"id", "agent_id", "iteration", "conversation", "metadata", "created_at"}
_ROWS = "SELECT rowid, id, agent_id, iteration, conversation, metadata, created_at FROM checkpoints ORDER BY rowid"
_ROW = "SELECT conversation FROM checkpoints WHERE rowid = ?"
_TRIES = 5
_SCHEMA = """CREATE TABLE checkpoints (
            id TEXT PRIMARY KEY,
            agent_id TEXT NOT NULL,
            iteration INTEGER NOT NULL,
            conversation BLOB NOT NULL,
            metadata TEXT DEFAULT '{}',
            created_at INTEGER NOT NULL
        );
CREATE INDEX idx_checkpoints_agent
            ON checkpoints(agent_id, created_at DESC);
"""
_INSERT = "INSERT INTO checkpoints VALUES(?, ?, ?, ?, ?, ?)"


def is_sqlite(source: Source, entry: Entry) -> bool:
    """True for a SQLite database of whatever kind."""
    return source.peek(entry.parts, len(_MAGIC)) == _MAGIC


def recognise(source: Source, entry: Entry) -> bool:
    """True for a database that has a table like smooth's, be it only in its log."""
    if not is_sqlite(source, entry):
        return False
    starts = [source.peek((*entry.parts[:-1], entry.name + tail), 1 << 16) for tail in ("", "-wal")]
    return any(b"checkpoints" in start and b"conversation" in start for start in starts)


def read(source: Source, entry: Entry, reading: Reading) -> list[tuple[str, FoundPoint]]:
    """The rows of a database, each with its agent."""
    found: list[tuple[str, FoundPoint]] = []
    try:
        connection = _connection(source, entry)
        have = {row[1] for row in connection.execute("PRAGMA table_info(checkpoints)")}
        if connection.execute(_TABLE).get != 1 or not have >= _COLUMNS:
            raise DamagedError("it has no table of checkpoints as smooth makes it")
        for row in connection.execute(_ROWS):
            where = f"{entry.shown}:{str(row[1])[:80]}"
            try:
                found.append(_point(source, entry, row, where))
            except DamagedError as damage:
                reading.trouble(where, damage)
    except DamagedError as damage:
        reading.trouble(entry.shown, damage)
    except apsw.Error as error:
        reading.trouble(entry.shown, f"it is damaged: {error}; taken before that: {counted(len(found), 'row')}")
    return found


def _point(source: Source, entry: Entry, row: Any, where: str) -> tuple[str, FoundPoint]:
    rowid, id_, agent, iteration, data, metadata, seconds = row
    if not (type(id_) is str and type(agent) is str and type(iteration) is int and type(seconds) is int):
        raise DamagedError("its columns hold other things than smooth writes")
    data = data.encode() if isinstance(data, str) else data
    if not isinstance(data, bytes):
        raise DamagedError("it has no conversation")
    digest = sha256(data).digest()

    def load() -> StateDict:
        again = _connection(source, entry).execute(_ROW, (rowid,)).get
        again = again.encode() if isinstance(again, str) else again
        if not isinstance(again, bytes) or sha256(again).digest() != digest:
            raise DamagedError("it has changed while it was read")
        return {"messages": parse_object(again)["messages"]}

    point = make_point(
        id_=id_,
        agent=agent,
        conversation=check_conversation(parse(data)),
        iteration=iteration,
        metadata=parse_object((metadata or "{}").encode()),
        at_ns=min(max(seconds, 0), AFTER_LAST_SECOND - 1) * 10**9,
        where=where,
        tie=rowid,
        load=load,
    )
    point.metadata[NAME]["seconds"] = seconds
    if HAS_EXPONENT.search(data):
        point.metadata[NAME]["plus"] = has_plus(data)
    return agent, point


def _connection(source: Source, entry: Entry) -> apsw.Connection:
    """A private copy of the database, kept as long as the source is."""
    found: apsw.Connection | None = source.kept.get(entry.parts)
    if found is None:
        folder = source.closing.enter_context(tempfile.TemporaryDirectory(prefix="backstay-"))
        _copy(source, entry, Path(folder))
        found = apsw.Connection(str(Path(folder) / "copy.db"), flags=apsw.SQLITE_OPEN_READWRITE)
        source.closing.callback(found.close)
        found.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        found.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        found.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        found.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        found.execute("PRAGMA cell_size_check = ON")
        source.kept[entry.parts] = found
    return found


def _copy(source: Source, entry: Entry, folder: Path) -> None:
    """The database and its log as they stood at one moment; nobody must have written in between."""
    names = [(*entry.parts[:-1], entry.name + tail) for tail in ("", "-wal", "-journal")]
    for _ in range(_TRIES):
        before = [source.stamp(parts) for parts in names]
        for parts, stamp in zip(names, before, strict=True):
            copy = folder / ("copy.db" + parts[-1][len(entry.name) :])
            copy.unlink(missing_ok=True)
            if stamp is not None:
                source.copy(parts, copy)
        if before == [source.stamp(parts) for parts in names]:
            return
    message = f"{entry.shown} is being written to all the time"
    raise UnavailableError(message, hint="stop the program that uses it, then import again")


# writing


def write(exporter: Exporter, target: Target, name: str) -> None:
    """A new database with the checkpoints of a branch."""
    parts = safe_parts(name, "a database called")
    target.refuse([one for one in target.names() if one == name])
    with tempfile.TemporaryDirectory(prefix="backstay-") as folder:
        path = Path(folder) / "new.db"
        connection = apsw.Connection(str(path))
        try:
            connection.execute(_SCHEMA)
            with connection:
                for checkpoint in exporter.line():
                    connection.execute(_INSERT, _row(exporter, checkpoint))
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()
        target.write(parts, path.read_bytes())
    if not exporter.is_all():
        exporter.note("smooth has no branches: only the branch asked for was written")
    target.settle()


def _row(exporter: Exporter, checkpoint: Checkpoint) -> tuple[Any, ...]:
    kept = own(checkpoint, NAME)
    writer = JsonWriter(plus=kept.get("plus", True))
    return (
        kept.get("id", checkpoint.id),
        exporter.session,
        iteration_of(checkpoint),
        writer.compact(conversation_of(exporter, checkpoint)),
        writer.compact(metadata_of(checkpoint)).decode(),
        kept.get("seconds", micros(checkpoint.created_at) // 10**6),
    )
