"""`session.append`: it costs what is new, loses nothing when it is overtaken, and hides nothing that others wrote."""

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import backstay
from backstay import ConflictError, InvalidInputError, LeaseHeldError, NotFoundError, Store, aio
from backstay.delta import advance, extend, know, rebuild, whole
from backstay.digest import state_digest
from backstay.errors import CorruptionError
from tests.store.rows import spoil
from tests.unit.values import values


@pytest.fixture(params=["sqlite", "files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url: Any = {"sqlite": tmp_path / "s.db", "files": f"file:{tmp_path / 'folder'}", "memory": "memory://"}[
        request.param
    ]
    with backstay.open(url) as store:
        yield store


def said(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"message {number}", "uuid": f"u{number}"}


def test_a_first_append_begins_the_session(store: Store) -> None:
    made = store.session("s", agent="a").append(said(1), label="begun")
    assert (made.label, made.summary, made.agent, made.sequence) == ("begun", "user: message 1", "a", 1)
    assert store.session("s").load() == {"messages": [said(1)]}


def test_appends_are_commits_whose_states_and_digests_are_those_of_the_whole(store: Store) -> None:
    session = store.session("s")
    session.commit({"messages": [said(0)], "plan": {"open": True}, "n": 1})
    state: dict[str, Any] = {"messages": [said(0)], "plan": {"open": True}, "n": 1}
    for number in range(1, 150):
        items = [said(number)] if number % 3 else [said(number), {"content": "x" * 5000, "n": number, "f": (1, 2.0)}]
        state["messages"] += items
        made = session.append(items if number % 2 else items[0]) if len(items) == 1 else session.append(items)
        assert made.sequence == number + 1
        if number % 10 == 0:
            assert session.load() == state
            assert store.session("s").load() == state
    assert made.state == state
    assert store.verify("s").ok


def test_an_append_in_a_fresh_process_goes_on_from_the_head(store: Store) -> None:
    store.session("s").commit({"messages": [said(1)], "other": [1, 2]})
    store.session("s").append(said(2))
    store.session("s").append([3, 4], part="other")
    store.session("s").append("new", part="third")
    assert store.session("s").load() == {
        "messages": [said(1), said(2)],
        "other": [1, 2, 3, 4],
        "third": ["new"],
    }


def test_items_that_are_there_by_their_key_are_left_out(store: Store) -> None:
    session = store.session("s")
    session.append([said(1), said(2), said(1)], unique="uuid")
    head = session.append([said(3), {**said(2), "content": "said again"}], unique="uuid")
    assert [item["uuid"] for item in session.load()["messages"]] == ["u1", "u2", "u3"]
    again = session.append([said(3), said(1)], unique="uuid")
    assert (again.id, again.sequence) == (head.id, head.sequence), "nothing was new, and something was written"
    session.append([{"content": "no key"}, {"content": "no key"}, {"uuid": 1}, {"uuid": True}], unique="uuid")
    store.session("s").append([{"uuid": 1}, {"uuid": 1.0}, {"uuid": True}, said(2)], unique="uuid")
    assert len(session.load()["messages"]) == 8


def test_a_key_that_was_deleted_from_the_state_is_new_again(store: Store) -> None:
    session = store.session("s")
    session.append([said(1), said(2)], unique="uuid")
    other = store.session("s")
    state = other.load()
    state["messages"].pop()
    other.commit(state)
    session.append(said(2), unique="uuid")
    assert [item["uuid"] for item in session.load()["messages"]] == ["u1", "u2"]


def test_appends_of_many_sessions_and_threads_lose_nothing(store: Store) -> None:
    store.session("s").append(said(0))
    shared = store.session("s")
    gate = threading.Barrier(8)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        session = shared if number % 2 else store.session("s")
        try:
            gate.wait()
            for turn in range(10):
                session.append({"uuid": f"{number}.{turn}"}, unique="uuid")
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    found = [item["uuid"] for item in store.session("s").load()["messages"]]
    assert sorted(found[1:]) == sorted(f"{number}.{turn}" for number in range(8) for turn in range(10))


def test_a_state_from_before_is_not_committed_over_what_others_wrote_below_an_append(store: Store) -> None:
    session = store.session("s")
    session.append(said(1))
    mine = dict(session.load())
    store.session("s").append(said(2))
    session.append(said(3))
    with pytest.raises(ConflictError):
        session.commit(mine)
    assert [item["uuid"] for item in session.load()["messages"]] == ["u1", "u2", "u3"]


def test_what_a_caller_changes_later_is_noticed(store: Store) -> None:
    session = store.session("s")
    item = said(1)
    session.append(item)
    item["content"] = "changed by its caller"
    assert session.load() == {"messages": [said(1)]}
    session.append(said(2))
    state = session.load()
    state["messages"][0]["content"] = "edited"
    session.commit(state)
    assert store.session("s").load()["messages"][0]["content"] == "edited"


def test_structures_go_in_as_plain_values(store: Store) -> None:
    @dataclasses.dataclass
    class Said:
        uuid: str

    session = store.session("s")
    session.append([Said("a"), Said("a")], unique="uuid")
    assert session.load() == {"messages": [{"uuid": "a"}]}


def test_refusals_are_those_of_a_commit(store: Store) -> None:
    session = store.session("s")
    session.commit({"messages": "a text", "list": [1]})
    with pytest.raises(InvalidInputError, match=r"state\['messages'\] is no list"):
        session.append(said(1))
    with pytest.raises(InvalidInputError):
        session.append(object(), part="list")
    with pytest.raises(NotFoundError):
        session.append(1, part="list", branch="nowhere")
    with session.run(), pytest.raises(LeaseHeldError):
        store.session("s").append(2, part="list")
    session.tag("main", "t")
    assert store.session("s").load()["list"] == [1]
    assert session.head() is not None


def test_nothing_is_appended_to_a_state_that_cannot_be_read(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "s.db") as store:
        session = store.session("s")
        session.commit({"messages": [said(1)]})
        spoil(store, "delta", session.commit({"messages": [said(1), said(2)]}))
    with backstay.open(tmp_path / "s.db") as store, pytest.raises(CorruptionError):
        store.session("s").append(said(3))


def test_tasks_append_at_once(tmp_path: Path) -> None:
    async def main() -> Any:
        async with aio.open(tmp_path / "s.db") as store:
            session = store.session("s")
            await asyncio.gather(*[session.append({"n": number}) for number in range(20)])
            return await session.load()

    assert sorted(item["n"] for item in asyncio.run(main())["messages"]) == list(range(20))


lists = st.lists(values, max_size=4)


@settings(max_examples=60, deadline=None)
@given(before=lists, first=lists, second=lists, other=values)
def test_what_is_known_after_an_append_is_what_a_comparison_would_say(
    before: list[Any], first: list[Any], second: list[Any], other: Any
) -> None:
    state = {"list": before, "other": other}
    known = know(state)
    record, pieces = whole(state)
    chain, blobs = [record], dict(pieces)
    for items in (first, second):
        if items:
            delta, more, known = extend(known, "list", items)
            chain.append(delta)
            blobs |= more
    after = {"list": [*before, *first, *second], "other": other}
    assert known.digest == state_digest(rebuild([whole(after)[0]], whole(after)[1]).state)
    assert state_digest(rebuild(chain, blobs).state) == known.digest
    assert advance(known, after)[2].digest == known.digest
    assert advance(known, after)[0].body == b"", "an append left a shadow that differs from its state"
