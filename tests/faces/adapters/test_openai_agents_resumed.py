"""Conversations of the OpenAI Agents SDK that wait for an approval, and sessions between the SDK and ours."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import backstay

pytest.importorskip("agents", reason="the extra `openai-agents` is not installed")

from agents import RunState
from agents.memory import OpenAIResponsesCompactionSession

from backstay.adapters.openai_agents import BackstayHooks, BackstaySession
from tests.faces.adapters.scripted import agent, asks, cautious, heard, lines, says, turn

WITHHELD = pytest.mark.parametrize("withheld", [False, True], ids=["handed over", "withheld"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[backstay.Store]:
    with backstay.open(f"{tmp_path}/store.db") as opened:
        yield opened


def look(order: int) -> str:
    return f"order {order} is paid"


async def pay(order: int) -> str:
    return f"paid order {order}"


def both() -> list[Any]:
    return asks(("c1", "look", {"order": 7}), ("c2", "pay", {"order": 7}))


def is_paired(told: list[str]) -> bool:
    calls, outs = ([line.split()[1] for line in told if line.startswith(word)] for word in ("call", "out"))
    return sorted(calls) == sorted(outs) == sorted(set(calls))


@WITHHELD
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same process", "from text"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_what_waited_for_an_approval_is_in_the_items_once(
    store: backstay.Store, withheld: bool, elsewhere: bool, streamed: bool
) -> None:
    async def story() -> list[str]:
        session = BackstaySession("t", store)
        acting = cautious([[*says("Let me see."), *both()], says("done")], look, pay, withheld=withheld)
        asked = await turn(acting, "pay order 7", session=session, hooks=BackstayHooks(session), streamed=streamed)
        state = asked.to_state()
        if elsewhere:
            state = await RunState.from_string(acting, state.to_string())
            session = BackstaySession("t", store)
        state.approve(state.get_interruptions()[0])
        await turn(acting, state, session=session, hooks=BackstayHooks(session), streamed=streamed)
        return lines(await session.get_items())

    assert asyncio.run(story()) == [
        "user: pay order 7", "assistant: Let me see.", "call c1 look", "call c2 pay",
        "out c1 order 7 is paid", "out c2 paid order 7", "assistant: done",
    ]  # fmt: skip
    assert store.crashed() == []


@WITHHELD
def test_an_approval_that_is_pending_is_listed_as_waiting(store: backstay.Store, withheld: bool) -> None:
    async def story() -> list[str]:
        session = BackstaySession("t", store)
        acting = cautious([both(), says("done")], look, pay, withheld=withheld)
        async with BackstayHooks(session) as hooks:
            asked = await turn(acting, "pay order 7", session=session, hooks=hooks)
        (wait,) = store.waiting()
        assert (wait.session_id, wait.what) == ("t", "framework")
        assert store.crashed() == []
        assert backstay.recover(store, lambda _: pytest.fail("the SDK goes on with it")).handled == 0
        state = asked.to_state()
        state.approve(state.get_interruptions()[0])
        await turn(acting, state, session=session, hooks=BackstayHooks(session))
        return [wait.reason, *lines(await session.get_items())]

    reason, *told = asyncio.run(story())
    assert reason == "for approval of 'pay'"
    assert told[-1] == "assistant: done"
    assert store.waiting() == []


def test_an_answer_with_no_run_to_approve_it_is_heard_as_not_run(store: backstay.Store) -> None:
    async def story() -> list[str]:
        session = BackstaySession("t", store)
        acting = cautious([both()], look, pay, withheld=True)
        await turn(acting, "pay order 7", session=session, hooks=BackstayHooks(session))
        after = agent([says("ok")])
        await turn(after, "never mind", session=session, hooks=BackstayHooks())
        return heard(after)

    assert is_paired(asyncio.run(story()))


@pytest.mark.parametrize("held", [False, True], ids=["error gone", "error held"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_approved_tool_that_raised_is_not_run_again_and_nobody_waits_for_its_lease(
    store: backstay.Store, held: bool, streamed: bool
) -> None:
    paid: list[int] = []

    async def pay(order: int) -> str:
        paid.append(order)
        raise ValueError("no answer")

    async def story() -> list[str]:
        session, errors = BackstaySession("t", store), []
        acting = cautious([both()], look, pay, withheld=False, raising=True)
        waiting = await turn(acting, "pay order 7", session=session, hooks=BackstayHooks(session))
        text = waiting.to_state().to_string()
        for match in ("no answer", "is being run" if held else "was begun by a run before"):
            state = await RunState.from_string(acting, text)
            state.approve(state.get_interruptions()[0])
            with pytest.raises(Exception, match=match) as caught:
                await turn(acting, state, session=session, hooks=BackstayHooks(session), streamed=streamed)
            errors += [caught.value] if held else []
            del caught
        errors.clear()
        after = agent([says("I will check")])
        await turn(after, "and?", session=session, hooks=BackstayHooks())
        return heard(after)

    told = asyncio.run(story())
    assert paid == [7]
    assert is_paired(told)
    assert told[-1] == "user: and?"
    assert store.session("t").calls(pending=True) == []


def test_of_two_that_resume_at_once_one_is_told_before_its_tool_runs(store: backstay.Store) -> None:
    paid: list[int] = []

    async def story() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def pay(order: int) -> str:
            paid.append(order)
            inside.set()
            await go_on.wait()
            return f"paid order {order}"

        acting = cautious([both(), says("done")], look, pay, withheld=False)
        waiting = await turn(acting, "pay", session=BackstaySession("t", store), hooks=BackstayHooks())
        text = waiting.to_state().to_string()

        async def resume() -> None:
            session, state = BackstaySession("t", store), await RunState.from_string(acting, text)
            state.approve(state.get_interruptions()[0])
            await turn(acting, state, session=session, hooks=BackstayHooks(session))

        first = asyncio.create_task(resume())
        await inside.wait()
        with pytest.raises(Exception, match="is being run"):
            await asyncio.wait_for(resume(), 10)
        go_on.set()
        await first
        assert lines(await BackstaySession("t", store).get_items())[-2:] == ["out c2 paid order 7", "assistant: done"]

    asyncio.run(story())
    assert paid == [7]


class Loud(BackstaySession):
    """As people write them who know the protocol, and not what else the SDK would tell."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.said: list[Any] = []

    async def get_items(self, limit: int | None = None) -> list[Any]:  # type: ignore[override]
        return await super().get_items(limit)

    async def add_items(self, items: list[Any]) -> None:  # type: ignore[override]
        self.said += items
        await super().add_items(items)


