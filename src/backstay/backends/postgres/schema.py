"""The tables, and how a schema becomes a store: made by whoever comes first.

A checkpoint is known by its session's number and its sequence; texts are bytes (UTF-8, surrogates let pass), because
PostgreSQL's own texts hold neither NUL nor lone surrogates. Packed bytes are kept outside the server's own compression.
Rows that every commit changes leave room in their pages, so that they can be changed in place; so no index may be on
what every commit changes. `touched` is one of these: sessions are listed by its `era`, which is the same for 256
writes, and sorted within that. Checkpoints are only ever added, at the ends of their sessions: their indexes are
filled up. Merged deltas stay in their rows, where they take fewer bytes than in the chunks of a table aside.
"""

from __future__ import annotations

from hashlib import sha256

import psycopg
from psycopg import sql

from backstay.backend import FORMAT_VERSION, MIN_READER, MIN_WRITER
from backstay.backends.postgres.functions import FUNCTIONS
from backstay.backends.postgres.wire import Place, Wire, refuse_newer
from backstay.errors import FormatError, InvalidInputError, UnsupportedError

_MAX_NAME_BYTES = 63
_META_TABLE = "backstay"
_TABLES = ("sessions", "names", "checkpoints", "blobs", "blob_refs", "runs", "calls")

SCHEMA = """
CREATE TABLE {schema}.backstay(key text PRIMARY KEY, value bigint NOT NULL);
CREATE SEQUENCE {schema}.touches;
CREATE TABLE {schema}.sessions(
  sid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, touched bigint NOT NULL, created_us bigint NOT NULL,
  updated_us bigint NOT NULL, logical bigint NOT NULL, sequence bigint NOT NULL, last_step bigint,
  checkpoints integer NOT NULL, branches integer NOT NULL, epoch integer NOT NULL, id bytea NOT NULL UNIQUE,
  agent bytea, status bytea NOT NULL, reason bytea, usage bytea NOT NULL,
  era bigint NOT NULL GENERATED ALWAYS AS (touched >> 8) STORED) WITH (fillfactor = 70);
CREATE INDEX sessions_era ON {schema}.sessions(era);
CREATE TABLE {schema}.names(
  sid bigint NOT NULL, sequence bigint NOT NULL, undo bigint, tag boolean NOT NULL, name bytea NOT NULL,
  PRIMARY KEY(sid, name)) WITH (fillfactor = 70);
CREATE TABLE {schema}.checkpoints(
  sid bigint NOT NULL, sequence bigint NOT NULL, touched bigint NOT NULL, link bigint, base bigint, took_run bigint,
  took_stood bigint, took_calls integer, size integer NOT NULL, place integer NOT NULL, id bytea NOT NULL,
  state_digest bytea NOT NULL, digest bytea NOT NULL, lost_parent_id bytea, lost_parent_digest bytea,
  fields bytea NOT NULL, delta bytea, roll bytea, whole bytea, PRIMARY KEY(sid, sequence) WITH (fillfactor = 100))
  WITH (toast_tuple_target = 8160);
CREATE UNIQUE INDEX checkpoints_id ON {schema}.checkpoints(id, sid) WITH (fillfactor = 100);
ALTER TABLE {schema}.checkpoints ALTER delta SET STORAGE EXTERNAL, ALTER roll SET STORAGE EXTERNAL,
  ALTER whole SET STORAGE EXTERNAL;
CREATE TABLE {schema}.blobs(
  bid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, digest bytea NOT NULL UNIQUE, data bytea NOT NULL);
ALTER TABLE {schema}.blobs ALTER data SET STORAGE EXTERNAL;
CREATE TABLE {schema}.blob_refs(
  sid bigint NOT NULL, sequence bigint NOT NULL, bid bigint NOT NULL, PRIMARY KEY(sid, sequence, bid));
CREATE INDEX blob_refs_bid ON {schema}.blob_refs(bid);
CREATE TABLE {schema}.runs(
  run bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sid bigint NOT NULL, token bigint NOT NULL, until_us bigint,
  crashes integer NOT NULL, entered boolean NOT NULL, unfinished boolean NOT NULL, branch bytea, holder bytea,
  input bytea, spot bytea NOT NULL) WITH (fillfactor = 70);
CREATE UNIQUE INDEX runs_branch ON {schema}.runs(sid, branch);
CREATE INDEX runs_entered ON {schema}.runs(sid) WHERE entered;
CREATE TABLE {schema}.calls(
  slot bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run bigint NOT NULL, stood bigint NOT NULL,
  mark bigint NOT NULL, n integer NOT NULL, body bytea NOT NULL, result bytea, place bytea) WITH (fillfactor = 70);
CREATE UNIQUE INDEX calls_run ON {schema}.calls(run, stood, n);
ALTER TABLE {schema}.calls ALTER body SET STORAGE EXTERNAL, ALTER result SET STORAGE EXTERNAL;
"""

_LOOK = """
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s) ORDER BY c.relname
"""
_HAS_SCHEMA = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
_META = "SELECT key, value FROM {schema}.backstay"
_PUT_META = "INSERT INTO {schema}.backstay(key, value) VALUES (%s, %s)"
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
    schema = wire.place.schema
    # Held to the end of the transaction: of all who come at once one makes the store, and the others find it made.
    wire.connection.execute("BEGIN")
    try:
        wire.connection.execute(_LOCK, (int.from_bytes(sha256(schema.encode()).digest()[:8], "big", signed=True),))
        if not _is_store(wire):
            _make(wire)
        wire.connection.execute("COMMIT")
    except psycopg.errors.InsufficientPrivilege as error:
        wire.connection.execute("ROLLBACK")
        message = f"there is no store in the schema {schema!r}, and this role may not make one"
        raise UnsupportedError(
            message, hint="let its owner open it once, then grant what docs/backends.md lists"
        ) from error
    except BaseException:
        if not wire.connection.closed:
            wire.connection.execute("ROLLBACK")
        raise


def _is_store(wire: Wire) -> bool:
    """True if the schema is a store; FormatError if this version may not read it, or its tables are of others."""
    place = wire.place
    found = [name for (name,) in wire.connection.execute(_LOOK, (place.schema, [_META_TABLE, *_TABLES]))]
    if _META_TABLE not in found:
        if found:
            message = f"the schema {place.schema!r} has tables of others: {', '.join(found)}"
            raise FormatError(message, hint="name another schema: '?schema=…'")
        return False
    meta = dict(wire.rows(_META))
    refuse_newer(meta.get("min_reader", 1), "read")
    return True


def _make(wire: Wire) -> None:
    place, connection = wire.place, wire.connection
    if connection.execute(_HAS_SCHEMA, (place.schema,)).fetchone() is None:
        connection.execute(f"CREATE SCHEMA {place.quoted}".encode())
    connection.execute(place.plainly(SCHEMA).encode())
    for function in FUNCTIONS:
        connection.execute(_said(function, place).encode())
    meta = {"format_version": FORMAT_VERSION, "min_reader": MIN_READER, "min_writer": MIN_WRITER}
    wire.each(_PUT_META, list(meta.items()))


def _said(function: str, place: Place) -> str:
    """A function for this schema; its body as a literal, because a hostile name could end any other quoting."""
    head, _, body = function.partition("{body}")
    return place.plainly(head) + (sql.Literal(place.plainly(body)).as_string(None) if body else "")
