"""Rows in dicts: an Ask is answered with what is there, as far as it was asked for, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.errors import CorruptionError
from backstay.ids import make_id
from backstay.port import (
    EVERY,
    Ask,
    CallRow,
    CheckpointRow,
    KeyframeRow,
    Kind,
    LaneRow,
    SessionQuery,
    SessionRow,
    TagRow,
    Unreadable,
    View,
    numbered,
)
from backstay.port.facets import facet
from backstay.port.lease import Claim, Holder
from backstay.port.rows import Head
from backstay.port.tables import Tables

UID = bytes(range(16))
NOW_US = 10**15
HOLDER = Holder("far.example", "another boot", 7, 4711, 1)


def session(**fields: Any) -> SessionRow:
    return SessionRow("s", UID, 1, 1, **fields)


def point(sequence: int, parent: int | None = None, *, id_: str | None = None, **fields: Any) -> CheckpointRow:
    tail = sequence.to_bytes(7, "big")
    given: dict[str, Any] = {"keyframe": False, "took": None, "fields": b"", "delta": b"delta", "refs": ()}
    id_ = make_id(sequence, UID, tail) if id_ is None else id_
    return CheckpointRow(sequence, id_, tail, parent, None, None, b"s" * 32, b"d" * 32, 1, **(given | fields))


def call(run: int, journal: int, n: int) -> CallRow:
    return CallRow(run, journal, n, f"{run}-{journal}-{n}", None, "pay", None, 0, "tool", None, b"", "done", 1, 1)


def lane(name: str, at: int | None, **fields: Any) -> LaneRow:
    row = None if at is None else point(at)
    return LaneRow(name, None if row is None else Head(row.sequence, row.id, row.digest, row.state_digest), **fields)


@pytest.fixture
def tables() -> Tables:
    """1 - 2 - 3, and 4 on 2; keyframes at 1 and 3; a damaged one, 5, on 4."""
    found = Tables(session(checkpoints=5, lanes=3, tags=1))
    for row in (
        point(1, keyframe=True),
        point(2, 1, refs=(b"two",)),
        point(3, 2, keyframe=True, refs=(b"three",)),
        point(4, 2, id_="turn 4", refs=(b"four",)),
        KeyframeRow(1, b"key 1", (b"one",)),
        KeyframeRow(3, b"key 3", (b"key",)),
        lane("main", 3, run=7, journal=3, claim=Claim(HOLDER, 100, 0, NOW_US + 1)),
        lane("b", 4, run=8, journal=2, claim=Claim(HOLDER, 100, 0, NOW_US)),
        lane("new", None),
        TagRow("release", 2),
        *(call(7, 3, 0), call(7, 3, 1), call(8, 2, 0), call(7, 1, 0)),
    ):
        found.put(row)
    found.checkpoints[5] = Unreadable(5, "checkpoint #5 is damaged", 4)
    return found


def asked(tables: Tables, **fields: Any) -> View:
    view = View(now_us=NOW_US, wall_us=NOW_US)
    tables.fill(view, Ask("s", **fields))
    return view


# asking


def test_the_sessions_line_always_comes_and_nothing_unasked(tables: Tables) -> None:
    assert asked(tables) == View(now_us=NOW_US, wall_us=NOW_US, session=tables.session)


def test_names_come_as_branches_and_tags_with_who_is_alive(tables: Tables) -> None:
    view = asked(tables, names=("main", "b", "release", "none"))
    assert (list(view.lanes), list(view.tags), set(view.live)) == (["main", "b"], ["release"], {"main"})
    view = asked(tables, names=EVERY)
    assert (set(view.lanes), set(view.tags), set(view.live)) == ({"main", "b", "new"}, {"release"}, {"main"})


def test_checkpoints_come_by_sequence_and_by_id(tables: Tables) -> None:
    one, four = tables.checkpoints[1], tables.checkpoints[4]
    assert isinstance(one, CheckpointRow)
    view = asked(tables, sequences=(1, 9), ids=("turn 4", "none", point(9).id))
    assert view.checkpoints == {1: one, 4: four}
    assert view.foreign == {"turn 4": 4}
    assert asked(tables, ids=(one.id,)).checkpoints == {1: one}
    assert asked(tables, ids=(make_id(1, UID, b"another"),)).checkpoints == {}


def test_an_id_whose_row_is_damaged_gives_the_damage(tables: Tables) -> None:
    assert asked(tables, ids=(point(5).id,)).checkpoints == {5: tables.checkpoints[5]}
    assert asked(tables, sequences=(5,)).checkpoints == {5: tables.checkpoints[5]}


def test_foreign_ids_come_by_their_start(tables: Tables) -> None:
    assert asked(tables, prefix="tur").foreign == {"turn 4": 4}
    assert asked(tables, prefix="x").foreign == {}


def test_children_come_of_every_one_that_was_asked_for(tables: Tables) -> None:
    assert asked(tables, children_of=(1, 2, 3, 9)).children == {1: [2], 2: [3, 4], 3: [], 9: []}


def test_pending_calls_are_those_under_a_branchs_journal(tables: Tables) -> None:
    view = asked(tables, names=EVERY, pending=EVERY)
    assert {name: [row.id for row in rows if isinstance(row, CallRow)] for name, rows in view.pending.items()} == {
        "main": ["7-3-0", "7-3-1"],
        "b": ["8-2-0"],
        "new": [],
    }
    view = asked(tables, names=("main",), pending=("main", "b"))
    assert list(view.pending) == ["main"], "of a branch that was not asked for nothing is said"


def test_calls_are_counted_and_picked(tables: Tables) -> None:
    assert asked(tables, names=("main", "new"), counted=("main", "new", "b")).counts == {"main": 2, "new": 0}
    assert asked(tables, calls=((7, 3, 1), (7, 3, 9), (1, 1, 1))).calls == {(7, 3, 1): call(7, 3, 1)}
    view = asked(tables, journals=((7, 1), (9, 9)))
    assert view.journals == {(7, 1): [call(7, 1, 0)], (9, 9): []}


def test_a_call_that_is_missing_leaves_a_gap_that_is_named(tables: Tables) -> None:
    tables.drop(Kind.CALL, (7, 3, 0))
    first, second = asked(tables, names=("main",), pending=("main",)).pending["main"]
    assert first == Unreadable((7, 3, 0), "a journaled call is missing")
    assert second == call(7, 3, 1)
    assert asked(tables, names=("main",), counted=("main",)).counts == {"main": 2}


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_the_calls_under_a_journal_are_numbered_from_0_without_a_gap(there: set[int], damaged: set[int]) -> None:
    rows: list[CallRow | Unreadable] = [
        Unreadable((7, 3, n), "damaged") if n in damaged else call(7, 3, n) for n in sorted(there)
    ]
    found = numbered(rows, 7, 3)
    assert [row.n if isinstance(row, CallRow) else row.key[2] for row in found] == list(range(len(found)))  # type: ignore[index]
    assert [row for row in found if row in rows] == rows
    assert len(found) == max(there, default=-1) + 1


# putting and dropping


def test_a_row_takes_the_place_of_the_one_with_its_key(tables: Tables) -> None:
    tables.put(point(3, 1, delta=b"", refs=None))
    view = asked(tables, sequences=(3,), children_of=(1, 2))
    assert view.children == {1: [2, 3], 2: [4]}
    assert tables.refs[Kind.CHECKPOINT, 3] == (b"three",), "None leaves them as they are kept"
    tables.put(point(3, 1, refs=()))
    assert tables.refs[Kind.CHECKPOINT, 3] == ()
    tables.put(TagRow("release", 1))
    assert asked(tables, names=("release",)).tags == {"release": TagRow("release", 1)}


def test_what_is_dropped_is_gone_with_all_that_leads_to_it(tables: Tables) -> None:
    tables.drop(Kind.CHECKPOINT, 4)
    tables.put(session(checkpoints=4, lanes=2, tags=1))
    view = asked(tables, sequences=(4,), ids=("turn 4",), prefix="turn", children_of=(2,))
    assert (view.checkpoints, view.foreign, view.children) == ({}, {}, {2: [3]})
    assert (Kind.CHECKPOINT, 4) not in tables.refs
    tables.drop(Kind.KEYFRAME, 3)
    assert (set(tables.keyframes), (Kind.KEYFRAME, 3) in tables.refs) == ({1}, False)
    assert (Kind.CHECKPOINT, 3) in tables.refs
    tables.drop(Kind.NAME, "main")
    assert asked(tables, names=EVERY).lanes.keys() == {"b", "new"}
    tables.drop(Kind.CALL, (7, 3))
    assert asked(tables, journals=((7, 3), (7, 1))).journals == {(7, 3): [], (7, 1): [call(7, 1, 0)]}


def test_to_drop_what_is_not_there_does_nothing(tables: Tables) -> None:
    before = list(tables.rows())
    for kind, key in (
        (Kind.CHECKPOINT, 99),
        (Kind.KEYFRAME, 99),
        (Kind.NAME, "none"),
        (Kind.CALL, (9, 9)),
        (Kind.CALL, (9, 9, 9)),
        (Kind.CALL, (7, 3, 9)),
    ):
        tables.drop(kind, key)
    assert list(tables.rows()) == before


def test_all_that_can_be_read_can_be_had(tables: Tables) -> None:
    rows = list(tables.rows())
    assert rows[0] == tables.session
    assert len(rows) == 1 + 4 + 4 + 2 + 4
    again = Tables(session())
    for row in rows:
        again.put(row)
    assert list(again.rows()) == rows


# reading states


def test_a_state_is_read_from_the_nearest_keyframe(tables: Tables) -> None:
    found = tables.state("b", salvage=False, without=())
    assert ([row.sequence for row in found.rows if isinstance(row, CheckpointRow)], found.keyframe) == (
        *([1, 2, 4],),
        b"key 1",
    )
    assert found.lane == tables.names["b"]
    assert tables.refs_of(found) == {b"one", b"two", b"four"}
    for ref in ("main", 3):
        found = tables.state(ref, salvage=False, without=())
        assert (len(found.rows), found.keyframe, tables.refs_of(found)) == (1, b"key 3", {b"key"})
    passed_over = tables.state("main", salvage=False, without=(3,))
    assert (len(passed_over.rows), passed_over.keyframe) == (3, b"key 1")
    assert tables.refs_of(passed_over) == {b"one", b"two", b"three"}
    tagged = tables.state("release", salvage=False, without=())
    assert (len(tagged.rows), tagged.lane) == (2, None)


@pytest.mark.parametrize("ref", ["none", 99, "new"])
def test_what_is_not_there_gives_no_rows(tables: Tables, ref: str | int) -> None:
    assert tables.state(ref, salvage=False, without=()).rows == ()


def test_a_damaged_row_is_an_error_or_is_shown_in_its_place(tables: Tables) -> None:
    with pytest.raises(CorruptionError, match="checkpoint #5 is damaged"):
        tables.state(5, salvage=False, without=())
    found = tables.state(5, salvage=True, without=())
    assert [row.sequence if isinstance(row, CheckpointRow) else row.key for row in found.rows] == [1, 2, 4, 5]


def test_a_row_that_is_missing_on_the_way_is_an_error_and_no_shorter_way(tables: Tables) -> None:
    del tables.checkpoints[2]
    for ref in (4, "b", "release"):
        with pytest.raises(CorruptionError, match="checkpoint #2 is missing"):
            tables.state(ref, salvage=False, without=())
        shown = tables.state(ref, salvage=True, without=()).rows[0]
        assert shown == Unreadable(2, "checkpoint #2 is missing")
    assert tables.ancestors(4, 9)[1:] == [Unreadable(2, "checkpoint #2 is missing")]


def test_what_is_absent_is_absent_or_it_is_an_error(tables: Tables) -> None:
    one = point(1).id
    looks: list[Callable[[], object]] = [
        lambda: asked(tables, names=EVERY),
        lambda: asked(tables, names=("main",)),
        lambda: tables.state("main", salvage=False, without=()),
    ]
    del tables.names["main"]
    for look in looks:
        with pytest.raises(CorruptionError, match="it has 3 branches and tags and counts 4"):
            look()
    assert asked(tables, names=("b",)).lanes.keys() == {"b"}, "what was asked for is all there"
    looks = [
        lambda: asked(tables, sequences=(1,)),
        lambda: asked(tables, ids=(one,)),
        lambda: tables.state(1, salvage=True, without=()),
        lambda: tables.ancestors(1, 9),
    ]
    del tables.checkpoints[1]
    for look in looks:
        with pytest.raises(CorruptionError, match="it has 4 checkpoints and counts 5"):
            look()
    assert asked(tables, sequences=(2,)).checkpoints.keys() == {2}


def test_a_session_that_comes_or_goes_is_not_counted(tables: Tables) -> None:
    tables.put(session(hidden=True))
    view = asked(tables, hidden=True, names=EVERY, sequences=(1, 99))
    assert (len(view.lanes), list(view.checkpoints)) == (3, [1])


def test_heads_come_along_where_they_are_wanted(tables: Tables) -> None:
    assert set(asked(tables, names=("main", "release", "new"), heads=True).checkpoints) == {2, 3}


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, True),
        ({"hidden": True}, False),
        ({"before": 7}, False),
        ({"before": 8}, True),
        ({"facets": ((facet("status", "completed"),),)}, False),
        ({"facets": ((facet("status", "completed"), facet("status", "in_progress")),)}, True),
        ({"facets": ((facet("agent", "other"),),)}, False),
        ({"facets": ((facet("agent", "support"),), (facet("status", "in_progress"),))}, True),
        ({"prefix": "s"}, True),
        ({"prefix": "t"}, False),
        ({"uid_start": UID[:4]}, True),
        ({"uid_start": b"none"}, False),
        ({"foreign": "turn 4"}, True),
        ({"foreign": "turn 5"}, False),
    ],
    ids=str,
)
def test_a_query_picks_its_sessions(tables: Tables, query: dict[str, Any], wanted: bool) -> None:
    tables.put(session(touched=7, agent="support"))
    assert tables.matches(SessionQuery(**query)) is wanted


def test_ancestors_come_newest_first(tables: Tables) -> None:
    def numbers(sequence: int, limit: int) -> list[object]:
        found = tables.ancestors(sequence, limit)
        return [row.sequence if isinstance(row, CheckpointRow) else row.key for row in found]

    assert (numbers(5, 9), numbers(5, 2), numbers(1, 9), numbers(9, 9)) == ([5, 4, 2, 1], [5, 4], [1], [])


# pages


def test_rows_come_in_pages_upwards_and_downwards(tables: Tables) -> None:
    def page(kind: Kind, **how: Any) -> list[object]:
        found = tables.scan(kind, **({"after": None, "before": None, "limit": 9} | how))
        keys = {Kind.CHECKPOINT: "sequence", Kind.KEYFRAME: "sequence", Kind.NAME: "name", Kind.CALL: "at"}
        return [row.key if isinstance(row, Unreadable) else getattr(row, keys[kind]) for row in found]

    assert page(Kind.CHECKPOINT) == [1, 2, 3, 4, 5]
    assert page(Kind.CHECKPOINT, after=2, limit=2) == [3, 4]
    assert page(Kind.CHECKPOINT, before=4, limit=2) == [3, 2]
    assert page(Kind.KEYFRAME) == [1, 3]
    assert page(Kind.NAME, after="b") == ["main", "new", "release"]
    assert page(Kind.CALL) == [(7, 1, 0), (7, 3, 0), (7, 3, 1), (8, 2, 0)]
    assert page(Kind.CALL, after=(7, 3, 0)) == [(7, 3, 1), (8, 2, 0)]


@pytest.mark.parametrize("kind", [Kind.SEGMENT, Kind.MESSAGE, Kind.SESSION])
def test_of_kinds_that_are_not_kept_here_there_are_none(tables: Tables, kind: Kind) -> None:
    assert list(tables.scan(kind, after=None, before=None, limit=9)) == []
    assert msgspec.structs.replace(tables.session) == tables.session
