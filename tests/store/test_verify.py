"""What verify tells a person about a damaged store: what is lost, what is not, and nothing that is not so."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import backstay
from backstay import Checkpoint, CorruptionError, Problem, Retention, Session, Store
from backstay.delta import whole
from backstay.model import SessionId
from backstay.port import Ask, KeyframeRow, Kind, SessionQuery, SessionRow, TagRow
from backstay.port.lease import here
from backstay.rules import deletion
from backstay.sealing import seal_keyframe, spill
from tests.store.rows import execute, flipped, harm, lane_of, put, row_of, rows_of, spoil, take_away
from tests.store.travel import KINDS, crashing, open_kind

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Damage that is done through the port is the same on each."""
    with open_kind(request.param, tmp_path) as opened:
        yield opened


def message(number: int, words: int = 60) -> dict[str, str]:
    return {"role": "user", "content": f"message {number} " + " ".join(str(number * word) for word in range(words))}


def talk(
    session: Session, steps: int, *, words: int = 60, branch: str = "main", root: bool = False, **fixed: Any
) -> list[Checkpoint]:
    messages: list[dict[str, str]] = []
    made = []
    for number in range(steps):
        messages.append(message(number, words))
        made.append(session.commit({"messages": messages, **fixed}, branch=branch, root=root and not number))
    return made


def having(store: Store, part: str, made: list[Checkpoint]) -> list[int]:
    """Which of them have a delta, or a keyframe."""
    rows = rows_of(store, Kind.CHECKPOINT, made[0].session_id)
    kept = {row.id for row in rows if (row.delta if part == "delta" else row.keyframe)}
    return [number for number, point in enumerate(made) if point.id in kept]


def named(problems: Iterable[Problem]) -> list[str]:
    return [id_ for problem in problems for id_ in problem.checkpoints]


def unreadable(session: Session, made: list[Checkpoint]) -> list[str]:
    """The truth: whose state cannot be loaded."""
    lost: list[str] = []
    for point in made:
        try:
            session.load(point.id)
        except CorruptionError:
            lost.append(point.id)
    return lost


def test_one_damaged_row_is_one_problem_that_names_all_it_costs_and_what_is_intact(store: Store) -> None:
    made = talk(store.session("s"), 60, words=300)
    talk(store.session("other"), 5)
    copies = having(store, "keyframe", made)
    hit = next(number for number in range(20, 60) if number not in copies and number + 1 not in copies)
    spoil(store, "delta", made[hit])
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


def test_a_row_that_cannot_be_read_at_all_is_named_by_what_rests_on_it(path: Path) -> None:
    with backstay.open(path) as store:
        made = talk(store.session("s"), 60, words=300)
        copies = having(store, "keyframe", made)
    hit = next(number for number in range(40, 60) if number not in copies and number + 1 not in copies)
    harm(path, "s", Kind.CHECKPOINT, made[hit].sequence, lambda body: body[:20] + flipped(body[20:60]) + body[60:])
    with backstay.open(path) as store:
        (problem,) = store.verify().problems
        assert list(problem.checkpoints) == unreadable(store.session("s"), made)
        assert made[hit].id[:12] in problem.what
        assert f"intact up to {made[hit - 1].id[:12]}" in problem.cost
        assert store.verify().checked == 60


def test_two_damages_are_two_problems_and_every_other_session_is_still_checked(store: Store) -> None:
    sessions = {name: talk(store.session(name), 40, words=300) for name in ("a", "b", "c")}
    for name, numbers in (("a", (5, 38)), ("b", (12,))):
        for number in numbers:
            spoil(store, "delta", sessions[name][number])
    report = store.verify()
    assert report.checked == 120
    for name, made in sessions.items():
        found = [problem for problem in report.problems if problem.session_id == name]
        assert sorted(named(found)) == sorted(unreadable(store.session(name), made))
    assert [problem.session_id for problem in report.problems].count(SessionId("b")) == 1
    assert store.verify("c").ok


