"""What a reader of a diff must be able to believe: nothing missed, nothing made up, nothing that harms."""

import copy
import datetime as dt
import math
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.difference import COLUMNS, DEPTH_LIMIT, Change, Diff, ItemChange, PartDiff, PartStat, difference, same

StateDict = dict[Any, Any]

zones = st.none() | st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)).map(dt.timezone)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 0.0, -0.0, 1.0, math.nan, math.inf, 2**700, "", "a", b"a", Decimal("1.0")]),
    st.floats(),
    st.text(st.characters(), max_size=100),
    st.binary(max_size=10),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
)
keys = st.recursive(
    scalars.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan())),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.none() | st.text(max_size=8)},
    optional={
        "id": st.integers(0, 3),
        "tool_calls": st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": scalars, "arguments": scalars})})
        ),
    },
)
values = st.recursive(
    scalars | messages,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=12,
)
states = st.dictionaries(st.sampled_from(["messages", "config", "phase"]) | keys, values, max_size=4)
few = st.lists(st.sampled_from([1, True, 1.0, "x", (1,), [1], {"role": "user", "content": "hi"}]) | messages)


def exact(value: Any) -> Any:
    """A value as text, its type spelled out: an oracle that shares no code with the module."""
    if isinstance(value, dict):
        return f"dict{sorted(exact(key) + '=' + exact(item) for key, item in value.items())}"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}{sorted(map(exact, value))}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[exact(item) for item in value]}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"int {value:x}"
    if isinstance(value, dt.datetime | dt.time):
        return f"{type(value).__name__} {value.replace(tzinfo=None)!r} {value.utcoffset()!r}"
    return f"{type(value).__name__} {value!r}"


def shuffled(value: Any) -> Any:
    """An equal value that shares no object with it, and whose dicts are in another order."""
    if type(value) is dict:
        return {key: shuffled(item) for key, item in reversed(value.items())}
    if type(value) in (list, tuple):
        return type(value)(shuffled(item) for item in value)
    return copy.deepcopy(value)


def text(before: StateDict, after: StateDict) -> list[str]:
    return str(difference(before, after)).splitlines()


def only(diff: Diff) -> PartDiff:
    (part,) = diff.parts
    return part


@given(states)
def test_a_state_compared_with_itself_cries_no_wolf(state: StateDict) -> None:
    diff = difference(state, shuffled(state), a="x", b="y")
    assert not diff
    assert (diff.parts, diff.stat(), diff.added, diff.removed, diff.changed) == ((),) * 5
    assert str(diff) == "no difference between x and y"


@given(values | few, values | few)
def test_no_difference_is_missed_and_none_is_made_up(before: Any, after: Any) -> None:
    unequal = exact(before) != exact(after)
    assert bool(difference({"part": before}, {"part": after})) is unequal
    assert same(before, after) is not unequal


@given(states, states)
def test_every_part_that_differs_is_named_and_no_other(before: StateDict, after: StateDict) -> None:
    old, new = ({exact(key): exact(value) for key, value in state.items()} for state in (before, after))
    diff = difference(before, after)
    assert {exact(name) for name in diff.added} == new.keys() - old.keys()
    assert {exact(name) for name in diff.removed} == old.keys() - new.keys()
    if len(old) == len(before) and len(new) == len(after):  # two NaN keys are told apart by value only
        assert {exact(name) for name in diff.changed} == {k for k in old if k in new and old[k] != new[k]}


@given(few, few)
def test_the_items_of_a_diff_lead_from_one_list_to_the_other(before: list[Any], after: list[Any]) -> None:
    items = [item for part in difference({"m": before}, {"m": after}).parts for item in part.items]
    left = {item.index_before for item in items if item.kind == "removed"}
    edited = {item.index_before: item.after for item in items if item.kind == "changed"}
    rebuilt = [edited.get(i, value) for i, value in enumerate(before) if i not in left]
    for item in items:
        if item.kind == "added":
            assert item.index_after is not None
            rebuilt.insert(item.index_after, item.after)
    assert exact(rebuilt) == exact(after)


