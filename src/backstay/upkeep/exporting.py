"""Sessions into one file: each as of one moment while writers go on, page by page, and there whole or not at all.

What is read first (line, names, journal, the newest sequence) decides what the file holds: later checkpoints are left
out. The journal is of the very moment of the names: a little later, a boundary may have dropped a result because it
stands in a state that is not in the file. A deletion in between would pull away what others stand on, so the session's
epoch is read before and after; if it has changed, that session is written again. The file has another name until it is
complete and on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import msgspec

from backstay.backend import Backend, Kept, Moved, SessionRow
from backstay.delta import Record, rebuild, whole
from backstay.digest import checkpoint_digest
from backstay.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from backstay.store.reading import read_chain
from backstay.upkeep import bundle, journals
from backstay.upkeep.progress import Progress

_TRIES = 5  # of one session, before its deletions win
_LOOKS = 1000  # at a session that is being written to, before its line and its names go together
_FIRST_ROWS = 50
_PAGE_ROWS = 200
_PAGE_BYTES = 8 * 1024 * 1024
_BLOB_BYTES = 4 * 1024 * 1024
_BLOBS_AT_ONCE = 8  # 8 MiB each at most
_SESSIONS_PAGE = 1000
_MODE = 0o600
_MADE_BY = "backstay"


def export(
    backend: Backend,
    path: str | os.PathLike[str],
    *,
    session: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a session, or all of them, to a file."""
    target = _target(path, overwrite=overwrite)
    lines = _all_sessions(backend) if session is None else [_one_session(backend, session)]
    meter = _Meter(progress, sum([line.checkpoints for line in lines]))
    with _Draft(target) as draft:
        _write(backend, draft, lines, meter, session=session)
        draft.publish(overwrite=overwrite)


def export_to(backend: Backend, file: IO[bytes], session: str) -> None:
    """Write a session to a file that is open, and that nobody else can see."""
    _write(backend, _Sheet(Path("a temporary file"), file), [_one_session(backend, session)], _Meter(None, 0), session)


