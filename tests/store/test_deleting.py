"""Deleting takes away what was asked for, all of it, and nothing else."""

import random
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import InvalidInputError, NotFoundError, Session, Store
from backstay.port import Ask
from backstay.store.packing import PACK_ROWS


def long_history(session: Session, count: int) -> dict[str, dict[str, Any]]:
    """Checkpoints by id with the states they must give for ever."""
    states: dict[str, dict[str, Any]] = {}
    messages: list[Any] = []
    for number in range(count):
        messages += [{"role": "user", "content": f"message {number} " * 10}]
        state = {"messages": list(messages), "n": number, "blob": f"b{number // 10}" * 3000}
        states[session.commit(state).id] = state
    return states


def all_readable(store: Store, session: Session, states: dict[str, dict[str, Any]]) -> None:
    for reader in (session, store.session(session.id)):
        for id_, state in states.items():
            assert reader.load(id_) == state
    report = store.verify()
    assert report.ok, str(report)
    assert report.checked == len(states)


@pytest.mark.parametrize("number", [0, 1, 15, 16, 17, 30, 38])
def test_a_checkpoint_deleted_in_the_middle_leaves_its_descendants_readable(
    store: Store, session: Session, number: int
) -> None:
    states = long_history(session, 40)
    ids = list(states)
    session.delete(ids[number])
    del states[ids[number]]
    with pytest.raises(NotFoundError):
        session.load(ids[number])
    all_readable(store, session, states)
    assert [point.id for point in session.log()] == list(states)[::-1]
    (info,) = store.sessions()
    assert info.checkpoints == 39
    new = {**states[ids[-1]], "more": True}
    states[session.commit(new).id] = new
    all_readable(store, session, states)


def test_a_deleted_parent_is_still_named_by_its_children(session: Session) -> None:
    first, second, third = [session.commit({"n": number}) for number in range(3)]
    session.delete(second)
    read = session.checkpoint(third.id)
    assert (read.parent_id, read.parent_digest, read.digest) == (second.id, second.digest, third.digest)
    assert [point.id for point in session.log()] == [third.id, first.id]
    assert session.checkpoint("main~1") == first
    session.delete(first)
    read = session.checkpoint(third.id)
    assert (read.parent_id, read.parent_digest) == (second.id, second.digest)
    assert [point.id for point in session.log()] == [third.id]


def test_every_checkpoint_but_one_can_be_deleted_in_any_order(store: Store, session: Session) -> None:
    states = long_history(session, 30)
    order = sorted(states, key=lambda id_: id_[::-1])
    head = session.checkpoint().id
    for id_ in order:
        if id_ != head:
            session.delete(id_)
            del states[id_]
            assert session.load() == states[head]
    all_readable(store, session, states)
    assert store.stats().checkpoints == 1


def test_a_deleted_head_takes_its_branches_back_to_the_parent(store: Store, session: Session) -> None:
    first, second = session.commit({"n": 1}), session.commit({"n": 2})
    session.fork(second, "b")
    session.delete("main")
    assert session.branches() == {"main": first, "b": first}
    assert session.commit({"n": 3}).parent_id == first.id
    assert session.commit({"n": 4}, branch="b").parent_id == first.id
    assert store.verify().ok


def test_a_deleted_fork_point_leaves_both_branches_readable(store: Store, session: Session) -> None:
    states = long_history(session, 20)
    ids = list(states)
    session.fork(ids[10], "b")
    for number in range(20):
        state = {**states[ids[10]], "b": number}
        states[session.commit(state, branch="b").id] = state
    session.delete(ids[10])
    del states[ids[10]]
    all_readable(store, session, states)
    assert session.checkpoint("b~20").id == ids[9]


def test_a_tagged_checkpoint_and_the_last_one_of_a_branch_are_not_deleted(session: Session) -> None:
    first = session.commit({"n": 1})
    with pytest.raises(InvalidInputError, match="main"):
        session.delete(first)
    second = session.commit({"n": 2})
    session.tag(second, "keep")
    with pytest.raises(InvalidInputError, match="keep"):
        session.delete(second)
    assert session.load(second) == {"n": 2}
    session.untag("keep")
    session.delete(second)
    assert session.load() == {"n": 1}


def test_a_deleted_undo_target_cannot_be_undone_to(session: Session) -> None:
    first, second = session.commit({"n": 1}), session.commit({"n": 2})
    session.restore(first)
    session.delete(second)
    with pytest.raises(NotFoundError):
        session.undo()
    assert session.load() == {"n": 1}


