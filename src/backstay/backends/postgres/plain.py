"""Values as the server speaks them in binary, for the few types that are used here, without the driver's adaptation.

A commit costs the server 0.1 ms; the driver's general way (types looked up for every value, the socket watched from
Python) costs as much again. libpq's own call does the same in a third of it, and lets other threads run meanwhile. It
cannot be interrupted half-way, which for a write is as well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import pq

_BOOL, _BYTES, _INT8, _INT2, _INT4, _TEXT, _BYTES_LIST, _INT8_LIST = 16, 17, 20, 21, 23, 25, 1001, 1016
_BINARY = pq.Format.BINARY
_HEADER = struct.Struct("!iii")
_INT = struct.Struct("!q")
_FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def ask(connection: psycopg.Connection[Any], statement: bytes, values: Sequence[Any]) -> pq.abc.PGresult:
    """Run a statement with `$1`, `$2` and so on; the driver's own error if the server refuses it."""
    sent, types = _pack(values)
    formats = [_BINARY] * len(sent)
    return _fine(connection, connection.pgconn.exec_params(statement, sent, types, formats, _BINARY))


def keep(connection: psycopg.Connection[Any], name: bytes, statement: bytes) -> None:
    """Have the server keep a statement that calls one of its functions, which says of which types the values are."""
    _fine(connection, connection.pgconn.prepare(name, statement, []))


def ask_kept(connection: psycopg.Connection[Any], name: bytes, values: Sequence[Any]) -> pq.abc.PGresult:
    """Run a statement that the server keeps."""
    sent, _ = _pack(values)
    given: Any = sent  # the driver's own word for it leaves out that a value may be missing
    return _fine(connection, connection.pgconn.exec_prepared(name, given, [_BINARY] * len(sent), _BINARY))


def _pack(values: Sequence[Any]) -> tuple[list[bytes | None], list[int]]:
    sent: list[bytes | None] = []
    types: list[int] = []
    for value in values:
        kind = type(value)
        if kind is bytes:
            sent.append(value)
            types.append(_BYTES)
        elif kind is int:
            sent.append(_INT.pack(value))
            types.append(_INT8)
        elif kind is bool:
            sent.append(b"\1" if value else b"\0")
            types.append(_BOOL)
        elif kind is str:
            sent.append(value.encode())
            types.append(_TEXT)
        elif value is None or value == []:  # an empty list would have to say of what
            sent.append(None)
            types.append(0)
        else:
            sent.append(_pack_list(value))
            types.append(_INT8_LIST if isinstance(value[0], int) else _BYTES_LIST)
    return sent, types


def _fine(connection: psycopg.Connection[Any], result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status not in _FINE:
        error = psycopg.errors.error_from_result(result)
        if error.sqlstate is None:  # not the server's word: the connection is gone, whatever libpq thinks of it
            connection.close()
            raise psycopg.OperationalError(str(error))
        raise error
    return result


def rows_of(result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
    """All rows, as Python's values."""
    readers = [_READERS[result.ftype(column)] for column in range(result.nfields)]
    return [
        tuple(
            [
                None if (data := result.get_value(row, column)) is None else read(data)
                for column, read in enumerate(readers)
            ]
        )
        for row in range(result.ntuples)
    ]


def _pack_list(values: Sequence[int | bytes | None]) -> bytes:
    kind = _INT8 if isinstance(values[0], int) else _BYTES
    parts = [_HEADER.pack(1, 1, kind), struct.pack("!ii", len(values), 1)]
    for value in values:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            data = _INT.pack(value) if isinstance(value, int) else value
            parts += [len(data).to_bytes(4, "big"), data]
    return b"".join(parts)


def _unpack_bytes_list(data: bytes) -> list[bytes | None]:
    dimensions, _, _ = _HEADER.unpack_from(data)
    found: list[bytes | None] = []
    at = 20
    for _ in range(struct.unpack_from("!i", data, 12)[0] if dimensions else 0):
        (size,) = struct.unpack_from("!i", data, at)
        at += 4
        found.append(None if size < 0 else data[at : at + size])
        at += max(0, size)
    return found


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


_READERS: dict[int, Callable[[bytes], Any]] = {
    _BOOL: lambda data: data == b"\1",
    _BYTES: bytes,
    _INT8: _number,
    _INT4: _number,
    _INT2: _number,
    _TEXT: lambda data: data.decode(),
    _BYTES_LIST: _unpack_bytes_list,
    2278: lambda _: None,  # void
}
