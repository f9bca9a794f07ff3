"""Reading one session: rows by number, parents followed (W11), ids located, states from keyframe to head."""

from __future__ import annotations

import secrets
from itertools import pairwise
from typing import Any

import pytest

from backstay.ids import MAX_SEQUENCE, make_id
from backstay.port import (
    EVERY,
    Ask,
    Backend,
    Batch,
    CallRow,
    CheckpointRow,
    Key,
    KeyframeRow,
    Kind,
    LaneRow,
    Row,
    TagRow,
    Unreadable,
)
from backstay.port.rows import key_of
from backstay.testing.author import SESSION, Author, call_row, check_states, delete, fork, open_records, read_back, tag
from backstay.testing.contract.handmade import UID, bare, blob, checkpoint, drop, put
from backstay.testing.contract.hooks import Hooks

WORDS = (
    'main Main MAIN ../main .. /etc/passwd C:\\nul a/b a%2Fb a%b a_b axb "quoted" {} $1 ? NULL 0 00 1e3 - \\ ß ss İ Ω'
)
NAMES = [
    *WORDS.split(),
    *(" main", "main ", "'; DROP TABLE sessions; --", "new\nline", "tab\t", "\x7f\x01", "é", "e\u0301", "日本"),
    *("\uffff", "\U0001f600", "\U0010ffff", "\u202egnp.exe", "x" * 256, "\U0001f600" * 256),
]
LARGE_BYTES = 16 * 1024 * 1024
MANY = 2_500  # more than one statement of SQL can name by default


