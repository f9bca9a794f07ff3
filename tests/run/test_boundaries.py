"""Boundaries: what is recorded when, and that a replay neither records half a step nor swallows a call."""

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import backstay
from backstay import (
    AfterLlmResponse,
    AfterToolCall,
    Always,
    CorruptionError,
    Event,
    EveryN,
    EverySeconds,
    InDoubtError,
    InvalidInputError,
    MismatchError,
    Never,
    Strategy,
)
from backstay.port import CallRow, Kind
from backstay.run.result_places import at_place
from backstay.strategy import Moment
from tests.run.crashes import World, cut_off, ends_by, leave_in_doubt

STEPS = 5
_encode = msgspec.msgpack.encode


def _odd_places() -> list[bytes]:
    good = {"path": ["messages"], "first": 0, "count": 1, "key": "output", "rest": b"\x80"}
    odd: list[dict[str, Any]] = [
        *[{"path": path} for path in ([], ["nothing"], ["text"], ["messages", 0], ["messages", -1])],
        *[{"first": first} for first in (-1, 2, 2**63)],
        *[{"count": count} for count in (0, -1, 3, 2**62)],
        *[{"rest": rest} for rest in (b"", b"\xc0", b"\x01")],
    ]
    return [_encode({**good, **each}) for each in odd]


@pytest.fixture
def world() -> World:
    return World()


def loop(run: backstay.Run, world: World, steps: int = STEPS) -> None:
    """A tool in every second step, a model in every step; counts in the state."""
    while run.state.get("n", 0) < steps:
        n = run.state.get("n", 0)
        run.call("model", world.do(f"model {n}"), kind="llm")
        if n % 2:
            run.call("tool", world.do(f"tool {n}"), args={"n": n})
        run.state["n"] = n + 1
        run.step()


@pytest.mark.parametrize(
    ("strategy", "recorded"),
    [
        (Always(), [1, 2, 3, 4, 5, 5]),
        (AfterToolCall(), [2, 4, 5]),
        (AfterLlmResponse(), [1, 2, 3, 4, 5, 5]),
        (EveryN(2), [2, 4, 5]),
        (EveryN(5), [5, 5]),
        (EverySeconds(3600), [5]),
        (EverySeconds(1e-9), [1, 2, 3, 4, 5, 5]),
        (Never(), [5]),
        (EveryN(3) | AfterToolCall(), [2, 3, 4, 5]),
        (Never() | Always() | EveryN(2), [1, 2, 3, 4, 5, 5]),
    ],
    ids=repr,
)
def test_a_strategy_records_each_boundary_that_is_due_once(
    store: backstay.Store, world: World, strategy: Strategy, recorded: list[int]
) -> None:
    with store.run("t", strategy=strategy) as run:
        loop(run, world)
    points = list(store.session("t").log())[::-1]
    assert [point.step for point in points] == recorded
    assert [point.state["n"] for point in points] == recorded
    assert [point.trigger for point in points][-1] == "completed"
    assert points[-1].status is backstay.Status.COMPLETED
    assert all(point.status is backstay.Status.IN_PROGRESS for point in points[:-1])
    # Every call is in the history, once, with the checkpoint that took it in.
    names = [call.result for point in points for call in store.session("t").calls(point)]
    assert names == world.done


def test_events_of_a_loop_that_someone_else_drives_are_boundaries(store: backstay.Store) -> None:
    with store.run("t", strategy=AfterToolCall()) as run:
        run.call("tool", lambda: 1)
        assert run.event(Event.TOOL_CALL_COMPLETE) is not None
        assert run.event(Event.ITERATION) is None
        run.call("model", lambda: 1, kind="llm")
        assert run.event("llm_response") is None  # type: ignore[arg-type]
        assert run.iteration == 1
        with pytest.raises(InvalidInputError, match="not an event"):
            run.event("teatime")  # type: ignore[arg-type]


def test_every_nth_iteration_is_counted_on_after_a_resume(store: backstay.Store, world: World) -> None:
    with cut_off(store, strategy=EveryN(3)) as run:
        loop(run, world, 4)
    with store.run("t", strategy=EveryN(3)) as run:
        assert run.iteration == 3
        assert run.state == {"n": 3}
        loop(run, world, 7)
    assert [point.step for point in store.session("t").log()][::-1] == [3, 6, 7]
    assert len(world.done) == len(set(world.done)) == 7 + 3


