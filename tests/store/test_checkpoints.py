"""What a checkpoint says about itself, and what may be said about it."""

import dataclasses
import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

import backstay
from backstay import Checkpoint, InvalidInputError, Outcome, Session, Status, Store, Usage
from backstay.store.overview import find_row


def test_every_field_given_to_a_commit_is_there_when_it_is_read_again(session: Session, store: Store) -> None:
    before = datetime.now(UTC)
    first = session.commit({"messages": [{"role": "user", "content": "refund order 7"}]})
    point = session.commit(
        {"messages": [{"role": "user", "content": "refund order 8"}], "phase": "plan"},
        step=7,
        label="asked",
        trigger="tool",
        status=Status.HALTED("waiting"),
        usage=Usage(tokens_in=3, tokens_out=4, cost=0.25, tasks_completed=1, extra={"model": "m", "n": 2**70}),
        metadata={"when": date(2026, 1, 1), "nested": {(1, 2): {3}}},
        resume_hint="ask the customer",
    )
    read = store.session("ticket-42").checkpoint()
    for found in (point, read):
        assert found.session_id == "ticket-42"
        assert found.branch == "main"
        assert found.parent_id == first.id
        assert found.parent_digest == first.digest
        assert (found.sequence, found.step, found.label, found.trigger) == (2, 7, "asked", "tool")
        assert (found.status, found.reason, found.agent) == (Status.HALTED, "waiting", "support")
        assert found.usage == found.total_usage
        assert found.usage.extra == {"model": "m", "n": 2**70}
        assert found.metadata == {"when": date(2026, 1, 1), "nested": {(1, 2): {3}}}
        assert found.resume_hint == "ask the customer"
        assert found.restored_from is None
        assert found.summary == "user: refund order 8"
        assert found.state == {"messages": [{"role": "user", "content": "refund order 8"}], "phase": "plan"}
        assert before - timedelta(seconds=1) <= found.created_at <= datetime.now(UTC)
        assert len(bytes.fromhex(found.digest)) == 32
    assert point == read
    assert hash(point) == hash(read)
    assert point != first
    assert "asked" in repr(point)


def test_a_first_commit_has_no_parent_and_sensible_defaults(store: Store) -> None:
    point = store.session("s").commit({})
    assert (point.parent_id, point.parent_digest, point.sequence) == (None, None, 1)
    assert (point.step, point.label, point.trigger, point.reason, point.agent) == (None, None, "manual", None, None)
    assert (point.usage, point.total_usage, point.metadata) == (Usage(), Usage(), {})
    assert point.state == {}


def test_a_checkpoint_cannot_be_changed(session: Session) -> None:
    point = session.commit({"n": 1})
    for name in ("id", "label", "digest"):
        with pytest.raises(AttributeError):
            setattr(point, name, "x")


def test_a_state_is_loaded_when_it_is_first_asked_for_and_is_the_one_recorded(session: Session) -> None:
    state: dict[str, Any] = {"messages": ["a"]}
    point = session.commit(state)
    state["messages"].append("b")
    session.commit(state)
    assert point.state == {"messages": ["a"]}
    assert point.state is point.state


def test_a_loaded_state_is_ones_own(session: Session) -> None:
    session.commit({"messages": [{"a": [1]}]})
    one, other = session.load(), session.load()
    one["messages"][0]["a"].append(2)
    assert other == {"messages": [{"a": [1]}]}
    assert session.load() == other


def test_an_agent_is_kept_by_writers_who_do_not_name_one(session: Session, store: Store) -> None:
    session.commit({"n": 1})
    assert store.session("ticket-42").commit({"n": 2}).agent == "support"
    assert store.session("ticket-42", agent="other").commit({"n": 3}).agent == "other"
    assert [info.agent for info in store.sessions()] == ["other"]


def test_the_same_state_has_the_same_meaning_in_every_session(store: Store) -> None:
    state = {"messages": [{"role": "user", "content": "x"}], "n": (1, 2)}
    points = [store.session(f"s{number}").commit(state) for number in range(3)]
    assert len({point.digest for point in points}) == 3
    rows = [find_row(store.backend, f"s{number}", point.id) for number, point in enumerate(points)]
    assert len({row.state_digest for row in rows if row is not None}) == 1


@dataclasses.dataclass
class Plan:
    goal: str
    steps: list[str]


