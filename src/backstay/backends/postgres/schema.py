"""The tables, and how a schema becomes a store: made by whoever comes first.

Every row is a key and a sealed body; index columns repeat what the server needs to know of a body and are compared with
it when it is read. Texts are bytes, because PostgreSQL's own hold neither NUL nor lone surrogates. Bodies are kept
outside the server's own compression.

Sessions and names have a revision, a random number of the write that changed them last. A branch's stands for the calls
under its journal too: every write that changes one of these changes it. A session's stands for everything else: for its
checkpoints, keyframes, foreign ids and all other calls, and for which names there are.

`touched` is the one column that may say otherwise than its body. A rule takes the number after the last one it knows;
the server takes the next of its sequence, which is the same unless another process has written meanwhile, and then the
column counts. A number that a run was given must be that very one, or the write has missed, and takes one for itself
alone with the lock: no number is given to two runs.

The server gives the room of a deleted row back when it gets round to it, and that of a changed row at once, to the next
change in the same page. So the rows of checkpoints go round: a new one takes the row of one that was packed meanwhile
(`slot_of`). A row that holds none says 0 for its sequence. Checkpoints that are not packed for long, because something
is damaged or in the way, go beyond the ring and have rows for themselves.

Rows that every commit changes leave room in their pages, so that they can be changed in place; so no index may be on
what every commit changes. `touched` is one of these: sessions are listed by its `era`, which is the same for some
hundred writes, and sorted within that. Foreign ids are found by 128 sequences at a time: the server keeps entries that
are the same as one, and the index of a chat whose every checkpoint has such an id is a fifth of what it would be.
"""

from __future__ import annotations

from hashlib import sha256

import psycopg
from psycopg import sql

from backstay.backends.postgres.functions import FORMAT, HOLD, LOOK, STATE
from backstay.backends.postgres.list_functions import LANES, SESSIONS
from backstay.backends.postgres.pool import SchemaPlace, Wire
from backstay.backends.postgres.write_functions import CUT_BLOBS, NAME, PACK, REFER, SAME, WHOLE, WRITE
from backstay.errors import FormatError, InvalidInputError, UnsupportedError
from backstay.hints import RUN_VERIFY
from backstay.port import Features, refuse_unknown

_MAX_NAME_BYTES = 63
_OLDEST_SERVER = 130000
_META = "meta"
_FUNCTIONS = (LOOK, HOLD, SAME, NAME, WRITE, REFER, WHOLE, CUT_BLOBS, STATE, PACK, SESSIONS, LANES)
_TABLES = ("sessions", "names", "checkpoints", "keyframes", "segments", "calls", "refs", "foreign_ids", "blobs")

SCHEMA = f"""
CREATE TABLE {{schema}}.meta(
  format bigint PRIMARY KEY, read_features bigint NOT NULL, write_features bigint NOT NULL);
INSERT INTO {{schema}}.meta VALUES ({FORMAT}, 0, 0);
CREATE SEQUENCE {{schema}}.touches;
CREATE TABLE {{schema}}.sessions(
  sid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, touched bigint NOT NULL, revision bigint NOT NULL,
  checkpoints bigint NOT NULL, logical bigint NOT NULL, hidden boolean NOT NULL, id bytea NOT NULL, uid bytea NOT NULL,
  era bigint NOT NULL, time_era bigint NOT NULL, facets bigint[] NOT NULL, body bytea NOT NULL, UNIQUE(hidden, id))
  WITH (fillfactor = 70);
CREATE INDEX sessions_era ON {{schema}}.sessions(hidden, era);
CREATE INDEX sessions_time_era ON {{schema}}.sessions(time_era);
CREATE INDEX sessions_facets ON {{schema}}.sessions USING gin(facets) WITH (fastupdate = off);
CREATE INDEX sessions_uid ON {{schema}}.sessions(uid);
CREATE TABLE {{schema}}.names(
  sid bigint NOT NULL, revision bigint NOT NULL, marks bigint NOT NULL, run bigint, journal bigint, sequence bigint,
  name bytea NOT NULL, body bytea NOT NULL, PRIMARY KEY(sid, name)) WITH (fillfactor = 70);
CREATE INDEX names_marks ON {{schema}}.names(sid) WHERE marks <> 0;
CREATE TABLE {{schema}}.checkpoints(
  sid bigint NOT NULL, slot bigint NOT NULL, sequence bigint NOT NULL, parent bigint, body bytea NOT NULL,
  PRIMARY KEY(sid, slot)) WITH (fillfactor = 90, toast_tuple_target = 8160);
CREATE TABLE {{schema}}.segments(
  sid bigint NOT NULL, first bigint NOT NULL, last bigint NOT NULL, needs bigint, entries bigint NOT NULL,
  starts bigint[] NOT NULL, parents bigint[] NOT NULL, links bytea NOT NULL, body bytea NOT NULL,
  PRIMARY KEY(sid, first));
CREATE TABLE {{schema}}.keyframes(
  sid bigint NOT NULL, sequence bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY(sid, sequence));
CREATE TABLE {{schema}}.calls(
  sid bigint NOT NULL, run bigint NOT NULL, journal bigint NOT NULL, n bigint NOT NULL, body bytea NOT NULL,
  PRIMARY KEY(sid, run, journal, n)) WITH (fillfactor = 70);
CREATE TABLE {{schema}}.foreign_ids(
  sid bigint NOT NULL, sequence bigint NOT NULL, id bytea NOT NULL);
CREATE UNIQUE INDEX foreign_ids_id ON {{schema}}.foreign_ids(id, sid);
CREATE INDEX foreign_ids_sequence ON {{schema}}.foreign_ids(sid, (sequence >> 7));
CREATE TABLE {{schema}}.blobs(digest bytea PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE {{schema}}.refs(
  sid bigint NOT NULL, kind bigint NOT NULL, number bigint NOT NULL, digest bytea NOT NULL,
  PRIMARY KEY(sid, kind, number, digest));
CREATE INDEX refs_digest ON {{schema}}.refs(digest);
ALTER TABLE {{schema}}.sessions ALTER body SET STORAGE EXTERNAL;
ALTER TABLE {{schema}}.names ALTER body SET STORAGE EXTERNAL;
ALTER TABLE {{schema}}.checkpoints ALTER body SET STORAGE EXTERNAL;
ALTER TABLE {{schema}}.keyframes ALTER body SET STORAGE EXTERNAL;
ALTER TABLE {{schema}}.segments ALTER body SET STORAGE EXTERNAL;
ALTER TABLE {{schema}}.calls ALTER body SET STORAGE EXTERNAL;
ALTER TABLE {{schema}}.blobs ALTER data SET STORAGE EXTERNAL;
"""