def test_damage_to_a_second_copy_is_told_and_costs_nothing(store: Store) -> None:
    made = talk(store.session("s"), 120, words=300)
    both = set(having(store, "keyframe", made)) & set(having(store, "delta", made))
    hit = max(both)
    spoil(store, "keyframe", made[hit])
    (problem,) = store.verify().problems
    assert problem.checkpoints == ()
    assert made[hit].id[:12] in problem.what
    assert "nothing is lost" in problem.cost
    assert unreadable(store.session("s"), made) == []


def test_a_delta_beside_a_keyframe_is_checked_too(store: Store) -> None:
    made = talk(store.session("s"), 120, words=300)
    hit = max(set(having(store, "keyframe", made)) & set(having(store, "delta", made)))
    spoil(store, "delta", made[hit])
    (problem,) = store.verify().problems
    assert problem.checkpoints == ()
    assert made[hit].id[:12] in problem.what
    assert unreadable(store.session("s"), made) == []


def test_a_damaged_first_copy_takes_what_stands_on_it_and_says_that_nothing_was_before(store: Store) -> None:
    made = talk(store.session("s"), 6)
    spoil(store, "keyframe", made[0])
    (problem,) = store.verify().problems
    assert list(problem.checkpoints) == unreadable(store.session("s"), made)
    assert problem.checkpoints[0] == made[0].id
    assert "none before it" in problem.cost


def test_fields_that_are_damaged_cost_their_checkpoint_and_none_behind_it(store: Store) -> None:
    made = talk(store.session("s"), 30)
    spoil(store, "fields", made[7])
    (problem,) = store.verify().problems
    assert problem.checkpoints == (made[7].id,)
    assert unreadable(store.session("s"), made) == [made[7].id]


def test_a_damaged_blob_costs_those_that_need_it_in_each_session(path: Path) -> None:
    prompt = "".join(f"rule {number}: be kind. " for number in range(1000))
    with backstay.open(path) as store:
        made = {name: talk(store.session(name), 4, system=prompt) for name in ("a", "b")}
        talk(store.session("without"), 4)
    execute(path, "UPDATE blobs SET data = CAST(substr(data, 1, 30) || x'0000' || substr(data, 33) AS BLOB)")
    with backstay.open(path) as store:
        report = store.verify()
        assert [problem.session_id for problem in report.problems] == ["b", "a"]
        for problem in report.problems:
            assert list(problem.checkpoints) == [point.id for point in made[str(problem.session_id)]]
        assert report.checked == 12


@pytest.mark.parametrize("where", ["middle", "first", "head"])
def test_a_row_that_was_taken_away_is_damage_and_not_a_shorter_history(store: Store, where: str) -> None:
    made = talk(store.session("s"), 12)
    hit = {"middle": 6, "first": 0, "head": 11}[where]
    take_away(store, "s", Kind.CHECKPOINT, made[hit].sequence)
    report = store.verify()
    lost = unreadable(store.session("s"), made[hit + 1 :])
    assert set(named(report.problems)) == set(lost)
    assert any("has 11 checkpoints and counts 12" in problem.what for problem in report.problems)
    left = [point for point in made if point.id not in {*lost, made[hit].id}]
    again = store.verify(repair=True)
    assert "counted again" in str(again)
    assert set(named(again.problems)) == set(lost)
    assert [store.session("s").load(point)["messages"][-1] for point in left] == [
        message(point.sequence - 1) for point in left
    ]
    assert not store.verify(repair=True).repaired
    store.session("s").commit({"on": "we go"})
    assert store.session("s").load() == {"on": "we go"}
    assert set(named(store.verify().problems)) == set(lost)


def test_a_keyframe_that_was_taken_away_is_damage(store: Store) -> None:
    made = talk(store.session("s"), 4)
    take_away(store, "s", Kind.KEYFRAME, made[0].sequence)
    (problem,) = store.verify().problems
    assert list(problem.checkpoints) == [point.id for point in made]
    assert "keyframe" in problem.what


