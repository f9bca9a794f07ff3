"""There and back: what came from another system unchanged goes back byte for byte; what is new goes there whole."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import backstay
from backstay import formats
from backstay.testing.exact import exactly_equal
from tests.faces.formats import made
from tests.faces.formats.made import raw
from tests.house.tree import ROOT

ODD = {
    "big": raw("1e16"),
    "list": [raw("1.5"), raw("-0.0"), raw("1e-7")],
    "max": 18446744073709551615,
    "t": "\x7f\x01é",
}
NEW = {"big": raw("1e+16"), "small": raw("1e-7")}


def make_ccswarm(base: Path) -> list[str]:
    points = [
        made.ccswarm_checkpoint(0, label="before refactor", extra={"b": 1, "a": [raw("2.0")]}),
        made.ccswarm_checkpoint(1, state=ODD, context=[0, 255, 10], created_at="2026-01-28T02:01:07Z"),
        made.ccswarm_checkpoint(2, state=[1, None, {}], parent=made.uuid(0), label="what-if"),
        made.ccswarm_checkpoint(3, state={"state": 1}, created_at="2026-01-28T03:01:07.500Z", parent=made.uuid(1)),
        made.ccswarm_checkpoint(4, state={"context": "mine"}, context=[], parent="deleted-long-ago"),
        made.ccswarm_checkpoint(5, state="just text", parent=made.uuid(4)),
        made.ccswarm_checkpoint(6, state=dict(sorted(NEW.items()))),
        made.ccswarm_checkpoint(7, session="team/b", state={}),
    ]
    made.ccswarm(base, points)
    made.put(
        base / "forks.json",
        made.text({"forks": {made.uuid(900): made.fork(made.uuid(0), "try")}, "children": {"s": [made.uuid(900)]}}),
    )
    return ["s", "team/b"]


def make_ares(base: Path) -> list[str]:
    call = {"tool_name": "read", "arguments": '{"path":"a"}', "result": "…", "success": True}
    steps = [
        made.ares_step(0),
        made.ares_step(1, tool_calls=[call, call | {"result": None, "success": False}], partial_results=["half"]),
        made.ares_step(7, status={"Failed": "OOM"}, ttl_secs=60),
        made.ares_step(8, status={"Halted": "loop detected"}, ttl_secs=None),
        made.ares_step(0, "s_latest", status="Completed"),
    ]
    made.ares(base, steps)
    made.ares(base, [made.ares_step(0, "later", ttl_secs=3600)], compact=True)
    return ["s", "s_latest", "later"]


def make_continuum(base: Path) -> list[str]:
    results = [{"content": "a", "is_error": False, "name": "bash", "tool_call_id": "tc_1"}]
    points = [
        made.continuum_checkpoint(1, tool_calls_pending=[made.CALL], cost_estimate=raw("0.9856906946328695")),
        made.continuum_checkpoint(2, tool_results=results, trigger="after_tool", resume_hint="go on with a"),
        made.continuum_checkpoint(3, tool_results=ODD, created_at="2026-05-14T10:20:00Z", cost_estimate=raw("1e16")),
        made.continuum_checkpoint(
            4, tool_results=NEW, created_at="2026-05-14T10:21:00Z", tool_calls_pending=[made.CALL]
        ),
    ]
    made.continuum(base, points)
    meta = {"session_id": "s", "is_active": True, "termination_reason": None}
    made.put(
        base / "s" / "session_meta.json",
        made.text(meta | {"last_updated": "2026-05-14T10:20:00.000123Z", "last_iteration": 3}),
    )
    state = {"session_id": "s", "status": "Running", "completed": False, "iteration": 3}
    made.put(
        base / "s" / "state.json",
        made.text(state | {"last_updated": "2026-05-14T10:20:00.000123Z", "task_description": "list"}),
    )
    return ["s"]


def make_smooth(base: Path) -> list[str]:
    calls = [{"id": "call-1", "name": "read", "arguments": {"lines": 2, "path": "a", "x": NEW}}]
    messages = [
        made.said(1, "system"),
        made.said(2, "assistant", tool_calls=calls, reasoning_content="hm"),
        made.said(3, "tool", tool_call_id="call-1", tool_name="read"),
        made.said(4, images=[{"url": "data:x", "detail": "low"}]),
    ]
    points = [
        made.smooth_checkpoint(1),
        made.smooth_checkpoint(2, messages=messages, metadata={}),
        made.smooth_checkpoint(3, messages=messages, created_at="2026-04-03T18:59:03.000000001Z", iteration=1),
        made.smooth_checkpoint(4, "team/b"),
    ]
    made.smooth(base, points)
    return ["agent-1", "team/b"]


MAKERS = {"ccswarm": make_ccswarm, "ares": make_ares, "continuum": make_continuum, "smooth": make_smooth}


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/store.db", "file://{}/store"])
@pytest.mark.parametrize("system", formats.EXPORTS)
def test_a_session_that_nobody_touched_goes_back_byte_for_byte(system: str, url: str, tmp_path: Path) -> None:
    sessions = MAKERS[system](tmp_path / "from")
    with backstay.open(url.format(tmp_path.as_posix())) as store:
        report = formats.import_(store, tmp_path / "from", system=system)
        assert report.ok, str(report)
        assert set(report.sessions) == set(sessions)
        assert store.verify().ok
        for session in sessions:
            formats.export(store, session, tmp_path / "to", system=system)
    there, back = made.tree(tmp_path / "from"), made.tree(tmp_path / "to")
    assert back.keys() == there.keys()
    for name, content in there.items():
        if name.endswith("index.json"):  # the original writes its entries in any order
            assert json.loads(back[name]) == json.loads(content)
        else:
            assert back[name] == content, name


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_a_second_import_adds_nothing_and_a_copy_of_the_store_gives_the_same(system: str, tmp_path: Path) -> None:
    sessions = MAKERS[system](tmp_path / "from")
    with backstay.open("memory://") as store, backstay.open(tmp_path / "other.db") as other:
        formats.import_(store, tmp_path / "from")
        before = [(info.id, info.checkpoints, info.branches) for info in store.sessions()]
        again = formats.import_(store, tmp_path / "from")
        assert (again.sessions, again.checkpoints, set(again.skipped)) == ((), 0, set(sessions))
        assert [(info.id, info.checkpoints, info.branches) for info in store.sessions()] == before
        store.export(tmp_path / "all.backstay")
        other.import_(tmp_path / "all.backstay")
        for session in sessions:
            formats.export(other, session, tmp_path / "to", system=system)
    assert made.tree(tmp_path / "to").keys() == made.tree(tmp_path / "from").keys()


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_the_source_is_as_it_was(system: str, tmp_path: Path) -> None:
    MAKERS[system](tmp_path / "from")
    before = made.tree(tmp_path / "from")
    stamps = {path: path.lstat().st_mtime_ns for path in (tmp_path / "from").rglob("*")}
    with backstay.open("memory://") as store:
        formats.import_(store, tmp_path / "from")
    assert made.tree(tmp_path / "from") == before
    assert {path: path.lstat().st_mtime_ns for path in (tmp_path / "from").rglob("*")} == stamps


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_which_system_it_is_need_not_be_said(system: str, tmp_path: Path) -> None:
    MAKERS[system](tmp_path / "from")
    assert formats.recognise(tmp_path / "from") == system


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_work_goes_on_after_an_import_and_all_of_it_goes_back(system: str, tmp_path: Path) -> None:
    (name, *_) = MAKERS[system](tmp_path / "from")
    with backstay.open(tmp_path / "store.db") as store:
        formats.import_(store, tmp_path / "from")
        session = store.session(name)
        session.abandon(reason="decided elsewhere")
        state = session.load()
        new = session.commit({**state, "messages": [{"role": "user", "content": "and now?"}]}, label="new")
        session.restore("main~1")
        session.undo()
        report = formats.export(store, name, tmp_path / "to", system=system)
        assert report.files
    with backstay.open("memory://") as other:
        formats.import_(other, tmp_path / "to", system=system, strict=True)
        again = other.session(name)
        assert new.id in {checkpoint.id for checkpoint in again.log()}
        assert again.load()["messages"][0]["content"] == "and now?"


# what was never anywhere else

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
words = st.text(max_size=20)
talk = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": words}), max_size=4
)
shapes: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "ccswarm": st.dictionaries(st.text(max_size=5), values, max_size=4)
    | st.fixed_dictionaries({"state": values, "context": st.binary(max_size=6)}),
    "ares": st.fixed_dictionaries(
        {
            "messages": talk,
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"tool_name": words, "arguments": words, "result": st.none() | words, "success": st.booleans()}
                ),
                max_size=2,
            ),
            "partial_results": st.lists(words, max_size=2),
        }
    ),
    "continuum": st.fixed_dictionaries(
        {
            "messages": st.lists(values, max_size=3),
            "tool_calls_pending": st.just([]) | st.lists(values, max_size=2),
            "tool_results": values,
        }
    ),
    "smooth": st.fixed_dictionaries({"messages": talk}),
}


@pytest.mark.parametrize("system", formats.EXPORTS)
@settings(max_examples=25)
@given(st.data())
def test_any_session_goes_there_and_comes_back_with_every_state(system: str, data: st.DataObject) -> None:
    states = data.draw(st.lists(shapes[system], min_size=1, max_size=5))
    assume(not any(key.startswith("\0") for state in states for key in state))  # these are reserved
    steps = data.draw(st.lists(st.integers(0, 99), min_size=len(states), max_size=len(states)))
    label = data.draw(st.none() | names)
    with (
        backstay.open("memory://") as store,
        backstay.open("memory://") as other,
        tempfile.TemporaryDirectory() as folder,
    ):
        session = store.session("a session", agent="me")
        status = backstay.Status.FAILED("why")
        for state, step in zip(states, steps, strict=True):
            session.commit(
                state, step=step, label=label, status=status, resume_hint="hint", usage={"tokens_in": 5, "cost": 0.1}
            )
        formats.export(store, "a session", folder, system=system)
        report = formats.import_(other, folder, system=system, strict=True)
        assert report.checkpoints == len(states)
        assert other.verify().ok
        ours, theirs = (list(one.session("a session").log()) for one in (store, other))
        assert [point.id for point in ours] == [point.id for point in theirs]
        for mine, again in zip(ours, theirs, strict=True):
            expected = mine.state
            if system == "smooth":
                stripped = [{"role": one["role"], "content": one["content"]} for one in again.state["messages"]]
                assert stripped == expected["messages"]
            else:
                assert exactly_equal(again.state, expected)
            if system == "ares":
                assert (again.status, again.reason, again.agent) == (mine.status, mine.reason, mine.agent)
            if system == "ccswarm":
                assert again.label == mine.label
            assert again.created_at == mine.created_at.replace(
                microsecond=0 if system == "ares" else mine.created_at.microsecond
            )


def seeds() -> Path | None:
    """Files that the real programs wrote, where somebody has put some."""
    named = os.environ.get("BACKSTAY_TEST_FIXTURES")
    folder = Path(named) if named else ROOT.parent / "shared" / "seed-fixtures"
    return folder if folder.is_dir() else None


@pytest.mark.skipif(seeds() is None, reason="no files of the real programs are here (BACKSTAY_TEST_FIXTURES)")
@pytest.mark.parametrize(
    ("system", "base"),
    [
        ("ccswarm", "ccswarm/checkpoints"),
        ("ares", "ares/checkpoints"),
        ("continuum", "sh_layer2/continuum_checkpoints"),
        ("smooth", "smooth/file_store"),
    ],
)
def test_what_the_real_programs_wrote_goes_back_byte_for_byte(system: str, base: str, tmp_path: Path) -> None:
    top = seeds()
    assert top is not None
    with backstay.open(tmp_path / "store.db") as store:
        report = formats.import_(store, top / base, strict=True)
        assert report.system == system
        assert store.verify().ok
        for session in report.sessions:
            formats.export(store, session, tmp_path / "to", system=system)
    there, back = made.tree(top / base), made.tree(tmp_path / "to")
    assert back.keys() == there.keys()
    for name in there:
        if name.endswith("checkpoints/latest.json"):  # a link there; here perhaps a file that says where it led
            assert back[name].removeprefix(b"-> ") == there[name].removeprefix(b"-> ")
        else:
            assert back[name] == there[name], name