_LOOK = """
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s) ORDER BY c.relname
"""
_SERVER = (
    "SELECT version(), current_setting('server_version_num')::int, "
    "EXISTS(SELECT 1 FROM pg_language WHERE lanname = 'plpgsql')"
)
_HAS_SCHEMA = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
_FEATURES = "SELECT format, read_features, write_features FROM {schema}.meta"
_LOCK = "SELECT pg_advisory_xact_lock(%s)"


def check_schema_name(name: str) -> str:
    """The name, if a schema of ours may have it; InvalidInputError otherwise. Whatever it holds, it is quoted."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _MAX_NAME_BYTES or "\0" in name:
        message = f"{name!r} cannot be the name of a schema: 1 to {_MAX_NAME_BYTES} bytes of UTF-8 without NUL"
        raise InvalidInputError(message)
    if name.startswith("pg_") or name == "information_schema":
        message = f"the schema {name!r} belongs to PostgreSQL"
        raise InvalidInputError(message, hint="name one of your own: '?schema=backstay'")
    return name


def prepare(wire: Wire) -> None:
    """Make the store if there is none; refuse what is not one, and one that is too new."""
    if _is_store(wire):
        return
    _refuse_others(wire)
    schema = wire.place.schema
    # Held to the end of the transaction: of all who come at once one makes the store, and the others find it made.
    try:
        with wire.transaction():
            wire.connection.execute(_LOCK, (int.from_bytes(sha256(schema.encode()).digest()[:8], "big", signed=True),))
            if not _is_store(wire):
                _make(wire)
    except psycopg.errors.InsufficientPrivilege as error:
        message = f"there is no store in the schema {schema!r}, and this role may not make one"
        raise UnsupportedError(
            message, hint="let its owner open it once, then grant what docs/backends.md lists"
        ) from error


def _refuse_others(wire: Wire) -> None:
    """UnsupportedError for servers that only speak like PostgreSQL: functions, locks and sequences are others there."""
    found = wire.connection.execute(_SERVER).fetchone()
    name, version, speaks = found or ("", 0, False)
    if "PostgreSQL" not in name or "CockroachDB" in name or not speaks:
        message = "this server speaks like PostgreSQL and is none: it cannot keep a store"
        raise UnsupportedError(message, hint="use PostgreSQL, or a service that runs it")
    if version < _OLDEST_SERVER:
        message = f"this server is PostgreSQL {version // 10000}; a store needs {_OLDEST_SERVER // 10000} or newer"
        raise UnsupportedError(message, hint="upgrade the server")


def _is_store(wire: Wire) -> bool:
    """True if the schema is a store; FormatError if this version may not read it, or its tables are of others."""
    schema = wire.place.schema
    found = [name for (name,) in wire.connection.execute(_LOOK, (schema, [_META, *_TABLES]))]
    if _META not in found:
        if found:
            message = f"the schema {schema!r} has tables of others: {', '.join(found)}"
            raise FormatError(message, hint="name another schema: '?schema=…'")
        return False
    rows = wire.rows(_FEATURES)
    if len(rows) != 1:
        raise FormatError(f"the schema {schema!r} does not say which format it has", hint=RUN_VERIFY)
    if rows[0][0] != FORMAT:
        message = f"this store has format {rows[0][0]}; this version knows {FORMAT}"
        raise FormatError(message, hint="upgrade: pip install -U backstay")
    refuse_unknown(Features(*rows[0][1:]), writing=False)
    return True


def _make(wire: Wire) -> None:
    place, connection = wire.place, wire.connection
    if connection.execute(_HAS_SCHEMA, (place.schema,)).fetchone() is None:
        connection.execute(f"CREATE SCHEMA {place.quoted}".encode())
    connection.execute(place.plainly(SCHEMA).encode())
    for function in _FUNCTIONS:
        connection.execute(_said(function, place).encode())


def _said(function: str, place: SchemaPlace) -> str:
    """A function for this schema; its body as a literal, because a hostile name could end any other quoting."""
    head, _, body = function.partition("{body}")
    return place.plainly(head) + sql.Literal(place.plainly(body)).as_string(None)