@given(
    st.recursive(st.integers(0, 2), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=9),
    st.recursive(st.integers(0, 2), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=9),
)
def test_the_changes_of_a_diff_lead_from_one_dict_to_the_other(before: Any, after: Any) -> None:
    rebuilt = {"part": copy.deepcopy(before)}
    for part in difference({"part": before}, {"part": after}).parts:
        for change in part.changes:
            *way, last = change.path
            place: Any = rebuilt
            for step in way:
                place = place[step]
            if change.kind == "removed":
                del place[last]
            else:
                place[last] = change.after
    assert rebuilt == {"part": after}


@given(states, states, st.text(max_size=200), st.text(max_size=200))
def test_a_stored_value_can_neither_break_the_page_nor_reach_the_terminal(
    before: StateDict, after: StateDict, a: str, b: str
) -> None:
    for line in str(difference(before, after, a=a, b=b)).split("\n"):
        assert line.isprintable()
        assert sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line) <= COLUMNS
        line.encode()  # a lone surrogate would stop print() half way


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (True, 1),
        (1, 1.0),
        (0.0, -0.0),
        ((1,), [1]),
        ({1}, frozenset({1})),
        ("a", b"a"),
        (Decimal("1.0"), Decimal("1.00")),
        (dt.datetime(2026, 3, 1), dt.datetime(2026, 3, 1, tzinfo=dt.UTC)),
        (dt.datetime(2026, 3, 1), dt.datetime(2026, 3, 1, fold=1)),
        (
            dt.datetime(2026, 3, 1, 1, tzinfo=dt.UTC),
            dt.datetime(2026, 3, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        ),
        ({1: "x"}, {True: "x"}),
        ({(1, 2): "x"}, {(1.0, 2): "x"}),
        ({1, 2}, {True, 2}),
        ({}, set()),
        (UUID(int=1), 1),
    ],
)
def test_a_value_that_changed_its_type_or_sign_is_not_called_equal(before: Any, after: Any) -> None:
    assert only(difference({"v": before}, {"v": after})).kind == "changed"
    assert difference({"v": [before]}, {"v": [after]})
    old, _, new = text({"v": [before]}, {"v": [after]})[-1].partition(" -> ")
    assert old.rpartition(": ")[2] != new


@pytest.mark.parametrize("value", [math.nan, Decimal("NaN"), Decimal("sNaN"), [math.nan], {"x": math.nan}])
def test_nan_does_not_show_as_a_change_for_ever(value: Any) -> None:
    assert not difference({"v": value}, {"v": copy.deepcopy(value)})
    assert not difference({"v": float("nan")}, {"v": float("nan")})


def test_nan_keys_are_compared_by_what_they_hold() -> None:
    def nans(*held: int) -> StateDict:
        return {"v": {float("nan"): value for value in held}}

    assert not difference(nans(1, 2), nans(2, 1))
    assert difference(nans(1, 2), nans(1, 3))
    assert difference(nans(1), nans(1, 1))


def test_one_appended_message_is_one_line_and_not_the_whole_conversation() -> None:
    said = [{"role": "user", "content": f"question {n}"} for n in range(1000)]
    assert text({"messages": said}, {"messages": [*said, {"role": "assistant", "content": "Done.\nReally."}]}) == [
        "--- a",
        "+++ b",
        "messages: 1 added",
        "  + [1000] assistant: Done. …",
    ]


@pytest.mark.parametrize("size", [50, 5_000])
def test_a_window_that_moved_on_does_not_look_like_a_new_conversation(size: int) -> None:
    said = [{"role": "user", "content": f"question {n}"} for n in range(size + 10)]
    diff = difference({"messages": said[:size]}, {"messages": said[10:]})
    assert diff.stat() == (PartStat("messages", 10, 10, 0),)


