"""What verify tells a person about a damaged store: what is lost, what is not, and nothing that is not so."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import backstay
from backstay import Checkpoint, CorruptionError, Problem, Retention, Session, Store, packing
from backstay.delta import whole


def message(number: int, words: int = 60) -> dict[str, str]:
    return {"role": "user", "content": f"message {number} " + " ".join(str(number * word) for word in range(words))}


def talk(session: Session, steps: int, *, words: int = 60, branch: str = "main", **fixed: Any) -> list[Checkpoint]:
    messages: list[dict[str, str]] = []
    made = []
    for number in range(steps):
        messages.append(message(number, words))
        made.append(session.commit({"messages": messages, **fixed}, branch=branch))
    return made


def behind_its_back(file: Path, *statements: tuple[str, tuple[Any, ...]]) -> list[Any]:
    """Statements run on the store's file, with page checksums that fit afterwards."""
    connection = apsw.Connection(str(file), vfs="cksmvfs")
    try:
        return [row for sql, values in statements for row in connection.execute(sql, values)]
    finally:
        connection.close()


def key(checkpoint: Checkpoint) -> bytes:
    return bytes.fromhex(checkpoint.id)


def spoil(file: Path, column: str, checkpoint: Checkpoint) -> None:
    """One bit of a record."""
    ((data,),) = behind_its_back(file, (f"SELECT {column} FROM checkpoints WHERE id = ?", (key(checkpoint),)))
    changed = data[:-1] + bytes([data[-1] ^ 1])
    behind_its_back(file, (f"UPDATE checkpoints SET {column} = ? WHERE id = ?", (changed, key(checkpoint))))


def having(file: Path, column: str, made: list[Checkpoint]) -> list[int]:
    """Which of them have something in a column."""
    found = behind_its_back(file, (f"SELECT id FROM checkpoints WHERE {column} IS NOT NULL", ()))
    kept = {bytes(id_).hex() for (id_,) in found}
    return [number for number, point in enumerate(made) if point.id in kept]


def unreadable(session: Session, made: list[Checkpoint]) -> list[str]:
    """The truth: whose state cannot be loaded."""
    lost: list[str] = []
    for point in made:
        try:
            session.load(point.id)
        except CorruptionError:
            lost.append(point.id)
    return lost


def test_one_damaged_row_is_one_problem_that_names_all_it_costs_and_what_is_intact(path: Path) -> None:
    with backstay.open(path) as store:
        made = talk(store.session("s"), 60, words=300)
        talk(store.session("other"), 5)
    copies = having(path, "whole", made)
    hit = next(number for number in range(20, 60) if number not in copies and number + 1 not in copies)
    spoil(path, "delta", made[hit])
    with backstay.open(path) as store:
        (problem,) = store.verify().problems
        lost = unreadable(store.session("s"), made)
        assert list(problem.checkpoints) == lost
        assert 1 < len(lost) < 40
        assert problem.session_id == "s"
        assert made[hit].id[:12] in problem.what
        assert f"intact up to {made[hit - 1].id[:12]}" in problem.cost
        assert f"{len(lost)} checkpoints" in problem.cost
        after = made[hit + len(lost)]
        assert f"again from {after.id[:12]} on" in problem.cost
        assert "newest_intact" in problem.remedy
        assert store.verify().checked == 65
        assert store.verify("other").ok


def test_two_damages_are_two_problems_and_every_other_session_is_still_checked(path: Path) -> None:
    with backstay.open(path) as store:
        sessions = {name: talk(store.session(name), 40, words=300) for name in ("a", "b", "c")}
    for name, numbers in (("a", (5, 38)), ("b", (12,))):
        for number in numbers:
            spoil(path, "delta", sessions[name][number])
    with backstay.open(path) as store:
        report = store.verify()
        assert report.checked == 120
        for name, made in sessions.items():
            found = [problem for problem in report.problems if problem.session_id == name]
            named = [id_ for problem in found for id_ in problem.checkpoints]
            assert sorted(named) == sorted(unreadable(store.session(name), made))
        assert sum(problem.session_id == "b" for problem in report.problems) == 1
        assert store.verify("c").ok


@pytest.mark.parametrize("column", ["whole", "roll"])
def test_damage_to_a_second_copy_is_told_and_costs_nothing(path: Path, column: str) -> None:
    with backstay.open(path) as store:
        made = talk(store.session("s"), 120, words=300)
    hit = having(path, column, made)[-1]
    spoil(path, column, made[hit])
    with backstay.open(path) as store:
        (problem,) = store.verify().problems
        assert problem.checkpoints == ()
        assert made[hit].id[:12] in problem.what
        assert "nothing is lost" in problem.cost
        assert unreadable(store.session("s"), made) == []


def test_a_damaged_first_copy_takes_what_stands_on_it_and_says_that_nothing_was_before(path: Path) -> None:
    with backstay.open(path) as store:
        made = talk(store.session("s"), 6)
    spoil(path, "whole", made[0])
    with backstay.open(path) as store:
        (problem,) = store.verify().problems
        assert list(problem.checkpoints) == unreadable(store.session("s"), made)
        assert problem.checkpoints[0] == made[0].id
        assert "none before it" in problem.cost


def test_fields_that_are_damaged_cost_their_checkpoint_and_none_behind_it(path: Path) -> None:
    with backstay.open(path) as store:
        made = talk(store.session("s"), 30)
    spoil(path, "fields", made[7])
    with backstay.open(path) as store:
        (problem,) = store.verify().problems
        assert problem.checkpoints == (made[7].id,)


