"""Runs that are stopped and taken over: the first is fenced at its next write, and history stays one line."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.crash.ring.nursery import Nursery
from tests.crash.ring.rooms import Place, room
from tests.crash.runs.agent import KINDS, Outside
from tests.crash.runs.stalling import WAYS, crash_many, recover_at_once, stall


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with room() as folder:
        yield Place(folder / "store", request.param)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_stopped_past_its_lease_and_taken_over_writes_nothing_more(
    nursery: Nursery, place: Place, way: str
) -> None:
    (ended,) = nursery.do(stall, place, way)
    # The loop's own exception is told as it is; its status is not written.
    assert ended == ("OSError" if way == "raise" else "fenced")
    lines = Outside(place.folder.parent).lines()
    expected = ["first setup", "first pay"] if way in ("outcome", "failure") else ["first setup", "second pay"]
    assert lines == expected


@pytest.mark.parametrize("dying", [0, 3])
def test_processes_that_recover_at_once_handle_each_crashed_session_once(
    nursery: Nursery, place: Place, dying: int
) -> None:
    sessions = 20
    assert nursery.run(crash_many, place, sessions).ended == -9
    with place.open() as store:
        assert len(store.crashed()) == sessions
    (counts,) = nursery.do(recover_at_once, place, 8, dying)
    with place.open() as store:
        left = {info.id for info in store.crashed()}
        assert sum(counts) <= sessions - len(left)
        assert dying or (sum(counts), left) == (sessions, set())
    if dying:
        (more,) = nursery.do(recover_at_once, place, 8, 0)
        assert sum(more) == len(left)
    with place.open() as store:
        assert store.crashed() == []
        assert store.verify().ok
        for number in range(sessions):
            calls = [
                call for point in store.session(f"s{number}").log() for call in store.session(f"s{number}").calls(point)
            ]
            assert [call.status for call in calls] == ["done", "done"]
    lines = Counter(Outside(place.folder.parent).lines())
    assert lines == Counter([f"{what} {number}" for what in ("begin", "end") for number in range(sessions)])
