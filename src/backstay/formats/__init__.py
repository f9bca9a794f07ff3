"""Sessions of other systems: ccswarm, ARES, Continuum (sh_layer2) and smooth in and out; transcripts and messages in.

    import backstay

    with backstay.open() as store:
        print(backstay.formats.import_(store, "~/.ccswarm/checkpoints"))
        print(backstay.formats.import_(store, system="claude-code"))       # from the folder it uses by itself
        backstay.formats.export(store, "session-1", "back/", system="ccswarm")

One file (or folder) per system, one line in `_SYSTEMS`. Whatever is intact is taken in, in its order and under its own
ids; what is not is reported. The source is never changed. docs/formats.md says where each field goes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import msgspec

from backstay.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    LeaseHeldError,
    UnsupportedError,
)
from backstay.face import Store
from backstay.formats import ares, ccswarm, claude_code, codex, continuum, message_list, smooth
from backstay.formats.dialect import DamagedError
from backstay.formats.exporter import Exporter
from backstay.formats.extend import compare, extend
from backstay.formats.folders import ALSO_CALLED, default_folders, find_folders
from backstay.formats.importer import adopt, rehearse
from backstay.formats.model import FoundSession, Reading, Trouble
from backstay.formats.source import Source
from backstay.formats.target import Target
from backstay.hints import Hint
from backstay.model import MAX_NAME_CHARS, SessionId, counted
from backstay.names import check_name
from backstay.port import Ask
from backstay.upkeep.arrival import Arrival
from backstay.upkeep.progress import Progress

_NOT_STRICT = Hint("without strict, all that is intact is imported", "without --strict, all that is intact is imported")
_TAKEN = Hint(
    'on_exists="skip" leaves it, "rename" imports beside it',
    "--on-exists skip leaves it, --on-exists rename imports beside it",
)

_WRITTEN: dict[str, ModuleType] = {module.NAME: module for module in (ccswarm, ares, continuum, smooth)}
_READ_ONLY: dict[str, ModuleType] = {module.NAME: module for module in (claude_code, codex, message_list)}
_SYSTEMS = _WRITTEN | _READ_ONLY
SYSTEMS = tuple(_SYSTEMS)
EXPORTS = tuple(_WRITTEN)
ON_EXISTS = ("skip", "refuse", "rename")

_HINT = f"name the system: one of {', '.join(SYSTEMS)}"


class FormatReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import took in, and what it did not.

    `problems` are the files (or rows) that could not be taken, each with why; `notes` say what was decided where
    nothing is missing; `extended` were here and got so many newer checkpoints; `skipped` were here already; `doubts`
    are the calls of each session that are in doubt. With `dry_run` it says what an import would do.
    """

    system: str
    sessions: tuple[SessionId, ...]
    checkpoints: int
    doubts: dict[SessionId, int]
    extended: dict[SessionId, int]
    skipped: tuple[SessionId, ...]
    renamed: dict[SessionId, SessionId]
    problems: tuple[Trouble, ...]
    notes: tuple[Trouble, ...]
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """True when nothing was left behind."""
        return not self.problems

    @property
    def in_doubt(self) -> int:
        """How many calls are in doubt: it is not known whether they happened."""
        return sum(self.doubts.values())

    def __str__(self) -> str:
        """The count, then a line for each thing to know."""
        what = f"{counted(len(self.sessions), 'session')} with {counted(self.checkpoints, 'checkpoint')}"
        lines = [f"{what} {'would be imported' if self.dry_run else 'imported'} from {self.system}"]
        lines += [
            f"{counted(count, 'call')} of {name!r} in doubt: no outcome is known" for name, count in self.doubts.items()
        ]
        lines += [f"{old!r} {'would be' if self.dry_run else 'is now'} {new!r}" for old, new in self.renamed.items()]
        got = "would get" if self.dry_run else "got"
        lines += [
            f"{name!r} was here already and {got} {counted(count, 'checkpoint')}"
            for name, count in self.extended.items()
        ]
        lines += [f"{name!r} was here already and is as it was" for name in self.skipped]
        lines += [f"not taken: {problem}" for problem in self.problems]
        return "\n".join([*lines, *[f"note: {note}" for note in self.notes]])


class WriteReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an export wrote, and what the other system has no place for."""

    system: str
    session: SessionId
    files: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """The count, then a line for each thing to know."""
        head = f"{self.session!r} written for {self.system}: {counted(len(self.files), 'file')}"
        return "\n".join([head, *[f"note: {note}" for note in self.notes]])


def recognise(path: str | os.PathLike[str]) -> str:
    """Which system's files these are; FormatError if none's, or if it could be several."""
    with Source(path) as source:
        return _recognised(source)


def _recognised(source: Source) -> str:
    found = [name for name, module in _SYSTEMS.items() if module is not message_list and module.recognise(source)]
    if not found and message_list.recognise(source):  # the others keep messages, too
        found = [message_list.NAME]
    if len(found) == 1:
        return found[0]
    if found:
        message = f"{source.path} could be of {' or '.join(found)}"
        raise FormatError(message, hint=_HINT)
    others = f"{', '.join(SYSTEMS[:-2])} or {SYSTEMS[-2]}"
    message = f"{source.path} holds nothing that {others} would write, and no messages"
    raise FormatError(message, hint="give the folder with the checkpoints, and name the system if you know it")


def known_system(name: str) -> str:
    """The system of that name, its own or another that it goes by; InvalidInputError if there is none."""
    system = ALSO_CALLED.get(name, name)
    if system not in _SYSTEMS:
        message = f"{name!r} is not a system whose files can be read"
        raise InvalidInputError(message, hint=_HINT)
    return system


def _read(source: Source, system: str) -> Reading:
    reading = Reading()
    try:
        _SYSTEMS[system].read(source, reading)
    except DamagedError as error:  # sound when it was first read, and not any more
        message = f"{source.path} is being written to: {error}"
        raise ConflictError(message, hint="stop the program that uses it, then import again") from error
    for where, why in source.unlisted.items():
        reading.trouble(where, why)
    reading.sessions.sort(key=lambda found: max([point.at_us for point in found.points]))
    return reading


def import_(
    store: Store,
    path: str | os.PathLike[str] | None = None,
    *,
    system: str | None = None,
    strict: bool = False,
    on_exists: str = "skip",
    rename: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> FormatReport:
    """Import every session found there, each in one transaction; with `dry_run` all is read and nothing imported.

    Without a path, the folder that the system uses by itself. With `strict` nothing is taken unless everything can be.
    A second import of the same place adds what is new there, if the session has not gone on here. Another session of
    the same name is left alone and reported; with `on_exists="rename"` the new one gets a name beside it, with "refuse"
    nothing at all is imported. `rename` is the new name of a single session.
    """
    if on_exists not in ON_EXISTS:
        message = f"on_exists is one of {', '.join(ON_EXISTS)}, not {on_exists!r}"
        raise InvalidInputError(message)
    if rename is not None:
        check_name(rename, "a session id")
    _check_store(store)
    name = None if system is None else known_system(system)
    if path is None:
        if name is None:
            message = "neither a path nor a system is given"
            raise InvalidInputError(message, hint=_HINT)
        return _together(
            [
                import_(
                    store,
                    folder,
                    system=name,
                    strict=strict,
                    on_exists=on_exists,
                    rename=rename,
                    dry_run=dry_run,
                    progress=progress,
                )
                for folder in find_folders(name)
            ]
        )
    with Source(path, tell=_looking(progress)) as source:
        name = name or _recognised(source)
        reading = _read(source, name)
        source.hush()
        if rename is not None and len(reading.sessions) != 1:
            message = f"{source.path} holds {len(reading.sessions)} sessions, and one name is given for all"
            raise InvalidInputError(message, hint="import without it, or a folder with one session")
        if strict and reading.troubles:
            message = (
                f"{counted(len(reading.troubles), 'file')} cannot be taken: {reading.troubles[0]}; nothing was imported"
            )
            raise CorruptionError(message, hint=_NOT_STRICT)
        if not reading.sessions and not reading.troubles:
            reading.note(str(source.path), "there is no session here")
        return _ForeignImport(
            store, name, reading, strict=strict, on_exists=on_exists, dry_run=dry_run, progress=progress
        ).run(rename)


def _together(reports: list[FormatReport]) -> FormatReport:
    """The reports of several places as one."""
    first = reports[0]
    return msgspec.structs.replace(
        first,
        sessions=tuple([session for report in reports for session in report.sessions]),
        checkpoints=sum([report.checkpoints for report in reports]),
        doubts={name: count for report in reports for name, count in report.doubts.items()},
        extended={name: count for report in reports for name, count in report.extended.items()},
        skipped=tuple([session for report in reports for session in report.skipped]),
        renamed={old: new for report in reports for old, new in report.renamed.items()},
        problems=tuple([problem for report in reports for problem in report.problems]),
        notes=tuple([note for report in reports for note in report.notes]),
    )


def _check_store(store: object) -> None:
    if not isinstance(store, Store):
        message = f"a store is needed, not {type(store).__name__}"
        raise InvalidInputError(message, hint="give one that is not async: the same URL opens it")


def _looking(progress: Progress | None) -> Callable[[int], None] | None:
    """How far the first look is; how much there is to see is not known before its end."""
    if progress is None:
        return None

    def tell(done: int) -> None:
        progress(done, None)

    return tell


class _ForeignImport:
    """One import on its way: session after session."""

    def __init__(
        self,
        store: Store,
        system: str,
        reading: Reading,
        *,
        strict: bool,
        on_exists: str,
        dry_run: bool,
        progress: Progress | None,
    ) -> None:
        self._backend = store.backend
        self._system = system
        self._reading = reading
        self._strict = strict
        self._on_exists = on_exists
        self._dry_run = dry_run
        self._progress = progress
        self._total = sum([len(found.points) for found in reading.sessions])
        self._done = 0
        self._taken: dict[SessionId, tuple[FoundSession, Arrival | None]] = {}  # None: in a dry run
        self._renamed: dict[SessionId, SessionId] = {}
        self._extended: dict[SessionId, int] = {}
        self._skipped: list[SessionId] = []

    def run(self, rename: str | None) -> FormatReport:
        if self._on_exists == "refuse":
            for found in self._reading.sessions:
                self._refuse_known(rename or found.id)
        try:
            for found in self._reading.sessions:
                self._take(found, rename or found.id)
        except BaseException:
            if self._strict:  # all or nothing, but for sessions that a commit was made to meanwhile
                for _, arrival in self._taken.values():
                    if arrival is not None:
                        arrival.discard()
            raise
        return FormatReport(
            system=self._system,
            sessions=tuple(self._taken),
            checkpoints=sum([len(found.points) for found, _ in self._taken.values()]) + sum(self._extended.values()),
            doubts={name: len(found.pending) for name, (found, _) in self._taken.items() if found.pending},
            extended=self._extended,
            skipped=tuple(self._skipped),
            renamed=self._renamed,
            problems=tuple(self._reading.troubles),
            notes=tuple(self._reading.notes),
            dry_run=self._dry_run,
        )

    def _refuse_known(self, name: str) -> None:
        if self._is_here(name):
            message = f"there is already a session {name!r}; nothing was imported"
            raise AlreadyExistsError(message, hint=_TAKEN)

    def _is_here(self, name: str) -> bool:
        return self._backend.read(Ask(name)).session is not None

    def _take(self, found: FoundSession, name: str) -> None:
        for candidate in _names(name):
            if not self._is_here(candidate) and candidate not in self._taken:
                try:
                    arrival = self._adopt(found, candidate)
                except AlreadyExistsError:
                    pass  # another process was quicker
                except (DamagedError, InvalidInputError) as error:
                    self._refuse(found, str(error))
                    return
                else:
                    self._taken[SessionId(candidate)] = found, arrival
                    if candidate != found.id:
                        self._renamed[SessionId(found.id)] = SessionId(candidate)
                    return
            missing, changed = compare(self._backend, found, candidate)
            other = changed or missing == len(found.points)
            if other and self._on_exists != "rename":
                why = f"{changed} of its checkpoints are others than those here" if changed else "it is another session"
                self._refuse(found, f"there is already a session {candidate!r}, and {why}; give it another name")
                return
            if not other and (not missing or self._on_exists != "rename"):
                self._go_on(found, candidate, missing)
                return

    def _adopt(self, found: FoundSession, name: str) -> Arrival | None:
        begun = self._done
        try:
            if self._dry_run:
                rehearse(found, name, self._tell)
                return None
            return adopt(self._backend, found, name, self._tell)
        except BaseException:
            self._done = begun
            raise

    def _go_on(self, found: FoundSession, name: str, missing: int) -> None:
        """A session that was imported before: what is new is added, if it fits behind what is here."""
        self._done += len(found.points) - missing
        added = 0
        try:
            added = extend(self._backend, found, name, self._tell, dry_run=self._dry_run) if missing else 0
        except (DamagedError, InvalidInputError, ConflictError, LeaseHeldError) as error:
            self._reading.trouble(f"session {found.id!r}", f"what is new there was not added: {error}")
        if added:
            self._extended[SessionId(name)] = added
            return
        self._skipped.append(SessionId(name))
        if missing:
            what = f"session {name!r} was imported before and lacks {missing} of these checkpoints; rename imports all"
            self._reading.note(found.points[-1].where, what)

    def _tell(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _refuse(self, found: FoundSession, why: str) -> None:
        if self._strict:
            message = f"session {found.id!r} cannot be taken: {why}; nothing was imported"
            raise CorruptionError(message, hint=_NOT_STRICT)
        self._reading.trouble(f"session {found.id!r}", why)


def _names(name: str) -> Iterator[str]:
    """The name, and then those to try beside it."""
    yield name
    number = 2
    while True:
        tail = f" ({number})"
        yield name[: MAX_NAME_CHARS - len(tail)] + tail
        number += 1


def export(
    store: Store,
    session: str,
    path: str | os.PathLike[str],
    *,
    system: str,
    branch: str = "main",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> WriteReport:
    """Write a session as the files of another system, into a folder that is made if it is not there.

    A session that came from there unchanged gives the same bytes. Nothing is written unless all of it can be. For
    smooth, a path that ends in `.db` is a SQLite store.
    """
    _check_store(store)
    system = known_system(system)
    if system not in _WRITTEN:
        message = f"files of {system} are read and not written"
        raise UnsupportedError(message, hint=f"one of {', '.join(EXPORTS)} can be written")
    module = _WRITTEN[system]
    database = None
    folder = path
    if module is smooth and os.fspath(path).endswith(".db") and not Path(path).is_dir():
        folder, database = Path(path).expanduser().absolute().parent, Path(path).name
    for rehearsal in (True, False):
        exporter = Exporter(store, session, branch=branch, progress=None if rehearsal else progress)
        with Target(folder, overwrite=overwrite, rehearsal=rehearsal) as target:
            if database is None:
                module.write(exporter, target)
            else:
                smooth.write_file(exporter, target, database)
            written = tuple(target.written)
    return WriteReport(system=system, session=SessionId(session), files=written, notes=exporter.notes)


__all__ = [
    "ALSO_CALLED",
    "EXPORTS",
    "ON_EXISTS",
    "SYSTEMS",
    "FormatReport",
    "Trouble",
    "WriteReport",
    "default_folders",
    "export",
    "import_",
    "known_system",
    "recognise",
]
