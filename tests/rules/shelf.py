"""Where the tests of the rules keep rows: dicts and a clock that stands still. No backend, no process, no time.

Leases are those of a process on another machine, which is alive until its lease ends by the clock here.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from backstay.ids import TAIL_BYTES, make_id
from backstay.port import (
    Ask,
    Batch,
    CallKey,
    CallRow,
    CheckpointRow,
    Decide,
    Kind,
    LaneRow,
    More,
    SessionRow,
    TagRow,
    Unreadable,
    View,
)
from backstay.port.lease import Claim, Holder
from backstay.port.rows import DONE, STARTED, Head
from backstay.port.tables import Tables
from backstay.rules import runs
from backstay.rules.commit import Commit, Totals, commit
from backstay.rules.refusals import Lease

Kept = TypeVar("Kept")

SESSION = "s"
UID = bytes(range(16))
HOLDER = Holder("far.example", "another boot", 7, 4711, 1)
LEASE_US = 30_000_000
NOW_US = 1_700_000_000_000_000
TOTALS = Totals(None, "in_progress", None, None, b"", NOW_US)


def digest_of(*words: object) -> bytes:
    return sha256(repr(words).encode()).digest()


def tail_of(number: int) -> bytes:
    return digest_of("tail", number)[:TAIL_BYTES]


# rows by hand


def line(**fields: Any) -> SessionRow:
    given: dict[str, Any] = {"id": SESSION, "uid": UID, "created_us": NOW_US, "updated_us": NOW_US, "touched": 3}
    return SessionRow(**(given | fields))


def checkpoint(sequence: int, parent: int | None = None, **fields: Any) -> CheckpointRow:
    tail = tail_of(sequence)
    given: dict[str, Any] = {
        "id": make_id(sequence, UID, tail),
        "tail": tail,
        "parent": parent,
        "parent_id": None if parent is None else make_id(parent, UID, tail_of(parent)),
        "parent_digest": None if parent is None else digest_of("digest", parent),
        "state_digest": digest_of("state", sequence),
        "digest": digest_of("digest", sequence),
        "size_bytes": 10 * sequence,
        "keyframe": False,
        "took": None,
        "fields": b"fields",
        "delta": b"delta",
        "refs": (),
    }
    return CheckpointRow(sequence, **(given | fields))


def head(sequence: int) -> Head:
    return checkpoint(sequence).head


def lane(name: str = "main", at: int | None = None, **fields: Any) -> LaneRow:
    given: dict[str, Any] = {"head": None if at is None else head(at), "journal": at or 0}
    return LaneRow(name, **(given | fields))


def claim(now_us: int = NOW_US, *, lease_us: int = LEASE_US) -> Claim:
    return Claim(HOLDER, lease_us, now_us + lease_us, now_us + lease_us)


def call(id_: str = "c", at: CallKey = (5, 1, 0), **fields: Any) -> CallRow:
    given: dict[str, Any] = {"parent": None, "name": "pay", "key": None, "nth": 0, "kind": "tool", "args": b"\0args"}
    given |= {"args_digest": bytes(16), "status": STARTED, "token": 1, "started_us": NOW_US}
    return CallRow(*at, id=id_, **(given | fields))


def done(id_: str = "c", at: CallKey = (5, 1, 0), **fields: Any) -> CallRow:
    return call(id_, at, **({"status": DONE, "result": b"\0result", "ended_us": NOW_US + 1} | fields))


def lost(at: CallKey = (5, 1, 0)) -> Unreadable:
    return Unreadable(at, "a call row is damaged, or stands in the place of another")


def view_of(*rows: SessionRow | LaneRow | TagRow | CheckpointRow | CallRow, **fields: Any) -> View:
    """What a rule sees where these rows were asked for, and nothing else."""
    found = View(now_us=NOW_US, wall_us=NOW_US, fresh=9)
    found.session = next((row for row in rows if isinstance(row, SessionRow)), None)
    found.lanes = {row.name: row for row in rows if isinstance(row, LaneRow)}
    found.tags = {row.name: row for row in rows if isinstance(row, TagRow)}
    found.checkpoints = {row.sequence: row for row in rows if isinstance(row, CheckpointRow)}
    found.calls = {row.at: row for row in rows if isinstance(row, CallRow)}
    found.live = {
        row.name for row in found.lanes.values() if row.claim is not None and row.claim.until_wall_us > NOW_US
    }
    for name, value in fields.items():
        setattr(found, name, value)
    return found


# intentions


def plan(**fields: Any) -> Commit:
    """A commit on an empty branch, unless the fields say otherwise."""
    number = fields.pop("number", 99)
    given: dict[str, Any] = {
        "session": SESSION,
        "branch": "main",
        "uid": UID,
        "tail": tail_of(number),
        "expect": None,
        "fields": f"fields {number}".encode(),
        "state_digest": digest_of("state", number),
        "size_bytes": 100 + number,
        "totals": TOTALS,
        "delta": b"delta",
    }
    return Commit(**(given | fields))


def entering(**fields: Any) -> runs.Enter:
    given: dict[str, Any] = {
        "session": SESSION,
        "branch": "main",
        "uid": UID,
        "nonce": b"nonce",
        "holder": HOLDER,
        "agent": None,
        "lease_us": LEASE_US,
        "at_us": NOW_US,
        "input": None,
    }
    return runs.Enter(**(given | fields))


def lease(run: int = 5, token: int = 1, **fields: Any) -> Lease:
    return Lease(SESSION, "main", run, token, LEASE_US, **fields)


def batch_of(decided: Batch | More) -> Batch:
    assert isinstance(decided, Batch)
    return decided


def put_of(batch: Batch, kind: type[Kept]) -> Kept:
    """The one row of a kind that a batch puts."""
    (found,) = [row for row in batch.puts if isinstance(row, kind)]
    return found


class Shelf:
    """All sessions of a store in dicts; what a rule decides is applied at once."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[bool, str], Tables] = {}
        self.now_us = NOW_US
        self.last = 0
        self.numbers = 0

    def look(self, ask: Ask, *, again: bool = False) -> View:
        view = View(now_us=self.now_us, wall_us=self.now_us, fresh=self.last + 1, again=again)
        tables = self.sessions.get((ask.hidden, ask.session))
        if tables is not None:
            tables.fill(view, ask)
        beside = None if ask.beside is None else self.sessions.get((False, ask.beside))
        view.beside = None if beside is None else beside.session
        return view

    def write(self, ask: Ask, decide: Decide, *, again: bool = False) -> Any:
        """Let a rule decide, apply what it says, give its answer."""
        decided = decide(self.look(ask, again=again))
        if isinstance(decided, More):
            decided = decide(self.look(decided.ask, again=again))
        batch = batch_of(decided)
        self.apply(ask, batch)
        return batch.answer

    def apply(self, ask: Ask, batch: Batch) -> None:
        place = ask.hidden, ask.session
        lines = [row for row in batch.puts if isinstance(row, SessionRow)]
        for row in lines:
            tables = self.sessions.pop(place, None) or Tables(row)
            place = row.hidden, row.id
            assert place not in self.sessions, "two sessions of one name"
            self.sessions[place] = tables
            assert row.touched > self.last, "what a listing shows has changed, and nobody would look"
            self.last = max(self.last, row.touched)
        tables = self.sessions.get(place) or Tables(line())
        for put in batch.puts:
            tables.put(put)
        for kind, key in batch.drops:
            if kind is Kind.SESSION:
                del self.sessions[place]
            else:
                tables.drop(kind, key)

    # what the tests ask for most

    @property
    def tables(self) -> Tables:
        return self.sessions[False, SESSION]

    def lane(self, name: str = "main") -> LaneRow:
        found = self.tables.names[name]
        assert isinstance(found, LaneRow)
        return found

    def pending(self, name: str = "main") -> list[CallRow | Unreadable]:
        row = self.lane(name)
        return self.tables.journal((row.run, row.journal))

    def pass_time(self, us: int = LEASE_US + 1) -> None:
        self.now_us += us

    def commit(self, branch: str = "main", **fields: Any) -> CheckpointRow:
        """A commit on whatever head there is, unless the fields say otherwise; the first is a keyframe."""
        self.numbers += 1
        known = self.sessions.get((False, SESSION))
        row = None if known is None else known.names.get(branch)
        at = row.head if isinstance(row, LaneRow) else None
        given: dict[str, Any] = {"number": 1000 + self.numbers, "branch": branch}
        given |= {"uid": UID if known is None else known.session.uid, "expect": None if at is None else at.id}
        given |= {"keyframe": b"keyframe"} if at is None else {}
        new = plan(**(given | fields))
        made = self.write(new.ask, commit(new))
        assert isinstance(made, CheckpointRow)
        return made

    def enter(self, branch: str = "main", **fields: Any) -> runs.Entered:
        self.numbers += 1
        new = entering(branch=branch, **({"nonce": f"enter {self.numbers}".encode()} | fields))
        entered = self.write(new.ask, runs.enter(new))
        assert isinstance(entered, runs.Entered)
        return entered

    def hold(self, branch: str = "main", purpose: str = "files", **fields: Any) -> Lease:
        self.numbers += 1
        new = entering(branch=branch, **({"nonce": f"hold {self.numbers}".encode()} | fields))
        held = self.write(new.ask, runs.hold(new, purpose))
        assert isinstance(held, Lease)
        return held

    def begin(self, held: Lease, id_: str, **fields: Any) -> CallRow:
        """A call is written down before it is made."""
        new = call(id_, **({"token": held.token} | fields))
        row = self.write(runs.journal_ask(held, None), runs.journal(held, new, at=None))
        assert isinstance(row, CallRow)
        return row

    def finish(self, held: Lease, row: CallRow, status: str = DONE, **fields: Any) -> CallRow:
        """What became of it."""
        now = msgspec.structs.replace(row, status=status, ended_us=self.now_us, **({"result": b"\0ok"} | fields))
        kept = self.write(runs.journal_ask(held, row.at), runs.journal(held, now, at=row.at))
        assert isinstance(kept, CallRow)
        return kept

    def call(self, held: Lease, id_: str) -> CallRow:
        """A call that was made."""
        return self.finish(held, self.begin(held, id_))

    def leave(self, held: Lease, status: str | None = None, reason: str | None = None) -> None:
        self.write(runs.leave_ask(held), runs.leave(held, status=status, reason=reason))

    def renew(self, held: Lease) -> None:
        self.write(runs.lease_ask(held), runs.renew(held))

    def abandon(self, branch: str = "main", nonce: str = "abandon") -> int:
        rule = runs.abandon(SESSION, branch, reason="enough", at_us=self.now_us, nonce=nonce)
        given_up = self.write(runs.abandon_ask(SESSION, branch), rule)
        assert isinstance(given_up, int)
        return given_up


def ids_of(calls: Iterable[CallRow | Unreadable]) -> list[str]:
    return [row.id if isinstance(row, CallRow) else "(damaged)" for row in calls]
