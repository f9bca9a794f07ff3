"""What BackstayHooks keep of a run of the OpenAI Agents SDK that fails, or meets another."""

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay

pytest.importorskip("agents", reason="the extra `openai-agents` is not installed")

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    Usage,
)
from agents.testing import ModelStep, ScriptedModel

from backstay.adapters.openai_agents import BackstayHooks, BackstaySession
from tests.faces.adapters.scripted import agent, asks, heard, history, lines, says, turn

UNKNOWN = "Outcome unknown"
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def store(url: str) -> Iterator[backstay.Store]:
    with backstay.open(url) as opened:
        yield opened


def add(a: int, b: int) -> int:
    return a + b


async def add_async(a: int, b: int) -> int:
    await asyncio.sleep(0.01)
    return a + b


def boom() -> int:
    raise ValueError("no")


@STREAMED
def test_answers_and_tools_of_a_run_are_journaled_with_the_turn_they_led_to(
    store: backstay.Store, streamed: bool
) -> None:
    both = asks(("c1", "add", {"a": 1, "b": 2}), ("c2", "add_async", {"a": 3, "b": 4}))
    usage = Usage(requests=1, input_tokens=10, output_tokens=2, total_tokens=12)
    acting = agent([ModelStep(output=both, usage=usage), says("3 and 7")], add, add_async)
    asyncio.run(turn(acting, "sums", session=BackstaySession("t", store), hooks=BackstayHooks(), streamed=streamed))
    last = store.session("t").checkpoint()
    assert history(store)[1:] == [
        ("in_progress", [("model", None, "done"), ("add", "c1", "done"), ("add_async", "c2", "done")]),
        ("completed", [("model", None, "done")]),
    ]
    assert (last.total_usage.tokens_in, last.total_usage.tokens_out) == (10, 2)
    assert lines(last.state["messages"]) == [
        "user: sums", "call c1 add", "call c2 add_async", "out c1 3", "out c2 7", "assistant: 3 and 7",
    ]  # fmt: skip
    assert store.crashed() == []
    assert store.verify().ok


@STREAMED
def test_of_two_runs_at_once_one_goes_on_and_the_other_is_told(store: backstay.Store, streamed: bool) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        inside.set()
        await go_on.wait()
        return "waited"

    async def story() -> None:
        session, hooks = BackstaySession("t", store), BackstayHooks()
        first = agent([asks(("c1", "wait", {})), says("done")], wait)
        running = asyncio.create_task(turn(first, "one", session=session, hooks=hooks, streamed=streamed))
        await inside.wait()
        second = agent([says("me too")])
        for other in (session, BackstaySession("t", store)):
            with pytest.raises(backstay.LeaseHeldError):
                await turn(second, "two", session=other, hooks=hooks, streamed=streamed)
        with pytest.raises(backstay.LeaseHeldError):
            await BackstaySession("t", store).add_items([{"role": "user", "content": "three"}])
        assert second.model.calls == ()
        go_on.set()
        await running
        assert lines(await session.get_items()) == [
            "user: one", "call c1 wait", "out c1 waited", "assistant: done",
        ]  # fmt: skip
        await turn(second, "two", session=session, hooks=hooks, streamed=streamed)

    asyncio.run(story())


def test_a_lease_is_kept_while_the_model_thinks(tmp_path: Path) -> None:
    async def story(store: backstay.Store) -> None:
        thinking, enough = asyncio.Event(), asyncio.Event()

        async def think(call: Any) -> Any:
            thinking.set()
            await enough.wait()
            return says("at last")

        slow = agent([ModelStep.respond(think)])
        session = BackstaySession("t", store)
        running = asyncio.create_task(turn(slow, "one", session=session, hooks=BackstayHooks(lease_s=3)))
        await thinking.wait()
        await asyncio.sleep(3.6)
        with pytest.raises(backstay.LeaseHeldError):
            await turn(agent([says("me")]), "two", session=BackstaySession("t", store), hooks=BackstayHooks())
        enough.set()
        await running
        assert lines(await session.get_items()) == ["user: one", "assistant: at last"]

    with backstay.open(f"{tmp_path}/store.db") as store:
        asyncio.run(story(store))


