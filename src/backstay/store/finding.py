"""From a checkpoint's id alone to its session and row.

An id of our making says which session it is of and which row (see ids): a whole one costs two look-ups however large
the store is. Other ids are in an index of their own. The start of an id costs one pass over the lines of all sessions.
"""

from __future__ import annotations

from collections.abc import Iterator

from backstay.errors import InvalidInputError, NotFoundError
from backstay.hints import LIST_SESSIONS
from backstay.ids import sequences_starting, uid_start
from backstay.model import MIN_PREFIX_CHARS
from backstay.names import check_name
from backstay.port import Ask, Backend, CheckpointRow, SessionQuery, SessionRow
from backstay.store.refs import readable

_PAGE_ROWS = 1000
_CANDIDATES = 8

Place = tuple[str, CheckpointRow]  # the id of a session, and the row


def find_checkpoint(backend: Backend, id_: str) -> Place:
    """The checkpoint with this id, or the only one whose id begins so; NotFoundError if there is none."""
    check_name(id_, "a checkpoint id")
    found = list(_whole(backend, id_)) or (list(_starting(backend, id_)) if len(id_) >= MIN_PREFIX_CHARS else [])
    if not found:
        hint = LIST_SESSIONS if len(id_) >= MIN_PREFIX_CHARS else f"give {MIN_PREFIX_CHARS} characters or more"
        raise NotFoundError(f"no session has a checkpoint {id_!r}", hint=hint)
    if len(found) > 1:
        listed = ", ".join([f"{row.id} of {session!r}" for session, row in found[:_CANDIDATES]])
        raise InvalidInputError(f"{id_!r} could be {listed}", hint="give more characters, or look in one session")
    return found[0]


def _whole(backend: Backend, id_: str) -> Iterator[Place]:
    start = uid_start(id_)
    lines = _lines(backend, SessionQuery(uid_start=start)) if start is not None else []
    seen = set()
    for line in [*lines, *_lines(backend, SessionQuery(foreign=id_))]:
        if line.id not in seen:
            seen.add(line.id)
            rows = backend.read(Ask(line.id, ids=(id_,))).checkpoints.values()
            yield from [(line.id, readable(line.id, row)) for row in rows]


def _starting(backend: Backend, start: str) -> Iterator[Place]:
    foreign = {line.id for line in _lines(backend, SessionQuery(foreign=start, foreign_start=True))}
    for line in _lines(backend, SessionQuery()):
        wanted = sequences_starting(start, line.uid, last=line.sequence)
        if line.id in foreign:
            wanted += backend.read(Ask(line.id, prefix=start)).foreign.values()
        if wanted:
            rows = backend.read(Ask(line.id, sequences=tuple(dict.fromkeys(wanted)))).checkpoints.values()
            fitting = [row for row in rows if isinstance(row, CheckpointRow) and row.id.startswith(start)]
            yield from [(line.id, row) for row in fitting]


def _lines(backend: Backend, query: SessionQuery) -> Iterator[SessionRow]:
    before: int | None = None
    while page := backend.sessions(_page(query, before)):
        yield from page
        before = page[-1].touched
        if len(page) < _PAGE_ROWS:
            return


def _page(query: SessionQuery, before: int | None) -> SessionQuery:
    return SessionQuery(
        before=before,
        limit=_PAGE_ROWS,
        uid_start=query.uid_start,
        foreign=query.foreign,
        foreign_start=query.foreign_start,
    )
