"""Segments, for a backend that keeps them: no verb says anything else of a checkpoint because it is packed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from backstay.errors import CorruptionError
from backstay.port import (
    EVERY,
    Ask,
    Backend,
    Batch,
    CheckpointRow,
    Kind,
    SegmentRow,
    SessionQuery,
    SessionRow,
    Unreadable,
    View,
)
from backstay.port.segment_packing import pack_segment
from backstay.port.segments import NOT_READ, open_segment
from backstay.store.packing import pack_older
from backstay.store.reading import Loaded, load
from backstay.testing.author import SESSION, Author, check_row, check_states, every_row, read_back, tag
from backstay.testing.contract.damage import CHANGES, every_change
from backstay.testing.contract.handmade import bare, blob, checkpoint, put
from backstay.testing.contract.hidden import hide, take_away
from backstay.testing.contract.hooks import Hooks
from backstay.upkeep.deletion import delete_some

SHAPES = [(4, 0), (4, 1), (1, 3), (50, 0)]  # how many rows at a time, and how many short segments they are merged with


class PackingContract(Hooks):
    """What a backend owes that says `packs`; the others never meet a segment."""

    @pytest.fixture
    def packing(self, backend: Backend) -> Backend:
        """The backend, if it packs."""
        if not backend.packs:
            pytest.skip("this backend keeps no segments")
        return backend

    @pytest.mark.parametrize(("rows", "merged"), SHAPES)
    def test_w11_no_verb_says_anything_else_of_a_packed_checkpoint(
        self, packing: Backend, rows: int, merged: int
    ) -> None:
        states = branchy(packing)
        truth = told(packing)
        for _ in range(9):
            assert pack(packing, rows=rows, merged=merged)
            assert told(packing) == truth
            check_loads(packing, states)
        assert line_of(packing).packed == max(states) if rows > 1 else 9
        check_states(packing, SESSION, states)
        reopened = self.again(packing)
        assert told(reopened) == truth
        check_states(reopened, SESSION, states)
        assert not list(reopened.check())

    def test_w11_packed_checkpoints_are_followed_by_others_forked_and_named(self, packing: Backend) -> None:
        states = branchy(packing)
        pack(packing, rows=50)
        author = Author(packing).stand_on_head()
        author.grow(3)
        other = author.fork(author.rows[0], "later")
        other.grow(2)
        first = next(iter(packing.ancestors(SESSION, 2, limit=1)))
        assert isinstance(first, CheckpointRow)
        old = author.fork(first, "from a packed one")
        old.grow(2)
        tag(packing, SESSION, first, "on a packed one")
        states |= author.states | other.states | old.states
        check_states(packing, SESSION, states)
        pack(packing, rows=4)
        check_states(packing, SESSION, states)
        assert read_back(packing, SESSION, "on a packed one") == states[2]
        assert packing.read(Ask(SESSION, children_of=(2,))).children[2] == [3, 6, old.rows[0].sequence]

    @pytest.mark.parametrize("hurt", [5, 6])  # the first of its segment, and one behind it
    def test_a_delta_that_was_damaged_before_it_was_packed_is_found_behind_it(
        self, packing: Backend, hurt: int
    ) -> None:
        author = Author(packing, keyframe_every=50)
        author.grow(9)
        row = author.rows[hurt - 1]
        put(packing, msgspec.structs.replace(row, delta=row.delta[:-1] + bytes([row.delta[-1] ^ 1])))
        for merged in (0, 0, 3):
            pack(packing, rows=4, merged=merged)
            check_loads(packing, {at: author.states[at] for at in range(1, hurt)})
            for at in range(hurt, 10):
                with pytest.raises(CorruptionError):
                    load(packing, SESSION, at)

    def test_w2_a_rule_sees_segments_as_they_are_kept(self, packing: Backend) -> None:
        branchy(packing)
        pack(packing, rows=4)
        pack(packing, rows=4)
        kept = every_row(packing, SESSION, Kind.SEGMENT)
        assert [(row.first, row.last) for row in kept if isinstance(row, SegmentRow)] == [(1, 4), (5, 8)]
        seen: list[Any] = []

        def decide(view: Any) -> Batch:
            seen.append(dict(view.segments))
            return Batch()

        packing.write(Ask(SESSION, segments=(2, 8, 9, 99)), decide)
        assert {first: bare(row) for first, row in seen[0].items()} == {1: bare(kept[0]), 5: bare(kept[1])}
        view = packing.read(Ask(SESSION, sequences=(2, 9)))
        assert [view.checkpoints[at].delta == NOT_READ for at in (2, 9)] == [True, False]  # type: ignore[union-attr]

    @pytest.mark.parametrize("limit", [1, 3, 100])
    def test_w11_segments_are_paged_by_where_they_end_and_begin(self, packing: Backend, limit: int) -> None:
        branchy(packing)
        while line_of(packing).packed < 10:
            pack(packing, rows=3)
        kept = [(row.first, row.last) for row in every_row(packing, SESSION, Kind.SEGMENT)]  # type: ignore[union-attr]
        assert kept == [(1, 3), (4, 6), (7, 9), (10, 12)]
        for at in range(14):
            up = packing.scan(SESSION, Kind.SEGMENT, after=at, limit=limit)
            down = packing.scan(SESSION, Kind.SEGMENT, before=at, limit=limit)
            assert [row.first for row in up] == [first for first, last in kept if last > at][:limit]  # type: ignore[union-attr]
            assert [row.first for row in down] == [first for first, _ in kept[::-1] if first < at][:limit]  # type: ignore[union-attr]

    def test_w1_a_segment_takes_the_place_of_all_between_its_ends(self, packing: Backend) -> None:
        rows = [checkpoint(at, at - 1 or None, keyframe=at == 1) for at in range(1, 9)]
        put(packing, *rows)
        uid = line_of(packing).uid
        put(packing, pack_segment(rows[:3], uid=uid), packed=3)
        put(packing, pack_segment(rows[3:6], uid=uid), packed=6)
        assert [bare(row) for row in every_row(packing, SESSION, Kind.CHECKPOINT)] == [bare(row) for row in rows]
        put(packing, pack_segment([*rows[:2], *rows[4:6]], uid=uid), checkpoints=6)
        left = [*rows[:2], *rows[4:]]
        assert [bare(row) for row in every_row(packing, SESSION, Kind.CHECKPOINT)] == [bare(row) for row in left]
        assert packing.read(Ask(SESSION, sequences=(3, 4))).checkpoints == {}
        assert packing.read(Ask(SESSION, children_of=(3, 5, 6))).children == {3: [], 5: [6], 6: [7]}
        assert len(every_row(packing, SESSION, Kind.SEGMENT)) == 1

    def test_w7_a_blob_stays_as_long_as_a_segment_refers_to_it(self, packing: Backend) -> None:
        blobs = dict([blob(1), blob(2)])
        one, two = blobs
        rows = [checkpoint(1, refs=(one,), keyframe=True), checkpoint(2, 1, refs=(one, two))]
        put(packing, *rows, blobs=blobs)
        uid = line_of(packing).uid
        put(packing, pack_segment(rows, uid=uid), packed=2)
        packing.tend()
        assert set(packing.blobs([one, two])) == {one, two}
        put(packing, pack_segment(rows[:1], uid=uid), checkpoints=1)
        packing.tend()
        assert set(packing.blobs([one, two])) == {one}
        put(packing, msgspec.structs.replace(pack_segment(rows[:1], uid=uid), refs=()))
        packing.tend()
        assert not packing.blobs([one, two])
        assert not list(packing.check())

    @pytest.mark.parametrize("gone", [(2,), (1, 2, 3, 4), (3, 5, 6), (8, 9), (12,)])
    @pytest.mark.parametrize(("rows", "merged"), SHAPES[:2])
    def test_what_is_deleted_inside_a_segment_is_nowhere_any_more(
        self, packing: Backend, gone: tuple[int, ...], rows: int, merged: int
    ) -> None:
        states = branchy(packing)
        for _ in range(2):
            pack(packing, rows=rows, merged=merged)
        went = set(gone)
        assert delete_some(packing, SESSION, went) == len(went)
        check_states(packing, SESSION, {at: state for at, state in states.items() if at not in went})
        for row in every_row(packing, SESSION, Kind.SEGMENT):
            assert isinstance(row, SegmentRow)
            assert not went & set(open_segment(row, uid=line_of(packing).uid).sequences)
        packing.tend()
        assert not list(packing.check())
        kept = self.raw_bytes(packing) or b""
        assert not [at for at in went if secret_of(at).encode() in kept]
        pack(packing, rows=50, merged=3)
        check_states(packing, SESSION, {at: state for at, state in states.items() if at not in went})

    def test_a_packed_session_that_is_taken_away_leaves_nothing(self, packing: Backend) -> None:
        branchy(packing)
        pack(packing, rows=5)
        row = hide(packing)
        take_away(packing, row)
        assert not packing.sessions(SessionQuery(hidden=True))
        packing.tend()
        assert not list(packing.check())
        assert not packing.scan(row.id, Kind.SEGMENT, limit=9, hidden=True)

    @every_change
    def test_w10_a_damaged_segment_costs_its_checkpoints_and_those_on_them(self, packing: Backend, change: str) -> None:
        author = Author(packing, keyframe_every=4)  # keyframes at 1, 5, 9
        author.grow(12)
        for _ in range(2):
            pack(packing, rows=4)  # 1 to 4, 5 to 8
        before = told(packing)
        if not self.harm(packing, SESSION, Kind.SEGMENT, 5, CHANGES[change]):
            pytest.skip(f"a segment of this backend cannot be {change}")
        backend = self.again(packing)
        found = set()
        for sequence, state in author.states.items():
            try:
                assert read_back(backend, SESSION, sequence) == state
                found.add(sequence)
            except CorruptionError:
                pass
        assert found >= {1, 2, 3, 4, 9, 10, 11, 12}
        assert change in ("longer", "its first byte") or not found & {6, 7, 8}
        every = before["100 after 0"]  # one that was removed is missed where the list ends, not in each page
        for name, value in told(backend, gently=True).items():
            seen, was = (value, [*before[name], *every]) if isinstance(value, list) else ([value], [before[name]])
            assert value is None or all([one in was or is_told(one) for one in seen]), name
        later = Author(backend).stand_on_head()
        later.grow(1)
        assert read_back(backend, SESSION, "main") == later.state


def check_loads(backend: Backend, states: Mapping[int, Any]) -> None:
    """Each state as a reader of it has it, who opens segments in one go."""
    for sequence, state in states.items():
        found = load(backend, SESSION, sequence)
        assert isinstance(found, Loaded)
        assert found.state == state


def secret_of(at: int) -> str:
    """What only the state of one checkpoint says."""
    return sha256(b"%d" % at).hexdigest()


def branchy(backend: Backend) -> dict[int, Any]:
    """Twelve checkpoints of two branches, one with a foreign id; each state says what no other does."""
    author = Author(backend, keyframe_every=5)

    def said(one: Author, at: int, **more: Any) -> CheckpointRow:
        return one.commit({**one.state, "turn": at, "said": secret_of(at)}, **more)

    first = [said(author, at) for at in range(1, 5)]
    other = author.fork(first[1], "side")
    for at in range(5, 13):
        last = said(other if at % 3 == 0 else author, at, **({"id_": "an id of theirs"} if at == 7 else {}))
        if at == 10:
            tag(backend, SESSION, last, "a tag")
    return author.states | other.states


def pack(backend: Backend, *, rows: int, merged: int = 0) -> bool:
    """What a commit does once in a while."""
    line = line_of(backend)
    return pack_older(backend, SESSION, uid=line.uid, packed=line.packed, rows=rows, merged=merged)


def line_of(backend: Backend, session: str = SESSION) -> SessionRow:
    """The session's line."""
    line = backend.read(Ask(session)).session
    assert line is not None
    return line