def test_a_checkpoint_is_recorded_whatever_the_strategy_says_with_its_label(store: backstay.Store) -> None:
    with store.run("t", strategy=Never()) as run:
        run.state["n"] = 1
        point = run.checkpoint("before the storm")
        assert run.head == point
    assert point is not None
    assert store.session("t").checkpoint(point.id).label == "before the storm"


@pytest.mark.parametrize("end", ["step", "event", "checkpoint"])
def test_a_boundary_while_recorded_calls_are_unasked_records_nothing_and_swallows_nothing(
    store: backstay.Store, world: World, end: str
) -> None:
    with cut_off(store, strategy=Never()) as run:
        loop(run, world, 3)
    before = list(world.done)

    def boundary(run: backstay.Run) -> Any:
        return run.checkpoint() if end == "checkpoint" else run.step() if end == "step" else run.event(Event.ITERATION)

    with store.run("t", strategy=Always()) as run:  # another strategy than before the crash
        for n in range(3):
            assert boundary(run) is None
            assert run.call("model", world.do("!"), kind="llm") == f"model {n}"
            if n % 2:
                assert run.call("tool", world.do("!"), args={"n": n}) == f"tool {n}"
            run.state["n"] = n + 1
            assert (run.step() is None) == (n < 2)
    assert world.done == before
    assert [call.result for call in store.session("t").calls("main~1")] == before


def test_leaving_while_recorded_calls_are_unasked_is_an_error_that_names_them_and_loses_nothing(
    store: backstay.Store, world: World
) -> None:
    with cut_off(store) as run:
        run.call("pay", world.do("paid"), key="order 7", args={})
    with ends_by(MismatchError, store.run("t"), "pay.*order 7") as run:
        run.state["n"] = 1
    assert store.session("t").head() is None
    with store.run("t") as run:
        assert run.call("pay", world.do("!"), key="order 7", args={}) == "paid"
    assert world.done == ["paid"]


def test_leaving_while_a_call_is_in_doubt_is_an_error_that_names_it(store: backstay.Store, world: World) -> None:
    leave_in_doubt(store, world)
    with pytest.raises(InDoubtError, match="pay"), store.run("t"):
        pass
    assert [info.id for info in store.crashed()] == ["t"]


def test_a_state_that_cannot_be_stored_is_named_and_the_run_can_mend_it(store: backstay.Store) -> None:
    with store.run("t") as run:
        run.call("tool", lambda: 1)
        run.state["bad"] = object()
        with pytest.raises(InvalidInputError, match="bad"):
            run.step()
        del run.state["bad"]
        assert run.step() is not None
        assert run.iteration == 1
    assert [call.name for call in store.session("t").calls("main~1")] == ["tool"]


class WhileDue(Strategy, frozen=True):
    """Does something at the moment a boundary is being decided on, as another thread might."""

    meanwhile: Callable[[], None]

    def due(self, moment: Moment) -> bool:
        self.meanwhile()
        return True


def test_a_call_that_begins_while_a_boundary_is_recorded_is_not_swallowed_by_it(store: backstay.Store) -> None:
    inside, release = threading.Event(), threading.Event()
    refused: list[BaseException] = []

    def tool() -> str:
        inside.set()
        release.wait(20)
        return "sent"

    def call() -> None:
        try:
            run.call("send", tool, args={})
        except InvalidInputError as error:
            refused.append(error)
            inside.set()

    def meanwhile() -> None:
        threads.append(threading.Thread(target=call))
        threads[-1].start()
        assert inside.wait(20)

    threads: list[threading.Thread] = []
    with store.run("t", strategy=WhileDue(meanwhile)) as run:
        try:
            run.step()
        except InvalidInputError as error:
            refused.append(error)
        # A kill now must find the call in doubt, or not begun at all: never as part of a checkpoint.
        head = store.session("t").head()
        taken = [] if head is None else store.session("t").calls()
        release.set()
        threads[0].join()
    assert refused
    assert [call.status for call in taken] == []


def test_iteration_and_usage_carry_on_after_a_crash(store: backstay.Store) -> None:
    with cut_off(store) as run:
        for _ in range(2):
            run.use(tokens_in=10, tokens_out=1, cost=0.5, extra={"images": 1})
            run.step()
        run.use(tokens_in=10)
    with store.run("t") as run:
        assert run.iteration == 2
        assert (run.usage.tokens_in, run.usage.tokens_out, run.usage.cost) == (20, 2, 1.0)
        run.use(tokens_in=10)
        run.step()
        assert run.iteration == 3
    point = store.session("t").checkpoint("main~1")
    assert (point.usage.tokens_in, point.total_usage.tokens_in) == (10, 30)
    assert point.total_usage.extra == {"images": 2}
    assert next(iter(store.sessions())).usage.tokens_in == 30
    with store.run("t") as run:
        assert (run.iteration, run.usage.tokens_in) == (3, 30)