@STREAMED
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same task", "another task"])
def test_after_a_run_that_failed_the_next_one_need_not_wait(
    store: backstay.Store, elsewhere: bool, streamed: bool
) -> None:
    broken = agent([ModelStep.raise_error(RuntimeError("no answer"))])
    again = agent([says("here")])

    async def attempt(asked: Any) -> None:
        await turn(asked, "hello", session=BackstaySession("t", store), hooks=BackstayHooks(), streamed=streamed)

    async def story() -> None:
        failing = attempt(broken)
        with pytest.raises(RuntimeError, match="no answer"):
            await (asyncio.create_task(failing) if elsewhere else failing)
        await attempt(again)

    asyncio.run(story())
    assert heard(again) == ["user: hello", "user: hello"]


def test_a_run_that_failed_in_a_task_that_lives_on_is_noticed(tmp_path: Path) -> None:
    async def story(store: backstay.Store) -> None:
        failed, done = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            broken = agent([ModelStep.raise_error(RuntimeError("no answer"))])
            try:
                await turn(broken, "one", session=BackstaySession("t", store), hooks=BackstayHooks())
            except RuntimeError:
                failed.set()
            await done.wait()

        working = asyncio.create_task(work())
        await failed.wait()
        gc.collect()
        await asyncio.sleep(0.1)
        await turn(agent([says("ok")]), "two", session=BackstaySession("t", store), hooks=BackstayHooks())
        done.set()
        await working

    with backstay.open(f"{tmp_path}/store.db") as store:
        asyncio.run(story(store))


def test_hooks_as_a_context_say_why_a_run_failed(store: backstay.Store) -> None:
    async def story() -> None:
        broken = agent([ModelStep.raise_error(RuntimeError("no answer"))])
        with pytest.raises(RuntimeError):
            async with BackstayHooks() as hooks:
                await turn(broken, "one", session=BackstaySession("t", store), hooks=hooks)

    asyncio.run(story())
    (info,) = store.sessions()
    assert (info.status.value, info.reason) == ("failed", "RuntimeError: no answer")


@STREAMED
def test_a_tool_that_raised_leaves_the_answer_and_what_is_known(store: backstay.Store, streamed: bool) -> None:
    async def story() -> list[str]:
        session = BackstaySession("t", store)
        raising = agent([asks(("c1", "boom", {}))], boom, raising=True)
        with pytest.raises(Exception, match="boom"):
            await turn(raising, "go", session=session, hooks=BackstayHooks(), streamed=streamed)
        after = agent([says("I see")])
        await turn(after, "and?", session=session, hooks=BackstayHooks())
        return heard(after)

    told = asyncio.run(story())
    assert told[0] == "user: go"
    assert told[-1] == "user: and?"
    # 0.24 hands over what it likes of a failed turn; whatever it is, every call has its output.
    assert [line.split()[1] for line in told if line.startswith("call")] == [
        line.split()[1] for line in told if line.startswith("out")
    ]
    assert store.session("t").calls(pending=True) == []


def test_a_cancelled_run_leaves_the_paid_answer_to_the_next(store: backstay.Store) -> None:
    inside = asyncio.Event()

    async def hang() -> str:
        inside.set()
        await asyncio.sleep(60)
        return ""

    async def story() -> list[str]:
        acting = agent([asks(("c1", "add", {"a": 1, "b": 1}), ("c2", "hang", {}))], add, hang)
        running = asyncio.create_task(turn(acting, "go", session=BackstaySession("t", store), hooks=BackstayHooks()))
        await inside.wait()
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        after = agent([says("ok")])
        await turn(after, "and?", session=BackstaySession("t", store), hooks=BackstayHooks())
        return heard(after)

    told = asyncio.run(story())
    assert told[:4] == ["user: go", "call c1 add", "call c2 hang", "out c1 2"]
    assert told[4].startswith(f"out c2 {UNKNOWN}")
    assert told[5:] == ["user: and?"]


async def refuse(*_: Any) -> Any:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)


async def refuse_late(*_: Any) -> Any:
    await asyncio.sleep(0.1)
    return await refuse()


async def after_refusal(store: backstay.Store, refused: Any, *, streamed: bool, exact: bool) -> list[str]:
    """What the next model hears; `exact`: the hooks are told of the error."""
    session = BackstaySession("t", store)
    async with contextlib.AsyncExitStack() as stack:
        hooks = BackstayHooks()
        stack.enter_context(pytest.raises((InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered)))
        if exact:
            await stack.enter_async_context(hooks)
        await turn(refused, "hi", session=session, hooks=hooks, streamed=streamed)
    after = agent([says("polite")])
    await turn(after, "again", session=session, hooks=BackstayHooks())
    return heard(after)


