"""Refusals: whatever stands against an intention, every backend says the same words, in the order of Reason.

Each scene is made for real on the backend. What is to be said comes from the rule alone, on a view made of the same
rows: a backend that shows a rule too little or too late, or puts words of its own in, says something else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec
import pytest

from backstay.errors import BackstayError
from backstay.ids import MAX_SEQUENCE
from backstay.port import Ask, Backend, Batch, Decide, LaneRow, Row, SessionRow, TagRow, View, decided
from backstay.port.lease import Claim, clock_us, here
from backstay.port.rows import DONE
from backstay.port.tables import Tables
from backstay.rules import branches, deletion, runs
from backstay.rules.commit import Commit, commit
from backstay.rules.refusals import Lease, Reason
from backstay.testing.author import NOW_US, SESSION, call_row, entering, totals_at
from backstay.testing.contract.handmade import UID, checkpoint, line, nothing
from backstay.testing.contract.hooks import Hooks

R = Reason
Reasons = frozenset[Reason]
Intention = Callable[[Reasons], tuple[Ask, Decide]]

WORDS = {
    R.NO_SESSION: "there is no session",
    R.SESSION_EXISTS: "there is already a session",
    R.NO_BRANCH: "has no branch",
    R.NO_TAG: "has no tag",
    R.NO_CHECKPOINT: "has no checkpoint",
    R.NAME_TAKEN: "already a branch or tag",
    R.FENCED: "lost its lease",
    R.HELD: "holds the lease until",
    R.DAMAGED: "a pending call is damaged",
    R.IN_DOUBT: "not known whether these calls happened",
    R.ID_TAKEN: "there is already a checkpoint",
    R.MOVED: "expected|resumed meanwhile",
    R.CALL_MOVED: "is no longer as it was",
    R.CHANGED: r"\(try again\)",
    R.TAGGED: "is tagged",
    R.LAST_OF_BRANCH: "no other checkpoint to go back to",
    R.FULL: "no numbers left",
}
LEASE_US = 3_600_000_000
UNTIL_US = 4_102_444_800_000_000  # said in words, and the same wherever it is said
CALL = call_row("a call", at=(7, 3, 0), name="pay", status=DONE)


def committing(reasons: Reasons, **options: Any) -> tuple[Ask, Decide]:
    """A commit by somebody else, or with the lease of the run."""
    head = None if R.NAME_TAKEN in reasons else checkpoint(3, 2).id
    new = Commit(
        session=SESSION,
        branch="main",
        uid=UID,
        tail=b"a tail.",
        expect="another head" if R.MOVED in reasons else head,
        fields=b"",
        state_digest=bytes(32),
        size_bytes=1,
        totals=totals_at(NOW_US),
        keyframe=b"a keyframe",
        id="a foreign id" if R.ID_TAKEN in reasons else None,
        **options,
    )
    return new.ask, commit(new)


def lease(reasons: Reasons) -> Lease:
    """The run's own, or one that it lost."""
    return Lease(SESSION, "main", 7, 3 if R.FENCED in reasons else 4, LEASE_US)


def naming(rule: Callable[..., Decide]) -> Intention:
    """A fork or a tag."""

    def intend(reasons: Reasons) -> tuple[Ask, Decide]:
        name = "main" if R.NAME_TAKEN in reasons else "a new name"
        sequence = 9 if R.NO_CHECKPOINT in reasons else 3
        id_ = checkpoint(sequence, 2).id
        return branches.naming_ask(SESSION, name, sequence), rule(SESSION, name, sequence=sequence, id_=id_)

    return intend


def delete(reasons: Reasons) -> tuple[Ask, Decide]:
    """The head goes; with it all that it rests on, where that is the point."""
    gone = (1, 2, 3) if R.LAST_OF_BRANCH in reasons else (3,)
    gone = (*gone, 9) if R.NO_CHECKPOINT in reasons else gone
    plan = deletion.Deletion(SESSION, UID, gone, anchors=() if R.LAST_OF_BRANCH in reasons else (2,))
    return plan.ask, deletion.delete_checkpoints(plan)


def enter(reasons: Reasons) -> tuple[Ask, Decide]:
    """A run begins."""
    new = entering(UID, expect_token=3 if R.MOVED in reasons else None)
    return new.ask, runs.enter(new)


def hold(_reasons: Reasons) -> tuple[Ask, Decide]:
    """A lease for something that is no run."""
    new = entering(UID)
    return new.ask, runs.hold(new, "a purpose")


def journal(reasons: Reasons) -> tuple[Ask, Decide]:
    """What became of a call."""
    call = msgspec.structs.replace(CALL, id="another call" if R.CALL_MOVED in reasons else CALL.id)
    return runs.journal_ask(lease(reasons), CALL.at), runs.journal(lease(reasons), call, at=CALL.at)


