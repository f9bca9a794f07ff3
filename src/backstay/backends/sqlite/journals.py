"""Journaled calls: the calls under one run's journal lie side by side, in a table by row number.

    key = number of the journal << 24 | n

`lookup` leads from session, run and journal to that number, once for each journal: so a call is written into one page,
and a journal whose calls were lost is noticed. The columns beside a body say the same, for `repair`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from backstay.backends.sqlite import schema
from backstay.backends.sqlite.connections import Connection
from backstay.backends.sqlite.schema import Entry, lead
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.port import CallKey, CallRow, JournalKey, Unreadable, numbered
from backstay.port.row_codec import open_call, pack

_FIND = "SELECT at FROM lookup WHERE what = ? AND value = ? AND sid = ?"
_OF_SESSION = "SELECT value, at FROM lookup WHERE what = ? AND value >= ? AND value < ? AND sid = ? ORDER BY value {}"
_CALLS = "SELECT key, sid, run, journal, body FROM calls WHERE key BETWEEN ? AND ? ORDER BY key {}"
_LAST = "SELECT max(key) FROM calls WHERE key BETWEEN ? AND ?"
_NEWEST = "SELECT max(key) FROM calls"
_PUT = "REPLACE INTO calls(key, sid, run, journal, body) VALUES(?, ?, ?, ?, ?)"
_DROP = "DELETE FROM calls WHERE key BETWEEN ? AND ?"
_JOURNALS = "SELECT DISTINCT key >> ?, sid, run, journal FROM calls"

_N_BITS = 24
_LAST_N = (1 << _N_BITS) - 1
_ALL = (0, _LAST_N)


def _entry(sid: int, at: JournalKey, number: int) -> Entry:
    return schema.JOURNAL, _value(sid, *at), sid, number


def _value(sid: int, run: int = 0, journal: int = 0) -> bytes:
    """Session, run and journal as bytes that are ordered as they are."""
    return b"".join([part.to_bytes(8, "big") for part in (sid, run, journal)])


def _find(connection: Connection, sid: int, at: JournalKey) -> int | None:
    """The number of a journal; None if nothing was ever journaled there."""
    if at[0] <= 0 or not connection.has("calls"):
        return None
    found: Any = connection.execute(_FIND, (schema.JOURNAL, _value(sid, *at), sid)).fetchone()
    return None if found is None else found[0]


# reading


def calls_under(connection: Connection, sid: int, uid: bytes, at: JournalKey) -> list[CallRow | Unreadable]:
    """All calls under a journal, in order."""
    number = _find(connection, sid, at)
    if number is None:
        return []
    found = _open(connection, (sid, at, number), uid, _ALL)
    return numbered(found, *at) or [Unreadable((*at, 0), "journaled calls are missing")]


def _open(
    connection: Connection, place: tuple[int, JournalKey, int], uid: bytes, span: tuple[int, int], order: str = "ASC"
) -> Iterator[CallRow | Unreadable]:
    """Calls of a journal, by its session, its key and its number: those from the first to the last `n` of a span."""
    sid, at, number = place
    first = number << _N_BITS
    rows: Any = connection.execute(_CALLS.format(order), (first | span[0], first | span[1]))
    for key, *columns, body in rows:
        if columns == [sid, *at] and type(body) is bytes:
            yield open_call(body, uid=uid, at=(*at, key & _LAST_N))
        else:
            yield Unreadable((*at, key & _LAST_N), "a journaled call does not agree with its index")


def _bounds(number: int, n: int | None = None) -> tuple[int, int]:
    """The keys of all calls of a journal, or of one."""
    first = number << _N_BITS
    return (first, first | _LAST_N) if n is None else (first | n, first | n)


def count_under(connection: Connection, sid: int, at: JournalKey) -> int:
    """How many calls there are under a journal."""
    number = _find(connection, sid, at)
    if number is None:
        return 0
    last: Any = connection.execute(_LAST, _bounds(number)).fetchall()[0][0]
    if last is None:
        raise CorruptionError("journaled calls are missing", hint=RUN_VERIFY)
    return int(last & _LAST_N) + 1


def single_calls(
    connection: Connection, sid: int, uid: bytes, asked: Iterable[CallKey]
) -> dict[CallKey, CallRow | Unreadable]:
    """Some calls by their keys."""
    found: dict[CallKey, CallRow | Unreadable] = {}
    for key in asked:
        number = _find(connection, sid, key[:2])
        if number is not None and 0 <= key[2] <= _LAST_N:
            for call in _open(connection, (sid, key[:2], number), uid, (key[2], key[2])):
                found[key] = call
    return found


def page(
    connection: Connection, sid: int, uid: bytes, *, after: CallKey | None, before: CallKey | None, limit: int
) -> list[CallRow | Unreadable]:
    """A page of a session's calls by their keys."""
    found: list[CallRow | Unreadable] = []
    if not connection.has("calls"):
        return found
    start = _value(sid) if after is None else _value(sid, *after[:2])
    end = _value(sid + 1) if before is None else _value(sid, *before[:2]) + b"\0"
    order = "ASC" if before is None else "DESC"
    journals: Any = connection.execute(_OF_SESSION.format(order), (schema.JOURNAL, start, end, sid))
    weight = 0
    for value, number in journals:
        at = int.from_bytes(value[8:16], "big"), int.from_bytes(value[16:], "big")
        first = after[2] + 1 if after is not None and at == after[:2] else 0
        last = before[2] - 1 if before is not None and at == before[:2] else _LAST_N
        if first > _LAST_N or last < 0:
            continue
        for call in _open(connection, (sid, at, number), uid, (max(first, 0), min(last, _LAST_N)), order):
            found.append(call)
            if isinstance(call, CallRow):
                weight += len(call.args or b"") + len(call.result or b"")
            if len(found) >= limit or weight > schema.PAGE_BYTES:
                return found
    return found


