"""Writing: one thread of one process at a time leads, and does what all who wait have to do.

The leader takes the store's lock, lets each rule decide on what holds then, and appends each batch as a line. Then it
syncs each journal once for all of them. A rule that refuses costs its own write alone; a sync that fails, all those of
its journal, and whether they were recorded is not known. A leader that is interrupted cuts off what is not synced, and
leaves the others' writes to the next.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence

from backstay.backends.files.blobs import BlobFolder
from backstay.backends.files.catalogue import Catalogue
from backstay.backends.files.disk import translate
from backstay.backends.files.folder import Count, Folder, place
from backstay.backends.files.journal import JournalFile, new_born
from backstay.backends.files.rewrite import is_wasteful, rewrite
from backstay.errors import ClosedError, CorruptionError, UnavailableError
from backstay.port import (
    Ask,
    Batch,
    BlobsAbsentError,
    Decide,
    Kind,
    LaneRow,
    Row,
    SessionRow,
    View,
    decided,
    feature_of,
)
from backstay.port.leader_queue import Job, LeaderQueue

_GATHER_S = 0.002
_FAR = 1 << 32  # beyond what a lost counter can have given since a session was last written to


class _Line(Job):
    """A write: what its rule looks at, and the rule."""

    def __init__(self, ask: Ask, decide: Decide) -> None:
        self.ask, self.decide = ask, decide


class _Act(Job):
    """Something else that needs the store's lock."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act


