"""Sessions out of a file: all of it looked at first, then each session taken in by one transaction.

The first pass over the file checks every block, row and state and writes nothing. The second reads the blocks again,
each against the checksum it had, and hands them to the backend. If that fails halfway through a file with several
sessions, those that this import has taken in are removed again. Only a kill between two of them leaves the first.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO

import msgspec

from backstay.backend import Backend, Kept, Moved
from backstay.errors import (
    AlreadyExistsError,
    BackstayError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from backstay.names import check_name
from backstay.model import MAX_NAME_CHARS, ImportReport, SessionId
from backstay.upkeep import bundle
from backstay.upkeep.inspecting import Block, Inspector, Source, complete
from backstay.upkeep.journals import Took, read_runs
from backstay.upkeep.progress import Progress

ON_EXISTS = ("refuse", "skip", "rename")

Rename = str | Mapping[str, str]


def import_file(
    backend: Backend,
    path: str | os.PathLike[str],
    *,
    rename: Rename | None = None,
    on_exists: str = "refuse",
    progress: Progress | None = None,
) -> ImportReport:
    """Take in all sessions of a file, or none."""
    if on_exists not in ON_EXISTS:
        message = f"on_exists is one of {', '.join(ON_EXISTS)}, not {on_exists!r}"
        raise InvalidInputError(message)
    with _opened(path) as file, _reading(path):
        return _import(backend, file, _Naming(backend, rename, on_exists), progress)


def import_from(backend: Backend, file: IO[bytes], name: str) -> ImportReport:
    """Take in the one session of an open file, under this name."""
    return _import(backend, file, _Naming(backend, name, "refuse"), None)


def _import(backend: Backend, file: IO[bytes], naming: _Naming, progress: Progress | None) -> ImportReport:
    source = Source(file)
    tell = _meter(progress, 2 * source.size)
    found = _survey(source, naming, tell)
    naming.settle([one.moved.line.id for one in found])
    return _take_in(backend, source, found, naming, tell)


class _Found:
    """A session in the file that was looked at: what it is, and which blocks hold its checkpoints and its journal."""

    __slots__ = ("blocks", "journal", "moved")

    def __init__(self, moved: Moved) -> None:
        self.moved = moved
        self.blocks: list[Block] = []
        self.journal: list[Block] = []


Tell = Callable[[int], None]


def _meter(progress: Progress | None, total: int) -> Tell:
    def tell(done: int) -> None:
        if progress is not None:
            progress(done, total)

    return tell


# the first pass


def _survey(source: Source, naming: _Naming, tell: Tell) -> list[_Found]:
    """Everything in the file, verified."""
    found: list[_Found] = []
    inspector: Inspector | None = None
    for block in source.blocks():
        kind = block.header.kind
        if kind in (bundle.SESSION, bundle.DONE) and inspector is not None:
            inspector.finish()
        if kind == bundle.OPEN:
            bundle.read_opening(source.content(block))
        elif kind == bundle.SESSION:
            moved = bundle.read_session(source.content(block))
            inspector = Inspector(moved, source)
            naming.meet(moved.line.id)
            found.append(_Found(moved))
        elif kind in (bundle.ROWS, bundle.RUNS):
            if inspector is None:
                message = "the export is damaged: checkpoints or runs come before their session"
                raise CorruptionError(message)
            _inspect(source, block, found[-1], inspector)
        tell(block.offset + block.header.packed)
    _compare(source.done, found)
    return found


def _inspect(source: Source, block: Block, one: _Found, inspector: Inspector) -> None:
    content = source.content(block)
    if block.header.kind == bundle.RUNS:
        one.journal.append(block)
        inspector.show_runs(read_runs(content))
        return
    one.blocks.append(block)
    for arrival in bundle.read_rows(content):
        inspector.show(arrival)


def _compare(done: bundle.Done | None, found: Collection[_Found]) -> None:
    checkpoints = sum([one.moved.line.checkpoints for one in found])
    if done is None or (done.sessions, done.checkpoints) != (len(found), checkpoints):
        message = "the export is damaged: it does not hold what its end says"
        raise CorruptionError(message)


class _Naming:
    """What each session will be called here, and what is done when that name is taken."""

    def __init__(self, backend: Backend, rename: Rename | None, on_exists: str) -> None:
        self._backend = backend
        self._on_exists = on_exists
        self._rename = rename
        self._wanted: dict[str, str] = {}
        if isinstance(rename, str):
            check_name(rename, "a session id")
        elif rename is not None:
            for new in rename.values():
                check_name(new, "a session id")

    def meet(self, session: str) -> None:
        """A session of the file; an error at once, where waiting for the end of the file would change nothing."""
        if session in self._wanted:
            message = f"the export is damaged: session {session!r} comes twice"
            raise CorruptionError(message)
        rename = self._rename
        wanted = rename if isinstance(rename, str) else (rename or {}).get(session, session)
        self._wanted[session] = wanted
        if self._on_exists == "refuse" and self._backend.find_session(wanted) is not None:
            raise self.taken(wanted)

    def settle(self, sessions: Collection[str]) -> None:
        """All sessions of the file are known: an error if that is not what the caller had in mind."""
        if isinstance(self._rename, str) and len(sessions) != 1:
            message = f"the file holds {len(sessions)} sessions, and one name is given for all"
            raise InvalidInputError(message, hint="rename={'old': 'new', …} names each")
        unknown = set() if isinstance(self._rename, str) else set(self._rename or ()) - set(sessions)
        if unknown:
            message = f"the file holds no session {min(unknown)!r}"
            raise InvalidInputError(message, hint=f"it holds {', '.join(list(sessions)[:8])}")
        if len(set(self._wanted.values())) != len(self._wanted):
            message = "two sessions would get the same name"
            raise InvalidInputError(message, hint="rename={'old': 'new', …} must give each its own")

    def wanted(self, session: str) -> str:
        """The name it gets if nobody has it."""
        return self._wanted[session]

    def next_name(self, session: str, taken: str) -> str | None:
        """Another name, if `taken` turned out to be so; None to skip the session."""
        if self._on_exists == "refuse":
            raise self.taken(taken)
        if self._on_exists == "skip":
            return None
        number = 2
        while True:
            tail = f" ({number})"
            name = self._wanted[session][: MAX_NAME_CHARS - len(tail)] + tail
            if name not in self._wanted.values() and self._backend.find_session(name) is None:
                return name
            number += 1

    def taken(self, name: str) -> AlreadyExistsError:
        message = f"there is already a session {name!r}; nothing was imported"
        return AlreadyExistsError(message, hint='pass on_exists="rename" or "skip", or rename={old: new}')


# the second pass


def _take_in(backend: Backend, source: Source, found: Collection[_Found], naming: _Naming, tell: Tell) -> ImportReport:
    adopted: dict[SessionId, SessionId] = {}
    skipped: list[SessionId] = []
    checkpoints = 0
    try:
        for one in found:
            old = SessionId(one.moved.line.id)
            name: str | None = naming.wanted(old)
            while name is not None and not _adopt(backend, source, one, name, tell):
                name = naming.next_name(old, name)
            if name is None:
                skipped.append(old)
                continue
            adopted[old] = SessionId(name)
            checkpoints += one.moved.line.checkpoints
    except BaseException:
        for one in found:
            if one.moved.line.id in adopted:
                _take_back(backend, adopted[SessionId(one.moved.line.id)], one.moved)
        raise
    tell(2 * source.size)
    return ImportReport(
        sessions=tuple(adopted.values()),
        checkpoints=checkpoints,
        renamed={old: new for old, new in adopted.items() if old != new},
        skipped=tuple(skipped),
    )


def _adopt(backend: Backend, source: Source, one: _Found, name: str, tell: Tell) -> bool:
    """False if a session of that name is there."""
    if backend.find_session(name) is not None:
        return False
    arrived = [read_runs(source.content(block)) for block in one.journal]
    moved = msgspec.structs.replace(
        one.moved,
        line=msgspec.structs.replace(one.moved.line, id=name),
        runs=tuple([row for block in arrived for row in block.runs]),
        calls=tuple([call for block in arrived for call in block.calls]),
    )
    took = dict([pair for block in arrived for pair in block.took])
    try:
        backend.adopt(moved, _history(source, one, took, tell))
    except AlreadyExistsError:
        return False
    return True


def _history(
    source: Source, one: _Found, took: Mapping[str, Took], tell: Tell
) -> Iterator[tuple[Kept, Mapping[bytes, bytes]]]:
    digests: dict[str, bytes] = {}
    given: set[bytes] = set()
    for block in one.blocks:
        for arrival in bundle.read_rows(source.content(block)):
            kept, row = arrival.kept, arrival.kept.row
            if row.link_id is not None:
                kept = msgspec.structs.replace(kept, row=complete(row, digests[row.link_id]))
            if row.id in took:
                kept = msgspec.structs.replace(kept, took=took[row.id])
            digests[row.id] = row.digest
            refs = {ref for record in (kept.delta, kept.whole) if record is not None for ref in record.refs}
            yield kept, source.pieces(refs - given)
            given |= refs
        tell(source.size + block.offset + block.header.packed)


def _take_back(backend: Backend, name: str, moved: Moved) -> None:
    """Remove a session that this import took in, unless somebody has already gone on with it."""
    with contextlib.suppress(BackstayError):
        line, names = backend.find_session(name), backend.names(name)
        same = set(names.branches) == set(moved.names.branches) and set(names.tags) == set(moved.names.tags)
        never_ran = not any([row.token for row in backend.runs(name)])  # one that came has the token 0
        if line is not None and line.checkpoints == moved.line.checkpoints and same and never_ran:
            backend.delete_session(name)


# the file


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    try:
        name = Path(path)
        kind = name.stat().st_mode
        if not stat.S_ISREG(kind):
            message = f"{name} is not a file"
            raise InvalidInputError(message, hint="give the path of an export; it is read twice, so a pipe will not do")
        file = name.open("rb")
    except FileNotFoundError:
        message = f"there is no file {path}"
        raise NotFoundError(message, hint="store.export(path) writes one") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, BackstayError):
            raise
        message = f"{path!r} cannot be the name of a file"
        raise InvalidInputError(message) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        yield file


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str | os.PathLike[str], error: OSError) -> UnavailableError:
    return UnavailableError(f"{path} cannot be read: {error.strerror or error}", hint="nothing was imported")
