"""Values as the server speaks them in binary, for the few types that are used here, without the driver's adaptation.

A commit costs the server 0.1 ms; the driver's general way (types looked up for every value, the socket watched from
Python) costs as much again. libpq's own call does the same in a third of it, and lets other threads run meanwhile. It
cannot be interrupted half-way, which for a write is as well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from select import POLLIN, POLLOUT, poll
from typing import Any, NamedTuple

import psycopg
from psycopg import pq

BOOL, BYTES, INT, BYTES_LIST, INT_LIST = 16, 17, 20, 1001, 1016

_BINARY: Any = int(pq.Format.BINARY)  # as a plain number, which the driver need not look up for every value
_LIST = struct.Struct("!iiiii")
_LINES = struct.Struct("!iiiiiii")
_INT = struct.Struct("!q")
_SIZED_INT = struct.Struct("!iq")
_NULL = b"\xff\xff\xff\xff"
_FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)

Sent = bytes | None


class Step(NamedTuple):
    """A statement, its values and their types."""

    statement: str
    sent: Sequence[Sent]
    types: Sequence[int]


def step(statement: str, *values: Any) -> Step:
    """A statement with values as Python has them."""
    return Step(statement, *pack_all(values))


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


def ask_all(connection: psycopg.Connection[Any], said: Sequence[tuple[bytes | None, bytes, Step]]) -> list[Any]:
    """Run several statements in one round trip, by name or by text; outside a transaction they are one.

    The first error ends it: the statements behind it are not carried out.
    """
    pgconn = connection.pgconn
    answers: list[Any] = []
    try:
        pgconn.enter_pipeline_mode()
        for name, statement, (_, sent, types) in said:
            formats = [_BINARY] * len(sent)
            if name is None:
                pgconn.send_query_params(statement, sent, types, formats, _BINARY)
            else:
                given: Any = sent
                pgconn.send_query_prepared(name, given, formats, _BINARY)
        pgconn.pipeline_sync()
        for _ in said:
            answers.append(_heard(pgconn))
            if answers[-1] is None:
                break
            _heard(pgconn)  # that there is no more to this one
        if None not in answers and _heard(pgconn) is not None:
            pgconn.exit_pipeline_mode()
        else:
            answers = [each for each in answers if each is not None]
            connection.close()
        found = [_fine(connection, each) for each in answers]
        if connection.closed:
            raise psycopg.OperationalError("the connection was lost")
        return found
    except psycopg.OperationalError as error:
        if error.sqlstate is None:
            connection.close()
        raise


def _heard(pgconn: pq.abc.PGconn) -> Any:
    """The next answer, waited for in a way that lets other threads run."""
    waiting = None
    while (unsent := pgconn.flush()) or pgconn.is_busy():
        waiting = poll() if waiting is None else waiting
        waiting.register(pgconn.socket, POLLIN | POLLOUT if unsent else POLLIN)
        waiting.poll()
        pgconn.consume_input()
    return pgconn.get_result()


def pack_all(values: Sequence[Any]) -> tuple[list[Sent], list[int]]:
    """Values and their types. A list is of bytes if one of these comes first, otherwise of numbers; None may be in."""
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
        elif isinstance(next((each for each in value if each is not None), 0), int):
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


def pack_int_lines(lines: Sequence[Sequence[int]]) -> Sent:
    """An array of two dimensions, of numbers; a line that is shorter than others has its last number again."""
    if not lines:
        return None
    width = max([len(line) for line in lines])
    head = _LINES.pack(2, 0, INT, len(lines), 1, width, 1)
    return head + b"".join([_SIZED_INT.pack(8, line[min(at, len(line) - 1)]) for line in lines for at in range(width)])


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
    """The bytes in an array; none at all for a NULL."""
    found: list[bytes] = []
    at = _LIST.size
    while at < len(data):
        end = at + 4 + max(0, int.from_bytes(data[at : at + 4], "big", signed=True))
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
    INT_LIST: lambda data: [None if each == b"" else _number(each) for each in unpack_texts(data)],
    2278: lambda _: None,  # void
}


def text_bytes(text: str) -> bytes:
    """A text as it is kept: PostgreSQL's own texts hold neither NUL nor lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def all_text_bytes(texts: Iterable[str]) -> list[bytes]:
    """Texts as they are kept."""
    return [text.encode("utf-8", "surrogatepass") for text in texts]
