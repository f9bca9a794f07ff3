"""smooth's SQLite store, read without leaving a trace beside it, and written anew or added to.

A database is copied, log and all, to a folder of our own and read there: opening it where it is would leave a lock
and files beside it. Only rows are read; nothing that the schema of a stranger's file could ask for is run.
"""

from __future__ import annotations

import stat
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

from backstay.errors import AlreadyExistsError, InvalidInputError, UnavailableError
from backstay.formats.dialect import AFTER_LAST_SECOND, DamagedError, JsonWriter, has_plus, parse, parse_object
from backstay.formats.exporter import Exporter, own
from backstay.formats.model import FoundPoint, Reading
from backstay.formats.smooth.conversation import (
    HAS_EXPONENT,
    NAME,
    TIE,
    check_conversation,
    conversation_of,
    iteration_of,
    make_point,
    metadata_of,
    numbered,
)
from backstay.formats.source import Entry, Source
from backstay.formats.target import Target, safe_parts
from backstay.model import Checkpoint, StateDict, counted

_MAGIC = b"SQLite format 3\0"
_TABLE = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'checkpoints'"
_COLUMNS = {"id", "agent_id", "iteration", "conversation", "metadata", "created_at"}
_ROWS = "SELECT rowid, id, agent_id, iteration, conversation, metadata, created_at FROM checkpoints ORDER BY rowid"
_COUNT = "SELECT count(*) FROM checkpoints WHERE agent_id = ?"
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
_INSERT = (
    "INSERT INTO checkpoints(rowid, id, agent_id, iteration, conversation, metadata, created_at) "
    "VALUES(?, ?, ?, ?, ?, ?, ?)"
)
_BUSY_MS = 5000


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
        _turn_ties(found)
    except DamagedError as damage:
        reading.trouble(entry.shown, damage)
    except apsw.Error as error:
        reading.trouble(entry.shown, f"it is damaged: {error}; taken before that: {counted(len(found), 'row')}")
    return found


def _turn_ties(found: list[tuple[str, FoundPoint]]) -> None:
    """Rows that nothing else tells apart come in the order of their numbers; in a database of ours, from the last."""
    agents: dict[str, list[FoundPoint]] = {}
    for agent, point in found:
        if numbered(point.metadata[NAME]["metadata"]) is None:
            agents.setdefault(agent, []).append(point)
    for points in agents.values():
        if points[0].order[:TIE] > points[-1].order[:TIE]:
            for point in points:
                point.order = (*point.order[:TIE], -point.order[TIE], *point.order[TIE + 1 :])


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
        _be_careful(found)
        source.kept[entry.parts] = found
    return found


def _be_careful(connection: apsw.Connection) -> None:
    """Run nothing that a stranger's schema asks for."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    connection.execute("PRAGMA cell_size_check = ON")


def _copy(source: Source, entry: Entry, folder: Path) -> None:
    """The database and its log as they stood at one moment; no process may have written in between."""
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
    """The checkpoints of a branch: a new database, or those of one more agent in a database that is there."""
    parts = safe_parts(name, "a database called")
    if name in target.names():
        _write_into(exporter, target, name)
    else:
        with tempfile.TemporaryDirectory(prefix="backstay-") as folder:
            path = Path(folder) / "new.db"
            connection = apsw.Connection(str(path))
            try:
                connection.execute(_SCHEMA)
                with connection:
                    _insert(exporter, connection)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.close()
            target.write(parts, path.read_bytes())
    exporter.note_branches("smooth")
    target.settle()


def _write_into(exporter: Exporter, target: Target, name: str) -> None:
    """In one transaction of the database itself: smooth may be using it, and other agents keep their rows."""
    path = target.path.resolve() / name
    if not stat.S_ISREG(path.lstat().st_mode):
        message = f"{path} is not an ordinary file; it was not written"
        raise InvalidInputError(message, hint="export to another name")
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
        try:
            _be_careful(connection)
            connection.set_busy_timeout(_BUSY_MS)
            have = {row[1] for row in connection.execute("PRAGMA table_info(checkpoints)")}
            if connection.execute(_TABLE).get != 1 or not have >= _COLUMNS:
                message = f"{path} is a database that smooth did not make; it was not written"
                raise InvalidInputError(message, hint="export to another name")
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute(_COUNT, (exporter.session,)).get:
                target.refuse([f"{name} with checkpoints of {exporter.session!r}"])
                connection.execute("DELETE FROM checkpoints WHERE agent_id = ?", (exporter.session,))
            _insert(exporter, connection)
            connection.execute("ROLLBACK" if target.rehearsal else "COMMIT")
        finally:
            connection.close()  # what was not committed is as it was
    except apsw.ConstraintError as error:
        message = f"{path} has checkpoints with the same ids under another agent; nothing was written"
        raise AlreadyExistsError(message, hint="export to another name") from error
    except (apsw.NotADBError, apsw.CorruptError) as error:
        message = f"{path} is not a database that can be read; it was not written"
        raise InvalidInputError(message, hint="export to another name") from error
    except apsw.Error as error:
        message = f"{path} cannot be written: {error}"
        raise UnavailableError(message, retryable=isinstance(error, apsw.BusyError)) from error
    if not target.rehearsal:
        target.written.append(name)


def _insert(exporter: Exporter, connection: apsw.Connection) -> None:
    """The newest gets the lowest number: of rows within one second, smooth loads that with the lowest."""
    number = exporter.line_length() + (connection.execute("SELECT max(rowid) FROM checkpoints").get or 0)
    for checkpoint in exporter.line():
        connection.execute(_INSERT, (number, *_row(exporter, checkpoint)))
        number -= 1


def _row(exporter: Exporter, checkpoint: Checkpoint) -> tuple[Any, ...]:
    kept = own(checkpoint, NAME)
    writer = JsonWriter(plus=kept.get("plus", True))
    told = kept.get("seconds")
    written_us = exporter.written_us(checkpoint, None if told is None else told * 10**6)
    return (
        kept.get("id", checkpoint.id),
        exporter.session,
        iteration_of(checkpoint),
        writer.compact(conversation_of(exporter, checkpoint)),
        writer.compact(metadata_of(exporter, checkpoint)).decode(),
        written_us // 10**6 if told is None else told,
    )