def test_another_writer_carries_on_after_a_deletion_behind_its_back(store: Store, session: Session) -> None:
    states = long_history(session, 25)
    writer = store.session("ticket-42")
    writer.load()
    first = writer.commit({"messages": ["before"]})
    states[first.id] = {"messages": ["before"]}
    ids = list(states)
    for id_ in (ids[20], ids[10], ids[23]):
        session.delete(id_)
        del states[id_]
    for number in range(20):
        state = {"messages": ["before", number] * 9}
        states[writer.commit(state).id] = state
    all_readable(store, session, states)


def test_deleting_what_is_not_there_says_so(store: Store, session: Session) -> None:
    with pytest.raises(NotFoundError):
        session.delete("main")
    with pytest.raises(NotFoundError):
        store.delete("nobody")
    session.commit({})
    with pytest.raises(NotFoundError):
        session.delete("nope")


MARK = "xqzkwvmarker"
NOISE = random.Random(1).randbytes(9000)  # does not compress, so it would be found as it is


def raw_bytes(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(path.parent.iterdir()))


@pytest.mark.parametrize("neighbour", [False, True])
def test_a_deleted_session_leaves_nothing_behind_not_even_in_free_pages(path: Path, neighbour: bool) -> None:
    with backstay.open(path) as store:
        if neighbour:
            store.session("other").commit({"messages": ["stays"] * 100})
        session = store.session(f"id-{MARK}", agent=f"agent-{MARK}")
        for number in range(40):
            session.commit(
                {"messages": [f"short {MARK} {number}"], f"key-{MARK}-{number}": 1, "noise": NOISE[number:]},
                label=f"label-{MARK}",
                metadata={"m": MARK},
                resume_hint=MARK,
                status=backstay.Status.FAILED(MARK),
                usage={"extra": {MARK: 1}},
                trigger=MARK,
            )
        session.fork("main", f"branch-{MARK}")
        session.tag("main", f"tag-{MARK}")
        session.restore("main~3")
        session.delete("main~3")
        assert MARK.encode() in raw_bytes(path)
        assert NOISE[5000:5100] in raw_bytes(path)
        store.delete(session.id)
        assert MARK.encode() not in raw_bytes(path)
        assert NOISE[5000:5100] not in raw_bytes(path)
        assert [info.id for info in store.sessions()] == (["other"] if neighbour else [])
        assert store.stats().checkpoints == neighbour
        with pytest.raises(NotFoundError):
            store.session(session.id).load()
        if neighbour:
            assert store.session("other").load() == {"messages": ["stays"] * 100}
        assert store.verify().ok
    assert MARK.encode() not in raw_bytes(path)


def test_a_deleted_session_gives_its_space_back(store: Store, path: Path) -> None:
    store.session("small").commit({"n": 1})
    before = path.stat().st_size
    session = store.session("big")
    for number in range(5):
        session.commit({"data": [f"{number}-{at}" * 1000 for at in range(100)]})
    store.delete("big")
    assert path.stat().st_size <= before + 64 * 1024


def test_what_two_sessions_share_stays_as_long_as_one_needs_it(store: Store) -> None:
    image = bytes(range(256)) * 1000
    for name in ("a", "b"):
        store.session(name).commit({"image": image})
    store.delete("a")
    assert store.session("b").load() == {"image": image}
    assert store.verify().ok
    store.delete("b")
    assert store.verify().ok
    assert store.stats().logical_bytes == 0


def test_a_session_can_be_made_again_under_its_old_name(store: Store, session: Session) -> None:
    session.commit({"n": "old"}, usage={"tokens_in": 5})
    session.fork("main", "b")
    store.delete(session.id)
    again = store.session(session.id)
    point = again.commit({"n": "new"})
    assert (point.sequence, point.parent_id, point.total_usage.tokens_in) == (1, None, 0)
    assert set(again.branches()) == {"main"}
    assert store.verify().ok


def test_a_checkpoint_that_another_session_object_deleted_does_not_come_back_by_packing(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        ours, theirs = store.session("a"), store.session("a")
        for number in range(PACK_ROWS - 1):
            ours.commit({"said": f"message {number}"})
        gone = theirs.checkpoint("main~20")
        theirs.delete(gone.id)
        ours.commit({"said": "the one that packs"})
        assert store.backend.read(Ask("a")).session.packed == 0  # type: ignore[union-attr]
        ours.commit({"said": "the next one"})
        assert store.backend.read(Ask("a")).session.packed >= PACK_ROWS  # type: ignore[union-attr]
        assert gone.id not in [made.id for made in ours.log()]
        assert len(list(ours.log())) == PACK_ROWS
        assert store.verify().ok