def _write(backend: Backend, sheet: _Sheet, lines: Iterable[SessionRow], meter: _Meter, session: str | None) -> None:
    out = _Out(sheet)
    out.block(bundle.OPEN, bundle.write_opening(bundle.Opening(_MADE_BY, time.time_ns() // 1000)))
    for line in lines:
        if not _write_session(backend, line.id, out, meter) and session is not None:
            raise _gone(session)
    out.finish()


def _one_session(backend: Backend, session: str) -> SessionRow:
    line = backend.find_session(session)
    if line is None:
        raise _gone(session)
    return line


def _gone(session: str) -> NotFoundError:
    return NotFoundError(f"there is no session {session!r}", hint="store.sessions() lists those there are")


def _all_sessions(backend: Backend) -> list[SessionRow]:
    """Every session, the one touched longest ago first: taken in again in this order, they are listed as they were."""
    found: dict[str, SessionRow] = {}
    newest: int | None = None
    while True:
        # A session that is touched while the pages are read moves to a page that has been read. So the newest ones are
        # looked at again, until no session is new.
        before, until, fresh = None, newest, 0
        more = True
        while more:
            page = backend.sessions(before=before, limit=_SESSIONS_PAGE, status=None, agent=None)
            for line in page:
                fresh += line.id not in found
                found[line.id] = line
                newest = line.touched if newest is None else max(newest, line.touched)
            more = len(page) == _SESSIONS_PAGE and (until is None or page[-1].touched > until)
            before = page[-1].touched if page else None
        if not fresh:
            return sorted(found.values(), key=lambda line: line.touched)


class _Meter:
    """Counts checkpoints for whoever wants to know."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self.done = 0

    def add(self, count: int) -> None:
        self.done += count
        if self._progress is not None:
            self._progress(self.done, max(self.done, self._total))


# one session


def _write_session(backend: Backend, session: str, out: _Out, meter: _Meter) -> bool:
    """A session into the file; False, and nothing written, if it is not there."""
    for _ in range(_TRIES):
        mark, done = out.mark(), meter.done
        anchor: str | None = None
        epoch = -1
        try:
            anchor = _anchor(backend, session)
            epoch = _epoch(backend, session, anchor)
            _Passage(backend, _look(backend, session), out, meter).run()
            if _epoch(backend, session, anchor) == epoch:
                return True
        except ConflictError:
            pass
        except (NotFoundError, CorruptionError):
            # Somebody may have deleted what was about to be read. If not, it is damage.
            if backend.find_session(session) is not None and _is_still(backend, session, anchor, epoch):
                raise
        out.rewind(mark)
        meter.done = done
        if backend.find_session(session) is None:
            return False
    message = f"session {session!r}: checkpoints were deleted while it was read, {_TRIES} times; nothing was exported"
    raise ConflictError(message, hint="try again when nobody prunes")


def _is_still(backend: Backend, session: str, anchor: str | None, epoch: int) -> bool:
    if anchor is None:
        return epoch != -1
    try:
        return _epoch(backend, session, anchor) == epoch
    except NotFoundError:
        return False


def _epoch(backend: Backend, session: str, anchor: str | None) -> int:
    return 0 if anchor is None else backend.chain(session, anchor, salvage=True).epoch


def _look(backend: Backend, session: str) -> Moved:
    """Line, names, journal and newest sequence of one moment."""
    moved = _stand_still(backend, session)
    line, names = moved.line, moved.names
    ids = backend.ids(session)
    if len(ids) < line.checkpoints:
        raise ConflictError("checkpoints were deleted")
    if len(ids) != line.checkpoints and backend.find_session(session) == line:
        raise _miscounted(session)
    sequence = 0
    if line.checkpoints:
        # Those committed since stand behind it.
        newest = backend.find_row(session, ids[line.checkpoints - 1])
        if newest is None:
            raise ConflictError("checkpoints were deleted")
        sequence = newest.sequence
    for id_ in {branch.head_id for branch in names.branches} | {tag.id for tag in names.tags}:
        row = backend.find_row(session, id_)
        if row is not None and row.sequence > sequence:
            raise _miscounted(session)
    return msgspec.structs.replace(moved, sequence=sequence)


def _miscounted(session: str) -> CorruptionError:
    message = f"session {session!r} counts other checkpoints than it has"
    return CorruptionError(message, hint="store.verify(repair=True) counts them anew")


def _anchor(backend: Backend, session: str) -> str | None:
    names = backend.names(session)
    ids = [branch.head_id for branch in names.branches] or [tag.id for tag in names.tags] or backend.ids(session)
    return ids[0] if ids else None


def _stand_still(backend: Backend, session: str) -> Moved:
    """What is known of a session beside its checkpoints, between two of its commits."""
    before = backend.find_session(session)
    for _ in range(_LOOKS):
        names = backend.names(session)
        # Calls before runs: whoever made a call was entered before.
        calls = tuple(backend.entries(session))
        runs = tuple(backend.runs(session))
        after = backend.find_session(session)
        if after is None:
            raise _gone(session)
        # Every commit moves `touched`: if that stood still, all of it is of one moment. Calls may have been made or
        # ended meanwhile, which only adds to the journal.
        if before == after:
            return Moved(after, names, 0, runs, calls)
        before = after
    message = f"session {session!r} is written to without a pause"
    raise ConflictError(message, hint="try again in a moment")


class _Passage:
    """The history of one session on its way into the file."""

    def __init__(self, backend: Backend, moved: Moved, out: _Out, meter: _Meter) -> None:
        self._backend = backend
        self._session = moved.line.id
        self._moved = moved
        self._out = out
        self._meter = meter
        self._journal = journals.Leaving(moved)
        self._tips = bundle.Tips()
        self._rows: list[bytes] = []
        self._bytes = 0

    def run(self) -> None:
        """Write the session and all its checkpoints; ConflictError if some are no longer there."""
        self._out.block(bundle.SESSION, bundle.write_session(self._moved))
        self._write_journal(self._journal.heading())
        written = 0
        for page in self._pages():
            self._write_journal(self._journal.taken_by(page))
            self._write_blobs(page)
            for kept in page:
                self._write_row(kept)
            self._flush()
            written += len(page)
            self._meter.add(len(page))
        if written != self._moved.line.checkpoints:
            raise ConflictError("checkpoints were deleted")
        self._write_journal(self._journal.rest())
        self._out.count_session(written)

    def _write_journal(self, contents: Iterable[bytes]) -> None:
        for content in contents:
            self._out.block(bundle.RUNS, content)

    def _pages(self) -> Iterator[Sequence[Kept]]:
        after, limit = 0, _FIRST_ROWS
        while after < self._moved.sequence:
            page = self._backend.history(self._session, after=after, limit=limit)
            wanted = [kept for kept in page if kept.row.sequence <= self._moved.sequence]
            if not wanted:
                return
            yield wanted
            after = wanted[-1].row.sequence
            size = sum([record.size_bytes for kept in wanted for record in _records(kept)])
            limit = max(1, min(_PAGE_ROWS, len(page) * _PAGE_BYTES // max(size, 1), 4 * limit))

    def _write_row(self, kept: Kept) -> None:
        row = kept.row
        expected = checkpoint_digest(
            id_=row.id, parent=row.parent_digest, state=row.state_digest, sequence=row.sequence, fields=row.fields
        )
        if expected != row.digest:
            message = (
                f"session {self._session!r}: checkpoint {row.id[:12]} is damaged: its fields do not match its digest"
            )
            raise CorruptionError(message, hint="run verify to see what is intact")
        at_hand, _ = self._tips.take(row.id, row.link_id)
        base = None
        if kept.delta is not None and row.link_id is not None and not at_hand:
            base = self._base(row.link_id)
        data = bundle.write_row(kept, base)
        if self._bytes + len(data) > _PAGE_BYTES:
            self._flush()
        self._rows.append(data)
        self._bytes += len(data)

    def _base(self, id_: str) -> bundle.Base:
        link, pieces = read_chain(self._backend, self._session, id_)
        record, blobs = whole(rebuild(link.records, pieces).state)
        return bundle.Base(record, list(blobs.values()))

    def _write_blobs(self, page: Sequence[Kept]) -> None:
        needed = [ref for kept in page for record in _records(kept) for ref in record.refs]
        missing = [ref for ref in dict.fromkeys(needed) if ref not in self._out.blobs]
        batch: list[bytes] = []
        weight = 0
        for start in range(0, len(missing), _BLOBS_AT_ONCE):
            some = missing[start : start + _BLOBS_AT_ONCE]
            found = self._backend.blobs(some)
            for ref in some:
                if batch and weight + len(found[ref]) > _BLOB_BYTES:
                    self._out.block(bundle.BLOBS, bundle.write_blobs(batch))
                    batch, weight = [], 0
                batch.append(found[ref])
                weight += len(found[ref])
        if batch:
            self._out.block(bundle.BLOBS, bundle.write_blobs(batch))
        self._out.note_blobs(missing)

    def _flush(self) -> None:
        if self._rows:
            self._out.block(bundle.ROWS, bundle.write_rows(self._rows))
            self._rows, self._bytes = [], 0


def _records(kept: Kept) -> list[Record]:
    return [record for record in (kept.delta, kept.whole) if record is not None]


# the file


class _Mark(NamedTuple):
    """Where the file stood, to go back to."""

    offset: int
    digest: Any
    counts: tuple[int, int, int]


class _Out:
    """Blocks on their way into a file. `blobs` is those that are in it."""

    def __init__(self, sheet: _Sheet) -> None:
        self._sheet = sheet
        self._digest = sha256()
        self._sessions = self._checkpoints = self._blocks = 0
        self._recent: list[bytes] = []  # blobs written since the last mark
        self.blobs: set[bytes] = set()
        sheet.write(bundle.MAGIC)

    def block(self, kind: bytes, content: bytes) -> None:
        """Write one block."""
        data, digest = bundle.seal(kind, content)
        self._sheet.write(data)
        self._digest.update(digest)
        self._blocks += 1

    def note_blobs(self, digests: Sequence[bytes]) -> None:
        """These need not be written again."""
        self.blobs.update(digests)
        self._recent += digests

    def count_session(self, checkpoints: int) -> None:
        """A session is complete."""
        self._sessions += 1
        self._checkpoints += checkpoints

    def mark(self) -> _Mark:
        """The place where the file ends now."""
        self._recent = []
        return _Mark(self._sheet.size, self._digest.copy(), (self._sessions, self._checkpoints, self._blocks))

    def rewind(self, mark: _Mark) -> None:
        """Forget all that was written since the last mark."""
        self._sheet.cut(mark.offset)
        self._digest = mark.digest.copy()
        self._sessions, self._checkpoints, self._blocks = mark.counts
        self.blobs.difference_update(self._recent)

    def finish(self) -> None:
        """The last block."""
        counts = self._sessions, self._checkpoints, len(self.blobs), self._blocks
        self.block(bundle.DONE, bundle.write_done(bundle.Done(*counts, self._digest.digest())))


class _Sheet:
    """A file that is being written, and `name` for what is said about it."""

    def __init__(self, name: Path, file: IO[bytes]) -> None:
        self._name = name
        self._file = file
        self.size = 0

    def write(self, data: bytes) -> None:
        with _writing(self._name):
            self._file.write(data)
        self.size += len(data)

    def cut(self, size: int) -> None:
        """Go back to an earlier length."""
        with _writing(self._name):
            self._file.seek(size)
            self._file.truncate()
        self.size = size


class _Draft(_Sheet):
    """A file beside the target, with a name of its own until it is published; gone again if that does not happen."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path = target.parent / f".backstay-{secrets.token_hex(8)}.part"
        self._published = False
        with _writing(target):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
            super().__init__(target, os.fdopen(os.open(self._path, flags, _MODE), "wb"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._published:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def publish(self, *, overwrite: bool) -> None:
        """Give the file its name, once every byte of it is on the disk."""
        with _writing(self._target):
            self._file.flush()
            os.fsync(self._file.fileno())
            if overwrite:
                self._path.replace(self._target)
            else:
                self._link()
            self._published = True
            folder = os.open(self._target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _link(self) -> None:
        # A rename would silently take the place of a file that came since the first look; a link is refused.
        try:
            os.link(self._path, self._target)
        except FileExistsError:
            raise _exists(self._target) from None
        except OSError:  # a file system without links
            if os.path.lexists(self._target):
                raise _exists(self._target) from None
            self._path.rename(self._target)
        else:
            self._path.unlink()


def _target(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    try:
        target = Path(path)
        os.fsencode(target)
        usable = "\0" not in str(target) and target.name != ""
    except (TypeError, ValueError):
        usable = False
    if not usable or target.is_dir():
        message = f"{str(path)!r} cannot be the name of a file"
        raise InvalidInputError(message, hint="give the path of a file to write, 'sessions.backstay' say")
    if not overwrite and os.path.lexists(target):
        raise _exists(target)
    return target


def _exists(target: Path) -> AlreadyExistsError:
    return AlreadyExistsError(f"there is already a file {target}", hint="choose another name, or pass overwrite=True")


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror or error}"
        raise UnavailableError(message, hint="nothing was exported", retryable=error.errno == errno.ENOSPC) from error