def test_records_that_changed_places_are_found(store: Store) -> None:
    made = talk(store.session("s"), 12)
    four, five = row_of(store, made[4]), row_of(store, made[5])
    for row, delta in ((four, five.delta), (five, four.delta)):
        put(store, "s", msgspec.structs.replace(row, delta=delta, refs=None))
    found = named(store.verify().problems)
    assert found == unreadable(store.session("s"), made)
    assert found[0] == made[4].id


def test_a_well_sealed_copy_of_another_state_is_found(store: Store) -> None:
    # No bit is wrong here: only who does the copy again sees that it is not what the digest says.
    made = talk(store.session("s"), 3)
    row, uid = row_of(store, made[0]), line_of(store).uid
    record, _ = whole({"messages": ["something else"]})
    sealed = seal_keyframe(record, uid=uid, tail=row.tail, state=row.state_digest)
    put(store, "s", KeyframeRow(row.sequence, spill(sealed)[0], ()))
    (problem,) = store.verify().problems
    assert problem.checkpoints[0] == made[0].id
    assert "digest" in problem.what


def test_damage_far_into_a_long_history_with_branches_is_told_exactly(store: Store) -> None:
    session = store.session("s")
    made = [session.commit({"n": number, "last": [message(number, 3)]}) for number in range(1300)]
    for name, at in (("x", 700), ("y", 1100)):
        session.fork(made[at], name)
        made += [session.commit({"n": n, "b": name}, branch=name) for n in range(40)]
    spoil(store, "delta", made[1203])
    spoil(store, "delta", made[1310])
    report = store.verify()
    assert report.checked == len(made)
    assert sorted(named(report.problems)) == sorted(unreadable(store.session("s"), made))
    assert len(report.problems) == 2


# names and counts


def test_a_branch_that_leads_nowhere_is_told_and_repaired(store: Store) -> None:
    made = talk(store.session("s"), 3)
    lane = lane_of(store)
    assert lane.head is not None
    put(store, "s", msgspec.structs.replace(lane, head=msgspec.structs.replace(lane.head, sequence=999)))
    (problem,) = store.verify().problems
    assert "points at" in problem.what
    repaired = store.verify(repair=True)
    assert repaired.ok, str(repaired)
    assert repaired.repaired
    assert store.session("s").head() == made[-1]
    assert len(store.session("s").load()["messages"]) == 3


def test_a_branch_whose_head_was_lost_goes_back_on_its_own_line_and_keeps_what_is_pending(store: Store) -> None:
    session = store.session("s")
    made = talk(session, 3)
    session.fork(made[1], "beside")
    session.commit({"beside": 1}, branch="beside")
    with crashing(session.run()) as run:
        run.call("pay", lambda: 7, args="once")
    talk(store.session("s"), 1, branch="other", root=True)
    take_away(store, "s", Kind.CHECKPOINT, made[2].sequence)
    report = store.verify(repair=True)
    assert f"branch 'main' led nowhere and is at {made[1].id[:12]} now" in str(report)
    assert store.session("s").head() == made[1]
    assert store.verify().ok
    with store.session("s").run() as again:
        assert again.call("pay", never, args="once") == 7


def test_names_that_lead_nowhere_cost_no_other(store: Store) -> None:
    session = store.session("s")
    made = talk(session, 6)
    session.tag(made[2], "tagged")
    session.tag(made[3], "fine")
    session.restore(made[4])
    put(store, "s", TagRow("tagged", 77), msgspec.structs.replace(lane_of(store), undo=88))
    assert sorted(problem.what.split(" ")[0] for problem in store.verify().problems) == ["'tagged'", "branch"]
    report = store.verify(repair=True)
    assert report.ok
    assert len(report.repaired) == 2
    assert list(session.tags()) == ["fine"]
    with pytest.raises(backstay.NotFoundError):
        session.undo()
    assert len(session.load()["messages"]) == 5
    assert store.verify(repair=True).repaired == ()


