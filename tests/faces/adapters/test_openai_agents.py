"""Conversations of the OpenAI Agents SDK, kept by Backstay."""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import backstay
import backstay.aio
from tests.crash.ring.nursery import Nursery

pytest.importorskip("agents", reason="the extra `openai-agents` is not installed")

from agents.memory import Session, SessionSettings

from backstay.adapters.openai_agents import BackstayHooks, BackstaySession, check_version
from tests.faces.adapters.killed import add_at_once
from tests.faces.adapters.scripted import agent, asks, heard, lines, says, turn


@pytest.fixture
def store(url: str) -> Iterator[backstay.Store]:
    with backstay.open(url) as opened:
        yield opened


@asynccontextmanager
async def opened(url: str, awaited: bool) -> Any:
    if awaited:
        async with backstay.aio.open(url) as store:
            yield store
    else:
        with backstay.open(url) as store:
            yield store


def said(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("awaited", [False, True], ids=["sync store", "aio store"])
def test_a_session_keeps_the_conversation_from_run_to_run(url: str, awaited: bool) -> None:
    async def story() -> None:
        async with opened(url, awaited) as store:
            session = BackstaySession("t", store)
            assert isinstance(session, Session)
            await turn(agent([asks(("c1", "add", {"a": 1, "b": 2})), says("three")], add), "1+2?", session=session)
            second = agent([says("you asked 1+2")])
            await turn(second, "what was it?", session=BackstaySession("t", store))
            assert heard(second) == [
                "user: 1+2?", "call c1 add", "out c1 3", "assistant: three", "user: what was it?",
            ]  # fmt: skip
            assert lines(await session.get_items()) == [*heard(second), "assistant: you asked 1+2"]

    asyncio.run(story())


@pytest.mark.parametrize("awaited", [False, True], ids=["sync store", "aio store"])
def test_items_are_added_limited_popped_and_cleared_as_in_their_own_sessions(url: str, awaited: bool) -> None:
    async def story() -> None:
        async with opened(url, awaited) as store:
            session = BackstaySession("t", store)
            assert await session.get_items() == []
            assert await session.pop_item() is None
            await session.clear_session()
            await session.add_items([])
            assert await session.get_items() == []
            await session.add_items(said("a", "b"))
            await session.add_items(said("c"))
            assert await session.get_items() == said("a", "b", "c")
            assert await session.get_items(2) == said("b", "c")
            assert await session.get_items(9) == said("a", "b", "c")
            assert await session.get_items(0) == []
            assert await session.pop_item() == said("c")[0]
            assert await session.get_items() == said("a", "b")
            await session.clear_session()
            assert await session.get_items() == []
            assert await session.pop_item() is None
            await session.add_items(said("new"))
            assert await session.get_items() == said("new")

    asyncio.run(story())


def test_nothing_is_written_for_a_session_that_nobody_used(store: backstay.Store) -> None:
    async def story() -> None:
        session = BackstaySession("t", store)
        await session.get_items()
        await session.pop_item()
        await session.clear_session()

    asyncio.run(story())
    assert list(store.sessions()) == []


def test_the_settings_of_a_session_limit_what_the_model_hears(store: backstay.Store) -> None:
    async def story() -> None:
        session = BackstaySession("t", store, session_settings=SessionSettings(limit=1))
        await session.add_items(said("a", "b"))
        assert await session.get_items() == said("b")
        asked = agent([says("ok")])
        await turn(asked, "c", session=session)
        assert heard(asked) == ["user: b", "user: c"]

    asyncio.run(story())


def test_settings_may_be_a_dict_and_are_checked(store: backstay.Store) -> None:
    async def story() -> None:
        session = BackstaySession("t", store, session_settings={"limit": 1})
        await session.add_items(said("a", "b"))
        assert await session.get_items() == said("b")
        assert await session.get_items(-1) == said("a", "b")

    asyncio.run(story())
    assert BackstaySession("t", store).session_settings == SessionSettings(limit=None)
    with pytest.raises(TypeError, match="limitt"):
        BackstaySession("t", store, session_settings={"limitt": 1})


def test_a_popped_item_and_a_cleared_session_can_be_had_back(store: backstay.Store) -> None:
    async def story() -> None:
        session = BackstaySession("t", store)
        await session.add_items(said("a", "b"))
        await session.pop_item()
        await session.clear_session()
        log = [checkpoint async for checkpoint in session.log()]
        assert [checkpoint.trigger for checkpoint in log][:2] == ["clear_session", "pop_item"]
        back = await session.restore(log[1])
        assert await session.get_items() == said("a")
        assert back.restored_from == log[1].id
        await session.restore("main~3")
        assert await session.get_items() == said("a", "b")
        await session.add_items(said("c"))
        assert await BackstaySession("t", store).get_items() == said("a", "b", "c")

    asyncio.run(story())


def test_a_fork_goes_its_own_way(store: backstay.Store) -> None:
    async def story() -> None:
        session = BackstaySession("t", store)
        await session.add_items(said("a"))
        other = await session.fork("main", "what-if")
        await turn(agent([says("yes")]), "really?", session=other)
        await session.add_items(said("b"))
        assert lines(await other.get_items()) == ["user: a", "user: really?", "assistant: yes"]
        assert await session.get_items() == said("a", "b")
        assert await BackstaySession("t", store, branch="what-if").get_items() == await other.get_items()
        with pytest.raises(backstay.AlreadyExistsError):
            await session.fork("main", "what-if")

    asyncio.run(story())


@pytest.mark.parametrize("new", [True, False], ids=["new session", "old session"])
def test_items_that_many_add_at_once_are_all_there(store: backstay.Store, new: bool) -> None:
    async def story() -> list[Any]:
        if not new:
            await BackstaySession("t", store).add_items(said("first"))

        async def write(who: int) -> None:
            session = BackstaySession("t", store)
            for number in range(5):
                await session.add_items(said(f"{who}-{number}", f"{who}-{number}+"))

        await asyncio.gather(*[write(who) for who in range(6)])
        return await BackstaySession("t", store).get_items()

    texts = [item["content"] for item in asyncio.run(story())]
    assert len(texts) == 60 + (not new)
    for who in range(6):
        mine = [text for text in texts if text.startswith(f"{who}-")]
        assert mine == [f"{who}-{number}{more}" for number in range(5) for more in ("", "+")]


@pytest.mark.parametrize("new_url", ["sqlite", "files"], indirect=True)
def test_items_that_processes_add_at_once_are_all_there(nursery: Nursery, url: str) -> None:
    assert nursery.do(add_at_once, url) == [0, 0, 0]
    with backstay.open(url) as store:
        items = store.session("t").load()["messages"]
    assert sorted(item["content"] for item in items) == sorted(f"{who}-{n}" for who in range(3) for n in range(10))


def test_what_a_caller_does_to_its_items_later_does_not_reach_the_history(store: backstay.Store) -> None:
    async def story() -> None:
        session = BackstaySession("t", store)
        mine: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]
        await session.add_items(mine)
        mine[0]["content"][0]["text"] = "changed"
        (await session.get_items())[0]["content"][0]["text"] = "changed"
        await session.add_items(said("b"))
        assert (await session.get_items())[0]["content"][0]["text"] == "a"

    asyncio.run(story())