class ReadingContract(Hooks):
    """What the reading verbs owe."""

    def test_w5_the_checkpoints_that_names_lead_to_come_with_them_if_asked_for(self, backend: Backend) -> None:
        author = Author(backend)
        rows = author.grow(5)
        author.fork(rows[1], "side")
        tag(backend, SESSION, rows[2], "a tag")
        put(backend, LaneRow("entered"))
        for names, wanted in (
            (EVERY, {5, 2, 3}),
            (("main",), {5}),
            (("a tag", "nobody", "side"), {3, 2}),
            (("entered",), set()),
            ((), set()),
        ):
            assert set(backend.read(Ask(SESSION, names=names, heads=True)).checkpoints) == wanted
            assert not backend.read(Ask(SESSION, names=names)).checkpoints
            both = backend.read(Ask(SESSION, names=names, heads=True, sequences=(1, 5), ids=(rows[3].id,)))
            assert {at: bare(row) for at, row in both.checkpoints.items()} == {
                at: bare(rows[at - 1]) for at in wanted | {1, 4, 5}
            }
            seen = backend.write(Ask(SESSION, names=names, heads=True), lambda _view: Batch())
            assert set(seen.checkpoints) == wanted

    # scan

    @pytest.mark.parametrize("kind", [Kind.CHECKPOINT, Kind.KEYFRAME, Kind.CALL, Kind.NAME])
    @pytest.mark.parametrize("limit", [1, 4, 1000])
    def test_w11_rows_are_paged_by_their_number_both_ways(self, backend: Backend, kind: Kind, limit: int) -> None:
        rows = numbered_rows(kind)
        put(backend, *rows[::2])
        put(backend, *rows[1::2], session="another")
        put(backend, *reversed(rows[1::2]))
        expected = [bare(row) for row in sorted(rows, key=key_of)]
        assert pages(backend, kind, limit) == expected
        assert pages(backend, kind, limit, down=True) == expected[::-1]

    def test_w11_a_page_begins_behind_a_key_that_is_not_there_too(self, backend: Backend) -> None:
        put(backend, *[checkpoint(at) for at in (2, 4, 6)])
        assert [key(row) for row in backend.scan(SESSION, Kind.CHECKPOINT, after=3, limit=9)] == [4, 6]
        assert [key(row) for row in backend.scan(SESSION, Kind.CHECKPOINT, before=5, limit=9)] == [4, 2]
        assert not backend.scan(SESSION, Kind.CHECKPOINT, after=6, limit=9)
        assert not backend.scan(SESSION, Kind.CHECKPOINT, before=2, limit=9)
        assert not backend.scan("nobody", Kind.CHECKPOINT, limit=9)
        assert not backend.scan(SESSION, Kind.CHECKPOINT, limit=9, hidden=True)
        assert not backend.scan(SESSION, Kind.MESSAGE, limit=9)

    # ancestors and children

    def test_w11_ancestors_are_found_along_parents_and_not_along_numbers(self, backend: Backend) -> None:
        put(backend, checkpoint(1), checkpoint(2, 1), checkpoint(3, 1), checkpoint(7, 2), checkpoint(8, 3))
        assert [key(row) for row in backend.ancestors(SESSION, 7, limit=9)] == [7, 2, 1]
        assert [key(row) for row in backend.ancestors(SESSION, 8, limit=2)] == [8, 3]
        assert not backend.ancestors(SESSION, 5, limit=9)
        assert not backend.ancestors("nobody", 7, limit=9)

    def test_w11_children_are_those_whose_parent_it_is_now(self, backend: Backend) -> None:
        put(backend, checkpoint(1), checkpoint(5, 1), checkpoint(3, 1), checkpoint(4, 3))
        put(backend, checkpoint(9, 1), session="another")
        assert backend.read(Ask(SESSION, children_of=(1, 3, 4))).children == {1: [3, 5], 3: [4], 4: []}
        put(backend, checkpoint(4, 1))
        drop(backend, (Kind.CHECKPOINT, 3))
        assert backend.read(Ask(SESSION, children_of=(1, 3))).children == {1: [4, 5], 3: []}
        assert [key(row) for row in backend.ancestors(SESSION, 4, limit=9)] == [4, 1]

    # ids

    def test_an_id_of_our_making_is_located_and_compared_whole(self, backend: Backend) -> None:
        rows = [checkpoint(at) for at in (1, 2, 300, MAX_SEQUENCE)]
        put(backend, *rows)
        found = backend.read(Ask(SESSION, ids=tuple([row.id for row in rows]))).checkpoints
        assert {at: bare(row) for at, row in found.items()} == {row.sequence: bare(row) for row in rows}
        strange = [make_id(2, UID, b"another"), make_id(2, bytes(16), rows[1].tail), make_id(5, UID, bytes(7)), "no"]
        view = backend.read(Ask(SESSION, ids=tuple(strange)))
        assert not view.checkpoints
        assert not view.foreign

    def test_a_foreign_id_is_found_by_itself_and_by_how_it_begins(self, backend: Backend) -> None:
        ids = ["run-1", "run-10", "run_1", "RUN-1", "run%", "\U0010ffff", "\U0010ffff\U0010ffff", "ab" * 16, *NAMES[:9]]
        rows = [checkpoint(at, id_=id_) for at, id_ in enumerate(ids, 1)]
        put(backend, *rows)
        put(backend, checkpoint(40, id_="run-1"), session="another")
        numbers = {id_: at for at, id_ in enumerate(ids, 1)}
        for id_ in ids:
            view = backend.read(Ask(SESSION, ids=(id_,)))
            assert view.foreign == {id_: numbers[id_]}
            assert set(view.checkpoints) == {numbers[id_]}
        for start in ("run-1", "run", "RUN", "run_", "r", "%", "\U0010ffff", "ab" * 4, "nothing"):
            expected = {id_: at for id_, at in numbers.items() if id_.startswith(start)}
            assert backend.read(Ask(SESSION, prefix=start)).foreign == expected
        drop(backend, (Kind.CHECKPOINT, numbers["run-1"]))
        assert backend.read(Ask(SESSION, prefix="run-")).foreign == {"run-10": 2}
        assert not backend.read(Ask(SESSION, ids=("run-1",))).checkpoints
        put(backend, checkpoint(50, id_="run-1"))
        assert backend.read(Ask(SESSION, ids=("run-1",))).foreign == {"run-1": 50}

    def test_the_checkpoints_that_names_stand_for_come_along_if_asked_for(self, backend: Backend) -> None:
        rows = [checkpoint(at, at - 1 or None) for at in range(1, 5)]
        put(backend, *rows, LaneRow("main", head=rows[3].head), LaneRow("idle"), TagRow("a tag", 2))
        for names, expected in [
            (EVERY, {2, 4}),
            (("main", "idle"), {4}),
            (("a tag",), {2}),
            (("idle", "nobody"), set()),
        ]:
            view = backend.read(Ask(SESSION, names=names, heads=True))
            assert {at: bare(row) for at, row in view.checkpoints.items()} == {
                at: bare(rows[at - 1]) for at in expected
            }
            assert not backend.read(Ask(SESSION, names=names)).checkpoints
        view = backend.read(Ask(SESSION, names=("main",), heads=True, sequences=(1, 4), ids=(rows[2].id,)))
        assert set(view.checkpoints) == {1, 3, 4}

    # calls

    def test_pending_calls_are_those_under_the_journal_of_the_branch(self, backend: Backend) -> None:
        put(backend, LaneRow("main", run=7, journal=4), LaneRow("other", run=8, journal=4), LaneRow("idle"))
        rows = [call_row(f"{at}", at=at) for at in [(7, 4, 0), (7, 4, 1), (7, 3, 0), (8, 4, 0)]]
        put(backend, *rows, TagRow("tag", 1))
        view = backend.read(Ask(SESSION, names=EVERY, pending=EVERY, counted=("main", "other", "idle", "nobody")))
        assert view.pending == {"main": rows[:2], "other": rows[3:], "idle": []}
        assert view.counts == {"main": 2, "other": 1, "idle": 0}
        view = backend.read(Ask(SESSION, names=("main", "other"), pending=("other", "nobody"), calls=((7, 3, 0),)))
        assert view.pending == {"other": rows[3:]}
        assert view.calls == {(7, 3, 0): rows[2]}

    def test_a_call_that_is_missing_has_its_place_and_the_next_has_another(self, backend: Backend) -> None:
        put(backend, LaneRow("main", run=7, journal=4))
        put(backend, *[call_row(f"{n}", at=(7, 4, n)) for n in (1, 2, 4)])
        ask = Ask(SESSION, names=EVERY, pending=EVERY, counted=("main",), journals=((7, 4), (7, 5)))
        view = backend.read(ask)
        places = [row.n if isinstance(row, CallRow) else row.key for row in view.pending["main"]]
        assert places == [(7, 4, 0), 1, 2, (7, 4, 3), 4]
        assert list(view.journals[7, 4]) == list(view.pending["main"])
        assert not view.journals[7, 5]
        assert view.counts == {"main": 5}

    # states

    @pytest.mark.parametrize("keyframe_every", [1, 3, 12, 99])
    def test_every_checkpoint_of_a_long_history_gives_back_its_state(
        self, backend: Backend, keyframe_every: int
    ) -> None:
        author = Author(backend, keyframe_every=keyframe_every)
        author.grow(27)
        check_states(backend, SESSION, author.states)
        for row in author.rows:
            records = backend.state(SESSION, row.sequence)
            assert len(records.rows) <= keyframe_every
            assert records.lane is None
            assert [one.keyframe for one in records.rows if isinstance(one, CheckpointRow)][:1] == [True]
            assert all([a.sequence == b.parent for a, b in pairwise(records.rows)])  # type: ignore[union-attr]

    def test_a_state_is_found_by_branch_and_by_tag(self, backend: Backend) -> None:
        author = Author(backend)
        rows = author.grow(5)
        other = author.fork(rows[1], "2")
        other.grow(2)
        tag(backend, SESSION, rows[2], "5")
        for ref, sequence in [("main", 5), ("2", 7), ("5", 3), (2, 2), (5, 5)]:
            records = backend.state(SESSION, ref)  # type: ignore[arg-type]
            assert key(records.rows[-1]) == sequence
            assert open_records(records) == (author.states | other.states)[sequence]
            assert records.session == backend.read(Ask(SESSION)).session
        assert backend.state(SESSION, "main").lane == backend.read(Ask(SESSION, names=("main",))).lanes["main"]
        assert backend.state(SESSION, "5").lane is None

    def test_a_state_that_is_not_there_is_empty_and_says_whether_the_session_is(self, backend: Backend) -> None:
        assert backend.state(SESSION, "main").session is None
        put(backend, LaneRow("main"))
        for ref in ("main", "nobody", 5, 0, -1):
            records = backend.state(SESSION, ref)
            assert records.session is not None
            assert not records.rows
            assert records.keyframe is None
        assert backend.state(SESSION, "main").lane == LaneRow("main")

    def test_a_keyframe_can_be_passed_over(self, backend: Backend) -> None:
        author = Author(backend, keyframe_every=4)
        author.grow(10)
        for without, first in [((), 9), ((9,), 5), ((5,), 9), ((9, 5), 1)]:
            records = backend.state(SESSION, 10, without=without)
            assert key(records.rows[0]) == first
            assert open_records(records) == author.states[10]
        records = backend.state(SESSION, 10, without=(1, 5, 9))
        assert [key(row) for row in records.rows] == list(range(1, 11))
        assert records.keyframe is None

    def test_salvage_of_what_is_intact_loses_nothing(self, backend: Backend) -> None:
        author = Author(backend, keyframe_every=4)
        author.grow(10)
        for sequence, state in author.states.items():
            assert open_records(backend.state(SESSION, sequence, salvage=True)) == state

    def test_keyframes_without_deltas_and_empty_states_are_read_alike(self, backend: Backend) -> None:
        author = Author(backend)
        for state in ({}, {}, {"a": 1}, {"a": 1}, {}):
            author.commit(state, delta=bool(state))
        author.grow(3, delta=False)
        check_states(backend, SESSION, author.states)

    def test_a_fork_shares_its_history_and_then_goes_its_own_way(self, backend: Backend) -> None:
        author = Author(backend, keyframe_every=9)
        rows = author.grow(6)
        states = dict(author.states)
        for row in rows:
            other = author.fork(row, f"at {row.sequence}")
            other.grow(2)
            states |= other.states
        check_states(backend, SESSION, states)
        fork(backend, "a session", rows[0], "another")
        assert read_back(backend, SESSION, "another") == author.states[1]

    # large and odd

    def test_an_ask_may_name_very_many(self, backend: Backend) -> None:
        names = tuple([f"name {number}" for number in range(MANY)])
        numbers = tuple(range(1, MANY + 1))
        checkpoints = [checkpoint(at, at - 1 or None, id_=None if at % 2 else f"id {at}") for at in numbers]
        put(backend, *[TagRow(name, 1) for name in names], *checkpoints)
        ids = tuple([row.id for row in checkpoints])
        view = backend.read(Ask(SESSION, names=names, sequences=numbers, children_of=numbers))
        assert set(view.tags) == set(names)
        assert set(view.checkpoints) == set(numbers)
        assert sum(map(len, view.children.values())) == MANY - 1
        view = backend.read(Ask(SESSION, ids=ids))
        assert set(view.checkpoints) == set(numbers)
        assert len(view.foreign) == MANY // 2
        assert len(backend.ancestors(SESSION, MANY, limit=MANY * 2)) == MANY
        assert len(backend.state(SESSION, MANY).rows) == MANY
        drop(backend, *[(Kind.NAME, name) for name in names], *[(Kind.CHECKPOINT, at) for at in numbers])
        assert not backend.scan(SESSION, Kind.CHECKPOINT, limit=9)
        assert not backend.read(Ask(SESSION, names=EVERY)).tags

    def test_rows_may_be_as_large_as_a_row_may_be(self, backend: Backend) -> None:
        noise = secrets.token_bytes(LARGE_BYTES)
        row = checkpoint(1, delta=noise, keyframe=True, fields=noise[: 2**20])
        frame = KeyframeRow(1, noise[::-1], ())
        call = call_row("large", at=(7, 1, 0), result=noise[: 2**22])
        put(backend, LaneRow("main", head=row.head, run=7, journal=1), row, frame, call)
        again = self.again(backend)
        view = again.read(Ask(SESSION, names=EVERY, sequences=(1,), pending=EVERY))
        assert bare(view.checkpoints[1]) == bare(row)
        assert view.pending["main"] == [call]
        assert again.state(SESSION, "main").keyframe == frame.data

    def test_names_of_any_kind_never_collide_and_come_back_as_they_were(self, backend: Backend) -> None:
        for name in NAMES:
            put(backend, LaneRow(name, reason=name), session=name, agent=name)
        for number, name in enumerate(NAMES):
            put(backend, LaneRow(name, token=number) if number % 2 else TagRow(name, number))
        backend = self.again(backend)
        for number, name in enumerate(NAMES):
            view = backend.read(Ask(name, names=(name,)))
            assert view.session is not None
            assert (view.session.id, view.session.agent, view.session.lanes) == (name, name, 1)
            assert view.lanes[name].reason == name
            ours = backend.read(Ask(SESSION, names=(name,)))
            assert ours.lanes.keys() | ours.tags.keys() == {name}
            assert (ours.lanes[name].token if number % 2 else ours.tags[name].sequence) == number
        found = backend.scan(SESSION, Kind.NAME, limit=999)
        assert [key(row) for row in found] == sorted(NAMES)

    def test_deleting_checkpoints_leaves_the_others_readable(self, backend: Backend) -> None:
        author = Author(backend, keyframe_every=6)
        rows = author.grow(12)
        other = author.fork(rows[4], "other")
        other.grow(3)
        states = author.states | other.states
        for gone in [(5,), (1,), (12,), (2, 3, 4), (13, 14), (7, 9)]:
            assert delete(backend, SESSION, *gone) == len(gone)
            states = {at: state for at, state in states.items() if at not in gone}
            check_states(backend, SESSION, states)
        session = backend.read(Ask(SESSION)).session
        assert session is not None
        assert session.checkpoints == len(states)
        assert not list(backend.check())


