"""After a crash between two tool results: a conversation that the provider takes, in which nothing is made up.

The checks below are each provider's own rule, written down once more and as strictly as any server reads it.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from backstay.errors import InvalidInputError
from backstay.messages import OUTCOME_UNKNOWN, repair_messages
from tests.unit.values import values

Messages = list[dict[str, Any]]

# -- what each provider refuses


def check_chat(messages: Messages) -> None:
    """Every call has one `tool` message, in the row right behind its assistant message; no other `tool` message."""
    at = 0
    while at < len(messages):
        assert messages[at]["role"] != "tool", f"messages[{at}] answers nothing"
        wanted = sorted(call["id"] for call in messages[at].get("tool_calls", []))
        row = messages[at + 1 : at + 1 + len(wanted)]
        assert sorted(each.get("tool_call_id", "") for each in row) == wanted, f"messages[{at}] is not answered"
        at += 1 + len(wanted)


def check_anthropic(messages: Messages) -> None:
    """The blocks of the next message begin with one result for each call; there are no other results."""
    wanted: list[str] = []
    for message in messages:
        content = message["content"] if isinstance(message["content"], list) else [{"type": "text"}]
        assert content, "an empty message"
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        assert sorted(results) == sorted(wanted)
        assert all(block["type"] == "tool_result" for block in content[: len(wanted)])
        assert not wanted or message["role"] == "user"
        wanted = [block["id"] for block in content if block["type"] == "tool_use"]
    assert not wanted


def check_responses(items: Messages) -> None:
    """Each call has one output behind it, before anyone else speaks; reasoning has what it led to right behind it."""
    waiting: set[str] = set()
    for item, after in zip(items, [*items, {"type": "end"}][1:], strict=True):
        kind = item.get("type", "message")
        if kind.endswith("_call") and "call_id" in item:
            assert item["call_id"] not in waiting
            waiting.add(item["call_id"])
        elif kind.endswith("_output"):
            waiting.remove(item["call_id"])
        elif kind == "reasoning":
            assert not after["type"].endswith("_output")
            assert after["type"] != "end"
            assert after.get("role") != "user"
        elif item.get("role") == "user":
            assert not waiting
    assert not waiting


# -- conversations that are in order, and what a crash, a trimmed window or a merge of two logs makes of them


def chat_turn(number: int, calls: int) -> Messages:
    names = [f"call_{number}_{each}" for each in range(calls)]
    asked = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in names]
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": None, **({"tool_calls": asked} if asked else {})},
        *[{"role": "tool", "tool_call_id": name, "content": f"result of {name}"} for name in names],
        {"role": "assistant", "content": "done"},
    ]


def responses_turn(number: int, calls: int) -> Messages:
    kinds = ["function_call", "custom_tool_call", "shell_call", "apply_patch_call", "local_shell_call"]
    made = [(f"call_{number}_{each}", kinds[(number + each) % 5]) for each in range(calls)]
    asked: Messages = []
    for each, (name, kind) in enumerate(made):
        if (number + each) % 2:
            asked.append({"type": "reasoning", "id": f"rs_{name}", "summary": []})
        asked.append({"type": kind, "id": f"fc_{name}", "call_id": name, "name": "f"})
    answers: Messages = [
        {"type": f"{kind}_output", "call_id": name, "output": f"result of {name}"} for name, kind in made
    ]
    return [
        {"role": "user", "content": f"question {number}"},
        *asked,
        *answers,
        {"type": "reasoning", "id": f"rs_{number}", "summary": []},
        {"type": "web_search_call", "id": f"ws_{number}", "status": "completed"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ]


def anthropic_turn(number: int, calls: int) -> Messages:
    names = [f"toolu_{number}_{each}" for each in range(calls)]
    asked = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in names]
    answers = [{"type": "tool_result", "tool_use_id": name, "content": f"result of {name}"} for name in names]
    hosted = [
        {"type": "server_tool_use", "id": f"srvtoolu_{number}", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{number}", "content": []},
    ]
    said = [{"type": "text", "text": "and be quick"}] if number % 2 else []
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": [{"type": "text", "text": "let me see"}, *hosted, *asked]},
        *([{"role": "user", "content": [*answers, *said]}] if [*answers, *said] else []),
        {"role": "assistant", "content": "done"},
    ]


Shape = tuple[Callable[[int, int], Messages], Callable[[Messages], None]]
SHAPES: dict[str, Shape] = {
    "chat": (chat_turn, check_chat),
    "responses": (responses_turn, check_responses),
    "anthropic": (anthropic_turn, check_anthropic),
}
shapes = pytest.mark.parametrize("shape", SHAPES)


def conversation(shape: str, turns: list[int]) -> Messages:
    turn, _ = SHAPES[shape]
    return [message for number, calls in enumerate(turns) for message in turn(number, calls)]


def is_result(message: dict[str, Any]) -> bool:
    return message.get("role") == "tool" or str(message.get("type")).endswith("_output")


def result_of(piece: dict[str, Any]) -> str | None:
    name = piece.get("tool_call_id") or piece.get("tool_use_id") or (is_result(piece) and piece.get("call_id"))
    return name if isinstance(name, str) and not name.startswith("srv") else None


def pieces(messages: Messages) -> Messages:
    """Messages with their blocks taken apart, so that blocks can be lost and moved as messages can."""
    apart: Messages = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, list):
            apart += [{"role": "user", "content": [block]} for block in content]
        else:
            apart.append(message)
    return apart


def inner(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if message.get("role") == "user" and isinstance(content, list) and content:
        block: dict[str, Any] = content[0]
        return block
    return message


def damaged(draw: Callable[[st.SearchStrategy[Any]], Any], messages: Messages) -> Messages:
    whole = pieces(messages)
    start = draw(st.integers(0, len(whole)))
    whole = whole[start if draw(st.booleans()) else 0 : draw(st.integers(start, len(whole)))]
    left: Messages = []
    for piece in whole:
        if result_of(inner(piece)) is None:
            left.append(piece)
            continue
        fate = draw(st.sampled_from(["stays", "stays", "lost", "twice", "moved"]))
        if fate in {"stays", "twice"}:
            left += [piece] * (2 if fate == "twice" else 1)
        elif fate == "moved":
            left.insert(draw(st.integers(0, len(left))), piece)
    if draw(st.booleans()):  # neighbouring blocks back into one message, as they usually are
        joined: Messages = []
        for piece in left:
            if joined and all(
                each.get("role") == "user" and isinstance(each["content"], list) for each in (joined[-1], piece)
            ):
                joined[-1] = {"role": "user", "content": [*joined[-1]["content"], *piece["content"]]}
            else:
                joined.append(piece)
        return joined
    late = draw(st.permutations(range(len(left)))) if draw(st.booleans()) else range(len(left))
    results = [place for place, piece in enumerate(left) if result_of(inner(piece)) is not None]
    shuffled = iter([left[place] for place in late if place in results])
    return [next(shuffled) if place in results else piece for place, piece in enumerate(left)]


def outcomes(messages: Messages) -> dict[str, str]:
    """By id: the first result that stands behind its call."""
    called: set[str] = set()
    found: dict[str, str] = {}
    for message in messages:
        blocks = message["content"] if isinstance(message.get("content"), list) else []
        for piece in [message, *blocks, *message.get("tool_calls", [])]:
            name = result_of(piece)
            if name is not None and name in called:
                found.setdefault(name, str(piece.get("content", piece.get("output"))))
            elif name is None:
                called.update(each for each in (piece.get("id"), piece.get("call_id")) if isinstance(each, str))
    return found


def without_results(messages: Messages) -> Messages:
    """What was said, apart from results; and from reasoning, which goes where what it led to is gone."""
    plain: Messages = []
    for message in messages:
        content = message.get("content")
        if is_result(message) or message.get("type") == "reasoning":
            continue
        if message.get("role") == "user" and isinstance(content, list):
            blocks = [block for block in content if result_of(block) is None]
            plain += [{"role": "user", "content": [block]} for block in blocks]
        else:
            plain.append(message)
    return plain


turns_of_calls = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@shapes
@given(turns=turns_of_calls)
def test_a_conversation_in_order_comes_back_as_it_was(shape: str, turns: list[int]) -> None:
    whole = conversation(shape, turns)
    SHAPES[shape][1](whole)
    assert repair_messages(whole) == whole


@shapes
@given(data=st.data(), turns=turns_of_calls)
def test_whatever_is_cut_lost_or_out_of_place_the_provider_takes_the_rest(
    shape: str, data: st.DataObject, turns: list[int]
) -> None:
    broken = damaged(data.draw, conversation(shape, turns))
    before = copy.deepcopy(broken)
    repaired = repair_messages(broken)
    SHAPES[shape][1](repaired)
    assert broken == before
    assert repair_messages(repaired) == repaired


@shapes
@given(data=st.data(), turns=turns_of_calls)
def test_no_outcome_that_is_known_is_lost_and_none_is_made_up(
    shape: str, data: st.DataObject, turns: list[int]
) -> None:
    broken = damaged(data.draw, conversation(shape, turns))
    known, told = outcomes(broken), outcomes(repaired := repair_messages(broken))
    assert {name: text for name, text in told.items() if OUTCOME_UNKNOWN not in text and "failed" not in text} == known
    assert without_results(repaired) == without_results(broken)


names = st.sampled_from(["a", "b"])
anything = st.one_of(
    names.map(lambda name: {"role": "tool", "tool_call_id": name, "content": "x"}),
    st.lists(names, max_size=2).map(lambda ids: {"role": "assistant", "tool_calls": [{"id": each} for each in ids]}),
    st.lists(names.map(lambda name: {"type": "tool_use", "id": name}) | st.just({"type": "text"}), max_size=3).map(
        lambda blocks: {"role": "assistant", "content": blocks}
    ),
    st.lists(
        names.map(lambda name: {"type": "tool_result", "tool_use_id": name}) | st.just({"type": "text"}), max_size=3
    ).map(lambda blocks: {"role": "user", "content": blocks}),
    names.map(lambda name: {"type": "function_call", "call_id": name}),
    names.map(lambda name: {"type": "local_shell_call", "call_id": f"shell {name}", "id": f"item {name}"}),
    names.map(lambda name: {"type": "local_shell_call_output", "id": f"item {name}"}),
    names.map(lambda name: {"type": "local_shell_call_output", "id": f"shell {name}"}),
    names.map(lambda name: {"type": "function_call_output", "call_id": name, "output": "x"}),
    st.sampled_from(
        [
            {"type": "reasoning"},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "x"},
            {"type": "web_search_call", "id": "a"},
            {"role": "tool", "content": "no id"},
        ]
    ),
)


@given(st.lists(anything, max_size=9))
def test_a_repair_of_what_was_repaired_changes_nothing_however_odd_it_was(messages: Messages) -> None:
    # Servers that count ids anew in every turn speak chat. Among items an id that comes again is one logged twice.
    items = [
        message["call_id"]
        for message in messages
        if str(message.get("type")).endswith("_call") and "call_id" in message
    ]
    assume(len(set(items)) == len(items))
    once = repair_messages(messages)
    assert repair_messages(once) == once


@given(st.lists(st.dictionaries(st.sampled_from(["role", "type", "content", "tool_calls", "id", "call_id"]), values)))
def test_messages_of_another_shape_are_left_alone(messages: Messages) -> None:
    assert [*map(id, repair_messages(messages))] == [*map(id, messages)]


# -- one by one, as people meet them


def test_two_calls_and_one_result_as_a_crash_between_them_leaves_it() -> None:
    broken = conversation("chat", [2])[:3]
    assert repair_messages(broken) == [
        *broken,
        {"role": "tool", "tool_call_id": "call_0_1", "content": OUTCOME_UNKNOWN},
    ]


def test_an_unknown_outcome_is_not_told_as_a_success() -> None:
    (*_, answer) = repair_messages(conversation("anthropic", [1])[:2])
    assert answer == {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_0_0", "content": OUTCOME_UNKNOWN, "is_error": True}],
    }
    assert "may or may not have run" in OUTCOME_UNKNOWN


def test_a_question_asked_after_the_crash_stays_as_it_was_asked() -> None:
    asked = {"role": "user", "content": "are you there?"}
    chat = repair_messages([*conversation("chat", [1])[:2], asked])
    assert [message["role"] for message in chat] == ["user", "assistant", "tool", "user"]
    anthropic = repair_messages([*conversation("anthropic", [1])[:2], asked])
    assert anthropic[-1] is asked
    assert anthropic[-2]["content"][0]["type"] == "tool_result"


def test_results_in_several_user_messages_come_together_in_front_of_what_was_said() -> None:
    first, second = ({"type": "tool_result", "tool_use_id": f"toolu_1_{each}", "content": "x"} for each in (0, 1))
    said = {"type": "text", "text": "by the way"}
    broken = [
        *conversation("anthropic", [0, 2])[3:5],
        {"role": "user", "content": [said, second]},
        {"role": "user", "content": [first]},
    ]
    assert repair_messages(broken) == [*broken[:2], {"role": "user", "content": [second, first, said]}]


def test_an_answer_that_was_logged_block_by_block_keeps_its_thinking() -> None:
    blocks: Messages = [
        {"type": "thinking", "thinking": "…", "signature": "s"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
        {"type": "tool_use", "id": "b", "name": "f", "input": {}},
    ]
    logged = [
        {"role": "assistant", "content": blocks[:2]},
        {"role": "assistant", "content": blocks[2:]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": "x"}]},
    ]
    repaired = repair_messages(logged)
    assert repaired[:2] == logged[:2]
    assert [block["tool_use_id"] for block in repaired[2]["content"]] == ["b", "a"]


def test_the_result_of_an_earlier_call_is_not_taken_for_that_of_a_later_one_of_the_same_id() -> None:
    asked = {"role": "assistant", "tool_calls": [{"id": "call_0"}]}
    old = {"role": "tool", "tool_call_id": "call_0", "content": "paid"}
    trimmed = [old, {"role": "user", "content": "pay again"}, asked]
    assert repair_messages(trimmed)[-1]["content"] == OUTCOME_UNKNOWN
    counted_anew = [asked, old, asked, {**old, "content": "refused"}]
    assert repair_messages(counted_anew) == counted_anew


def test_reasoning_that_lost_what_it_led_to_goes_instead_of_being_refused() -> None:
    items = conversation("responses", [1])
    assert items[3]["type"] == "reasoning"
    assert repair_messages(items[:4]) == items[:3]


def test_a_call_that_was_logged_twice_is_there_once() -> None:
    asked, call, answer, *rest = conversation("responses", [1])
    assert repair_messages([asked, call, call, answer, answer, *rest]) == [asked, call, answer, *rest]
    assert repair_messages([asked, call, call])[:2] == [asked, call]


def test_an_output_whose_call_the_provider_keeps_stays() -> None:
    items = [{"type": "item_reference", "id": "fc_1"}, {"type": "function_call_output", "call_id": "c", "output": "x"}]
    assert repair_messages(items) == items
    assert repair_messages(items[1:]) == []


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("function_call", OUTCOME_UNKNOWN),
        ("custom_tool_call", OUTCOME_UNKNOWN),
        ("local_shell_call", OUTCOME_UNKNOWN),
        ("shell_call", [{"stdout": "", "stderr": OUTCOME_UNKNOWN, "outcome": {"type": "timeout"}}]),
        ("apply_patch_call", OUTCOME_UNKNOWN),
        ("some_future_call", OUTCOME_UNKNOWN),
    ],
)
def test_each_kind_of_call_gets_an_output_of_its_kind(kind: str, output: object) -> None:
    (_, answer) = repair_messages([{"type": kind, "id": "i", "call_id": "c"}])
    assert (answer["type"], answer["call_id"], answer["output"]) == (f"{kind}_output", "c", output)


def test_a_click_whose_outcome_is_unknown_is_answered_with_a_picture_of_nothing() -> None:
    (_, answer) = repair_messages([{"type": "computer_call", "call_id": "c", "pending_safety_checks": [{"id": "s"}]}])
    assert answer["type"] == "computer_call_output"
    assert answer["output"]["image_url"].startswith("data:image/png;base64,iVBOR")
    assert "acknowledged_safety_checks" not in answer


def test_a_tool_search_whose_outcome_is_unknown_found_nothing() -> None:
    ours = {"type": "tool_search_call", "call_id": "c", "execution": "client"}
    (_, answer) = repair_messages([ours])
    assert (answer["type"], answer["call_id"], answer["tools"]) == ("tool_search_output", "c", [])
    theirs = [{**ours, "call_id": None, "id": "1"}, {"type": "tool_search_output", "call_id": None, "id": "2"}]
    assert repair_messages(theirs) == theirs


@pytest.mark.parametrize("messages", [None, "messages", {"role": "user"}, ({"role": "user"},), 5])
def test_what_is_no_list_of_messages_is_refused(messages: Any) -> None:
    with pytest.raises(InvalidInputError, match="messages must be a list"):
        repair_messages(messages)


def test_a_message_that_is_none_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"messages\[1\] must be a mapping, not str"):
        repair_messages([{"role": "user", "content": "x"}, "y"])


def test_a_conversation_of_thousands_of_turns_is_repaired_while_one_waits() -> None:
    for shape, (_, check) in SHAPES.items():
        whole = [message for message in conversation(shape, [3] * 3_000) if not is_result(message)]
        check(repair_messages(whole))
