"""Going in circles is noticed before it costs a fortune, and a run that does its work is left alone."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.errors import InvalidInputError
from backstay.loops import LoopGuard, Verdict, Watch, text_of
from tests.unit.values import values

SORRY = "I apologize for the confusion. Let me try reading the file again to see what is wrong."
SORRY_TOO = "I apologize for the confusion. Let me try to read the file again to see what is wrong."
FINE = "All 41 tests pass now, so I commit the change and turn to the documentation of the new option."
QUIET = Verdict(warning=None, halt=None)


def after(*outputs: object, guard: LoopGuard | None = None) -> Verdict:
    guard = guard or LoopGuard()
    watch = Watch()
    for output in outputs:
        watch = guard.seen(watch, text_of(output))
    return guard.verdict(watch, iteration=len(outputs), cost=0.0)


def says(text: str | None, *words: str) -> bool:
    return text is not None and all(word in text for word in words)


# -- repeats


def test_an_answer_given_again_and_again_is_warned_of_and_then_ends_the_run() -> None:
    verdicts = [after(*[SORRY] * count) for count in range(1, 8)]
    assert verdicts[:2] == [QUIET, QUIET]
    assert verdicts[2] == Verdict(warning="the last 3 answers were the same; try another way", halt=None)
    assert [verdict.halt for verdict in verdicts[2:5]] == [None] * 3
    assert verdicts[5] == Verdict(warning=None, halt="the last 6 answers were the same")
    assert says(verdicts[6].halt, "7")


def test_case_and_white_space_do_not_hide_a_repeat() -> None:
    assert says(after("It is done.", "it  IS\ndone.", "\tIT IS DONE.").warning, "3", "the same")


def test_an_answer_in_slightly_other_words_is_a_repeat() -> None:
    assert after(*[SORRY, SORRY_TOO, SORRY]).warning == "the last 3 answers were nearly the same; try another way"
    assert says(after(*[SORRY, SORRY_TOO] * 3).halt, "6", "nearly the same")


@pytest.mark.parametrize("short", ["ok", "yes", "done.", "next, please"])
def test_short_answers_repeat_only_if_they_are_the_same(short: str) -> None:
    assert says(after(*[short] * 3).warning, "the same")
    assert after(*[f"{short}{mark}" for mark in "abcdefgh"]) == QUIET


def test_one_other_answer_breaks_the_row() -> None:
    assert after(*[SORRY] * 5, FINE) == QUIET
    assert after(SORRY, SORRY, FINE, SORRY, SORRY) == QUIET


def test_an_empty_answer_neither_is_a_repeat_nor_breaks_a_row() -> None:
    assert after(*["", "  \n", None] * 5) == QUIET
    assert says(after(SORRY, "", SORRY, None, SORRY).warning, "3")


def test_two_answers_that_take_turns_are_a_circle_too() -> None:
    verdicts = [after(*[SORRY, FINE] * rounds) for rounds in range(1, 6)]
    assert verdicts[:2] == [QUIET, QUIET]
    assert verdicts[2].warning == "the last 6 answers were the same two in turn; try another way"
    assert verdicts[3].halt is None
    # Six rounds do not fit into a window of ten: five are all there is to see.
    assert verdicts[4].halt == "the last 10 answers were the same two in turn"
    wide = [after(*[SORRY, FINE] * rounds, guard=LoopGuard(window=12)) for rounds in (5, 6)]
    assert [verdict.halt is None for verdict in wide] == [True, False]


def test_a_window_too_small_for_two_in_turn_to_be_warned_of_first_never_halts_them() -> None:
    assert after(*[SORRY, FINE] * 9, guard=LoopGuard(window=6)).halt is None


# -- work that looks alike


def test_work_through_a_long_list_is_not_halted() -> None:
    batches = [f"Batch {number} of 400 is processed and all of its records are valid." for number in range(20)]
    assert after(*batches).halt is None
    assert says(after(*batches).warning, "nearly the same")


def test_the_same_tool_with_other_arguments_is_work_and_not_a_loop() -> None:
    def call(path: str) -> dict[str, Any]:
        function = {"name": "read_file", "arguments": f'{{"path": "src/backstay/backends/sqlite/{path}.py"}}'}
        return {"role": "assistant", "content": "Let me look at the next file.", "tool_calls": [{"function": function}]}

    assert after(*[call(path) for path in ("desk", "desk1", "reads", "read", "writes", "schema", "upkeep")]) == QUIET
    assert says(after(*[call("desk")] * 6).halt, "6")


def test_edits_between_two_runs_of_the_tests_are_work_and_not_a_loop() -> None:
    tests = {"type": "tool_use", "name": "run_tests", "input": {}}
    edits = [{"type": "tool_use", "name": "edit", "input": {"line": line, "text": "x = 1"}} for line in range(10)]
    assert after(*[{"role": "assistant", "content": [each]} for edit in edits for each in (tests, edit)]) == QUIET


def test_a_draft_that_grows_is_not_a_loop() -> None:
    lines = [
        f"{word} is the subject of a paragraph of its own, which says what {word} means to those who use it. "
        for word in ("Durability", "Fencing", "Recovery", "Retention", "Packing", "Lineage", "Digest", "Salvage")
    ]
    drafts = ["".join(lines[:count]) for count in range(1, len(lines) + 1)]
    assert after(*drafts).halt is None


# -- the watch


@given(st.lists(st.text(max_size=60), max_size=15), st.integers(0, 5))
def test_a_resumed_run_goes_on_counting_where_the_crashed_one_was(outputs: list[str], failures: int) -> None:
    guard = LoopGuard()
    watch = Watch(failures=failures)
    for output in outputs:
        watch = guard.seen(watch, output)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(watch), type=Watch)
    assert again == watch
    assert guard.verdict(again, iteration=1, cost=0.0) == guard.verdict(watch, iteration=1, cost=0.0)


@given(st.text(max_size=300) | st.text("ab \u0301ß\ud800", max_size=5_000))
def test_a_checkpoint_carries_less_than_a_hundred_bytes_per_answer(output: str) -> None:
    guard = LoopGuard()
    watch = Watch()
    for _ in range(20):
        watch = guard.seen(watch, output)
    assert len(watch.outputs) in (0, 10)
    assert len(msgspec.msgpack.encode(watch)) < 1_000


def test_a_watch_of_a_wider_guard_is_read_through_the_narrower_window() -> None:
    wide = LoopGuard(window=50, halt_after=50)
    watch = Watch()
    for _ in range(50):
        watch = wide.seen(watch, SORRY)
    narrow = LoopGuard(window=8, halt_after=8)
    assert says(narrow.verdict(watch, iteration=1, cost=0.0).halt, "8")
    assert len(narrow.seen(watch, SORRY).outputs) == 8


@given(st.lists(st.text(max_size=100), max_size=12))
def test_marks_written_by_another_version_do_not_break_the_run(outputs: list[str]) -> None:
    LoopGuard().verdict(Watch(tuple(outputs)), iteration=1, cost=0.0)


# -- failures and limits


def test_failures_in_a_row_are_warned_of_and_then_end_the_run() -> None:
    guard = LoopGuard(max_failures=3)
    watch, verdicts = Watch(), []
    for _ in range(3):
        watch = guard.failed(watch)
        verdicts.append(guard.verdict(watch, iteration=1, cost=0.0))
    assert verdicts[0] == QUIET
    assert verdicts[1] == Verdict(warning="2 failures in a row; try another way; the run stops at 3", halt=None)
    assert verdicts[2] == Verdict(warning=None, halt="3 failures in a row")
    assert guard.verdict(guard.succeeded(watch), iteration=1, cost=0.0) == QUIET


def test_a_success_between_failures_starts_the_count_anew() -> None:
    guard = LoopGuard(max_failures=2)
    watch = Watch()
    for _ in range(9):
        watch = guard.succeeded(guard.failed(watch))
    assert watch == Watch()
    assert says(guard.verdict(guard.failed(watch), iteration=1, cost=0.0).warning, "1 failure in a row", "stops at 2")


def test_without_a_limit_failures_only_warn() -> None:
    verdict = LoopGuard(max_failures=None).verdict(Watch(failures=99), iteration=1, cost=0.0)
    assert verdict == Verdict(warning="99 failures in a row; try another way", halt=None)


def test_the_first_failure_ends_a_run_that_allows_none() -> None:
    assert LoopGuard(max_failures=1).verdict(Watch(failures=1), iteration=1, cost=0.0).halt == "a failure"


@pytest.mark.parametrize(
    ("iteration", "warning", "halt"),
    [
        (44, None, None),
        (45, "5 of 50 iterations are left; come to an end", None),
        (49, "1 of 50 iterations is left; come to an end", None),
        (50, None, "the limit of 50 iterations is reached"),
        (51, None, "the limit of 50 iterations is reached"),
    ],
)
def test_a_run_is_told_that_its_iterations_run_out(iteration: int, warning: str | None, halt: str | None) -> None:
    assert LoopGuard(max_iterations=50).verdict(Watch(), iteration=iteration, cost=0.0) == Verdict(warning, halt)


@pytest.mark.parametrize(
    ("cost", "warning", "halt"),
    [
        (1.7, None, None),
        (1.8, "1.8 of 2 is spent; come to an end", None),
        (2.0, None, "the cost of 2 reaches the limit of 2"),
        (2.5, None, "the cost of 2.5 reaches the limit of 2"),
        (float("nan"), None, "the cost of nan reaches the limit of 2"),
    ],
)
def test_a_run_does_not_spend_more_than_it_may(cost: float, warning: str | None, halt: str | None) -> None:
    assert LoopGuard(max_cost=2).verdict(Watch(), iteration=1, cost=cost) == Verdict(warning, halt)


def test_all_that_there_is_to_say_is_said() -> None:
    guard = LoopGuard(max_iterations=10, max_cost=1.0)
    watch = Watch(guard.seen(guard.seen(guard.seen(Watch(), SORRY), SORRY), SORRY).outputs, failures=2)
    assert says(guard.verdict(watch, iteration=9, cost=0.95).warning, "3 answers", "2 failures", "1 of 10", "0.95")
    both = guard.verdict(Watch(failures=3), iteration=10, cost=0.95)
    assert says(both.halt, "3 failures", "10 iterations")
    assert says(both.warning, "0.95")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"repeats": 1}, "repeats must be a whole number of at least 2"),
        ({"repeats": True}, "repeats"),
        ({"repeats": 3.0}, "repeats"),
        ({"repeats": 5, "halt_after": 4}, "halt_after must be a whole number of at least 5, which is `repeats`"),
        ({"halt_after": None}, "halt_after"),
        ({"window": 5}, "window must be a whole number of at least 6: it must hold `halt_after` outputs"),
        ({"window": "10"}, "window"),
        ({"window": 1_001}, "window must be at most 1000"),
        ({"max_iterations": 0}, "max_iterations must be a whole number of at least 1"),
        ({"max_iterations": 5.5}, "max_iterations"),
        ({"max_failures": 0}, "max_failures"),
        ({"max_failures": False}, "max_failures"),
        ({"max_cost": 0}, "max_cost must be a number above 0"),
        ({"max_cost": float("inf")}, "max_cost"),
        ({"max_cost": True}, "max_cost"),
        ({"max_cost": "1"}, "max_cost"),
    ],
)
def test_a_limit_that_could_never_hold_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        LoopGuard(**wrong)


def test_a_guard_is_a_value_and_its_arguments_have_names() -> None:
    assert LoopGuard() == LoopGuard(window=10, repeats=3, halt_after=6, max_failures=3) != LoopGuard(repeats=4)
    assert LoopGuard(repeats=6, halt_after=6, window=6).window == 6
    with pytest.raises(TypeError):
        LoopGuard(10)  # type: ignore[call-arg]


# -- the text of an outcome


def test_the_same_request_with_a_fresh_id_is_the_same() -> None:
    def chat(n: int) -> dict[str, Any]:
        call = {"id": f"call_{n}", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {
            "id": f"chatcmpl-{n}",
            "object": "chat.completion",
            "created": n,
            "usage": {"total_tokens": n},
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        }

    def anthropic(n: int) -> dict[str, Any]:
        blocks = [
            {"type": "thinking", "thinking": f"hm {n}", "signature": f"{n}"},
            {"type": "text", "text": "I see"},
            {"type": "tool_use", "id": f"toolu_{n}", "name": "f", "input": {"a": 1}},
        ]
        return {"id": f"msg_{n}", "type": "message", "role": "assistant", "content": blocks, "usage": {"tokens": n}}

    def responses(n: int) -> dict[str, Any]:
        items = [
            {"type": "reasoning", "id": f"rs_{n}", "encrypted_content": f"{n}"},
            {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": "f", "arguments": "{}"},
        ]
        return {"id": f"resp_{n}", "object": "response", "created_at": n, "output": items}

    for shape in (
        chat,
        anthropic,
        responses,
        lambda n: chat(n)["choices"][0]["message"],
        lambda n: responses(n)["output"],
    ):
        assert text_of(shape(1)) == text_of(shape(2)) != ""
        assert "f" in text_of(shape(1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}),
        ({"tool_calls": [{"name": "f", "args": {"a": 1}}]}, {"tool_calls": [{"name": "f", "args": {"a": 2}}]}),
        ({"tool_calls": [{"name": "f", "args": {}}]}, {"tool_calls": [{"name": "g", "args": {}}]}),
        (
            {"type": "function_call", "name": "f", "arguments": "1"},
            {"type": "function_call", "name": "f", "arguments": "2"},
        ),
        ({"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}),
        ({"type": "function_call_output", "output": "a"}, {"type": "function_call_output", "output": "b"}),
        ([{"type": "text", "text": "a"}], [{"type": "text", "text": "b"}]),
        ({"id": 1, "rows": 5}, {"id": 2, "rows": 5}),
        (["ab"], ["a", "b"]),
        (b"a", b"b"),
        ([2**99_999], [2**99_998]),
    ],
)
def test_outcomes_that_differ_are_not_taken_for_a_repeat(one: object, other: object) -> None:
    assert text_of(one) != text_of(other)
    assert text_of(one)


def test_a_text_is_compared_as_it_is_and_like_the_message_that_says_it() -> None:
    assert text_of("  As it\x01is ") == "  As it\x01is "
    for message in ({"role": "assistant", "content": "as it is"}, {"type": "text", "text": "as it is"}):
        assert text_of(message) == "as it is"


def test_the_order_of_keys_and_of_a_set_makes_no_difference() -> None:
    assert text_of({"a": 1, "b": {"x", "y", "z"}}) == text_of({"b": {"z", "y", "x"}, "a": 1})


@pytest.mark.parametrize("nothing", [None, "", {"role": "assistant", "content": None}, object()])
def test_what_says_nothing_has_no_text(nothing: object) -> None:
    assert not text_of(nothing)


@given(values)
def test_every_plain_value_has_a_text(value: Any) -> None:
    shapes = [value, {"role": "x", "content": value}, {"tool_calls": [value, {"function": value}]}]
    shapes += [{"type": kind, "name": value, "input": value} for kind in ("tool_use", "text", "x_call", "tool_result")]
    shapes += [{"object": "chat.completion", "choices": value}, {"object": "response", "output": value}]
    for each in shapes:
        text = text_of(each)
        assert text == text_of(each)
        LoopGuard().seen(Watch(), text)


def test_a_huge_outcome_does_not_hold_up_the_run() -> None:
    nested: Any = "x"
    for _ in range(900):
        nested = [nested, nested]
    circle: list[Any] = []
    circle += [circle, circle]
    huge = [
        "word " * 2_000_000,
        {"role": "tool", "content": "word " * 2_000_000},
        list(range(2_000_000)),
        {number: str(number) for number in range(500_000)},
        set(range(500_000)),
        [{str(key): key for key in range(200)}] * 10_000,
        b"x" * 10_000_000,
        2**3_000_000,
        nested,
        circle,
    ]
    guard = LoopGuard()
    started = time.process_time()
    for value in huge:
        guard.seen(Watch(), text_of(value))
    assert time.process_time() - started < 2