def numbered_rows(kind: Kind) -> list[Row]:
    """Rows of one kind whose numbers are neither in order nor without gaps."""
    numbers = [1, 10, 9, 2, 100, 255, 256, 257, 2**31, 2**16, 65535, MAX_SEQUENCE, 2**31 - 1]
    rows: dict[Kind, Any] = {
        Kind.CHECKPOINT: [checkpoint(number, 1 if number > 1 else None) for number in numbers],
        Kind.KEYFRAME: [KeyframeRow(number, blob(number)[1], ()) for number in numbers],
        Kind.CALL: [
            call_row(f"{run} {journal} {n}", at=(run, journal, n))
            for run in (1, 2**40, 300)
            for journal in (0, MAX_SEQUENCE, 70_000)
            for n in (1, 0, 300)
        ],
        Kind.NAME: [TagRow(name, 1) if len(name) % 2 else LaneRow(name) for name in NAMES],
    }
    return list(rows[kind])


def pages(backend: Backend, kind: Kind, limit: int, *, down: bool = False) -> list[Row | Unreadable]:
    """All rows of a kind, read page by page."""
    found: list[Row | Unreadable] = []
    at: Key | None = None
    first: Key = "\U0010ffff" * 257 if kind is Kind.NAME else (2**62, 0, 0) if kind is Kind.CALL else 2**33
    while True:
        if down:
            page = backend.scan(SESSION, kind, before=first if at is None else at, limit=limit)
        else:
            page = backend.scan(SESSION, kind, after=at, limit=limit)
        assert len(page) <= limit
        if not page:
            return found
        found += [bare(row) for row in page]
        assert len(found) < 1_000, "the pages have no end"
        at = key(page[-1])


def key(row: Row | Unreadable) -> Key:
    """The key of a row that must be readable."""
    assert not isinstance(row, Unreadable)
    return key_of(row)