def test_a_message_edited_in_the_middle_shows_where_it_was_edited() -> None:
    said: list[StateDict] = [{"role": "user", "content": f"question {n}"} for n in range(10)]
    edited = copy.deepcopy(said)
    edited[3]["content"] = "question three"
    (item,) = only(difference({"messages": said}, {"messages": edited})).items
    path = ("messages", 3, "content")
    assert item == ItemChange(
        3, 3, "changed", said[3], edited[3], (Change(path, "changed", "question 3", "question three"),)
    )
    assert text({"messages": said}, {"messages": edited})[2:] == [
        "messages: 1 changed",
        "  ~ [3] user: question three",
        "      ~ messages[3].content: 'question 3' -> 'question three'",
    ]


def test_an_edit_is_still_seen_as_one_when_the_messages_around_it_went() -> None:
    said = [{"role": "user", "content": f"a rather long question, number {n}"} for n in range(5)]
    after = [{"role": "user", "content": "a rather long question, number x"}, *said[4:]]
    diff = difference({"messages": said}, {"messages": after})
    assert diff.stat() == (PartStat("messages", 0, 3, 1),)
    assert "  ~ [0] user: a rather long question, number x" in str(diff).splitlines()


def test_a_summary_does_not_pass_for_an_edit_of_what_it_replaced() -> None:
    said = [{"role": role, "content": f"{role} {n}"} for n in range(4) for role in ("user", "assistant")]
    after = [{"role": "user", "content": "Summary: all is well so far."}, *said[4:]]
    assert difference({"messages": said}, {"messages": after}).stat() == (PartStat("messages", 1, 4, 0),)


def test_a_message_of_another_role_is_another_message() -> None:
    before, after = [{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "hi"}]
    assert difference({"messages": before}, {"messages": after}).stat() == (PartStat("messages", 1, 1, 0),)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ({"role": "user", "content": "\n first line\nsecond"}, "user: first line …"),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "find", "arguments": '{"q": 1}'}}],
            },
            'assistant: -> find({"q": 1})',
        ),
        (
            {"role": "assistant", "content": "One moment.", "tool_calls": [{"name": "find", "args": {"q": 1}}]},
            "assistant: One moment. -> find({'q': 1})",
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "tool_use", "name": "see", "input": {}},
                ],
            },
            "assistant: Look: -> see({})",
        ),
        ({"role": "user", "content": [{"type": "image", "source": b"png"}]}, "user: <image>"),
        ({"role": "assistant", "content": None}, "assistant:"),
        ({"role": 7, "content": "not a message"}, "{'role': 7, 'content': 'not a message'}"),
        ({"role": "user", "content": "\x1b[2J\x07gone"}, "user: \\x1b[2J\\x07gone"),
    ],
)
def test_a_message_says_who_speaks_what_is_said_and_what_is_called(message: StateDict, line: str) -> None:
    assert text({"messages": [1]}, {"messages": [1, message]})[-1] == f"  + [1] {line}"


def test_values_deep_in_the_state_are_named_by_their_path() -> None:
    before = {"config": {"limits": {"max": 3, "min": 0}, "a b": 1, "gone": None, 7: "x", "list": [1, 2, 3]}}
    after = {"config": {"limits": {"max": 4, "min": 0}, "a b": True, 7: "y", "list": [1, 3], "new": b"123"}}
    assert text(before, after)[2:] == [
        "config: 1 added, 2 removed, 3 changed",
        "  ~ config.limits.max: 3 -> 4",
        "  ~ config['a b']: 1 -> True",
        "  - config.gone: None",
        "  ~ config[7]: 'x' -> 'y'",
        "  - config.list[1]: 2",
        "  + config.new: <3 bytes>",
    ]