def journal_another(reasons: Reasons) -> tuple[Ask, Decide]:
    """Another call begins."""
    return runs.journal_ask(lease(reasons), None), runs.journal(lease(reasons), CALL, at=None)


def settle(reasons: Reasons) -> tuple[Ask, Decide]:
    """A call is decided from outside."""
    before = msgspec.structs.replace(CALL, result=b"another") if R.CALL_MOVED in reasons else CALL
    after = msgspec.structs.replace(before, status="skipped", nonce=b"n")
    return runs.settle_ask(SESSION, "main", CALL.at), runs.settle(SESSION, "main", before=before, after=after)


def abandon(_reasons: Reasons) -> tuple[Ask, Decide]:
    """What is pending is given up."""
    return runs.abandon_ask(SESSION, "main"), runs.abandon(SESSION, "main", reason="r", at_us=NOW_US, nonce="n")


def arrive(reasons: Reasons) -> tuple[Ask, Decide]:
    """An import begins."""
    ask, _ = show(reasons)
    return ask, deletion.arrive(line(bytes(16).hex(), uid=bytes(16), hidden=True))


def show(reasons: Reasons) -> tuple[Ask, Decide]:
    """An import ends."""
    row = line("shown" if R.SESSION_EXISTS not in reasons else SESSION, uid=bytes(16))
    return deletion.show_ask(row), deletion.show(row, last_run=0)


INTENTIONS: dict[str, tuple[tuple[Reason, ...], Intention]] = {
    "commit": ((R.NAME_TAKEN, R.HELD, R.DAMAGED, R.IN_DOUBT, R.ID_TAKEN, R.MOVED, R.FULL), committing),
    "boundary": ((R.FENCED, R.ID_TAKEN, R.MOVED), lambda reasons: committing(reasons, lease=lease(reasons))),
    "fork": ((R.NO_SESSION, R.NO_CHECKPOINT, R.NAME_TAKEN), naming(branches.fork)),
    "tag": ((R.NO_SESSION, R.NO_CHECKPOINT, R.NAME_TAKEN), naming(branches.tag)),
    "untag": (
        (R.NO_SESSION, R.NO_TAG),
        lambda _: (branches.name_ask(SESSION, "a tag"), branches.untag(SESSION, "a tag")),
    ),
    "delete_branch": (
        (R.NO_SESSION, R.NO_BRANCH, R.HELD),
        lambda _: (branches.name_ask(SESSION, "main"), branches.delete_branch(SESSION, "main")),
    ),
    "delete_checkpoints": (
        (R.NO_SESSION, R.NO_CHECKPOINT, R.HELD, R.DAMAGED, R.IN_DOUBT, R.CHANGED, R.TAGGED, R.LAST_OF_BRANCH),
        delete,
    ),
    "hide": (
        (R.NO_SESSION, R.HELD, R.CHANGED),
        lambda reasons: (deletion.hide_ask(SESSION), deletion.hide(SESSION, touched=4 if R.CHANGED in reasons else 5)),
    ),
    "enter": ((R.NO_BRANCH, R.NAME_TAKEN, R.HELD, R.DAMAGED, R.MOVED), enter),
    "hold": ((R.NO_SESSION, R.NO_BRANCH, R.HELD), hold),
    "renew": ((R.FENCED,), lambda reasons: (runs.lease_ask(lease(reasons)), runs.renew(lease(reasons)))),
    "leave": (
        (R.FENCED,),
        lambda r: (runs.leave_ask(lease(r)), runs.leave(lease(r), status="failed", reason=None)),
    ),
    "journal": ((R.FENCED, R.CALL_MOVED), journal),
    "journal another": ((R.FENCED,), journal_another),
    "settle": ((R.NO_SESSION, R.CALL_MOVED), settle),
    "abandon": ((R.NO_SESSION, R.NO_BRANCH, R.HELD), abandon),
    "arrive": ((R.SESSION_EXISTS, R.CHANGED), arrive),
    "show": ((R.SESSION_EXISTS, R.CHANGED), show),
}