def test_a_dataclass_in_a_state_is_a_dict_when_loaded_and_changes_of_it_are_seen(session: Session) -> None:
    plan = Plan("refund", ["ask"])
    session.commit({"plan": plan, "all": [plan]})
    assert session.load() == {
        "plan": {"goal": "refund", "steps": ["ask"]},
        "all": [{"goal": "refund", "steps": ["ask"]}],
    }
    plan.steps.append("pay")
    session.commit({"plan": plan, "all": [plan]})
    assert session.load()["plan"]["steps"] == session.load()["all"][0]["steps"] == ["ask", "pay"]


def test_nan_in_metadata_is_kept(session: Session) -> None:
    found = session.commit({}, metadata={"score": math.nan, "inf": -math.inf}).metadata
    assert math.isnan(found["score"])
    assert found["inf"] == -math.inf


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"step": "one"}, "step"),
        ({"step": True}, "step"),
        ({"step": 1.0}, "step"),
        ({"step": 2**63}, "step"),
        ({"label": 5}, "label"),
        ({"label": "\ud800"}, "label"),
        ({"trigger": None}, "trigger"),
        ({"trigger": 5}, "trigger"),
        ({"resume_hint": b"x"}, "resume_hint"),
        ({"resume_hint": "\udfff"}, "resume_hint"),
        ({"status": "finished"}, "finished"),
        ({"status": 5}, "5"),
        ({"status": Outcome(Status.FAILED, 5)}, "reason"),  # type: ignore[arg-type]
        ({"status": Status.FAILED("\ud800")}, "reason"),
        ({"usage": 5}, "usage"),
        ({"usage": {"tokens": 5}}, "tokens"),
        ({"usage": {"tokens_in": "5"}}, "tokens_in"),
        ({"usage": {"tokens_in": 1.5}}, "tokens_in"),
        ({"usage": {"cost": None}}, "cost"),
        ({"usage": {"extra": 5}}, "extra"),
        ({"usage": {"extra": {"a": object()}}}, r"usage.*\['a'\]"),
        ({"metadata": [1]}, "metadata"),
        ({"metadata": {"a": [object()]}}, r"^metadata\['a'\]\[0\]"),
        ({"branch": ""}, "branch"),
        ({"branch": None}, "branch"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_recorded(session: Session, wrong: dict[str, Any], named: str) -> None:
    head = session.commit({"n": 1})
    with pytest.raises(InvalidInputError, match=named):
        session.commit({"n": 2}, **wrong)
    assert session.head() == head
    assert session.commit({"n": 2}).sequence == 2


def test_the_largest_step_is_kept(session: Session, store: Store) -> None:
    session.commit({}, step=2**63 - 1)
    session.commit({}, step=-(2**63))
    assert [point.step for point in session.log()] == [-(2**63), 2**63 - 1]
    assert [info.last_step for info in store.sessions()] == [-(2**63)]


def test_long_labels_and_hints_are_kept(session: Session) -> None:
    text = "é\n" * 100_000
    point = session.commit({}, label=text, resume_hint=text, status=Status.FAILED(text))
    read = session.checkpoint(point.id)
    assert (read.label, read.resume_hint, read.reason) == (text, text, text)


@pytest.mark.parametrize("agent", ["", "x" * 257, "a\0", 5])
def test_an_agent_name_is_a_name(store: Store, agent: Any) -> None:
    with pytest.raises(InvalidInputError, match="agent"):
        store.session("s", agent=agent)


def test_a_log_is_newest_first_and_stops_where_asked(session: Session) -> None:
    points = [session.commit({"n": number}) for number in range(250)]
    assert list(session.log()) == points[::-1]
    assert list(session.log(limit=3)) == points[:-4:-1]
    assert list(session.log(limit=0)) == []
    assert list(session.log(points[1], limit=100)) == [points[1], points[0]]
    with pytest.raises(InvalidInputError):
        session.log(limit=-1)


def test_a_log_goes_on_while_others_write(session: Session) -> None:
    points = [session.commit({"n": number}) for number in range(150)]
    log = session.log()
    assert next(log) == points[-1]
    session.commit({"n": "new"})
    assert [*log] == points[-2::-1]


def test_a_diff_names_what_changed_between_two_refs(session: Session) -> None:
    session.commit({"messages": [{"role": "user", "content": "a"}], "phase": "plan"})
    session.commit({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}], "phase": "act"})
    diff = session.diff("main~1", "main")
    assert isinstance(diff, backstay.Diff)
    assert "phase" in str(diff)
    assert not session.diff("main", session.checkpoint())


def test_two_checkpoints_are_equal_only_if_all_that_is_recorded_is(store: Store) -> None:
    one, other = store.session("a").commit({"n": 1}), store.session("b").commit({"n": 1})
    assert one != other
    assert one != "a"
    assert isinstance(one, Checkpoint)
