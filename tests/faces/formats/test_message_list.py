"""Lists of messages as people keep them, in every shape that providers use: each a session that reads well."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import formats
from tests.faces.formats import told
from tests.faces.formats.made import put

CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"path":"."}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "files?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    {"role": "assistant", "content": "One.", "usage": {"prompt_tokens": 50, "completion_tokens": 3}},
]
BLOCKS: list[dict[str, Any]] = [
    {"role": "user", "content": "files?"},
    {"role": "assistant", "content": [told.use("t1", "ls")]},
    {"role": "user", "content": told.result("t1", "a.txt")},
    {"role": "assistant", "content": [{"type": "text", "text": "One."}]},
]
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "files?"},
    {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One."}]},
]


@pytest.mark.parametrize("talk", [CHAT, BLOCKS, ITEMS], ids=["chat", "anthropic", "responses"])
@pytest.mark.parametrize("form", ["list", "object", "lines", "line"])
def test_a_conversation_in_any_shape_is_a_session(
    form: str, talk: list[dict[str, Any]], store: backstay.Store, base: Path
) -> None:
    if form == "list":
        path = put(base / "talk.json", json.dumps(talk, indent=2))
    elif form == "object":
        path = put(base / "talk.json", json.dumps({"model": "m", "messages": talk}))
    elif form == "lines":
        path = put(base / "talk.jsonl", told.lines(talk))
    else:
        path = put(base / "talk.jsonl", told.lines([{"messages": talk}]))
    for where in (path, base):
        assert formats.recognise(where) == "messages"
    report = formats.import_(store, path, strict=True)
    assert (report.system, report.sessions, report.checkpoints) == ("messages", ("talk",), len(talk))
    session = store.session("talk")
    assert session.load()["messages"] == talk
    assert [point.state["messages"] for point in session.log()][-1] == talk[:1]
    assert (session.checkpoint().status, session.calls(pending=True)) == ("completed", [])
    assert session.checkpoint().summary.endswith("One.")
    assert (session.load().get("model") == "m") == (form == "object")
    assert store.verify().ok


def test_every_line_with_a_list_is_a_session_of_its_own_name(store: backstay.Store, base: Path) -> None:
    rows = [{"session": f"task-{at}", "reward": 0.5, "messages": CHAT} for at in range(3)]
    put(base / "runs.jsonl", told.lines([*rows, {"messages": BLOCKS}]))
    report = formats.import_(store, base, strict=True)
    assert set(report.sessions) == {"task-0", "task-1", "task-2", "runs-4"}
    assert store.session("task-1").load()["reward"] == 0.5
    ids = [point.id for name in report.sessions for point in store.session(name).log()]
    assert len(ids) == len(set(ids))  # the same words in two sessions are two checkpoints


def test_a_list_that_has_grown_adds_only_what_is_new_and_a_changed_one_is_another(
    store: backstay.Store, base: Path
) -> None:
    path = put(base / "talk.json", json.dumps(CHAT[:3]))
    os.utime(path, (1_775_000_000, 1_775_000_000))  # without a time of their own, messages have the file's
    first = formats.import_(store, path)
    assert (first.checkpoints, first.doubts) == (3, {"talk": 1})
    assert [(call.name, call.args) for call in store.session("talk").calls(pending=True)] == [("ls", {"path": "."})]
    put(path, json.dumps(CHAT, indent=1))
    assert formats.import_(store, path).extended == {"talk": 2}
    assert formats.import_(store, path).skipped == ("talk",)
    put(path, json.dumps([{"role": "user", "content": "other"}]))
    assert "another session" in str(formats.import_(store, path).problems)
    assert formats.import_(store, path, on_exists="rename").renamed == {"talk": "talk (2)"}


def test_times_and_usage_are_taken_where_they_are_told(store: backstay.Store, base: Path) -> None:
    talk = [message | {"timestamp": 1_775_000_000 + at} for at, message in enumerate(CHAT)]
    formats.import_(store, put(base / "talk.json", json.dumps(talk)))
    points = list(store.session("talk").log())
    assert [point.created_at.timestamp() - 1_775_000_000 for point in points] == [4, 3, 2, 1, 0]
    assert (points[0].usage.tokens_in, points[0].usage.tokens_out) == (50, 3)


def test_what_is_no_message_is_reported_by_its_line(store: backstay.Store, base: Path) -> None:
    path = put(base / "talk.jsonl", told.lines([CHAT[1], {"note": 1}, [], CHAT[4]]) + "torn {\n")
    report = formats.import_(store, path)
    assert (report.checkpoints, len(report.problems)) == (2, 3)
    assert "talk.jsonl:2" in str(report.problems[0])
    with pytest.raises(backstay.CorruptionError):
        formats.import_(store, path, strict=True, rename="again")


@pytest.mark.parametrize("content", ["[]", "{}", '{"messages": []}', "5", "", '["role", "content"]', '{"role": 5}'])
def test_a_file_without_a_message_is_said_to_be_so(content: str, store: backstay.Store, base: Path) -> None:
    path = put(base / "x.json", content)
    assert formats.import_(store, path, system="messages").problems
    with pytest.raises(backstay.FormatError):
        formats.recognise(path)


def test_files_of_the_other_systems_are_theirs_and_not_taken_for_lists(base: Path, tmp_path: Path) -> None:
    from tests.faces.formats.test_round_trips import MAKERS

    for system, make in MAKERS.items():
        make(tmp_path / system)
        assert formats.recognise(tmp_path / system) == system
    told.claude(base / "c", told.claude_talk())
    told.codex(base / "x", told.codex_talk())
    assert (formats.recognise(base / "c"), formats.recognise(base / "x")) == ("claude-code", "codex")


# files that are made to do harm

DEEP = '[{"role": "user", "content": ' + "[" * 100_000 + "]" * 100_000 + "}]"
MANY = '[{"role": "user", "content": [' + "{}," * 5_000_000 + "{}]}]"


@pytest.mark.parametrize("content", [DEEP, MANY, '[{"role": "user", "content": ' + "9" * 10_000 + "}]"])
@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_a_bomb_is_reported_and_not_decoded(name: str, content: str, store: backstay.Store, base: Path) -> None:
    import tracemalloc

    path = put(base / name, content[1:-1] + "\n" if name.endswith("l") else content)
    tracemalloc.start()
    report = formats.import_(store, path, system="messages")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(report.problems) >= 1
    assert not report.sessions
    assert peak < 4 * len(content) + 2**23


def test_many_commas_in_a_text_are_no_bomb(store: backstay.Store, base: Path) -> None:
    table = "1,2,3,\\n" * 400_000
    path = put(base / "x.jsonl", '{"role": "user", "content": "' + table + '"}\n')
    assert formats.import_(store, path, strict=True).checkpoints == 1


def test_a_line_that_is_too_long_costs_itself_only(
    store: backstay.Store, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.formats.jsonl.MAX_LINE_BYTES", 1000)
    long = [{"role": "user", "content": "x" * size} for size in (10, 5000, 900, 990, 20)]
    report = formats.import_(store, put(base / "x.jsonl", told.lines(long)))
    assert (report.checkpoints, [problem.where for problem in report.problems]) == (3, ["x.jsonl:2", "x.jsonl:4"])


@pytest.mark.parametrize(("limit", "value"), [("MAX_LINES", 3), ("MAX_FILE_BYTES", 200), ("MAX_FILE_VALUES", 20)])
def test_a_file_with_more_than_is_read_is_left_out_and_said(
    limit: str, value: int, store: backstay.Store, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"backstay.formats.jsonl.{limit}", value)
    claude = told.claude(base, told.claude_talk())
    report = formats.import_(store, claude)
    assert (report.checkpoints, len(report.problems)) == (0, 1)
    assert "that are read" in str(report)


def test_a_file_that_changes_while_it_is_read_costs_its_session(store: backstay.Store, base: Path) -> None:
    told.claude(base, told.claude_talk())
    path = told.claude(base, told.claude_talk(), "0b0b0b0b-0000-4000-8000-000000000001")

    def meddle(_done: int, total: int | None) -> None:
        if total is not None:  # the first look is over
            path.write_text(path.read_text().replace("There is one", "There is two"))

    report = formats.import_(store, base, progress=meddle)
    assert len(report.sessions) == 1
    assert "changed while it was read" in str(report.problems[0])
