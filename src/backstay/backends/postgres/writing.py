"""Writes: decided on what is known, sent in one round trip, decided again on what the server says where they missed.

Writes of one process to one session wait in a line. Its leader lets one rule after another decide, each on what the
ones before it leave, and sends all of it at once; so threads of one run do not refuse one another and share their round
trips (see port.leader_queue).

An error that a rule raises, and a decision to do nothing, count only on a view that was read within this very call and
holds nothing that is not written yet. A write that was sent and not answered is tried again by asking for the rows it
would have put: the rule recognises itself.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import psycopg

from backstay.backends.postgres.faults import BLOBS_ABSENT, MISSED, NOT_READ_COMMITTED, UNIQUE, fault_of
from backstay.backends.postgres.pool import Pool, Wire, idle_ms
from backstay.backends.postgres.protocol import Step, unpack_texts
from backstay.backends.postgres.shipment import Shipment
from backstay.backends.postgres.views import (
    HOLD,
    HOLD_TYPES,
    LOOK,
    LOOK_TYPES,
    KnownSession,
    joined,
    known_of,
    look_values,
)
from backstay.errors import BackstayError, UnavailableError
from backstay.ids import is_ours
from backstay.port import Ask, Batch, BlobsAbsentError, CallRow, CheckpointRow, Decide, More, SessionRow, View
from backstay.port.leader_queue import Job, LeaderQueue

_DOING = "writing to the store"
_MOST_MISSES = 50
_LINES = 256
_BEGIN = Step("BEGIN ISOLATION LEVEL READ COMMITTED", (), ())
_COMMIT = Step("COMMIT", (), ())


class _MissedError(Exception):
    """Nothing was written, because what a write rests on has changed: the session is locked before it is decided again.

    Also before anything is sent, where other processes write to the session all the time.
    """


class WriteJob(Job):
    """One write in a line."""

    def __init__(self, ask: Ask, decide: Decide) -> None:
        self._ask = ask
        self._back: list[Batch] = []  # what earlier tries would have put
        self.decide = decide
        self.wider = False  # the rule has looked again
        self.again = False  # an earlier try may have been recorded
        self.tried: Batch | None = None  # sent, and not answered yet

    @property
    def ask(self) -> Ask:
        """What its rule looks at, and what an earlier try may have left."""
        if not self._back:
            return self._ask
        rows = [row for batch in self._back for row in batch.puts]
        return msgspec.structs.replace(
            self._ask,
            sequences=(*self._ask.sequences, *[row.sequence for row in rows if isinstance(row, CheckpointRow)]),
            calls=(*self._ask.calls, *[row.at for row in rows if isinstance(row, CallRow)]),
        )

    def look_wider(self, ask: Ask) -> None:
        assert not self.wider  # noqa: S101 - a rule looks again once
        self._ask, self.wider = ask, True

    def look_back(self) -> None:
        """From now on also at what the last try would have put, if that was never answered."""
        if self.tried is not None:
            self._back.append(self.tried)
            self.tried, self.again = None, True


class SessionQueue:
    """The writes of one process that wait for one session, and what is known of it."""

    def __init__(self, serve: Callable[[SessionQueue, list[WriteJob]], None]) -> None:
        self.known: KnownSession | None = None
        self.past: KnownSession | None = None  # what was known before somebody had to look
        self.busy = False  # others write here all the time: until nobody has between two writes from here
        self.light = False  # the last write did not rest on the session's row: neither will the next one, likely
        self.left: int | None = None  # the session's revision after the last write from here
        self.jobs = LeaderQueue[WriteJob](lambda jobs: serve(self, jobs))


class SessionQueues:
    """All lines of a store."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lines: OrderedDict[tuple[bool, str], SessionQueue] = OrderedDict()
        self._mutex = threading.Lock()
        self._last = 0  # of the numbers that this process knows to be given
        self._ahead_us: int | None = None  # the server's clock, of this process's
        self._wrapped = False  # the server's own isolation is another: every write needs a transaction around it

    def write(self, ask: Ask, decide: Decide) -> View:
        """See the port."""
        self._pool.refuse_child()
        view: View = self._line(ask.hidden, ask.session).jobs.run(WriteJob(ask, decide))
        return view

    def note_absent(self, session: str) -> None:
        """A reader has seen that there is no such session: whoever begins it need not look again."""
        line = self._line(False, session)
        if line.known is None and line.jobs.idle and self._ahead_us is not None:
            known = KnownSession.of_nothing(session, ahead_us=self._ahead_us)
            known.losses = self._pool.losses
            line.known = known

    def _line(self, hidden: bool, session: str) -> SessionQueue:  # noqa: FBT001 - part of a key
        place = hidden, session
        with self._mutex:
            line = self._lines.get(place)
            if line is None:
                line = self._lines[place] = SessionQueue(self._serve)
                idle = [other for other, each in self._lines.items() if each.jobs.idle and each is not line]
                for other in idle[: max(0, len(self._lines) - _LINES)]:
                    del self._lines[other]
            self._lines.move_to_end(place)
        return line

    def uid_of(self, ask: Ask) -> bytes | None:
        """The uid of a session as it was last seen: a hint."""
        line = self._lines.get((ask.hidden, ask.session))
        known = None if line is None else line.known
        return None if known is None else known.uid

    def _serve(self, line: SessionQueue, jobs: list[WriteJob]) -> None:
        """Resolve the first of some jobs, and as many of the others as come along."""
        misses = int(line.busy and not line.light)
        if line.known is not None:
            line.known.pristine = False
        while not jobs[0].done:
            try:
                attempt = self._attempt if not misses else self._attempt_locked
                self._pool.run(lambda wire: attempt(wire, line, jobs), _DOING)  # noqa: B023
            except _MissedError:
                misses += 1
                line.busy = True
            except BackstayError as error:
                if len(jobs) > 1 and not isinstance(error, UnavailableError):
                    jobs = jobs[:1]  # a row that only one of them asked for may be damaged
                    continue
                for job in jobs:
                    if not job.done:
                        job.fail(_copied(error))
            if misses > _MOST_MISSES:
                jobs[0].fail(UnavailableError(f"{_DOING}: others were in the way", hint="try again"))

    def _attempt(self, wire: Wire, line: SessionQueue, jobs: list[WriteJob]) -> None:
        """Let rules decide on what is kept, or was just read, and send what they say: that may miss."""
        jobs = [job for job in jobs if not job.done]
        known, line.known = line.known, None  # whatever happens here, nothing half true is kept
        unsure = any([job.tried is not None for job in jobs])
        if known is None or unsure or known.losses != self._pool.losses:
            known = self._look(wire, jobs)
        kept, uid = not known.pristine, known.uid
        known.last = max(known.last, self._last)
        decision = _decide(jobs, known, patient=not (line.busy and kept))
        if decision.decided:
            self._send(wire, decision, known, self._wrap(decision.shipment.steps(uid, relaxed=wire.place.relaxed)))
        self._resolve(line, decision, known)

    def _attempt_locked(self, wire: Wire, line: SessionQueue, jobs: list[WriteJob]) -> None:
        """The same with the session locked: what is sent then does not miss, and costs another round trip."""
        jobs = [job for job in jobs if not job.done]
        line.known = None
        try:
            known = self._look(wire, jobs, hold=True)
            line.busy = known.revision != line.left
            uid = known.uid
            decision = _decide(jobs, known)
            if decision.decided:
                steps = decision.shipment.steps(uid, relaxed=wire.place.relaxed)
                self._send(wire, decision, known, [*steps, _COMMIT])
        finally:
            wire.roll_back()  # if nothing was sent, or it was refused
        self._resolve(line, decision, known)

    def _resolve(self, line: SessionQueue, decision: _Decision, known: KnownSession) -> None:
        for job, view, batch in decision.decided:
            view.answer = batch.answer
            job.finish(view)
        line.left, line.light = known.revision, decision.shipment.light
        if decision.shipment.ends:
            line.past = None
        elif decision.stale:
            line.past = known.trimmed()
        else:
            line.known = known.trimmed()
            if line.known is not None and line.past is not None:
                line.known.remember(line.past)
            line.past = None

    def _look(self, wire: Wire, jobs: list[WriteJob], *, hold: bool = False) -> KnownSession:
        for job in jobs:
            job.look_back()
        apart = [job for job in jobs if job.ask.prefix or job.ask.beside is not None]
        chosen = jobs[:1] if jobs[0] in apart else [job for job in jobs if job not in apart]
        ask = joined([job.ask for job in chosen])
        losses = self._pool.losses
        known = looked(wire, ask, uid=self.uid_of(ask), writing=True, hold=hold)
        known.losses = losses
        return known

    def _wrap(self, steps: list[Step]) -> list[Step]:
        return [_BEGIN, *steps, _COMMIT] if self._wrapped else steps

    def _send(self, wire: Wire, decision: _Decision, known: KnownSession, steps: list[Step]) -> None:
        """Write; _MissedError if that was not possible."""
        for job, _, batch in decision.decided:
            job.tried = batch
        try:
            if len(steps) == 1:
                answer = wire.call(*steps[0])
            else:
                answers = wire.call_all(steps)
                answer = answers[steps[0] is _BEGIN]
        except psycopg.Error as error:
            if not fault_of(error, broken=wire.connection.closed).unclear:
                decision.undone()
            wire.roll_back()
            if error.sqlstate not in (BLOBS_ABSENT, MISSED, UNIQUE, NOT_READ_COMMITTED):
                raise
            if error.sqlstate == BLOBS_ABSENT:
                decision.blame(error.diag.message_detail or "")
            self._wrapped |= error.sqlstate == NOT_READ_COMMITTED
            raise _MissedError from error
        known.written(answer.get_value(0, 0))
        self._last, self._ahead_us = max(self._last, known.last), known.ahead_us