def told(backend: Backend, *, gently: bool = False) -> dict[str, Any]:
    """What each verb says of the checkpoints of a session, wherever they lie; None for a CorruptionError."""
    read, scan = backend.read, backend.scan
    acts: dict[str, Callable[[], Any]] = {
        "foreign": lambda: read(Ask(SESSION, prefix="an id")).foreign,
        "heads": lambda: _shown(read(Ask(SESSION, names=EVERY, heads=True))),
    }
    for at in range(1, 14):
        acts[f"#{at}"] = lambda at=at: _shown(read(Ask(SESSION, sequences=(at,))))  # type: ignore[misc]
        acts[f"children of {at}"] = lambda at=at: read(Ask(SESSION, children_of=(at,))).children[at]  # type: ignore[misc]
        acts[f"line of {at}"] = lambda at=at: _rows(backend.ancestors(SESSION, at, limit=20))  # type: ignore[misc]
    for limit, at in itertools.product((1, 4, 100), (0, 3, 4, 8, 12, 13)):
        up = partial(scan, SESSION, Kind.CHECKPOINT, after=at, limit=limit)
        down = partial(scan, SESSION, Kind.CHECKPOINT, before=at, limit=limit)
        acts[f"{limit} after {at}"] = lambda up=up: [bare(row) for row in up()]  # type: ignore[misc]
        acts[f"{limit} before {at}"] = lambda down=down: [bare(row) for row in down()]  # type: ignore[misc]
    for id_ in ("an id of theirs", "nobody's"):
        acts[id_] = lambda id_=id_: _shown(read(Ask(SESSION, ids=(id_,))))  # type: ignore[misc]
    found: dict[str, Any] = {}
    for name, act in acts.items():
        try:
            found[name] = act()
        except CorruptionError:
            if not gently:
                raise
            found[name] = None
    return found


def _shown(view: View) -> list[CheckpointRow | Unreadable]:
    return _rows([view.checkpoints[at] for at in sorted(view.checkpoints)])


def _rows(rows: Sequence[CheckpointRow | Unreadable]) -> list[CheckpointRow | Unreadable]:
    """Checkpoints but for their deltas, which come with packed ones only where they are asked for."""
    return [
        msgspec.structs.replace(row, delta=b"", refs=None) if isinstance(row, CheckpointRow) else row for row in rows
    ]


def is_told(row: object) -> bool:
    """True if it shows that a row is damaged: there is none in its place, or its fields or its delta do not open."""
    if isinstance(row, CheckpointRow):
        try:
            check_row(row)
        except CorruptionError:
            return True
        return bool(row.delta)  # its seal is for the reader of the state, who opens it
    return isinstance(row, Unreadable)
