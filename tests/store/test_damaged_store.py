"""A store with damage in it: what a person can still do, from the store's own face."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import backstay
from backstay import CorruptionError, Damaged, Session, Store
from backstay.port import Ask, Kind
from tests.store.rows import execute, put, rows_of, spoil, take_away
from tests.store.travel import KINDS, open_kind


def message(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"message {number} " + " ".join(str(number * word) for word in range(300))}


def history(session: Session, steps: int) -> list[backstay.Checkpoint]:
    messages: list[dict[str, str]] = []
    made = []
    for number in range(steps):
        messages.append(message(number))
        made.append(session.commit({"messages": messages}))
    return made


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_kind(request.param, tmp_path) as opened:
        yield opened


def damaged(store: Store, part: str, number: int, steps: int = 4) -> list[backstay.Checkpoint]:
    made = history(store.session("s"), steps)
    store.session("other").commit({"fine": True})
    spoil(store, part, made[number])
    return made


def test_a_damaged_head_is_an_error_and_the_newest_intact_one_is_a_call_away(store: Store) -> None:
    made = damaged(store, "delta", -1)
    session = store.session("s")
    with pytest.raises(CorruptionError, match="newest_intact"):
        session.load()
    found = session.newest_intact()
    assert found == made[-2]
    assert session.load(made[-2])["messages"] == [message(number) for number in range(3)]
    assert store.session("other").load() == {"fine": True}


def test_damage_that_another_way_leads_around_costs_nothing(store: Store) -> None:
    session = store.session("s")
    made = history(session, 80)
    both = [row.sequence for row in rows_of(store, Kind.CHECKPOINT) if row.keyframe and row.delta]
    assert both
    spoil(store, "keyframe", made[both[-1] - 1])
    assert [session.load(point)["messages"] for point in made] == [
        [message(number) for number in range(count + 1)] for count in range(80)
    ]
    assert session.load(made[both[-1] - 1], salvage=True) == session.load(made[both[-1] - 1])


def test_work_goes_on_behind_a_damaged_head(store: Store) -> None:
    made = damaged(store, "delta", -1)
    session = store.session("s")
    point = session.restore(made[-2])
    assert point.parent_id == made[-1].id
    assert session.load() == session.load(made[-2])
    session.commit({"messages": []})
    assert store.session("s").load() == {"messages": []}
    assert {id_ for problem in store.verify().problems for id_ in problem.checkpoints} == {made[-1].id}


def test_a_salvage_marks_what_is_lost_and_keeps_the_rest(store: Store) -> None:
    made = damaged(store, "delta", 3)
    found = store.session("s").load(made[3], salvage=True)["messages"]
    assert found[:3] == [message(0), message(1), message(2)]
    assert [type(item) for item in found[3:]] == [Damaged]
    with pytest.raises(backstay.InvalidInputError):
        store.session("s").commit({"messages": found}, branch="main")


@pytest.mark.parametrize("how", ["gone", "unreadable"])
def test_a_row_lost_in_the_middle_costs_what_rests_on_it_up_to_the_next_keyframe(store: Store, how: str) -> None:
    made = history(store.session("s"), 30)
    keyframes = [row.sequence for row in rows_of(store, Kind.KEYFRAME, "s")]
    wide = next(at for at, after in itertools.pairwise(keyframes) if after - at > 3)
    lost, next_keyframe = wide + 1, keyframes[keyframes.index(wide) + 1]
    if how == "gone":
        take_away(store, "s", Kind.CHECKPOINT, lost)
    else:
        spoil(store, "delta", made[lost - 1])
    session = store.session("s")
    for checkpoint in made:
        truth = [message(number) for number in range(checkpoint.sequence)]
        if not lost <= checkpoint.sequence < next_keyframe:
            assert session.load(checkpoint)["messages"] == truth
            continue
        with pytest.raises(CorruptionError):
            session.load(checkpoint)
        if checkpoint.sequence > lost:
            left = session.load(checkpoint, salvage=True)["messages"]
            assert len(left) == len(truth)
            assert all(item == true for item, true in zip(left, truth, strict=True) if not isinstance(item, Damaged))
            assert left[lost + 1 :] == truth[lost + 1 :]  # those that came after it


def test_verify_names_each_checkpoint_that_cannot_be_read_and_no_other(store: Store) -> None:
    made = damaged(store, "fields", 2)
    report = store.verify()
    assert not report.ok
    assert {id_ for problem in report.problems for id_ in problem.checkpoints} == {made[2].id}
    assert report.checked == 5
    assert made[2].id[:12] in str(report)
    assert store.verify("other").ok


def test_nothing_intact_is_said_and_not_taken_for_nothing_there(store: Store) -> None:
    (only,) = history(store.session("s"), 1)
    spoil(store, "keyframe", only)
    with pytest.raises(CorruptionError, match="no checkpoint"):
        store.session("s").newest_intact()
    assert store.session("unheard of").newest_intact() is None


def test_a_repair_counts_anew_and_removes_nothing_that_can_be_read(path: Path) -> None:
    with backstay.open(path) as store:
        made = history(store.session("s"), 3)
        store.session("s").commit({"picture": bytes(range(256)) * 40}, branch="main")
        line = store.backend.read(Ask("s")).session
        assert line is not None
        put(store, "s", msgspec.structs.replace(line, checkpoints=77))
    execute(path, "INSERT INTO blobs(digest, data) VALUES(zeroblob(32), x'00')")
    execute(path, "INSERT INTO refs(sid, kind, number, digest) VALUES(999, 2, 1, zeroblob(32))")
    with backstay.open(path) as store:
        assert {problem.what for problem in store.verify().problems} == {
            "references of no row: 1",
            "it has 4 checkpoints and counts 77",
        }
        report = store.verify(repair=True)
        assert [problem.what for problem in report.problems] == ["references of no row: 1"]
        assert report.checked == 4
        assert report.repaired == ("session 's': counted again",)
        assert [info.checkpoints for info in store.sessions()] == [4]
        assert [len(store.session("s").load(point)["messages"]) for point in made] == [1, 2, 3]
        assert store.session("s").load() == {"picture": bytes(range(256)) * 40}
        assert store.verify(repair=True).repaired == ()
