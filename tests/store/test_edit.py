"""Edits take turns, and nobody's turn of a chat is lost: in one task, in many, in many processes."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
import backstay.aio
from backstay import ANY, NOTHING, ConflictError, LeaseHeldError, NotFoundError, Store
from backstay.codec import encode_canonical
from backstay.rebase import rebase
from tests.run.conftest import BACKENDS, url_of


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with backstay.open(url) as opened:
        yield opened


def said(store: Store, id_: str = "chat") -> list[Any]:
    return list(store.session(id_).load()["messages"])


# to have looked and found nothing is to expect nothing


@pytest.mark.parametrize("look", ["load", "head", "checkpoint", "log"])
def test_of_two_first_turns_after_a_look_one_is_told(store: Store, look: str) -> None:
    first, second = store.session("chat"), store.session("chat")
    for session in (first, second):
        try:
            assert getattr(session, look)() is None
        except NotFoundError:
            assert look != "head"
    first.commit({"messages": ["first"]})
    with pytest.raises(ConflictError):
        second.commit({"messages": ["second"]})
    assert said(store) == ["first"]


def test_fifty_posts_on_a_new_chat_are_all_kept(store: Store) -> None:
    """As a web app writes it without `edit`: load or begin, add, commit, again on a conflict."""

    def post(number: int) -> None:
        session = store.session("chat")
        while True:
            try:
                state = session.load()
            except NotFoundError:
                state = backstay.State({"messages": []})
            state["messages"].append(number)
            try:
                session.commit(state)
            except ConflictError:
                continue
            return

    threads = [threading.Thread(target=post, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said(store)) == list(range(50))


def test_a_branch_that_is_begun_while_it_is_looked_for_is_seen_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load takes two looks where the first finds nothing; a first turn may come in between."""
    with backstay.open("memory://") as store:
        looks, look = [], store.backend.state

        def state(*args: Any, **options: Any) -> Any:
            found = look(*args, **options)
            looks.append(found)
            if len(looks) == 1:
                store.session("chat").commit({"messages": ["theirs"]}, expect=NOTHING)
            return found

        monkeypatch.setattr(store.backend, "state", state)
        session = store.session("chat")
        seen = session.load()
        store.session("chat").commit({"messages": ["theirs", "again"]}, expect=ANY)
        seen["messages"].append("mine")
        with pytest.raises(ConflictError):
            session.commit(seen)


def test_ten_tasks_that_share_a_session_lose_no_turn_unnoticed(url: str) -> None:
    async def main() -> tuple[list[int], list[int]]:
        async with backstay.aio.open(url) as store:
            session = store.session("chat")
            await session.commit({"messages": []})
            refused = []
            everyone_has_looked = asyncio.Barrier(10)

            async def turn(number: int) -> None:
                state = dict(await session.load())  # a plain dict: what the task saw counts
                await everyone_has_looked.wait()
                try:
                    await session.commit({"messages": [*state["messages"], number]})
                except ConflictError:
                    refused.append(number)

            await asyncio.gather(*[turn(number) for number in range(10)])
            return (await session.load())["messages"], refused

    kept, refused = asyncio.run(main())
    assert len(kept) == 1
    assert sorted(kept + refused) == list(range(10))


# edits


def test_an_edit_loads_and_commits_and_one_that_raises_leaves_no_trace(store: Store) -> None:
    session = store.session("chat", agent="support")
    with pytest.raises(ZeroDivisionError), session.edit() as state:
        state["n"] = 1 / 0
    assert list(store.sessions()) == []
    with session.edit() as state:
        state["n"] = 1
    with pytest.raises(ZeroDivisionError), session.edit() as state:
        state["n"] = 1 / 0
    assert session.load() == {"n": 1}
    (info,) = store.sessions()
    assert (info.checkpoints, info.agent, info.crashed) == (1, "support", False)
    assert session.commit({"n": 2}).sequence == 2  # an edit counts as seen
    assert session.runs() == []
    assert store.verify().ok
    with pytest.raises(NotFoundError), session.edit("nope"):
        pass