def test_a_damaged_blob_costs_those_that_need_it_in_each_session(path: Path) -> None:
    prompt = "".join(f"rule {number}: be kind. " for number in range(1000))
    with backstay.open(path) as store:
        made = {name: talk(store.session(name), 4, system=prompt) for name in ("a", "b")}
        talk(store.session("without"), 4)
    behind_its_back(path, ("UPDATE blobs SET data = CAST(substr(data, 1, length(data) - 1) || x'00' AS BLOB)", ()))
    with backstay.open(path) as store:
        report = store.verify()
        assert [problem.session_id for problem in report.problems] == ["b", "a"]
        for problem in report.problems:
            assert list(problem.checkpoints) == [point.id for point in made[str(problem.session_id)]]
        assert report.checked == 12


def test_a_row_that_was_taken_away_is_damage_and_not_a_shorter_history(path: Path) -> None:
    with backstay.open(path) as store:
        made = talk(store.session("s"), 12)
    behind_its_back(path, ("DELETE FROM checkpoints WHERE id = ?", (key(made[6]),)))
    with backstay.open(path) as store:
        report = store.verify()
        assert {id_ for problem in report.problems for id_ in problem.checkpoints} >= {made[7].id}
        assert set(unreadable(store.session("s"), made[7:])) == {
            id_ for problem in report.problems for id_ in problem.checkpoints
        }


def test_records_that_changed_places_are_found(path: Path) -> None:
    with backstay.open(path) as store:
        made = talk(store.session("s"), 12)
    rows = behind_its_back(path, *[("SELECT delta FROM checkpoints WHERE id = ?", (key(made[n]),)) for n in (4, 5)])
    for number, (delta,) in zip((5, 4), rows, strict=True):
        behind_its_back(path, ("UPDATE checkpoints SET delta = ? WHERE id = ?", (delta, key(made[number]))))
    with backstay.open(path) as store:
        named = [id_ for problem in store.verify().problems for id_ in problem.checkpoints]
        assert named == unreadable(store.session("s"), made)
        assert named[0] == made[4].id


def test_a_well_sealed_copy_of_another_state_is_found(path: Path) -> None:
    # No bit is wrong here: only who does the copy again sees that it is not what the digest says.
    with backstay.open(path) as store:
        made = talk(store.session("s"), 3)
    record, _ = whole({"messages": ["something else"]})
    ((state,),) = behind_its_back(path, ("SELECT state_digest FROM checkpoints WHERE id = ?", (key(made[0]),)))
    sealed = packing.seal_whole(record, state=state)
    behind_its_back(path, ("UPDATE checkpoints SET whole = ? WHERE id = ?", (sealed, key(made[0]))))
    with backstay.open(path) as store:
        (problem,) = store.verify().problems
        assert problem.checkpoints[0] == made[0].id
        assert "digest" in problem.what


def test_damage_far_into_a_long_history_with_branches_is_told_exactly(path: Path) -> None:
    with backstay.open(path, durability="relaxed") as store:
        session = store.session("s")
        made = [session.commit({"n": number, "last": [message(number, 3)]}) for number in range(1300)]
        for name, at in (("x", 700), ("y", 1100)):
            session.fork(made[at], name)
            made += [session.commit({"n": n, "b": name}, branch=name) for n in range(40)]
    spoil(path, "delta", made[1203])
    spoil(path, "delta", made[1310])
    with backstay.open(path) as store:
        report = store.verify()
        assert report.checked == len(made)
        named = [id_ for problem in report.problems for id_ in problem.checkpoints]
        assert sorted(named) == sorted(unreadable(store.session("s"), made))
        assert len(report.problems) == 2


def test_a_branch_that_leads_nowhere_is_told_and_repaired(path: Path) -> None:
    with backstay.open(path) as store:
        talk(store.session("s"), 3)
    behind_its_back(path, ("UPDATE names SET cid = 999", ()))
    with backstay.open(path) as store:
        report = store.verify()
        assert not report.ok
        assert any("points at" in problem.what for problem in report.problems)
        repaired = store.verify(repair=True)
        assert repaired.ok
        assert repaired.repaired
        assert len(store.session("s").load()["messages"]) == 3


def test_pages_that_cannot_be_read_are_problems_and_never_an_exception(path: Path) -> None:
    with backstay.open(path) as store:
        for name in ("a", "b", "c"):
            talk(store.session(name), 30, words=300)
    data = path.read_bytes()
    size = 4096
    for page in range(1, len(data) // size, 3):
        path.write_bytes(data[: page * size] + bytes(size) + data[(page + 1) * size :])
        try:
            store = backstay.open(path)
        except backstay.BackstayError:
            continue
        with store:
            assert not store.verify().ok
            for name in ("a", "b", "c"):
                with contextlib.suppress(backstay.NotFoundError):
                    store.verify(name)


def test_a_person_who_waits_is_told_how_far_it_is(store: Store) -> None:
    for name in ("a", "b"):
        talk(store.session(name), 40)
    told: list[tuple[int, int | None]] = []
    store.verify(progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (80, 80)
    assert {total for _, total in told} == {80}


def test_deleting_and_writing_meanwhile_is_not_taken_for_damage(store: Store) -> None:
    sessions = [store.session(f"s{number}") for number in range(3)]
    prompt = "long " * 2000
    for session in sessions:
        talk(session, 30, system=prompt)
    over = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    def busy() -> None:
        for session in sessions:
            talk(session, 5, system=prompt + "x")
            store.prune(Retention(keep_last=8))

    thread = threading.Thread(target=guarded, args=(busy,))
    thread.start()
    try:
        problems: list[Problem] = []
        for _ in range(25):
            problems += store.verify().problems
    finally:
        over.set()
        thread.join()
    assert not failures
    assert problems == []
