"""Messages to a session: each is received once, in order, whatever happens between."""

from typing import Any

import pytest

import backstay
from backstay import CallFailedError, InvalidInputError, NotFoundError, Status
from tests.run.crashes import World, cut_off


@pytest.fixture
def world() -> World:
    return World()


def take(store: backstay.Store, count: int, name: str = "inbox") -> list[Any]:
    with store.run("t") as run:
        run.state.setdefault("got", []).extend([run.receive(name) for _ in range(count)])
    return list(run.state["got"])


def test_messages_are_received_once_and_in_order_by_name(store: backstay.Store) -> None:
    session = store.session("t")
    for number in range(5):
        session.send("inbox", number)
        session.send("other", {"number": number})
    assert [line.status for line in store.sessions()] == [Status.IN_PROGRESS]
    assert take(store, 2) == [0, 1]
    assert take(store, 1, "other") == [0, 1, {"number": 0}]
    assert take(store, 3)[3:] == [2, 3, 4]
    assert store.verify().ok
    take(store, 1)
    assert [wait.what for wait in store.waiting()] == ["message"]


def test_a_message_wakes_the_run_that_waits_for_it_and_no_other(store: backstay.Store) -> None:
    take(store, 1)
    store.session("t").send("other", 1)
    assert backstay.recover(store, lambda _: pytest.fail("not for this one")).handled == 0
    store.session("t").send("inbox", 2)
    got: list[Any] = []

    def work(run: backstay.Run) -> None:
        run.state.setdefault("got", []).append(run.receive("inbox"))
        got.extend(run.state["got"])

    assert backstay.recover(store, work).completed == ("t",)
    assert got == [2]


def test_a_message_received_before_a_crash_is_given_again_and_the_next_is_the_next(store: backstay.Store) -> None:
    session = store.session("t")
    for number in range(4):
        session.send("inbox", number)
    with cut_off(store) as run:
        assert [run.receive("inbox"), run.receive("inbox")] == [0, 1]
    with cut_off(store) as run:
        assert [run.receive("inbox") for _ in range(3)] == [0, 1, 2]
        run.state["got"] = 3
        run.step()
        assert run.receive("inbox") == 3
    with store.run("t") as run:
        assert run.state == {"got": 3}
        assert run.receive("inbox") == 3
        run.state["got"] = 4
    assert store.verify().ok


def test_what_was_received_and_given_up_comes_again(store: backstay.Store) -> None:
    store.session("t").send("inbox", "hello")
    for end in ("abandon", "cancel", "restart"):
        with cut_off(store, input=end) as run:
            assert run.receive("inbox") == "hello"
        if end == "abandon":
            store.session("t").abandon(reason="enough")
        elif end == "cancel":
            store.session("t").cancel(reason="enough")
    with store.run("t", input="again", restart=True) as run:
        assert run.receive("inbox") == "hello"
        run.state["n"] = 1
    assert take(store, 0) == []


def test_a_message_that_does_not_come_in_time(store: backstay.Store) -> None:
    with store.run("t") as run:
        assert run.receive("inbox", timeout_s=0, default="none") == "none"
        with pytest.raises(CallFailedError) as failed:
            run.receive("inbox", timeout_s=0)
        assert failed.value.type == "timed_out"
        run.state["n"] = 1


def test_a_fork_gets_none_of_them_and_a_deleted_branch_leaves_none(store: backstay.Store) -> None:
    session = store.session("t")
    session.commit({"n": 1})
    session.send("inbox", 1)
    session.fork("main", "other")
    with session.run(branch="other") as run:
        run.receive("inbox")
    assert [wait.branch for wait in store.waiting()] == ["other"]
    session.send("inbox", 2, branch="other")
    session.delete_branch("other")
    with pytest.raises(NotFoundError):
        session.send("inbox", 3, branch="other")
    session.fork("main", "other")
    with session.run(branch="other") as run:
        run.receive("inbox")
    assert [wait.branch for wait in store.waiting()] == ["other"]
    assert store.verify().ok
    store.delete("t")
    assert store.verify().ok


def test_a_message_is_small(store: backstay.Store) -> None:
    with pytest.raises(InvalidInputError, match="1,048,576"):
        store.session("t").send("inbox", "x" * (1 << 20))
    assert list(store.sessions()) == []


def test_a_live_run_receives_what_comes_while_it_works(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:
        run.call("tool", lambda: store.session("t").send("inbox", "while it works"), args={})
        assert run.receive("inbox") == "while it works"
        run.state["n"] = 1
    assert world.done == []


def test_a_run_that_dies_between_each_two_messages_loses_and_repeats_none(store: backstay.Store) -> None:
    for number in range(30):
        store.session("t").send("inbox", number)
    for number in range(30):
        with cut_off(store) as run:
            run.state.setdefault("got", []).append(run.receive("inbox"))
            run.step()
        assert run.state["got"] == list(range(number + 1))
