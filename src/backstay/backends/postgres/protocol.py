"""Values as the server speaks them in binary, for the few types that are used here, without the driver's adaptation.

A commit costs the server 0.1 ms; the driver's general way (types looked up for every value, the socket watched from
Python) costs as much again. libpq's own call does the same in a third of it, and lets other threads run meanwhile. It
cannot be interrupted half-way, which for a write is as well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
from psycopg import pq

BOOL, BYTES, INT, BYTES_LIST, INT_LIST = 16, 17, 20, 1001, 1016

_BINARY: Any = int(pq.Format.BINARY)  # as a plain number, which the driver need not look up for every value
_LIST = struct.Struct("!iiiii")
_INT = struct.Struct("!q")
_SIZED_INT = struct.Struct("!iq")
_NULL = b"\xff\xff\xff\xff"
_FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)

Sent = bytes | None


def ask(connection: psycopg.Connection[Any], statement: bytes, sent: Sequence[Sent], types: Sequence[int]) -> Any:
    """Run a statement with `$1`, `$2` and so on; the driver's own error if the server refuses it."""
    formats = [_BINARY] * len(sent)
    return _fine(connection, connection.pgconn.exec_params(statement, sent, types, formats, _BINARY))


def tell(connection: psycopg.Connection[Any], statement: bytes) -> None:
    """Run a statement without values or rows."""
    _fine(connection, connection.pgconn.exec_(statement))


def keep(connection: psycopg.Connection[Any], name: bytes, statement: bytes, types: Sequence[int]) -> None:
    """Have the server keep a statement."""
    _fine(connection, connection.pgconn.prepare(name, statement, types))


def ask_kept(connection: psycopg.Connection[Any], name: bytes, sent: Sequence[Sent]) -> Any:
    """Run a statement that the server keeps."""
    given: Any = sent  # the driver's own word for it leaves out that a value may be missing
    return _fine(connection, connection.pgconn.exec_prepared(name, given, [_BINARY] * len(sent), _BINARY))


def pack_all(values: Sequence[Any]) -> tuple[list[Sent], list[int]]:
    """Values and their types. A list is of numbers or of bytes, by its first."""
    sent: list[Sent] = []
    types: list[int] = []
    for value in values:
        if value is None or value == []:  # an empty list would have to say of what
            data, kind = None, 0
        elif isinstance(value, bytes):
            data, kind = value, BYTES
        elif isinstance(value, bool):
            data, kind = pack_bool(value), BOOL
        elif isinstance(value, int):
            data, kind = _INT.pack(value), INT
        elif isinstance(value[0], int):
            data, kind = pack_ints(value), INT_LIST
        else:
            data, kind = pack_texts(value), BYTES_LIST
        sent.append(data)
        types.append(kind)
    return sent, types


pack_int = _INT.pack


def pack_bool(value: bool) -> bytes:  # noqa: FBT001 - a value
    """True or False."""
    return b"\1" if value else b"\0"


def pack_ints(values: Sequence[int | None]) -> Sent:
    """An array of numbers; None, which is NULL, for none at all."""
    if not values:
        return None
    head = _LIST.pack(1, 1, INT, len(values), 1)
    return head + b"".join([_NULL if value is None else _SIZED_INT.pack(8, value) for value in values])


def pack_texts(values: Sequence[Sent]) -> Sent:
    """An array of bytes."""
    if not values:
        return None
    parts = [_LIST.pack(1, 1, BYTES, len(values), 1)]
    for value in values:
        parts += (_NULL,) if value is None else (len(value).to_bytes(4, "big"), value)
    return b"".join(parts)


def unpack_texts(data: bytes) -> list[bytes]:
    """The bytes in an array that has no NULL in it."""
    found: list[bytes] = []
    at = _LIST.size
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : end])
        at = end
    return found


def rows_of(result: Any) -> list[tuple[Any, ...]]:
    """All rows, as Python's values."""
    readers = [_READERS[result.ftype(column)] for column in range(result.nfields)]
    return [
        tuple([None if (data := result.get_value(row, at)) is None else read(data) for at, read in enumerate(readers)])
        for row in range(result.ntuples)
    ]


def _fine(connection: psycopg.Connection[Any], result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status not in _FINE:
        error = psycopg.errors.error_from_result(result)
        if error.sqlstate is None:  # not the server's word: the connection is gone, whatever libpq thinks of it
            connection.close()
            raise psycopg.OperationalError(str(error))
        raise error
    return result


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


_READERS: dict[int, Callable[[bytes], Any]] = {
    BOOL: lambda data: data == b"\1",
    BYTES: bytes,
    INT: _number,
    21: _number,
    23: _number,
    25: lambda data: data.decode(),
    BYTES_LIST: unpack_texts,
    2278: lambda _: None,  # void
}


def text_bytes(text: str) -> bytes:
    """A text as it is kept: PostgreSQL's own texts hold neither NUL nor lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def all_text_bytes(texts: Iterable[str]) -> list[bytes]:
    """Texts as they are kept."""
    return [text.encode("utf-8", "surrogatepass") for text in texts]