def test_threads_that_edit_take_turns_whatever_they_change(store: Store) -> None:
    def turn(number: int) -> None:
        for _ in range(3):
            with store.session("chat").edit() as state:
                state["count"] = state.get("count", 0) + 1
                state.setdefault("messages", []).append(number)

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.session("chat").load()["count"] == 24
    assert sorted(said(store)) == sorted([number for number in range(8) for _ in range(3)])


def test_tasks_that_share_a_session_take_turns(url: str) -> None:
    async def main() -> dict[str, Any]:
        async with backstay.aio.open(url) as store:
            session = store.session("chat")

            async def turn(number: int) -> None:
                async with session.edit() as state:
                    await asyncio.sleep(0)
                    state["count"] = state.get("count", 0) + 1
                    state.setdefault("messages", []).append(number)

            await asyncio.gather(*[turn(number) for number in range(20)])
            with pytest.raises(ZeroDivisionError):
                async with session.edit() as state:
                    state["n"] = 1 / 0
            return dict(await session.load())

    state = asyncio.run(main())
    assert state["count"] == 20
    assert sorted(state["messages"]) == list(range(20))


EDITOR = """
import sys, backstay
with backstay.open(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(10):
        with store.session("chat").edit() as state:
            state["count"] = state.get("count", 0) + 1
            state.setdefault("messages", []).append(sys.argv[2] + str(number))
"""


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_processes_that_edit_take_turns(kind: str, tmp_path: Path) -> None:
    url = url_of(kind, tmp_path)
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children: list[Any] = [subprocess.Popen([sys.executable, "-c", EDITOR, url, name], **pipes) for name in "ab"]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.close()
    for child in children:
        child.stdout.close()
        assert child.wait(60) == 0
    with backstay.open(url) as store:
        assert store.session("chat").load()["count"] == 20
        assert sorted(said(store)) == sorted([name + str(number) for name in "ab" for number in range(10)])


def test_an_edit_of_a_process_that_died_holds_nobody_up(tmp_path: Path) -> None:
    url = url_of("sqlite", tmp_path)
    dies = "import os, sys, backstay\nwith backstay.open(sys.argv[1]).session('chat').edit() as s: os._exit(0)"
    subprocess.run([sys.executable, "-c", dies, url], check=True)
    with backstay.open(url) as store, store.session("chat").edit(wait_s=0) as state:
        state["n"] = 1


# overtaken


def test_a_commit_does_not_wait_for_an_edit_whose_changes_are_then_made_on_top_of_it(store: Store) -> None:
    session, other = store.session("chat"), store.session("chat")
    session.commit({"messages": ["one"], "phase": "plan", "gone": 1})
    with session.edit() as state:
        state["messages"].append("mine")
        state["phase"] = "mine"
        del state["gone"]
        other.commit({**other.load(), "messages": ["one", "theirs"], "by": "other"})
    assert session.load() == {"messages": ["one", "theirs", "mine"], "phase": "mine", "by": "other"}
    assert [point.state["messages"][-1] for point in session.log()] == ["mine", "theirs", "one"]


def test_where_an_edit_and_a_commit_changed_the_same_the_edit_is_told_and_nothing_is_lost(store: Store) -> None:
    session, other = store.session("chat"), store.session("chat")
    session.commit({"count": 3, "messages": []})

    def overtaken() -> None:
        with session.edit() as state:
            state["count"] += 1
            state["messages"].append("mine")
            other.commit({"count": 4, "messages": ["theirs"]}, expect=ANY)

    with pytest.raises(ConflictError, match="count"):
        overtaken()
    assert session.load() == {"count": 4, "messages": ["theirs"]}
    with session.edit(wait_s=0) as state:  # and the branch is free again
        state["count"] += 1
    assert session.load()["count"] == 5