class RefusingContract(Hooks):
    """What a caller is told, wherever its session is kept."""

    @pytest.mark.parametrize("what", INTENTIONS)
    def test_of_two_reasons_against_it_the_first_is_said_in_the_same_words(self, what: str) -> None:
        possible, intend = INTENTIONS[what]
        scenes = [frozenset(pair) for size in (1, 2) for pair in combinations(possible, size) if fits(what, pair)]
        for reasons in scenes:
            backend = self.make()
            try:
                self._play(backend, what, reasons, intend)
            finally:
                backend.close()

    def _play(self, backend: Backend, what: str, reasons: Reasons, intend: Intention) -> None:
        sessions = stage(what, reasons)
        for session, rows in sessions:
            backend.write(
                Ask(session.id, hidden=session.hidden),
                lambda view, rows=[session, *rows]: Batch(tuple(claimed(rows, view))),  # type: ignore[misc]
            )
        ask, rule = intend(reasons)
        expected = said(lambda: on_tables(sessions, ask, rule))
        before = backend.read(Ask(SESSION, names=None))
        found = said(lambda: backend.write(ask, rule))
        assert found is not None, f"{what} is not refused: {reasons}"
        assert found == expected, reasons
        assert re.search(WORDS[min(reasons)], found[1]), reasons
        after = backend.read(Ask(SESSION, names=None))
        assert (after.session, after.lanes, after.tags) == (before.session, before.lanes, before.tags)
        backend.write(Ask(SESSION), nothing)


def fits(what: str, reasons: tuple[Reason, ...]) -> bool:
    """Whether these reasons can hold at once."""
    without_branch = {R.NO_BRANCH, R.NO_SESSION} | ({R.NAME_TAKEN} if what in ("commit", "enter") else set())
    of_branch = {R.HELD, R.DAMAGED, R.IN_DOUBT}
    if set(reasons) & without_branch and set(reasons) & of_branch:
        return False
    return not {R.NO_BRANCH, R.NAME_TAKEN} <= set(reasons)


def stage(what: str, reasons: Reasons) -> list[tuple[SessionRow, list[Row]]]:
    """The sessions in which these reasons hold: lines and rows."""
    if what in ("arrive", "show"):
        hidden = line(bytes(16).hex(), uid=bytes(16), hidden=True)
        taken = [(line(), list[Row]())] if R.SESSION_EXISTS in reasons else []
        return [*taken, (hidden, [])] if (R.CHANGED in reasons) == (what == "arrive") else taken
    if R.NO_SESSION in reasons:
        return []
    checkpoints = [checkpoint(1), checkpoint(2, 1), checkpoint(3, 2), checkpoint(5, id_="a foreign id")]
    names: list[Row] = [LaneRow("other", head=checkpoints[3].head)]
    branch = LaneRow("main", head=checkpoints[2].head, run=7, journal=3, token=4, entered=True)
    if R.HELD in reasons or what in ("boundary", "renew", "leave", "journal", "journal another"):
        branch = msgspec.structs.replace(branch, claim=Claim(here(), LEASE_US, 0, UNTIL_US))
    if R.NAME_TAKEN in reasons and what in ("commit", "enter"):
        names.append(TagRow("main", 1))
    elif R.NO_BRANCH not in reasons:
        names.append(branch)
    if R.TAGGED in reasons or (what == "untag" and R.NO_TAG not in reasons):
        names.append(TagRow("a tag", 3))
    calls: list[Row] = [CALL]
    if R.IN_DOUBT in reasons:
        calls.append(call_row("in doubt", at=(7, 3, 1), name="pay"))
    if R.DAMAGED in reasons:
        calls.append(call_row("behind a gap", at=(7, 3, 3), status=DONE))
    if what == "delete_checkpoints" and R.CHANGED in reasons:
        checkpoints.append(checkpoint(6, 3))
    tags = sum([isinstance(row, TagRow) for row in names])
    last = MAX_SEQUENCE if R.FULL in reasons else 9
    session = line(sequence=last, touched=5, checkpoints=len(checkpoints), lanes=len(names) - tags, tags=tags)
    return [(session, [*names, *checkpoints, *calls])]


def claimed(rows: list[Row], view: View) -> list[Row]:
    """The rows with leases that begin now."""
    found: list[Row] = []
    for row in rows:
        claim = row.claim if isinstance(row, LaneRow) else None
        if claim is not None:
            now = msgspec.structs.replace(claim, until_us=view.now_us + LEASE_US)
            found.append(msgspec.structs.replace(row, claim=now))
        else:
            found.append(row)
    return found


def on_tables(sessions: list[tuple[SessionRow, list[Row]]], ask: Ask, rule: Decide) -> object:
    """What the rule says of these rows, without a backend."""

    def look(ask: Ask) -> View:
        view = View(now_us=clock_us(), wall_us=time.time_ns() // 1000, fresh=6)
        for session, rows in sessions:
            if (session.hidden, session.id) == (ask.hidden, ask.session):
                tables = Tables(session)
                for row in claimed(rows, view):
                    tables.put(row)
                tables.fill(view, ask)
            if (session.hidden, session.id) == (False, ask.beside):
                view.beside = session
        return view

    return decided(look, ask, rule)


def said(act: Callable[[], object]) -> tuple[str, str] | None:
    """How something was refused: the class and the words."""
    try:
        act()
    except BackstayError as error:
        return type(error).__name__, str(error)
    return None