# writing


def put(connection: Connection, sid: int, uid: bytes, row: CallRow) -> None:
    """Keep a call in the place of the one with its key."""
    at = row.at[:2]
    if not 0 <= row.n <= _LAST_N or at[0] <= 0:
        raise CorruptionError(f"a call cannot have the key {row.at}")
    number = _find(connection, sid, at)
    if number is None:
        newest: Any = connection.execute(_NEWEST).fetchall()[0][0]
        number = 1 if newest is None else (newest >> _N_BITS) + 1
        lead(connection, put=[_entry(sid, at, number)])
    connection.execute(_PUT, (number << _N_BITS | row.n, sid, *at, pack(row, uid)))


def drop(connection: Connection, sid: int, key: JournalKey | CallKey) -> None:
    """Forget all calls under a journal, or one."""
    number = _find(connection, sid, key[:2])
    if number is not None:
        connection.execute(_DROP, _bounds(number, None if len(key) == 2 else key[2]))  # noqa: PLR2004 - a JournalKey
        if not connection.execute(_CALLS.format("ASC"), _bounds(number)).fetchone():
            lead(connection, drop=[_entry(sid, key[:2], number)])


def drop_all(connection: Connection, sid: int) -> None:
    """Forget all calls of a session."""
    if connection.has("calls"):
        bounds = schema.JOURNAL, _value(sid), _value(sid + 1), sid
        journals: Any = connection.execute(_OF_SESSION.format("ASC"), bounds).fetchall()
        for value, number in journals:
            connection.execute(_DROP, _bounds(number))
            lead(connection, drop=[(schema.JOURNAL, value, sid, number)])


def entries(connection: Connection) -> set[Entry]:
    """What must lead to the journals that are there."""
    if not connection.has("calls"):
        return set()
    journals: Any = [row for row in connection.execute(_JOURNALS, (_N_BITS,)) if {*map(type, row)} == {int}]
    return {_entry(sid, (run, journal), number) for number, sid, run, journal in journals}
