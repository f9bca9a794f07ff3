"""Sessions out of a file: each copied under a hidden name and validated on the way, then all of them shown.

Nothing of a file can be seen before all of it was found sound. If showing one fails because its name was taken
meanwhile, those shown before are removed again, unless a commit or a run has gone on with them. Only a kill between two
of them leaves the first; hidden ones that a kill leaves are swept away by the next import, or by verify.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

import msgspec

from backstay.errors import AlreadyExistsError, BackstayError, CorruptionError, InvalidInputError
from backstay.hints import Hint
from backstay.model import MAX_NAME_CHARS, ImportReport, SessionId
from backstay.names import check_name
from backstay.port import Ask, Backend, Row, SessionQuery, SessionRow
from backstay.upkeep.arrival import Arrival, Portions, SourceBlobs
from backstay.upkeep.copying import Copy, SessionMoment
from backstay.upkeep.deletion import sweep
from backstay.upkeep.export_file import opened
from backstay.upkeep.exporting import Meter
from backstay.upkeep.progress import Progress
from backstay.upkeep.validation import Validator

_TAKEN = Hint(
    'pass on_exists="rename" or "skip", or rename={old: new}',
    "give --on-exists rename, --on-exists skip, or --rename NAME",
)
_NAME_EACH = Hint(
    "rename={'old': 'new', …} gives each a name of its own",
    "leave --rename out; --on-exists rename keeps each beside the one that is there",
)

ON_EXISTS = ("refuse", "skip", "rename")

_SESSIONS_PAGE = 1000

Rename = str | Mapping[str, str]


def import_file(
    backend: Backend,
    path: str | os.PathLike[str],
    *,
    rename: Rename | None = None,
    on_exists: str = "refuse",
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Import all sessions of a file, or none; with `dry_run` all of it is read and validated, and nothing written."""
    if on_exists not in ON_EXISTS:
        message = f"on_exists is one of {', '.join(ON_EXISTS)}, not {on_exists!r}"
        raise InvalidInputError(message)
    if not dry_run:
        backend.put_blobs({})  # an export is only read, and says so before anything is said about its sessions
    naming = _Naming(backend, rename, on_exists)
    with opened(path) as file:
        lines = _lines(file)
        naming.settle({session: line.parent for session, line in lines.items()})
        if not dry_run:
            sweep(backend)
        total = sum([max(0, line.checkpoints) for line in lines.values()])
        intake = _FileImport(backend, file, naming, Meter(progress, total), dry_run=dry_run)
        try:
            for session in lines:
                intake.bring(session)
            intake.show()
        except BaseException:
            intake.take_back()
            raise
    return intake.report()


def _lines(file: Backend) -> dict[str, SessionRow]:
    """The sessions of a file, the one touched longest ago first; but no child before its parent."""
    found: list[SessionRow] = []
    before: int | None = None
    while page := file.sessions(SessionQuery(before=before, limit=_SESSIONS_PAGE)):
        found += page
        if before is not None and page[-1].touched >= before:
            raise CorruptionError("the export is damaged: the list of its sessions has no end")
        before = page[-1].touched
    lines = {line.id: line for line in sorted(found, key=lambda line: (line.touched, line.id))}
    if len(lines) != len(found):
        raise CorruptionError("the export is damaged: a session comes twice")
    for line in found:
        if line.parent is not None and not line.id.startswith(f"{line.parent}/"):
            raise CorruptionError(f"the export is damaged: session {line.id[:64]!r} is no child of its parent")
    # The name of a child begins with its parent's, so a parent has fewer of these.
    generations = sorted(lines, key=lambda session: session.count("/") if lines[session].parent in lines else 0)
    return {session: lines[session] for session in generations}