GUARDS: dict[str, Any] = {
    "output": {"output_guardrails": [OutputGuardrail(refuse)]},
    "input": {"input_guardrails": [InputGuardrail(refuse)]},
    "input, late": {"input_guardrails": [InputGuardrail(refuse_late)]},
}


@STREAMED
@pytest.mark.parametrize("exact", [False, True], ids=["alone", "in a context"])
@pytest.mark.parametrize("guard", GUARDS)
def test_an_answer_that_a_guardrail_stopped_does_not_come_back(guard: str, exact: bool, streamed: bool) -> None:
    with backstay.open("memory://") as store:
        rude = agent([says("rude")], **GUARDS[guard])
        told = asyncio.run(after_refusal(store, rude, streamed=streamed, exact=exact))
    assert told == ["user: hi", "user: again"]


@STREAMED
@pytest.mark.parametrize("exact", [False, True], ids=["alone", "in a context"])
def test_what_tools_did_before_a_guardrail_refused_is_told(exact: bool, streamed: bool) -> None:
    done = asyncio.Event()

    async def pay() -> str:
        done.set()
        return "paid"

    async def refuse_then(*_: Any) -> Any:
        await done.wait()
        return await refuse_late()

    with backstay.open("memory://") as store:
        acting = agent([asks(("c1", "pay", {})), says("ok")], pay, input_guardrails=[InputGuardrail(refuse_then)])
        told = asyncio.run(after_refusal(store, acting, streamed=streamed, exact=exact))
        assert told[:2] == ["user: hi", "call c1 pay"]
        assert told[2] == "out c1 paid" or told[2].startswith(f"out c1 {UNKNOWN}")  # on a slow machine
        assert store.session("t").calls(pending=True) == []


def test_hooks_without_a_session_are_refused_before_the_model_is_paid(store: backstay.Store) -> None:
    asked = agent([says("hi")])
    with pytest.raises(backstay.InvalidInputError, match="session"):
        asyncio.run(turn(asked, "hello", hooks=BackstayHooks()))
    assert asked.model.calls == ()


@STREAMED
def test_an_approved_tool_is_journaled_once(store: backstay.Store, streamed: bool) -> None:
    from agents import function_tool

    async def story() -> list[str]:
        session = BackstaySession("t", store)
        model = ScriptedModel([asks(("c1", "add", {"a": 1, "b": 2})), says("3")])
        careful = Agent(name="careful", model=model, tools=[function_tool(add, needs_approval=True)])
        asked = await turn(careful, "1+2", session=session, hooks=BackstayHooks(session), streamed=streamed)
        state = asked.to_state()
        state.approve(asked.interruptions[0])
        await turn(careful, state, session=session, hooks=BackstayHooks(session), streamed=streamed)
        return lines(await session.get_items())

    assert asyncio.run(story()) == ["user: 1+2", "call c1 add", "out c1 3", "assistant: 3"]
    assert [call for _, calls in history(store) for call in calls].count(("add", "c1", "done")) == 1


def test_an_agent_used_as_a_tool_keeps_its_words_to_itself(store: backstay.Store) -> None:
    async def story() -> list[str]:
        session = BackstaySession("t", store)
        hooks = BackstayHooks(session)
        inner = agent([asks(("i1", "add", {"a": 1, "b": 1})), says("two")], add)
        expert = inner.as_tool("expert", "knows sums", hooks=hooks)
        outer = agent([asks(("c1", "expert", {"input": "1+1"})), says("it is two")])
        outer.tools.append(expert)
        await turn(outer, "1+1?", session=session, hooks=hooks)
        return lines(await session.get_items())

    assert asyncio.run(story()) == ["user: 1+1?", "call c1 expert", "out c1 two", "assistant: it is two"]


def test_a_handoff_is_one_run(store: backstay.Store) -> None:
    async def story() -> list[str]:
        session = BackstaySession("t", store)
        other = Agent(name="other", model=ScriptedModel([says("done")]))
        first = agent([asks(("c1", "transfer_to_other", {}))], handoffs=[other])
        await turn(first, "go", session=session, hooks=BackstayHooks())
        return lines(await session.get_items())

    assert asyncio.run(story())[-1] == "assistant: done"
    assert [status for status, _ in history(store)][-2:] == ["in_progress", "completed"]