def test_a_branch_on_which_a_run_is_alive_is_not_moved_under_it(store: Store) -> None:
    session = store.session("s")
    made = talk(session, 3)
    with session.run() as run:
        take_away(store, "s", Kind.CHECKPOINT, made[-1].sequence)
        report = store.verify(repair=True)
        assert [problem.what for problem in report.problems] == [
            f"'main' points at {made[-1].id[:12]}, which is not there"
        ]
        assert "is being run" in report.problems[0].cost
        run.append("on we go")
    assert session.head() is not None


@pytest.mark.parametrize("pending", [False, True])
def test_a_branch_that_cannot_be_read_is_made_again_where_it_was(path: Path, pending: bool) -> None:
    with backstay.open(path) as store:
        session = store.session("s")
        made = talk(session, 5)
        session.fork(made[1], "beside")
        session.tag(made[2], "tagged")
        if pending:
            with crashing(session.run()) as run:
                run.call("pay", lambda: 7)
    for name in ("main", "tagged"):
        harm(path, "s", Kind.NAME, name)
    with backstay.open(path) as store:
        session = store.session("s")
        with pytest.raises(CorruptionError):
            session.load()
        assert len(session.load(made[4].id)["messages"]) == 5
        assert session.newest_intact() == made[4]
        report = store.verify()
        assert report.checked == 5
        assert len(report.problems) == 2
        assert "'main'" in report.problems[0].what
        assert "repair" in report.problems[0].remedy
        report = store.verify(repair=True)
        assert report.ok, str(report)
        assert f"branch 'main' could not be read and is at {made[4].id[:12]} now" in str(report)
        assert set(session.branches()) == {"main", "beside"}
        assert session.tags() == {}
        if pending:
            with session.run() as run:
                assert run.call("pay", never) == 7
        session.commit({"on": "we go"})
        assert store.verify(repair=True).repaired == ()
        store.delete("s")


def test_a_session_whose_line_cannot_be_read_does_not_hide_the_others(path: Path) -> None:
    with backstay.open(path) as store:
        made = [talk(store.session(f"s{number}"), 2) for number in range(9)]
    harm(path, "s4", Kind.SESSION, "s4")
    with backstay.open(path) as store:
        for repair in (False, True):
            report = store.verify(repair=repair)
            assert report.checked == 2 * (len(made) - 1)
            (problem,) = report.problems
            assert "'s4'" in problem.what
            assert not report.repaired
        with pytest.raises(CorruptionError):
            store.session("s4").load()


@pytest.mark.parametrize("kind", ["deleted", "imported"])
def test_what_a_kill_left_of_a_session_is_no_damage_and_a_repair_removes_it(store: Store, kind: str) -> None:
    talk(store.session("s"), 3)
    talk(store.session("gone"), 3)
    if kind == "deleted":
        store.backend.write(deletion.hide_ask("gone"), deletion.hide("gone"))
    else:
        line = msgspec.structs.replace(line_of(store), id="ab" * 16, hidden=True)
        store.delete("gone")
        store.backend.write(Ask(line.id, hidden=True), deletion.arrive(line))
    assert store.verify().ok
    assert store.backend.sessions(SessionQuery(hidden=True))
    report = store.verify(repair=True)
    assert report.ok
    assert len(report.repaired) == 1
    assert not store.backend.sessions(SessionQuery(hidden=True))
    assert store.verify(repair=True).repaired == ()


def test_a_session_that_somebody_is_deleting_is_nothing_left_behind(store: Store) -> None:
    talk(store.session("s"), 3)
    store.backend.write(deletion.hide_ask("s"), deletion.hide("s", holder=here()))
    assert store.verify().ok
    assert store.verify(repair=True).repaired == ()
    assert store.backend.sessions(SessionQuery(hidden=True))


def line_of(store: Store, session: str = "s") -> SessionRow:
    line = store.backend.read(Ask(session)).session
    assert line is not None
    return line


def never() -> None:
    raise AssertionError("this call was made before")


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