class _Naming:
    """The name of each session here, and what is done when that name is taken. A child is called after its parent."""

    def __init__(self, backend: Backend, rename: Rename | None, on_exists: str) -> None:
        self._backend = backend
        self._on_exists = on_exists
        self._rename = rename
        self._parents: Mapping[str, str | None] = {}
        self._names: dict[str, str] = {}
        self._asked: dict[str, str] = {}
        if isinstance(rename, str):
            check_name(rename, "a session id")
        elif rename is not None:
            for new in rename.values():
                check_name(new, "a session id")

    def settle(self, parents: Mapping[str, str | None]) -> None:
        """All sessions of the file are known: an error if that is not what the caller had in mind."""
        self._parents, rename = parents, self._rename
        roots = [session for session, parent in parents.items() if parent not in parents]
        if isinstance(rename, str) and len(roots) != 1:
            message = f"the file holds {len(roots)} sessions, and one name is given for all"
            raise InvalidInputError(message, hint=_NAME_EACH)
        given = {roots[0]: rename} if isinstance(rename, str) else dict(rename or {})
        unknown = given.keys() - parents.keys()
        if unknown:
            message = f"the file holds no session {min(unknown)!r}"
            raise InvalidInputError(message, hint=f"it holds {', '.join(list(parents)[:8])}")
        for session in given.keys() - set(roots):
            message = f"session {session!r} is a child of {parents[session]!r}"
            raise InvalidInputError(message, hint="a child is renamed with its parent: name that one")
        for session in parents:
            self._asked[session] = name = self._call(session, given.get(session, session))
            if self._on_exists == "refuse" and not self.is_free(name):
                raise self.taken(name)
        if len(set(self._names.values())) != len(self._names):
            message = "two sessions would get the same name"
            raise InvalidInputError(message, hint=_NAME_EACH)

    def _call(self, session: str, name: str) -> str:
        """Settle the name of a session; a child of another in the file is called after that."""
        parent = self._parents[session]
        if parent in self._names and parent is not None:
            name = check_name(f"{self._names[parent]}{session[len(parent) :]}", "a session id")
        self._names[session] = name
        return name

    def wanted(self, session: str) -> str:
        """The name it gets if that is free. Where another may be found, its children's are too."""
        name = self._names[session]
        if self._on_exists == "rename" and not all([self.is_free(self._names[one]) for one in self._family(session)]):
            return self.next_name(session, name) or name
        return name

    def parent(self, session: str) -> str | None:
        """The name that its parent has here. A child that comes alone and under another name is no child any more."""
        parent = self._parents[session]
        if parent in self._names and parent is not None:
            return self._names[parent]
        return parent if self._names[session] == session else None

    def is_skipped(self, session: str) -> bool:
        """True if it is here already, and is to be left."""
        return self._on_exists == "skip" and not self.is_free(self._names[session])

    def next_name(self, session: str, taken: str) -> str | None:
        """Another name, if `taken` turned out to be so; None to skip the session."""
        if self._on_exists == "skip":
            return None
        if self._on_exists == "refuse" or self._parents[session] in self._names:
            raise self.taken(taken)
        family = self._family(session)
        number = 2
        while True:
            tail = f" ({number})"
            self._names[session] = self._asked[session][: MAX_NAME_CHARS - len(tail)] + tail
            names = [self._call(one, self._names[one]) for one in family]
            others = {name for one, name in self._names.items() if one not in family}
            if all([name not in others and self.is_free(name) for name in names]):
                return names[0]
            number += 1

    def _family(self, session: str) -> list[str]:
        """A session and those below it, no child before its parent."""
        found = [session]
        for one, parent in self._parents.items():
            if parent in found:
                found.append(one)
        return found

    def is_free(self, name: str) -> bool:
        """True if no session here has this name."""
        return self._backend.read(Ask(name)).session is None

    def taken(self, name: str) -> AlreadyExistsError:
        message = f"there is already a session {name!r}; nothing was imported"
        return AlreadyExistsError(message, hint=_TAKEN)


class _FileImport:
    """The sessions of a file on their way in."""

    def __init__(self, backend: Backend, file: Backend, naming: _Naming, meter: Meter, *, dry_run: bool) -> None:
        self._backend = backend
        self._file = file
        self._naming = naming
        self._meter = meter
        self._arrivals: dict[SessionId, Arrival] = {}
        self._skipped: list[SessionId] = []
        self._dry_run = dry_run
        self._rows: dict[SessionId, SessionRow] = {}

    def bring(self, session: str) -> None:
        """Copy a session, hidden; one that is to be skipped is only looked at."""
        line = self._file.read(Ask(session)).session
        if line is None:
            raise CorruptionError(f"the export is damaged: session {session[:64]!r} is listed, and is not there")
        skipped = self._naming.is_skipped(session)
        portions = _Nowhere(self._backend) if skipped or self._dry_run else Portions(self._backend)
        validator = Validator(self._file, line)
        arrival = Copy(self._file, portions, SessionMoment(line), inspector=validator, tell=self._meter.tell).run()
        self._meter.next(line.checkpoints)
        if skipped:
            self._skipped.append(SessionId(session))
        elif self._dry_run:
            name = self._naming.wanted(session)
            free = name if self._naming.is_free(name) else self._naming.next_name(session, name)
            self._rows[SessionId(session)] = msgspec.structs.replace(line, id=free or name)
        else:
            self._arrivals[SessionId(session)] = arrival

    def show(self) -> None:
        """All of them are sound."""
        for session, arrival in list(self._arrivals.items()):
            name: str | None = self._naming.wanted(session)
            while name is not None:
                try:
                    arrival.show(name, parent=self._naming.parent(session))
                    break
                except AlreadyExistsError:
                    name = self._naming.next_name(session, name)
            if name is None:
                del self._arrivals[session]
                self._skipped.append(session)
                arrival.discard()

    def take_back(self) -> None:
        """Remove the sessions this import has shown, unless a commit or a run has gone on with them."""
        for arrival in self._arrivals.values():
            with contextlib.suppress(BackstayError):
                arrival.discard()

    def report(self) -> ImportReport:
        """The report."""
        rows = self._rows or {session: arrival.row for session, arrival in self._arrivals.items()}
        return ImportReport(
            sessions=tuple([SessionId(row.id) for row in rows.values()]),
            checkpoints=sum([row.checkpoints for row in rows.values()]),
            renamed={old: SessionId(row.id) for old, row in rows.items() if old != row.id},
            skipped=tuple(self._skipped),
            in_doubt={SessionId(one.row.id): one.doubts for one in self._arrivals.values() if one.doubts},
            dry_run=self._dry_run,
        )


class _Nowhere(Portions):
    """For a session that is looked at and not taken."""

    def begin(self, line: SessionRow) -> None:
        pass

    def put(self, row: Row, weight: int) -> None:
        pass

    def carry(self, digests: Iterable[bytes], source: SourceBlobs) -> None:
        for _ in source.one_by_one(digests):
            pass

    def flush(self) -> None:
        pass

    def discard(self) -> None:
        pass
