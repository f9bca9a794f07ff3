"""Sessions made here, written for the predecessors: read as they read, and nothing dropped without a word."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import formats
from tests.faces.formats import theirs
from tests.faces.formats.made import smooth_checkpoint, smooth_database, smooth_rows, uuid

TIMES: list[Any] = [
    1_775_000_000,
    1_775_000_000.25,
    1_775_000_000_123,
    "1775000000",
    "2026-04-03T18:00:01",
    "2026-04-03 18:00:01.5",
    "2026-04-03T20:00:01+02:00",
    datetime(2026, 4, 3, 18, 0, 1),
    "yesterday",
    None,
    True,
    {"at": 1},
]


@pytest.mark.parametrize("at", TIMES, ids=repr)
def test_smooth_reads_messages_whatever_form_their_times_have(at: Any, store: backstay.Store, tmp_path: Path) -> None:
    store.session("s").commit({"messages": [{"id": "m", "role": "user", "content": "hi", "timestamp": at}]})
    formats.export(store, "s", tmp_path / "to", system="smooth")
    (message,) = theirs.smooth_latest_file(tmp_path / "to" / "s")["conversation"]["messages"]
    known = {1_775_000_000: "2026-03-31T23:33:20Z", "2026-04-03T18:00:01": "2026-04-03T18:00:01Z"}
    known |= {1_775_000_000_123: "2026-03-31T23:33:20.123Z", "2026-04-03 18:00:01.5": "2026-04-03T18:00:01.500Z"}
    if not isinstance(at, bool | dict) and at in known:
        assert message["timestamp"] == known[at]


MESSAGES: list[Any] = [
    {"role": "assistant", "content": None},
    {"id": 7, "role": "user", "content": "hi", "timestamp": 1_775_000_000},
    {"id": "m", "role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}]},
    {"role": "user", "content": [{"type": "image", "source": {"media_type": "image/png", "data": "AA=="}}]},
    {"role": "assistant", "content": "x", "tool_calls": [{"id": 1, "name": "ls", "arguments": {}}]},
    {"role": "assistant", "content": "x", "tool_calls": "none"},
    {"role": "tool", "tool_call_id": 1, "content": {"files": 2}},
    {"role": "user", "content": 5},
    {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ls", "input": {}}]},
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}]}],
    },
    {"role": "user", "content": [{"type": []}, {"type": {}, "text": 5}, 7]},
    {"role": [], "content": {}},
    {"type": {}, "content": "x"},
    "just text",
    {},
]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_smooth_reads_messages_of_any_provider(message: Any, store: backstay.Store, tmp_path: Path) -> None:
    store.session("s").commit({"messages": [message]})
    formats.export(store, "s", tmp_path / "to", system="smooth")
    formats.export(store, "s", tmp_path / "to.db", system="smooth")
    assert theirs.smooth_latest_file(tmp_path / "to" / "s")["conversation"]["messages"]
    assert theirs.smooth_latest_row(tmp_path / "to.db", "s") is not None


def test_calls_and_results_of_the_three_providers_reach_smooth_as_pairs(store: backstay.Store, tmp_path: Path) -> None:
    asked = {"type": "tool_use", "id": "t", "name": "ls", "input": {"b": 1, "a": 2}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "a file"}
    talk = [
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, asked]},
        {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
        {"type": "function_call", "call_id": "c", "name": "cat", "arguments": '{"path":"a"}'},
        {"type": "function_call_output", "call_id": "c", "output": "text"},
    ]
    store.session("s").commit({"messages": talk})
    formats.export(store, "s", tmp_path / "to", system="smooth")
    said = theirs.smooth_latest_file(tmp_path / "to" / "s")["conversation"]["messages"]
    assert [(one["role"], one["content"], one.get("tool_call_id")) for one in said] == [
        ("assistant", "I look.", None),
        ("tool", "a file", "t"),
        ("user", "and?", None),
        ("assistant", "", None),
        ("tool", "text", "c"),
    ]
    assert said[0]["tool_calls"] == [{"id": "t", "name": "ls", "arguments": {"a": 2, "b": 1}}]
    assert said[3]["tool_calls"] == [{"id": "c", "name": "cat", "arguments": {"path": "a"}}]
    assert len({one["id"] for one in said}) == 5


def test_smooth_loads_the_newest_of_saves_within_one_second(store: backstay.Store, tmp_path: Path) -> None:
    session = store.session("s")
    points = [session.commit({"messages": [{"role": "user", "content": str(at)}]}, step=3) for at in range(6)]
    formats.export(store, "s", tmp_path / "c.db", system="smooth")
    latest = theirs.smooth_latest_row(tmp_path / "c.db", "s")
    assert latest is not None
    assert (latest["id"], latest["messages"][-1]["content"]) == (points[-1].id, "5")
    with backstay.open("memory://") as other:
        formats.import_(other, tmp_path / "c.db", strict=True)
        assert [point.id for point in other.session("s").log()] == [point.id for point in session.log()]
    assert theirs.smooth_prune_rows(tmp_path / "c.db", "s", 2) == [points[-1].id, points[-2].id]


def test_smooth_and_ccswarm_load_the_head_after_a_clock_went_back(
    store: backstay.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("s")
    session.commit({"messages": [{"role": "user", "content": "first"}]})
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000 * 10**9)
    head = session.commit({"messages": [{"role": "user", "content": "second"}]})
    monkeypatch.undo()
    for system in ("smooth", "ccswarm"):
        notes = formats.export(store, "s", tmp_path / system, system=system).notes
        assert "moved on" in "".join(notes)
    assert theirs.smooth_latest_file(tmp_path / "smooth" / "s")["id"] == head.id
    assert theirs.ccswarm_latest(tmp_path / "ccswarm", "s")["id"] == head.id


def full(store: backstay.Store) -> backstay.Session:
    """A session with all that a user can give a checkpoint, on two branches."""
    session = store.session("s", agent="support")
    used = backstay.Usage(10, 5, 0.25, 2, {"cached": 3})
    session.commit({"messages": []}, label="begin", trigger="turn", usage=used, metadata={"by": "Ada", "n": 1})
    session.commit({"messages": [{"role": "user", "content": "a"}]}, resume_hint="go on", metadata={"label": "mine"})
    session.tag("main", "good")
    session.fork("main~1", "what-if")
    session.commit({"messages": [{"role": "user", "content": "b"}]}, branch="what-if")
    session.commit({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "c"}]})
    return session


def test_ccswarm_gets_metadata_usage_tags_and_forks(store: backstay.Store, tmp_path: Path) -> None:
    session = full(store)
    formats.export(store, "s", tmp_path / "to", system="ccswarm")
    found = theirs.ccswarm_checkpoints(tmp_path / "to")
    first = found[session.checkpoint("main~2").id]
    assert first["metadata"]["token_count"] == 15
    extra = first["metadata"]["extra"]
    assert extra.items() >= {"by": "Ada", "n": 1, "tokens_in": 10, "tokens_out": 5, "cost": 0.25}.items()
    assert (extra["usage"], extra["agent"], extra["trigger"]) == ({"cached": 3}, "support", "turn")
    second = found[session.checkpoint("main~1").id]["metadata"]["extra"]
    assert (second["tags"], second["label"], second["resume_hint"]) == (["good"], "mine", "go on")
    (fork,) = json.loads((tmp_path / "to" / "forks.json").read_bytes())["forks"].values()
    assert (fork["branch_name"], fork["checkpoint_id"]) == ("what-if", session.checkpoint("what-if").id)
    with backstay.open("memory://") as other:
        formats.import_(other, tmp_path / "to", strict=True)
        heads = {name: point.id for name, point in other.session("s").branches().items()}
        assert heads == {name: point.id for name, point in session.branches().items()}


def test_smooth_gets_metadata_usage_and_tags_as_text(store: backstay.Store, tmp_path: Path) -> None:
    session = full(store)
    notes = "\n".join(formats.export(store, "s", tmp_path / "to", system="smooth").notes)
    told = {path.stem: theirs.smooth_file(path)["metadata"] for path in (tmp_path / "to" / "s").glob("*.json")}
    first, second = told[session.checkpoint("main~2").id], told[session.checkpoint("main~1").id]
    wanted = {"by": "Ada", "n": "1", "label": "begin", "trigger": "turn", "tokens_in": "10", "tokens_out": "5"}
    assert first.items() >= (wanted | {"cost": "0.25", "usage": '{"cached":3}', "agent": "support"}).items()
    assert (second["tags"], second["label"]) == ("good", "mine")
    assert "'what-if'" in notes


@pytest.mark.parametrize(("system", "left"), [
    ("ares", ["labels", "'by'", "'n'", "tokens", "costs", "'cached'", "tags", "resume hints", "triggers", "'what-if'"]),
    ("continuum", ["labels", "'by'", "'n'", "'cached'", "counts of tasks", "tags", "agents", "'what-if'"]),
])  # fmt: skip
def test_whatever_cannot_be_carried_is_named_in_the_notes(
    system: str, left: list[str], store: backstay.Store, tmp_path: Path
) -> None:
    full(store)
    notes = "\n".join(formats.export(store, "s", tmp_path / "to", system=system).notes)
    assert [what for what in left if what not in notes] == []
    assert "2 checkpoints have" not in notes.partition("tags")[2][:30]  # one was tagged


@pytest.mark.parametrize("status", list(backstay.Status), ids=str)
@pytest.mark.parametrize("system", formats.EXPORTS)
def test_a_session_of_any_status_goes_out(
    system: str, status: backstay.Status, store: backstay.Store, tmp_path: Path
) -> None:
    store.session("s").commit({"messages": []}, step=0, status=status("why") if status != "completed" else status)
    formats.export(store, "s", tmp_path / "to", system=system)
    if system == "ares":
        written = json.loads((tmp_path / "to" / "s_0.json").read_bytes())["status"]
        ended = {"failed": {"Failed": "why"}, "halted": {"Halted": "why"}, "cancelled": {"Halted": "why"}}
        assert written == ended.get(status.value, "Completed" if status == "completed" else "InProgress")
    with backstay.open("memory://") as other:
        formats.import_(other, tmp_path / "to", strict=True)


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_owner_title_and_metadata_of_the_session_are_named_as_left_behind(
    system: str, store: backstay.Store, tmp_path: Path
) -> None:
    session = store.session("s", owner="ada", title="A greeting", metadata={"team": "red"})
    session.commit({"messages": []})
    notes = "".join(formats.export(store, "s", tmp_path / "to", system=system).notes)
    assert [what for what in ("owner", "title", "metadata") if f"the {what} of the session" not in notes] == []


def test_a_value_in_metadata_that_json_cannot_hold_is_named_and_stops_nothing(
    store: backstay.Store, tmp_path: Path
) -> None:
    store.session("s").commit({"messages": []}, metadata={"key": b"bytes", "by": "Ada"})
    for system in ("ccswarm", "smooth"):
        assert "'key'" in "".join(formats.export(store, "s", tmp_path / system, system=system).notes)


def test_after_a_prune_ccswarm_gets_no_parent_that_is_gone(store: backstay.Store, tmp_path: Path) -> None:
    session = store.session("s")
    for number in range(6):
        session.commit({"n": number}, label="keep" if number == 1 else None)
    session.prune(backstay.Retention(keep_last=2, keep_days=0))
    formats.export(store, "s", tmp_path / "to", system="ccswarm")
    found = theirs.ccswarm_checkpoints(tmp_path / "to")
    parents = [one["metadata"]["parent_checkpoint_id"] for one in found.values()]
    assert (len(found), parents.count(None)) == (3, 1)


def test_a_branch_deleted_here_does_not_come_back_as_a_fork(store: backstay.Store, tmp_path: Path) -> None:
    full(store)
    formats.export(store, "s", tmp_path / "to", system="ccswarm")
    with backstay.open("memory://") as other:
        formats.import_(other, tmp_path / "to")
        other.session("s").delete_branch("what-if")
        formats.export(other, "s", tmp_path / "again", system="ccswarm")
    assert not (tmp_path / "again" / "forks.json").exists()


def test_a_second_agent_in_one_database_leaves_the_first_alone(store: backstay.Store, tmp_path: Path) -> None:
    for name in ("a", "b"):
        store.session(name).commit({"messages": [{"role": "user", "content": name}]})
        formats.export(store, name, tmp_path / "c.db", system="smooth", overwrite=True)
    store.session("b").commit({"messages": [{"role": "user", "content": "b again"}]})
    with pytest.raises(backstay.AlreadyExistsError):
        formats.export(store, "b", tmp_path / "c.db", system="smooth")
    formats.export(store, "b", tmp_path / "c.db", system="smooth", overwrite=True)
    for name, said in (("a", "a"), ("b", "b again")):
        latest = theirs.smooth_latest_row(tmp_path / "c.db", name)
        assert latest is not None
        assert latest["messages"][-1]["content"] == said


def test_a_database_that_smooth_has_open_is_added_to_and_not_replaced(store: backstay.Store, tmp_path: Path) -> None:
    rows = smooth_rows([smooth_checkpoint(number) for number in (1, 2)])
    store.session("b").commit({"messages": [{"role": "user", "content": "hi"}]})
    with contextlib.closing(smooth_database(tmp_path / "c.db", rows, wal=True)) as theirs_open:
        formats.export(store, "b", tmp_path / "c.db", system="smooth", overwrite=True)
        theirs_open.execute("DELETE FROM checkpoints WHERE id = ?", (uuid(1),))
        found = theirs_open.execute("SELECT agent_id, count(*) FROM checkpoints GROUP BY agent_id").fetchall()
        assert found == [("agent-1", 1), ("b", 1)]


@pytest.mark.parametrize("kind", ["text", "database", "link"])
def test_another_file_of_that_name_is_not_written(kind: str, store: backstay.Store, tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    if kind == "text":
        path.write_text("notes " * 100)
    elif kind == "link":
        smooth_database(tmp_path / "real.db", []).close()
        path.symlink_to("real.db")
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE checkpoints(id)")
    before = path.read_bytes()
    store.session("b").commit({"messages": []})
    with pytest.raises(backstay.InvalidInputError):
        formats.export(store, "b", path, system="smooth", overwrite=True)
    assert path.read_bytes() == before
