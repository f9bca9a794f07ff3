"""Agents of the OpenAI SDK whose model says what a test wants, and what the tests see of a conversation."""

from collections.abc import Callable, Iterable
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    OutputGuardrail,
    Runner,
    StopAtTools,
    function_tool,
    set_tracing_disabled,
)
from agents.testing import ScriptedModel, assistant_message, function_call

import backstay

set_tracing_disabled(True)  # it would speak to a server


def says(text: str) -> list[Any]:
    """An answer that is text."""
    return [assistant_message(text, item_id=f"msg_{text}")]


def asks(*calls: tuple[str, str, dict[str, Any]]) -> list[Any]:
    """An answer that asks for tools: (call id, tool, arguments) each."""
    return [function_call(name, args, call_id=id_) for id_, name, args in calls]


def agent(steps: Iterable[Any], *tools: Callable[..., Any], raising: bool = False, **options: Any) -> Any:
    """An agent with these answers and tools; with `raising`, a tool's exception ends the run."""
    given = {"failure_error_function": None} if raising else {}
    return Agent(
        name="support",
        model=ScriptedModel(steps),
        tools=[function_tool(tool, **given) for tool in tools],
        **options,
    )


def cautious(
    steps: Iterable[Any],
    free: Callable[..., Any],
    guarded: Callable[..., Any],
    *,
    withheld: bool,
    raising: bool = False,
) -> Any:
    """An agent whose second tool has to be approved; `withheld`: the SDK holds the items back until it is."""
    given = {"failure_error_function": None} if raising else {}

    async def fine(context: Any, agent: Any, output: Any) -> Any:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    stop = {"output_guardrails": [OutputGuardrail(fine)], "tool_use_behavior": StopAtTools(stop_at_tool_names=["stop"])}
    tools = [function_tool(free), function_tool(guarded, needs_approval=True, **given)]
    return Agent(name="cautious", model=ScriptedModel(steps), tools=tools, **(stop if withheld else {}))


async def turn(agent: Any, input: Any, *, streamed: bool = False, **options: Any) -> Any:
    """One `Runner.run`, to its end."""
    if not streamed:
        return await Runner.run(agent, input, **options)
    result = Runner.run_streamed(agent, input, **options)
    async for _ in result.stream_events():
        pass
    return result


def lines(items: Iterable[Any]) -> list[str]:
    """A conversation as one reads it."""
    return [_line(item) for item in items]


def _line(item: Any) -> str:
    kind = item.get("type", "message")
    if kind == "function_call":
        return f"call {item['call_id']} {item['name']}"
    if kind == "function_call_output":
        return f"out {item['call_id']} {item['output']}"
    content = item["content"]
    return f"{item['role']}: {content if isinstance(content, str) else content[0]['text']}"


def heard(agent: Any) -> list[str]:
    """What the model was given when it was asked last."""
    return lines(agent.model.last_call.input)


def history(store: backstay.Store) -> list[tuple[str, list[tuple[str, str | None, str]]]]:
    """Of each checkpoint of the session, oldest first, its status and its calls."""
    session = store.session("t")
    log = [(each.status.value, session.calls(each)) for each in session.log()]
    # The answer, then the tools it asked for, which begin in no particular order.
    told = [[(call.name, call.key, call.status) for call in calls] for _, calls in log]
    return [(status, [*calls[:1], *sorted(calls[1:], key=str)]) for (status, _), calls in zip(log, told, strict=True)][
        ::-1
    ]