ODD: list[Any] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}]},
    {"type": "computer_call", "call_id": "c1", "action": {"type": "click", "x": 1, "y": 2}, "status": "completed"},
    {"type": "computer_call_output", "call_id": "c1", "output": {"type": "computer_screenshot", "image_url": "data:"}},
    {"type": "mcp_call", "id": "m1", "name": "find", "server_label": "docs", "arguments": "{}", "output": "found"},
    {"type": "of tomorrow", "deep": [{"a": [1, 2.5, None, True]}]},
    {"role": "user", "content": "Grüße 👩‍👩‍👧 \x00 " + "x" * 1_000_000},
]


def test_items_of_every_kind_come_back_as_they_were(store: backstay.Store) -> None:
    async def story() -> None:
        session = BackstaySession("t", store)
        await session.add_items(ODD)
        await session.add_items(says("hello"))  # the SDK's own object
        *first, last = await BackstaySession("t", store).get_items()
        assert first == ODD
        assert lines([last]) == ["assistant: hello"]
        with pytest.raises(backstay.InvalidInputError, match=r"items\[1\] must be a dict, not str"):
            await session.add_items([*said("a"), "b"])
        assert len(await session.get_items()) == len(ODD) + 1

    asyncio.run(story())


def test_a_long_conversation_costs_what_was_said_and_not_its_square(tmp_path: Path) -> None:
    async def story(store: backstay.Store) -> None:
        session = BackstaySession("t", store)
        for number in range(200):
            await session.add_items(said(f"{number} " + "word " * 100, f"answer {number} " + "more " * 100))

    with backstay.open(f"{tmp_path}/store.db") as store:
        asyncio.run(story(store))
        (session,) = store.sessions()
        assert session.checkpoints == 200
        assert store.stats().stored_bytes < 600_000  # 200 KB of text; all copies would be 20 MB


def test_a_conversation_is_an_ordinary_session(store: backstay.Store) -> None:
    asyncio.run(turn(agent([says("hello")]), "hi", session=BackstaySession("t", store, agent="support")))
    session = store.session("t")
    assert [checkpoint.summary for checkpoint in session.log()] == ["assistant: hello", "user: hi"]
    assert next(store.sessions()).agent == "support"
    assert store.verify().ok


@pytest.mark.parametrize("odd", ["text", {"a": 1}, ["text"], [None]])
def test_a_session_whose_messages_are_something_else_is_refused_and_not_changed(odd: Any) -> None:
    async def story(store: backstay.Store) -> None:
        session, asked = BackstaySession("t", store), agent([says("hi")])
        attempts = (
            session.get_items(), session.add_items(said("a")), session.pop_item(),
            turn(asked, "hello", session=session), turn(asked, "hello", session=session, hooks=BackstayHooks()),
        )  # fmt: skip
        for attempt in attempts:
            with pytest.raises(backstay.InvalidInputError, match="not a list of dicts"):
                await attempt
        assert asked.model.calls == ()

    with backstay.open("memory://") as store:
        store.session("t").commit({"messages": odd})
        asyncio.run(story(store))
        assert store.session("t").load() == {"messages": odd}


@pytest.mark.parametrize("version", ["0.20.9", "0.25.0", "1.0.0", "0.9", "banana", None])
def test_a_version_that_nobody_tried_is_refused(version: str | None) -> None:
    with pytest.raises(backstay.UnsupportedError, match=r"knows openai-agents 0\.21 to below 0\.25.*pip install"):
        check_version(version)


@pytest.mark.parametrize("version", ["0.21.0", "0.22.3", "0.24.0", "0.24.7"])
def test_a_version_of_the_extra_is_taken(version: str) -> None:
    check_version(version)