class _Decision:
    """What rules made of what is known."""

    def __init__(self, known: KnownSession) -> None:
        self.shipment = Shipment(known)
        self.decided: list[tuple[WriteJob, View, Batch]] = []
        self.stale = False  # somebody has to look again

    def undone(self) -> None:
        """Nothing was written."""
        for job, _, _ in self.decided:
            job.tried = None

    def blame(self, detail: str) -> None:
        """Those that refer to these blobs are told; the others are decided again."""
        absent = {bytes.fromhex(digest) for digest in detail.split()}
        for job, _, batch in self.decided:
            needed = {ref for row in batch.puts for ref in getattr(row, "refs", None) or ()} | {*batch.whole}
            if needed & absent:
                job.fail(BlobsAbsentError(needed & absent))


def _decide(jobs: list[WriteJob], known: KnownSession, *, patient: bool = True) -> _Decision:
    """Let rules decide. Not `patient`: a write that rests on the session's row would miss, and is not even packed."""
    decision = _Decision(known)
    for job in jobs:
        ask = job.ask
        view = known.view(ask, again=job.again)
        if view is None:
            decision.stale = True
            continue
        sure = known.pristine  # no longer once something was decided that is not yet written
        try:
            batch = job.decide(view)
        except Exception as error:  # noqa: BLE001 - for whoever asked, not for whoever leads
            if sure:
                job.fail(error)
            decision.stale |= not sure
            continue
        if isinstance(batch, More):
            job.look_wider(batch.ask)
            decision.stale = True
        elif (batch.puts or batch.drops) and (known.session is not None or _begins(batch)):
            if not patient and _begins(batch):
                raise _MissedError
            if view.guessed and not {row.id for row in batch.puts if isinstance(row, CheckpointRow)} >= {*view.guessed}:
                decision.stale = True  # only what is put is compared
                continue
            decision.shipment.add(ask, view, batch)
            decision.decided.append((job, view, batch))
            if decision.shipment.full:
                decision.stale |= job is not jobs[-1]
                break
        elif sure:
            view.answer = batch.answer
            job.finish(view)
        else:
            decision.stale = True
    return decision


def _begins(batch: Batch) -> bool:
    """True if it puts the session's own row."""
    return any([isinstance(row, SessionRow) for row in batch.puts])


def looked(wire: Wire, ask: Ask, *, uid: bytes | None, writing: bool, hold: bool = False) -> KnownSession:
    """Ask the server; again if the ids of this session lead elsewhere than was thought. `hold`: in a transaction."""
    ours = any([is_ours(id_) for id_ in ask.ids])
    begun = False
    while True:
        values = look_values(ask, uid)
        if not hold:
            found = wire.call(LOOK, values, LOOK_TYPES)
        else:
            step = Step(HOLD, [*values, str(idle_ms()).encode()], HOLD_TYPES)
            found = wire.call(*step) if begun else wire.call_all([_BEGIN, step])[1]
            begun = True
        known = known_of(unpack_texts(found.get_value(0, 0)), ask, writing=writing)
        if not ours or known.uid in (None, uid):
            return known
        uid = known.uid


def _copied(error: BackstayError) -> BackstayError:
    """The same for another thread, which raises one of its own."""
    made = copy.copy(error)
    made.__cause__ = error.__cause__
    return made