def test_parts_that_came_and_went_are_listed_beside_those_that_changed() -> None:
    diff = difference(
        {"phase": "plan", "same": 1, "old": {1, 2}, "tags": {"x", "y"}},
        {"phase": "act", "same": 1, "tags": {"y", "z"}, "todo": ["one", "two"], "none": []},
        a="main",
        b="what-if",
    )
    assert (diff.added, diff.removed, diff.changed) == (("todo", "none"), ("old",), ("phase", "tags"))
    assert diff.stat() == (
        ("phase", 0, 0, 1),
        ("old", 0, 1, 0),
        ("tags", 0, 0, 1),
        ("todo", 2, 0, 0),
        ("none", 1, 0, 0),
    )
    assert repr(diff) == "<Diff 'main' -> 'what-if': parts that differ: 5>"
    assert str(diff).splitlines() == [
        "--- main",
        "+++ what-if",
        "phase: changed",
        "  ~ phase: 'plan' -> 'act'",
        "old: removed",
        "  - old: {1, 2}",
        "tags: changed",
        "  ~ tags: {'x'} removed, {'z'} added",
        "todo: added",
        "  + [0] 'one'",
        "  + [1] 'two'",
        "none: added",
        "  + none: []",
    ]


def test_one_word_changed_in_a_long_prompt_is_in_sight() -> None:
    prompt = "You are a careful agent. " * 200
    lines = text({"prompt": prompt + "Ask twice." + prompt}, {"prompt": prompt + "Ask once." + prompt})
    assert lines[2:] == [
        "prompt: changed",
        "  ~ prompt: 10,010 -> 10,009 characters",
        "      - …'eful agent. Ask twice.You are a car'…",
        "      + …'eful agent. Ask once.You are a car'…",
    ]


def test_a_change_behind_a_wall_of_escapes_is_in_sight() -> None:
    wall = "\U000e0001" * 100
    lines = text({"v": wall + "before" + wall}, {"v": wall + "after" + wall})
    assert "before" in lines[-2]
    assert "after" in lines[-1]


def test_what_is_too_large_to_show_is_still_said_to_differ() -> None:
    assert text({"v": b"abcd"}, {"v": b"abce"})[-1] == "  ~ v: <4 bytes> -> <4 bytes> (from byte 3 on)"
    assert text({"v": 2**300}, {"v": 2**300 + 1})[-1].endswith("(they differ beyond what is shown)")


def test_an_int_too_long_for_python_to_print_can_be_compared_and_shown() -> None:
    before, after = 10**5000, 10**5000 + 1
    assert not difference({"v": {before}, "m": [before]}, {"v": {before + 0}, "m": [before + 0]})
    assert difference({"v": {before: before}}, {"v": {after: before}}).stat() == (("v", 1, 1, 0),)
    assert "<int of 16,610 bits>" in str(difference({"v": before}, {"v": after}))
    assert str(difference({}, {"m": [{"role": "user", "content": before, "tool_calls": [{"name": after}]}]}))


def test_a_thousand_changes_do_not_bury_the_rest() -> None:
    lines = text({"n": {}, "z": 1}, {"n": {f"k{i}": i for i in range(1000)}, "z": 2})
    assert len(lines) < 250
    assert "  … and 800 more" in lines
    assert lines[-1] == "  ~ z: 1 -> 2"


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: (v,)], ids=["list", "dict", "tuple"])
def test_a_state_nested_to_the_limit_is_compared_and_not_a_stack_overflow(wrap: Callable[[Any], Any]) -> None:
    before, after, again = 1, 2, 2
    for _ in range(500):
        before, after, again = wrap(before), wrap(after), wrap(again)
    assert not difference({"deep": after}, {"deep": again})
    diff = difference({"deep": before}, {"deep": after})
    part = only(diff)
    (change,) = part.changes or part.items[0].changes
    assert len(change.path) == DEPTH_LIMIT
    assert str(diff)


def test_a_deep_key_is_compared_and_not_a_stack_overflow() -> None:
    before: Any = 1
    after: Any = True
    for _ in range(200):
        before, after = (before,), (after,)
    diff = difference({"v": {before: 1}}, {"v": {after: 1}})
    assert diff.stat() == (("v", 1, 1, 0),)
    assert str(diff)


def test_two_long_unrelated_lists_do_not_take_for_ever() -> None:
    before = [{"n": n % 7, "odd": n} for n in range(6_000)]
    after = [{"n": n % 5, "even": n} for n in range(6_001)]
    assert difference({"v": before}, {"v": after}).stat() == (("v", 6_001, 6_000, 0),)