def test_the_hint_for_whoever_resumes_is_recorded_with_the_boundary(store: backstay.Store) -> None:
    with cut_off(store) as run:
        run.resume_hint = "waiting for the bank"
        run.step()
    assert store.session("t").checkpoint().resume_hint == "waiting for the bank"
    with store.run("t") as run:
        assert run.resume_hint == "waiting for the bank"


def test_a_result_that_stands_in_the_state_is_kept_once_and_still_read_back(store: backstay.Store) -> None:
    text, reply = "long " * 400, {"role": "assistant", "content": [{"type": "text", "text": "x" * 900}]}
    with store.run("t") as run:
        run.append({"role": "tool", "content": run.call("read", lambda: text)})
        run.append(run.call("model", lambda: reply, kind="llm"))
        run.call("other", lambda: text + "!")
        run.step()
        run.state["messages"].clear()
        run.step()
    session = store.session("t")
    assert [call.result for call in session.calls("main~2")] == [text, reply, text + "!"]
    calls = store.backend.scan("t", Kind.CALL, limit=99)
    places = [isinstance(call, CallRow) and call.place is not None for call in calls]
    assert places == [True, True, False]


def test_an_answer_whose_items_stand_in_the_state_is_kept_once_and_still_read_back(store: backstay.Store) -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "text": "x" * 300},
        {"type": "message", "text": "y" * 300, "final": True},
    ]
    answers: list[Any] = [
        {"id": "a", "output": items, "usage": {"out": 3}},
        {"id": "b", "output": [*items[:1], {**items[1], "final": 1}]},  # 1 is not True
        {"id": "c", "output": [*items, items[0]]},  # more than stand there
        {"id": "d", "output": []} | dict.fromkeys("efgh", "z" * 100),
    ]
    with store.run("t") as run:
        for number, answer in enumerate(answers):
            run.call("model", lambda answer=answer: answer, key=str(number), kind="llm")
        run.state["messages"] = [{"role": "user"}, *items, {"role": "user"}]
        run.step()
        run.state["messages"].clear()
        run.step()
    given = [call.result for call in store.session("t").calls("main~2")]
    assert [repr(each) for each in given] == [repr(each) for each in answers]  # with the order of the keys
    calls = [call for call in store.backend.scan("t", Kind.CALL, limit=99) if isinstance(call, CallRow)]
    assert [call.place is not None for call in calls] == [True, False, False, False]
    assert len(calls[0].place or b"") < 100
    assert store.verify().ok


@pytest.mark.parametrize("place", [b"", b"\xc0", _encode({}), *_odd_places()])
def test_a_place_that_leads_nowhere_is_damage(place: bytes) -> None:
    with pytest.raises(CorruptionError):
        at_place({"messages": [1, 2], "text": "t"}, place)


def test_a_result_that_was_changed_in_the_state_is_kept_as_it_came(store: backstay.Store) -> None:
    with store.run("t") as run:
        reply = run.call("model", lambda: {"role": "assistant", "n": [1, 2], "content": "y" * 500}, kind="llm")
        run.append(reply)
        reply["n"] = [True, 2]  # equal, and not the same
        run.step()
    (call,) = store.session("t").calls("main~1")
    assert call.result["n"] == [1, 2]
    assert type(call.result["n"][0]) is int


@pytest.mark.parametrize("key", [2**70, "lone \udc80 surrogate", -1])
def test_a_result_beside_an_odd_key_does_not_end_the_run(store: backstay.Store, key: Any) -> None:
    text = "result " * 100
    with store.run("t") as run:
        run.state["notes"] = {key: run.call("read", lambda: text)}
        run.step()
    assert [call.result for call in store.session("t").calls("main~1")] == [text]


def test_every_seconds_that_fires_during_a_replay_records_nothing(store: backstay.Store, world: World) -> None:
    with cut_off(store, strategy=Never()) as run:
        loop(run, world, 3)
    with cut_off(store, strategy=EverySeconds(1e-9)) as run:
        time.sleep(0.001)
        assert run.call("model", world.do("!"), kind="llm") == "model 0"
        run.state["n"] = 1
        assert run.step() is None
    with store.run("t") as run:
        assert run.state == {}
        loop(run, world, 3)
    assert world.done == ["model 0", "model 1", "tool 1", "model 2"]
