"""What a process knows of a store's journals: those it used last, open; and one line about each for listings.

Every writer changes a number in the store's counter, and leaves the name of the session it wrote to. An open journal is
good as long as that number stays; a line is good until its session is written to.
"""

from __future__ import annotations

import threading

import msgspec

from backstay.backends.files.folder import JOURNAL, Count, Folder, is_name, place
from backstay.backends.files.journal import JournalFile, is_noted
from backstay.backends.files.lines import Note, Put, body_of
from backstay.errors import CorruptionError
from backstay.port import SessionRow
from backstay.port.row_codec import open_session

_OPEN_JOURNALS = 32
_LOOKS = 4
_NAMELESS = "?"


class Summary(msgspec.Struct, frozen=True, gc=False):
    """What a listing needs to know of a session; `damaged`: not all of it can be read."""

    row: SessionRow
    born: bytes
    marks: int
    foreign: bool
    damaged: bool = False


class Catalogue:
    """See the module's text. Whoever calls holds `lock`."""

    def __init__(self, folder: Folder) -> None:
        self.lock = threading.RLock()
        self.count: Count | None = None  # while this process has the store's lock: then nobody else changes anything
        self.touched: dict[str, JournalFile] = {}  # to be synced by whoever leads; not to be closed before
        self._folder = folder
        self._open: dict[str, JournalFile] = {}  # the one used last comes last
        self._epoch = 1
        self._changes = -1
        self._listed: dict[str, Summary] = {}
        self._listed_at: int | None = None

    def look(self, count: Count | None) -> None:
        """Has anybody else written? An odd number: somebody does, or was killed meanwhile."""
        changes = -1 if count is None else count.changes
        if changes != self._changes or changes % 2:
            self._epoch += 1
        self._changes = changes

    def left(self, count: Count) -> None:
        """This process itself has written, and knows what."""
        self._changes = count.changes

    def journal(self, name: str) -> JournalFile | None:
        """A journal as it is now; None if there is none, or nothing was ever recorded in it."""
        if self.count is None:
            self.look(self._folder.count())
        journal = self._open.get(name)
        if journal is not None and journal.epoch != self._epoch and not journal.refresh():
            self.forget(name)
            journal = None
        if journal is None:
            journal = JournalFile.open(self._folder, name, locked=self.count is not None)
        if journal is None or journal.is_empty:
            self.forget(name)
            return None
        self.keep(journal)
        return journal

    def of(self, session: str, *, hidden: bool = False) -> JournalFile | None:
        """The journal of a session; a CorruptionError for one that is listed and does not say its id."""
        journal = self.journal(place(session, hidden=hidden))
        nameless = journal is None and session.startswith(_NAMELESS) and is_name(session[1:])
        if nameless and self._folder.disk.is_there(self._folder.journal(session[1:])):
            hint = "its lines can be read by eye; other sessions are not touched"
            raise CorruptionError(f"{session[1:]}{JOURNAL} does not say whose it is", hint=hint)
        return journal

    def keep(self, journal: JournalFile) -> None:
        """This journal is as it should be, and was used last."""
        journal.epoch = self._epoch
        self._open.pop(journal.name, None)
        self._open[journal.name] = journal
        for name in list(self._open)[:-_OPEN_JOURNALS]:
            if name not in self.touched:
                self.forget(name)

    def forget(self, name: str) -> None:
        """Let go of a journal; it is read again when it is next asked for."""
        journal = self._open.pop(name, None)
        if journal is not None:
            journal.close()

    def rename(self, name: str, journal: JournalFile) -> None:
        """A journal that was open under this name has another now."""
        self._open.pop(name, None)
        self.keep(journal)

    def open_names(self) -> list[str]:
        """The journals that are open."""
        return list(self._open)

    def summaries(self) -> dict[str, Summary]:
        """One for each session, by the names of their files, the one touched last first."""
        for _ in range(_LOOKS):  # a list is of one moment, unless others never stop writing
            count = self.count or self._folder.count()
            self._list(count)
            if self.count is not None or count == self._folder.count():
                break
        return self._listed

    def _list(self, count: Count | None) -> None:
        if self.count is None:
            self.look(count)
        changed = None
        if count is not None and self._listed_at is not None:
            changed = self._folder.changed(self._listed_at, count.changes)
        if changed is None:
            self._listed = {}
        for name in self._folder.journals() if changed is None else changed:
            found = self._summary(name)
            if found is not None:
                self._listed[name] = found
            else:
                self._listed.pop(name, None)
        if changed is None or changed:
            self._listed = dict(sorted(self._listed.items(), key=lambda item: -item[1].row.touched))
        self._listed_at = None if count is None else count.changes

    def _summary(self, name: str) -> Summary | None:
        note = self._folder.read_note(name)
        if note is not None and is_noted(self._folder, name, note) and (row := _noted_row(name, note)) is not None:
            return Summary(row, bytes.fromhex(note.born), note.marks, note.foreign)
        try:
            journal = JournalFile.open(self._folder, name, locked=self.count is not None)
        except CorruptionError:
            journal = None
        if journal is None and note is None and not self._folder.disk.is_there(self._folder.journal(name)):
            return None
        if journal is None:
            return Summary(_noted_row(name, note) or _unknown(name), b"", 0, foreign=True, damaged=True)
        journal.close()
        rows = journal.rows
        if journal.is_empty:
            return None
        row = rows.session if rows.session.uid else _noted_row(name, note) or _unknown(name, rows.session_put)
        return Summary(row, journal.born, rows.marks, bool(rows.foreign), bool(rows.damage))


def _noted_row(name: str, note: Note | None) -> SessionRow | None:
    try:
        if note is not None:
            row = open_session(body_of(note.body), id_=note.id, hidden=None)
            return row if place(row.id, hidden=row.hidden) == name else None
    except (CorruptionError, msgspec.MsgspecError, ValueError):
        pass
    return None


def _unknown(name: str, put: Put | None = None) -> SessionRow:
    """Stands in a list for a session whose row is lost, maybe with its id: a list is never silently shorter."""
    id_ = _NAMELESS + name if put is None or place(str(put.key)) != name else str(put.key)
    return SessionRow(id_, b"", 0, 0, status="halted", reason="damaged")
