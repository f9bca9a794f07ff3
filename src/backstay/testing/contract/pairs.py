"""Two intentions at once come out as if one had come after the other (W2, with the rules themselves)."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import combinations_with_replacement

import msgspec
import pytest

from backstay.port import (
    EVERY,
    Ask,
    Backend,
    Batch,
    Decide,
    Kind,
    LaneRow,
    Row,
    SessionQuery,
    SessionRow,
    View,
    decided,
)
from backstay.port.lease import clock_us
from backstay.port.tables import Tables
from backstay.rules import deletion
from backstay.testing.author import SESSION, every_row
from backstay.testing.contract.handmade import bare, together
from backstay.testing.contract.hooks import Hooks
from backstay.testing.contract.refusing import INTENTIONS, claimed, said, stage

IDLE = (
    "commit",
    "fork",
    "tag",
    "untag",
    "delete_branch",
    "delete_checkpoints",
    "hide",
    "enter",
    "hold",
    "settle",
    "abandon",
)
RUN = ("commit", "boundary", "fork", "delete_branch", "hide", "renew", "leave", "journal", "journal another", "settle")
ROWS = (Kind.NAME, Kind.CHECKPOINT, Kind.KEYFRAME, Kind.CALL)

Outcome = tuple[list[object], set[str]]


class PairsContract(Hooks):
    """What two callers get who do not know of one another."""

    @pytest.mark.parametrize("scene", ["untag", "boundary"])
    def test_w2_two_intentions_come_out_as_one_after_the_other(self, backend: Backend, scene: str) -> None:
        openings = [backend, self.other(backend)]
        (session, rows) = stage(scene, frozenset())[0]
        for pair in combinations_with_replacement(RUN if scene == "boundary" else IDLE, 2):
            start = [msgspec.structs.replace(session, touched=backend.read(Ask(SESSION)).fresh), *rows]
            backend.write(Ask(SESSION), lambda view, start=start: Batch(tuple(claimed(start, view))))  # type: ignore[misc]
            answers: list[object] = [None, None]

            def act(me: int, pair: tuple[str, ...] = pair, answers: list[object] = answers) -> None:
                ask, rule = intention(pair[me])
                answers[me] = spoken(lambda: openings[me].write(ask, slowly(rule)))

            together(act, 2)
            assert (answers, kept(backend)) in serial(start, pair), pair
            for one in backend.sessions(SessionQuery(hidden=True)):
                drop_line(backend, one)
            drop_line(backend, session)


def intention(what: str) -> tuple[Ask, Decide]:
    """What somebody wants, with nothing against it."""
    if what == "hide":
        return deletion.hide_ask(SESSION), deletion.hide(SESSION)
    return INTENTIONS[what][1](frozenset())


def slowly(rule: Decide) -> Decide:
    """A rule that takes its time when it is asked first, so that another may come between."""
    asked: list[View] = []

    def decide(view: View) -> object:
        if not asked:
            asked.append(view)
            time.sleep(0.002)
        return rule(view)

    return decide  # type: ignore[return-value]


def drop_line(backend: Backend, row: SessionRow) -> None:
    """A session goes at once."""
    ask = Ask(row.id, hidden=row.hidden)
    backend.write(ask, lambda view: Batch(drops=((Kind.SESSION, row.id),) if view.session is not None else ()))


def kept(backend: Backend) -> set[str]:
    """All that is kept of the session."""
    line = backend.read(Ask(SESSION, names=EVERY)).session
    rows = [row for kind in ROWS for row in every_row(backend, SESSION, kind)]
    return plain([*([] if line is None else [line]), *[row for row in rows if not hasattr(row, "why")]])


def plain(rows: list[Row]) -> set[str]:
    """Rows without what depends on the time or on the store's numbers."""
    found = set()
    for row in rows:
        rest: dict[str, object] = {"touched": 0} if isinstance(row, SessionRow) else {}
        if isinstance(row, LaneRow):
            rest = {"run": min(row.run, 8), "claim": None}
        found.add(repr((bare(msgspec.structs.replace(row, **rest)), isinstance(row, LaneRow) and row.claim is None)))
    return found


def spoken(act: object) -> object:
    """What was said, without the time of day."""
    assert callable(act)
    answer = said(act)
    return None if answer is None else re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "", " ".join(answer))


def serial(rows: list[Row], pair: tuple[str, str]) -> list[Outcome]:
    """What comes out where one comes after the other: both orders, without a backend."""
    outcomes: list[Outcome] = []
    for order in ((0, 1), (1, 0)):
        world = Serial(rows)
        answers: list[object] = [None, None]
        for me in order:
            ask, rule = intention(pair[me])
            answers[me] = spoken(lambda ask=ask, rule=rule, world=world: world.write(ask, rule))
        outcomes.append((answers, world.kept()))
    return outcomes


class Serial:
    """Sessions in tables, written by one caller."""

    def __init__(self, rows: list[Row]) -> None:
        self.world: dict[tuple[bool, str], Tables] = {}
        self.apply(Ask(SESSION), claimed(rows, self.look(Ask(SESSION))))

    def look(self, ask: Ask) -> View:
        view = View(now_us=clock_us(), wall_us=time.time_ns() // 1000, fresh=10**9)
        if (ask.hidden, ask.session) in self.world:
            self.world[ask.hidden, ask.session].fill(view, ask)
        return view

    def write(self, ask: Ask, rule: Decide) -> None:
        _, batch = decided(self.look, ask, rule)
        tables = self.apply(ask, batch.puts)
        for kind, key in batch.drops:
            tables.drop(kind, key)

    def apply(self, ask: Ask, rows: Sequence[Row]) -> Tables:
        lines = [row for row in rows if isinstance(row, SessionRow)]
        tables = self.world.pop((ask.hidden, ask.session), None) or Tables(lines[0])
        for row in [*lines, *rows]:
            tables.put(row)
        self.world[tables.session.hidden, tables.session.id] = tables
        return tables

    def kept(self) -> set[str]:
        return plain(list(self.world[False, SESSION].rows()) if (False, SESSION) in self.world else [])