def test_a_first_turn_committed_during_the_first_edit_is_kept_with_it(store: Store) -> None:
    with store.session("chat").edit() as state:
        state["messages"] = ["edit"]
        store.session("chat").commit({"messages": ["commit"]}, expect=NOTHING)
    assert said(store) == ["commit", "edit"]


def test_a_branch_that_is_taken_back_during_an_edit_is_a_conflict(store: Store) -> None:
    session = store.session("chat")
    session.commit({"n": 1})
    session.commit({"n": 2})

    def overtaken() -> None:
        with session.edit() as state:
            state["n"] = 3
            store.session("chat").delete("main")

    with pytest.raises((ConflictError, LeaseHeldError)):
        overtaken()


def test_an_edit_inside_an_edit_overtakes_it_and_does_not_wait_for_ever(store: Store) -> None:
    session = store.session("chat")
    for _ in range(2):  # of a new session, and of one that is there
        with session.edit() as outer:
            outer.setdefault("who", []).append("outer")
            with store.session("chat").edit() as inner:
                inner.setdefault("who", []).append("inner")
    assert session.load() == {"who": ["inner", "outer", "inner", "outer"]}
    with session.edit(wait_s=0) as state:
        state["n"] = 1


def test_an_edit_that_waits_too_long_is_told(store: Store) -> None:
    session, told = store.session("chat"), []
    session.commit({})

    def edit() -> None:
        try:
            with store.session("chat").edit(wait_s=0.05):
                pass
        except LeaseHeldError as error:
            told.append(str(error))

    with session.edit() as state:
        thread = threading.Thread(target=edit)
        thread.start()
        thread.join()
        state["n"] = 1
    assert session.load() == {"n": 1}
    assert "being edited" in told[0]


def test_a_run_and_an_edit_keep_away_from_one_another(store: Store) -> None:
    session = store.session("chat")
    session.commit({})
    with store.run("chat"), pytest.raises(LeaseHeldError), session.edit():
        pass
    with session.edit() as state:
        with pytest.raises(LeaseHeldError, match="edit"), store.run("chat"):
            pass
        state["n"] = 1
    with store.run("chat") as run:
        assert run.state == {"n": 1}
        assert not run.resumed


# what is made of two changes

CASES: list[tuple[Any, Any, Any, Any, list[str]]] = [
    ({"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}, []),
    ({"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}, []),
    ({"a": 1}, {"a": 2}, {"a": 2}, {"a": 2}, ["state['a']"]),
    ({"a": 1}, {"a": 1.0}, {"a": True}, {"a": True}, ["state['a']"]),
    ({"a": 1}, {}, {"a": 1, "b": 2}, {"b": 2}, []),
    ({"a": 1}, {}, {"a": 2}, {"a": 2}, ["state['a']"]),
    ({}, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}, []),
    ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}, {"a": [1, 2, 2]}, []),
    ({}, {"a": [1]}, {"a": [2]}, {"a": [2, 1]}, []),
    ({"a": [1]}, {"a": [0]}, {"a": [1, 2]}, {"a": [1, 2]}, ["state['a']"]),
    ({"a": {"b": [1], "c": 1}}, {"a": {"b": [1, 2], "c": 2}}, {"a": {"b": [1, 3], "c": 1}},
     {"a": {"b": [1, 3, 2], "c": 2}}, []),
    ({"a": 1}, {"a": 1, 2: "mine"}, {"a": 1, (3,): "theirs"}, {"a": 1, 2: "mine", (3,): "theirs"}, []),
]  # fmt: skip


@pytest.mark.parametrize(("base", "mine", "theirs", "merged", "conflicts"), CASES, ids=str)
def test_changes_to_different_parts_are_both_kept_and_to_the_same_part_are_told(
    base: Any, mine: Any, theirs: Any, merged: Any, conflicts: list[str]
) -> None:
    found, told = rebase(base, mine, theirs)
    assert encode_canonical(found) == encode_canonical(merged)  # types and all
    assert told == conflicts