def compacting(inner: BackstaySession, short: list[Any], **options: Any) -> Any:
    """The SDK's session that has a long history made short by a server; here by what a test wants."""

    async def compact(**_: Any) -> Any:
        return SimpleNamespace(output=short, usage=None)

    client: Any = SimpleNamespace(responses=SimpleNamespace(compact=compact))
    return OpenAIResponsesCompactionSession("t", inner, client=client, compaction_mode="input", **options)


@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: compacting(inner, [])], ids=["itself", "wrapped"])
def test_hooks_that_were_given_their_session_know_it_without_being_told(
    store: backstay.Store, wrap: Callable[[Any], Any]
) -> None:
    async def story() -> None:
        session = Loud("t", store)
        acting = agent([asks(("c1", "look", {"order": 7})), says("paid")], look)
        async with BackstayHooks(session) as hooks:
            await turn(acting, "look", session=wrap(session), hooks=hooks)
        assert lines(session.said) == lines(await session.get_items())

    asyncio.run(story())
    kept = store.session("t")
    assert lines(kept.load()["messages"]) == [
        "user: look", "call c1 look", "out c1 order 7 is paid", "assistant: paid",
    ]  # fmt: skip
    calls = [(call.name, call.status) for point in kept.log() for call in kept.calls(point)]
    assert sorted(calls) == [("look", "done"), ("model", "done"), ("model", "done")]


def test_a_history_that_is_made_short_is_never_gone_and_can_be_had_back(store: backstay.Store) -> None:
    short: list[Any] = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "all of it"}]

    async def story() -> None:
        inner = BackstaySession("t", store)
        await inner.add_items([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        await compacting(inner, short).run_compaction({"force": True})
        assert await inner.get_items() == short
        log = [point async for point in inner.log()]
        if "_atomic_replace_items" in inspect.getsource(OpenAIResponsesCompactionSession):  # not in the oldest
            assert log[0].trigger == "compaction"
            assert all(point.state["messages"] for point in log)
        await inner.restore(log[-1])
        assert lines(await inner.get_items()) == ["user: a", "assistant: b"]

    asyncio.run(story())


def test_a_session_of_a_users_own_sees_what_a_short_history_is_made_of(store: backstay.Store) -> None:
    short: list[Any] = [{"role": "user", "content": "all of it"}]

    async def story() -> None:
        inner = Loud("t", store)
        await inner.add_items([{"role": "user", "content": "a"}])
        await compacting(inner, short).run_compaction({"force": True})
        assert lines(inner.said) == ["user: a", "user: all of it"]

    asyncio.run(story())