class JournalWriter:
    """See the module's text. `look` makes a View; it is called with the catalogue's lock held."""

    def __init__(
        self,
        folder: Folder,
        blobs: BlobFolder,
        catalogue: Catalogue,
        look: Callable[[Ask], View],
        refuse_use: Callable[[], None],
    ) -> None:
        self.wrote = False
        self._folder, self._blobs, self._catalogue = folder, blobs, catalogue
        self._look, self._refuse_use = look, refuse_use
        self._queue: LeaderQueue[_Line | _Act] = LeaderQueue(self._lead, gather_s=_GATHER_S)
        self._count = Count()
        self._announced: set[str] = set()
        self._renewed = False

    def write(self, ask: Ask, decide: Decide) -> View:
        """Let a rule decide, and make what it says last."""
        view: View = self._queue.run(_Line(ask, decide))
        return view

    def alone(self, act: Callable[[], None]) -> None:
        """Do something else with the store's lock held."""
        self._queue.run(_Act(act))

    def wait(self) -> None:
        """Return when everything under way is done."""
        with contextlib.suppress(ClosedError):
            self._queue.run(_Act(lambda: None))

    def _lead(self, jobs: Sequence[_Line | _Act]) -> None:
        lines = [job for job in jobs if isinstance(job, _Line) and not job.gone]
        if lines:
            self._try(lines, lambda: self._run(lines))
        for job in jobs:
            if isinstance(job, _Act) and not job.gone:
                self._try([job], job.act)

    def _try(self, jobs: Sequence[Job], act: Callable[[], None]) -> None:
        try:
            self._refuse_use()
            self._exclusively(act)
            for job in jobs:
                job.done = True
        except OSError as error:
            _fail(jobs, translate(error, "writing to the store"), error)
        except Exception as error:  # noqa: BLE001 - for all that wait
            _fail(jobs, error)

    def _exclusively(self, act: Callable[[], None]) -> None:
        catalogue = self._catalogue
        try:
            self._folder.lock()
            with catalogue.lock:
                self._folder.check_meta(writing=True)
                count = self._folder.count()
                catalogue.look(count)
                self._count = catalogue.count = self._folder.first(count or self._lost_count())
            act()
            with catalogue.lock:
                changes, renewals = self._count.changes + self._count.changes % 2, self._count.renewals + self._renewed
                if (changes, renewals) != (self._count.changes, self._count.renewals):
                    self._count = self._folder.put_count(self._count._replace(changes=changes, renewals=renewals))
                catalogue.left(self._count)
        except BaseException:
            with catalogue.lock:
                for journal in catalogue.touched.values():
                    with contextlib.suppress(OSError):
                        journal.undo()
                for name in catalogue.open_names():
                    catalogue.forget(name)
            raise
        finally:
            catalogue.count, catalogue.touched = None, {}
            self._announced, self._renewed = set(), False
            self._folder.unlock()

    def _lost_count(self) -> Count:
        """A counter in the place of one that is damaged."""
        last = max([found.row.touched for found in self._catalogue.summaries().values()], default=0)
        return Count(last + _FAR, 0, time.time_ns() // 1000 * 2)

    def announce(self, name: str) -> None:
        """A session is about to be written to; processes that have it open look at its file again."""
        self.wrote = True
        if name not in self._announced:
            self._count = self._catalogue.count = self._folder.announce(self._count, name)
            self._announced.add(name)

    def _run(self, lines: Sequence[_Line]) -> None:
        catalogue = self._catalogue
        journals: dict[int, list[_Line]] = {}
        for line in lines:
            try:
                with catalogue.lock:
                    line.value, journal = self._decide(line)
                journals.setdefault(id(journal), []).append(line)
            except OSError as error:
                line.fail(translate(error, f"writing to session {line.ask.session!r}"), error)
            except Exception as error:  # noqa: BLE001 - for whoever asked, not for whoever leads
                line.fail(error)
        for journal in list(catalogue.touched.values()):
            self._sync(journal, journals.get(id(journal), ()))
        for line in lines:
            line.done = True
        with catalogue.lock:
            for journal in list(catalogue.touched.values()):
                self._release(journal)
                if is_wasteful(journal):
                    with contextlib.suppress(OSError, CorruptionError):
                        self._compact(journal)

    def _sync(self, journal: JournalFile, lines: Sequence[_Line]) -> None:
        """Make a journal's new lines last, for all who wrote them."""
        try:
            journal.sync()
        except OSError as error:
            with self._catalogue.lock:
                with contextlib.suppress(OSError):
                    journal.undo()
                self._catalogue.touched.pop(journal.name, None)
                self._catalogue.forget(journal.name)
            _fail(lines, translate(error, "syncing a journal", unclear=True), error)
            return
        for line in lines:
            line.done = True
        with self._catalogue.lock, contextlib.suppress(OSError, CorruptionError):
            journal.write_note()

    def _decide(self, job: _Line) -> tuple[View, JournalFile | None]:
        view, batch = decided(self._look, job.ask, job.decide)
        journal = self._catalogue.journal(place(job.ask.session, hidden=job.ask.hidden))
        if batch.lazy and journal is not None and all([isinstance(row, LaneRow) for row in batch.puts]):
            journal.renew_claims(batch.puts)
            self._touch(journal)
            self._renewed = True
        elif batch.puts or batch.drops:
            journal = self._apply(job.ask, journal, batch)
        elif journal is not None and not journal.settled:
            self._touch(journal)  # what this rule saw must be on the disk when it returns
        return view, journal

    def _touch(self, journal: JournalFile) -> None:
        """A journal is to be synced; that happens without the lock under which its file may be opened anew."""
        journal.take_file()
        self._catalogue.touched[journal.name] = journal

    def _apply(self, ask: Ask, journal: JournalFile | None, batch: Batch) -> JournalFile | None:
        catalogue = self._catalogue
        rows: list[Row] = sorted(batch.puts, key=lambda row: not isinstance(row, SessionRow))
        session = rows[0] if rows and isinstance(rows[0], SessionRow) else None
        if journal is None and session is None:
            return None
        for feature in set(map(feature_of, rows)) - {0}:
            self._folder.need(feature)
        born = new_born() if journal is None else journal.born
        self._keep_blobs(batch, journal, born)
        if session is not None and session.touched > self._count.last:
            self._count = self._count._replace(last=session.touched)
            self._announced.clear()  # announced again, with this number
        target = place(ask.session, hidden=ask.hidden)
        target = target if session is None else place(session.id, hidden=session.hidden)
        self.announce(target if journal is None else journal.name)
        if journal is None:
            journal = JournalFile.create(self._folder, target, born)
            catalogue.keep(journal)
        self._touch(journal)
        drops = [(kind, key) for kind, key in batch.drops if kind is not Kind.SESSION]
        if len(drops) < len(batch.drops):
            self._remove(journal)
            return None
        if target == journal.name:
            journal.append(rows, drops)
            return journal
        if catalogue.journal(target) is not None:
            raise UnavailableError("another session of this name is being imported or deleted", hint="try again")
        catalogue.forget(target)
        self._move(journal, target, lambda: journal.append(rows, drops, to=target))
        return journal

    def _move(self, journal: JournalFile, target: str, append: Callable[[], None]) -> None:
        name, catalogue = journal.name, self._catalogue
        self.announce(target)
        journal.sync()
        try:
            append()
            journal.move(target)
        except BaseException as error:
            del catalogue.touched[name]
            catalogue.forget(name)
            if isinstance(error, OSError):
                raise translate(error, "renaming a journal", unclear=True) from error
            raise
        del catalogue.touched[name]
        catalogue.rename(name, journal)
        catalogue.touched[target] = journal

    def _remove(self, journal: JournalFile) -> None:
        del self._catalogue.touched[journal.name]
        self._catalogue.forget(journal.name)
        try:
            self._folder.remove(journal.name)
        except OSError as error:
            raise translate(error, "removing a journal", unclear=True) from error
        journal.rows.released.update(journal.rows.uses)
        journal.rows.uses.clear()
        self._release(journal)

    # blobs

    def _keep_blobs(self, batch: Batch, journal: JournalFile | None, born: bytes) -> None:
        refs = {ref for row in batch.puts for ref in getattr(row, "refs", None) or ()}
        absent = [ref for ref in refs if ref not in batch.blobs and not self._blobs.has(ref)]
        absent += [digest for digest in batch.whole if digest not in batch.blobs and not self._blobs.is_whole(digest)]
        if absent:
            raise BlobsAbsentError(absent)
        there = {ref: self._blobs.is_whole(ref) if ref in batch.blobs else self._blobs.has(ref) for ref in refs}
        new = [ref for ref in refs if journal is None or not journal.rows.uses[ref] or not there[ref]]
        self._blobs.put({ref: batch.blobs[ref] for ref in new if ref in batch.blobs}, born)
        self._blobs.use([ref for ref in new if ref not in batch.blobs], born)
        if batch.cuts:
            self._blobs.cut(batch.cuts)

    def _release(self, journal: JournalFile) -> None:
        """Remove the blobs that nobody needs any more since these lines."""
        released, journal.rows.released = journal.rows.released, set()
        if released and not journal.rows.damage:
            self.free(released - journal.rows.uses.keys(), journal.born)

    def free(self, digests: Iterable[bytes], besides: bytes = b"") -> None:
        """Remove those of some blobs that no journal needs, `besides` one that is known not to; with the lock held."""
        with self._catalogue.lock:
            for digest in digests:
                users = self._blobs.users(digest)
                if users is not None and not any([self._needs(user, digest) for user in users - {besides}]):
                    with contextlib.suppress(OSError):
                        self._blobs.drop(digest)

    def _needs(self, user: bytes, digest: bytes) -> bool:
        """True if a journal refers to a blob, or may."""
        for name, found in list(self._catalogue.summaries().items()):
            if found.born == user or (found.damaged and not found.born):
                journal = None if found.damaged else self._catalogue.journal(name)
                if journal is None or journal.rows.damage or digest in journal.rows.uses:
                    return True
        return False

    def _compact(self, journal: JournalFile) -> None:
        rewrite(self._folder, journal)
        self._catalogue.touched.pop(journal.name, None)
        self._catalogue.forget(journal.name)
        anew = self._catalogue.journal(journal.name)
        if anew is not None:
            anew.write_note()


def _fail(jobs: Sequence[Job], error: BaseException, cause: BaseException | None = None) -> None:
    for job in jobs:
        if not job.done:
            job.fail(error, cause)
