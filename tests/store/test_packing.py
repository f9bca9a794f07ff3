"""What a Session still has of its commits need not be read to be packed; and counts only while no other write came."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import Session, Store
from backstay.port import Ask, Backend, Decide, Kind, SegmentRow, View
from backstay.port.segments import SHAPES, open_segment
from backstay.store.packing import MERGED, PACK_ROWS

ROUND = PACK_ROWS * (MERGED + 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with backstay.open(tmp_path / "store.db") as opened:
        yield opened


def commits(session: Session, count: int, *, start: int = 0) -> dict[str, Any]:
    """Checkpoints by id with the states they must give for ever."""
    states: dict[str, Any] = {}
    messages = [{"role": "user", "content": f"message {number}"} for number in range(start)]
    for number in range(start, start + count):
        messages.append({"role": "user", "content": f"message {number}"})
        states[session.commit({"messages": messages}).id] = {"messages": list(messages)}
    return states


def packed_to(store: Store) -> int:
    line = store.backend.read(Ask("a")).session
    assert line is not None
    return line.packed


def segments(store: Store) -> list[SegmentRow]:
    return [row for row in store.backend.scan("a", Kind.SEGMENT, limit=100) if isinstance(row, SegmentRow)]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> Iterator[list[str]]:
    """The verbs that are called, but for the writes of commits."""
    called: list[str] = []
    with monkeypatch.context() as patch:
        for verb in ("read", "scan", "state", "blobs"):
            act = getattr(backend, verb)

            def told(*given: Any, act: Any = act, verb: str = verb, **named: Any) -> Any:
                called.append(verb)
                return act(*given, **named)

            patch.setattr(backend, verb, told)
        write = backend.write

        def looked(ask: Ask, decide: Decide) -> View:
            if ask.lazy:
                called.append(f"pack, {len(ask.sequences) + len(ask.segments)} compared")
            return write(ask, decide)

        patch.setattr(backend, "write", looked)
        yield called


def test_commits_of_one_session_are_packed_and_merged_without_a_look(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("a")
    states = commits(session, 1)
    with watched(monkeypatch, store.backend) as called:
        states |= commits(session, ROUND + PACK_ROWS - 1, start=1)
    assert [verb for verb in called if verb != "state"] == ["pack, 0 compared"] * (MERGED + 2)
    assert [(row.first, row.last) for row in segments(store)] == [(1, ROUND), (ROUND + 1, ROUND + PACK_ROWS)]
    for id_, state in states.items():
        assert store.session("a").load(id_) == state
    assert store.verify().ok


def test_a_session_that_was_opened_again_merges_what_the_one_before_packed(store: Store) -> None:
    commits(store.session("a"), ROUND - PACK_ROWS)
    commits(store.session("a"), PACK_ROWS, start=ROUND - PACK_ROWS)
    assert [(row.first, row.last) for row in segments(store)] == [(1, ROUND)]
    assert store.verify().ok


def test_a_write_of_another_process_between_commits_is_noticed_by_packing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("a")
    commits(session, PACK_ROWS - 1)
    store.session("a").tag("main~3", "a tag")
    with watched(monkeypatch, store.backend) as called:
        commits(session, 1, start=PACK_ROWS - 1)
    assert called == [f"pack, {PACK_ROWS} compared"]
    assert packed_to(store) == PACK_ROWS


def test_a_checkpoint_deleted_just_before_packing_does_not_come_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("a")
    commits(session, PACK_ROWS - 1)
    gone = session.checkpoint("main~20").id
    write = store.backend.write
    with backstay.open(tmp_path / "store.db") as other:

        def overtaken(ask: Ask, decide: Decide) -> View:
            if ask.lazy and packed_to(other) == 0 and gone in [made.id for made in other.session("a").log()]:
                other.session("a").delete(gone)
            return write(ask, decide)

        monkeypatch.setattr(store.backend, "write", overtaken)
        commits(session, 1, start=PACK_ROWS - 1)
        assert packed_to(store) == 0
        commits(session, 1, start=PACK_ROWS)
    assert packed_to(store) >= PACK_ROWS
    assert gone not in [made.id for made in session.log()]
    assert store.verify().ok


def test_each_delta_of_a_merged_segment_is_checked_but_those_on_another_segment(store: Store) -> None:
    commits(store.session("a"), 2 * ROUND)
    line = store.backend.read(Ask("a")).session
    assert line is not None
    for row in segments(store):
        shapes = open_segment(row, uid=line.uid).open(SHAPES)
        assert shapes.unchecked == ([] if row.first == 1 else [0])
