"""The one line that says what a checkpoint holds: always there, always short, never in the way of a commit."""

from typing import Any

import pytest
from hypothesis import given

from backstay.messages import summarise
from tests.unit.values import states, values

USE = {"type": "tool_use", "id": "t", "name": "ls", "input": {}}


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ({}, ""),
        ({"phase": "plan", "open": True}, "phase, open"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "refund order 7"}]}, "user: refund order 7"),
        ({"messages": [{"type": "human", "content": "hi"}]}, "human: hi"),
        ({"messages": [{"role": "user", "content": "\n\n  first line\nsecond"}]}, "user: first line"),
        ({"messages": [{"content": "no role"}]}, "no role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "look"}]}]},
            "user: look",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "refund"}}]}]},
            "assistant: -> refund",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "a"}, 5]}]}, "assistant: -> a, ?"),
        ({"messages": [{"type": "function_call", "name": "pay", "arguments": "{}"}]}, "function_call: -> pay"),
        ({"messages": [{"type": "function_call_output", "output": "paid"}]}, "function_call_output: paid"),
        ({"messages": [{"type": "x_output", "output": [{"type": "input_text", "text": "paid"}]}]}, "x_output: paid"),
        ({"messages": [{"type": "custom_tool_call", "name": "patch", "input": "x"}]}, "custom_tool_call: -> patch"),
        ({"messages": [{"type": "web_search_call", "status": "completed"}]}, "web_search_call: -> web_search_call"),
        ({"messages": [{"role": "assistant", "content": [USE]}]}, "assistant: -> ls"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "I look."}, USE, USE]}]},
            "assistant: I look. -> ls, ls",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": text} for text in "ab"]}]},
            "tool_result: b",
        ),
        ({"messages": ["plain text"]}, "messages"),
        ({"messages": {"a": 1}}, "messages"),
        ({"messages": [{"role": 5, "content": "x"}]}, "x"),
        ({"messages": [{"role": "user", "content": "a\x1b[31mred\ud800\u202e"}]}, "user: a [31mred"),
    ],
)
def test_a_log_says_in_one_line_what_a_checkpoint_holds(state: dict[str, Any], line: str) -> None:
    assert summarise(state) == line


def test_a_long_message_is_clipped() -> None:
    line = summarise({"messages": [{"role": "user", "content": "word " * 10_000}]})
    assert 50 <= len(line) <= 72
    assert line.endswith("…")


class Awkward:
    def __bool__(self) -> bool:
        raise ValueError

    def __str__(self) -> str:
        raise ValueError


def test_a_message_of_odd_objects_does_not_break_the_commit_that_would_refuse_it_properly() -> None:
    summarise({"messages": [{"role": Awkward(), "content": Awkward(), "tool_calls": Awkward()}]})


@given(states, values)
def test_every_state_has_a_line_that_can_be_printed(state: dict[str, Any], message: Any) -> None:
    for each in (state, {"messages": [message]}, {"messages": [{"role": message, "content": message}]}):
        line = summarise(each)
        assert len(line) <= 72
        assert line.isprintable()
