"""ARES's folder as users have it: names that run into each other, pointers that lie, steps of lines given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import formats
from tests.faces.formats.made import T0, ares, ares_step, put, text

OPEN = {"tool_name": "search", "arguments": '{"q":"Q3"}', "result": None, "success": False}


def problems(report: formats.FormatReport) -> str:
    return "\n".join(map(str, report.problems))


def steps(session: backstay.Session, ref: str = "main") -> list[int | None]:
    return [checkpoint.step for checkpoint in session.log(ref)]


def test_11_a_name_that_begins_like_another_is_another_session(store: backstay.Store, base: Path) -> None:
    names = ["a", "a_b", "a_b_1", "a_b_1_2"]
    ares(base, [ares_step(step, name) for name in names for step in range(3)])
    report = formats.import_(store, base)
    assert (sorted(report.sessions), report.checkpoints, report.ok) == (names, 12, True)
    store.delete("a")
    assert [steps(store.session(name)) for name in names[1:]] == [[2, 1, 0]] * 3


def test_12_a_session_called_latest_is_one_like_any_other(store: backstay.Store, base: Path) -> None:
    names = ["latest", "my-latest-run", "x", "x_latest", "x_latest_latest"]
    ares(base, [ares_step(step, name) for name in names for step in range(2)])
    report = formats.import_(store, base)
    assert (sorted(report.sessions), report.problems) == (names, ())
    assert all(steps(store.session(name)) == [1, 0] for name in names)


def test_13_a_torn_latest_step_gives_the_one_before_it(store: backstay.Store, base: Path) -> None:
    ares(base, [ares_step(step) for step in range(3)])
    (base / "s_2.json").write_bytes((base / "s_2.json").read_bytes()[:50])
    report = formats.import_(store, base)
    assert steps(store.session("s")) == [1, 0]
    assert "s_2.json: it is torn" in problems(report)


@pytest.mark.parametrize("content", [b"", b"s_9.json", b"s_1.json", b"\xff\xfe", b"s_2.json\n", None])
def test_13_a_pointer_that_is_empty_stale_or_missing_hides_nothing(
    content: bytes | None, store: backstay.Store, base: Path
) -> None:
    ares(base, [ares_step(step) for step in range(3)])
    (base / "s_latest.json").unlink()
    if content is not None:
        put(base / "s_latest.json", content)
    assert formats.import_(store, base).checkpoints == 3
    assert steps(store.session("s")) == [2, 1, 0]


@pytest.mark.parametrize("aim", ["../../secret.json", "/etc/passwd", "..\\x", "sub/s_0.json"])
def test_14_what_a_pointer_says_is_never_opened(aim: str, store: backstay.Store, base: Path, tmp_path: Path) -> None:
    put(tmp_path / "secret.json", text(ares_step(7)))
    put(ares(base, [ares_step(0)]) / "s_latest.json", aim)
    report = formats.import_(store, base)
    assert (report.checkpoints, "not followed" in problems(report)) == (1, True)


def test_14_a_step_that_says_it_belongs_elsewhere_is_not_taken(store: backstay.Store, base: Path) -> None:
    ares(base, [ares_step(0)])
    put(base / "s_1.json", text(ares_step(1, "../../x")))
    put(base / "s_2.json", text(ares_step(3)))
    report = formats.import_(store, base)
    assert (report.checkpoints, len(report.problems)) == (1, 2)


def test_15_steps_of_a_line_given_up_are_on_a_branch_of_their_own(store: backstay.Store, base: Path) -> None:
    ares(base, [ares_step(step) for step in range(4)])
    put(base / "s_1.json", text(ares_step(1, timestamp=T0 + 100)))
    put(base / "s_latest.json", "s_1.json")
    formats.import_(store, base)
    session = store.session("s")
    assert (steps(session), steps(session, "given-up")) == ([1, 0], [3, 2, 1, 0])
    formats.export(store, "s", base.parent / "to", system="ares")
    assert (base.parent / "to" / "s_latest.json").read_text() == "s_1.json"
    assert (base.parent / "to" / "s_3.json").read_bytes() == (base / "s_3.json").read_bytes()


def test_15_a_session_begun_anew_under_its_old_name_is_not_taken_for_the_old_one(
    store: backstay.Store, base: Path
) -> None:
    formats.import_(store, ares(base, [ares_step(step) for step in range(3)]))
    ares(base, [ares_step(step, timestamp=T0 + 1000 + step) for step in range(2)])
    report = formats.import_(store, base)
    assert "2 of its checkpoints are others" in problems(report)
    assert steps(store.session("s")) == [2, 1, 0]
    assert dict(formats.import_(store, base, on_exists="rename").renamed) == {"s": "s (2)"}
    assert formats.import_(store, base, on_exists="rename").skipped == ("s (2)",)


def test_15_saving_a_step_again_overwrites_nothing_here(store: backstay.Store) -> None:
    session = store.session("s")
    first = session.commit({"n": 1}, step=3)
    session.commit({"n": 2}, step=3)
    assert (session.load(first), session.load()) == ({"n": 1}, {"n": 2})


def test_16_a_file_that_is_not_utf8_is_reported_and_stops_nothing(store: backstay.Store, base: Path) -> None:
    ares(base, [ares_step(step) for step in range(3)])
    put(base / "s_1.json", b"\xff" * 20)
    put(base / "notes.txt", "x")
    report = formats.import_(store, base)
    assert steps(store.session("s")) == [2, 0]
    assert "s_1.json: it is not UTF-8" in problems(report)


def test_17_a_pointer_left_behind_by_expiry_is_told_and_followed_nowhere(store: backstay.Store, base: Path) -> None:
    ares(base, [ares_step(0, "kept"), ares_step(0, "gone", ttl_secs=1)])
    (base / "gone_0.json").unlink()
    report = formats.import_(store, base)
    assert (report.sessions, "gone_latest.json" in problems(report)) == (("kept",), True)


def test_17_the_time_to_live_is_kept(store: backstay.Store, base: Path) -> None:
    formats.import_(store, ares(base, [ares_step(0, ttl_secs=60)]))
    assert store.session("s").checkpoint().metadata["ares"]["ttl_secs"] == 60


def test_18_a_call_without_an_outcome_is_in_doubt_and_has_a_name_of_its_own(store: backstay.Store, base: Path) -> None:
    formats.import_(store, ares(base, [ares_step(0), ares_step(1, tool_calls=[OPEN, OPEN], status={"Failed": "OOM"})]))
    session = store.session("s")
    calls = session.calls(pending=True)
    assert [(call.name, call.args, call.status) for call in calls] == [("search", {"q": "Q3"}, "in_doubt")] * 2
    assert len({call.id for call in calls}) == 2
    with pytest.raises(backstay.InDoubtError):
        session.commit({"n": 1})
    for call in calls:
        session.resolve(call.id, "skip")
    session.commit({"n": 1})


def test_a_completed_session_leaves_nothing_in_doubt(store: backstay.Store, base: Path) -> None:
    formats.import_(store, ares(base, [ares_step(0, tool_calls=[OPEN], status="Completed")]))
    assert store.session("s").calls(pending=True) == []


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("InProgress", ("in_progress", None)),
        ("Completed", ("completed", None)),
        ({"Failed": "OOM"}, ("failed", "OOM")),
        ({"Halted": ""}, ("halted", "")),
    ],
)
def test_how_it_ended_is_known(
    status: Any, expected: tuple[str, str | None], store: backstay.Store, base: Path
) -> None:
    formats.import_(store, ares(base, [ares_step(0, status=status)]))
    point = store.session("s").checkpoint()
    assert (point.status, point.reason) == expected
    assert [(info.status, info.agent) for info in store.sessions()] == [(expected[0], "researcher")]


@pytest.mark.parametrize(
    "change",
    [
        {"status": "Paused"},
        {"status": {"Failed": 1}},
        {"step": -1},
        {"step": 1.0},
        {"messages": [{"role": "user"}]},
        {"messages": ["text"]},
        {"tool_calls": [{"tool_name": "x"}]},
        {"partial_results": [1]},
        {"timestamp": "now"},
    ],
)
def test_a_step_that_ares_would_not_load_is_refused_by_name(
    change: dict[str, Any], store: backstay.Store, base: Path
) -> None:
    ares(base, [ares_step(0)])
    put(base / "s_1.json", text(ares_step(1) | change))
    report = formats.import_(store, base)
    assert (report.checkpoints, len(report.problems)) == (1, 1)


def test_ids_that_are_the_same_or_none_get_others(store: backstay.Store, base: Path) -> None:
    ares(base, [ares_step(step, id=name) for step, name in enumerate(["x", "x", "", "y" * 300])])
    report = formats.import_(store, base)
    assert report.checkpoints == 4
    assert [point.id for point in store.session("s").log()] == ["imported-4", "imported-3", "x.2", "x"]
    formats.export(store, "s", base.parent / "to", system="ares")
    assert all(
        (base.parent / "to" / f"s_{step}.json").read_bytes() == (base / f"s_{step}.json").read_bytes()
        for step in range(4)
    )


def test_a_conversation_with_tools_becomes_what_ares_can_hold(store: backstay.Store, base: Path) -> None:
    reply = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "ls", "arguments": "{}"}}],
    }
    answer = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}]}
    store.session("s").commit({"messages": [reply, answer], "plan": "x"})
    report = formats.export(store, "s", base, system="ares")
    with backstay.open("memory://") as other:
        formats.import_(other, base, strict=True)
        state = other.session("s").load()
    assert state["tool_calls"] == [{"tool_name": "ls", "arguments": "{}", "result": "a", "success": True}]
    assert any("'plan'" in note for note in report.notes)


def test_a_call_whose_name_can_be_none_is_in_doubt_all_the_same(store: backstay.Store, base: Path) -> None:
    odd = [OPEN | {"tool_name": name, "arguments": "not {json"} for name in ("", "x" * 300)]
    formats.import_(store, ares(base, [ares_step(0, tool_calls=odd)]), strict=True)
    assert [(call.name, call.args) for call in store.session("s").calls(pending=True)] == [("tool", "not {json")] * 2
