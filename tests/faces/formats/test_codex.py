"""Rollouts of Codex as sessions: items of the Responses API, turns that were rolled back, conversations compacted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import formats
from tests.faces.formats import told
from tests.faces.formats.made import put
from tests.faces.formats.told import THREAD, codex, codex_talk, item, rollout, said

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def summaries(session: backstay.Session, ref: str = "main") -> list[str]:
    return [point.summary for point in session.log(ref)][::-1]


def test_a_rollout_reads_as_the_conversation_it_was(store: backstay.Store, base: Path) -> None:
    codex(base, codex_talk())
    report = formats.import_(store, base, strict=True)
    assert (report.system, report.sessions, report.checkpoints) == ("codex", (THREAD,), 4)
    session = store.session(THREAD)
    assert summaries(session) == [
        "user: How many files?",
        "function_call: -> shell",
        "function_call_output: a.txt",
        "assistant: One.",
    ]
    messages = session.load()["messages"]
    assert [one["type"] for one in messages] == [
        "message",
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert backstay.repair_messages(messages) == messages
    head = session.checkpoint()
    assert (head.status, head.agent) == ("completed", "codex")
    assert head.metadata["codex"].items() >= {"model": "gpt-5-codex", "git_branch": "main"}.items()
    assert (head.total_usage.tokens_in, head.total_usage.tokens_out) == (250, 30)
    assert (head.usage.tokens_in, head.usage.extra) == (150, {"cached_input_tokens": 75})
    assert store.verify().ok


def test_a_turn_that_was_rolled_back_is_a_branch(store: backstay.Store, base: Path) -> None:
    more = [
        said(6, "user", "and lines?"),
        said(7, "assistant", "ten"),
        rollout(8, "event_msg", {"type": "thread_rolled_back", "num_turns": 1}),
        said(9, "user", "and words?"),
    ]
    codex(base, [*codex_talk(), *more])
    formats.import_(store, base, strict=True)
    session = store.session(THREAD)
    assert summaries(session)[-2:] == ["assistant: One.", "user: and words?"]
    assert summaries(session, "rolled-back")[-2:] == ["user: and lines?", "assistant: ten"]
    assert "lines" not in str(session.load())


@pytest.mark.parametrize("history", [None, [{"type": "message", "role": "user", "content": "so far"}]])
def test_a_compaction_replaces_the_conversation_and_not_the_history(
    history: Any, store: backstay.Store, base: Path
) -> None:
    compacted = rollout(6, "compacted", {"message": "They counted.", "replacement_history": history})
    codex(base, [*codex_talk(), compacted, said(7, "user", "go on")])
    formats.import_(store, base)
    session = store.session(THREAD)
    messages = session.load()["messages"]
    assert len(messages) == 2
    assert ("so far" if history else "They counted.") in str(messages[0])
    assert (len(summaries(session)), session.checkpoint("main~1").trigger) == (6, "compaction")


def test_a_rollout_that_has_grown_adds_only_what_is_new(store: backstay.Store, base: Path) -> None:
    talk = codex_talk()
    codex(base, talk[:8])
    first = formats.import_(store, base)
    assert (first.checkpoints, first.doubts) == (2, {THREAD: 1})
    codex(base, talk)
    assert formats.import_(store, base).extended == {THREAD: 2}
    assert formats.import_(store, base).skipped == (THREAD,)
    assert store.session(THREAD).calls(pending=True) == []


def test_a_packed_rollout_is_read_and_one_that_is_there_twice_comes_once(store: backstay.Store, base: Path) -> None:
    path = codex(base, codex_talk())
    put(path.with_name(path.name + ".zst"), zstd.compress(path.read_bytes()))
    report = formats.import_(store, base, strict=True)
    assert (report.checkpoints, report.skipped) == (4, ())
    path.unlink()
    with backstay.open("memory://") as other:
        assert formats.import_(other, base, strict=True).checkpoints == 4
        assert other.session(THREAD).load() == store.session(THREAD).load()


def test_an_older_rollout_without_envelopes_is_read(store: backstay.Store, base: Path) -> None:
    old = [
        {"id": THREAD, "timestamp": told.at(0), "instructions": None},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
    ]
    codex(base, old)
    assert formats.import_(store, base, strict=True).system == "codex"
    assert summaries(store.session(THREAD)) == ["user: hello", "assistant: Hi."]


def test_calls_of_every_kind_are_named_in_the_log(store: backstay.Store, base: Path) -> None:
    items = [
        item(2, type="local_shell_call", call_id="c1", status="completed", action={"type": "exec", "command": ["ls"]}),
        item(3, type="custom_tool_call", call_id="c2", name="apply_patch", input="*** Begin Patch"),
        item(4, type="custom_tool_call_output", call_id="c2", output="Done!"),
        item(5, type="web_search_call", status="completed", action={"type": "search", "query": "x"}),
        item(6, type="ghost_snapshot", ghost_commit={}),
    ]
    codex(base, [*codex_talk()[:4], *items])
    report = formats.import_(store, base, strict=True)
    assert summaries(store.session(THREAD))[1:] == [
        "local_shell_call: -> local_shell_call",
        "custom_tool_call: -> apply_patch",
        "custom_tool_call_output: Done!",
        "web_search_call: -> web_search_call",
    ]
    assert report.doubts == {THREAD: 1}


def test_a_user_who_is_only_in_the_events_is_there_too(store: backstay.Store, base: Path) -> None:
    talk = [record for record in codex_talk() if record["payload"].get("role") != "user"]
    codex(base, talk)
    formats.import_(store, base, strict=True)
    assert summaries(store.session(THREAD))[0] == "user: How many files?"


def test_without_a_path_all_its_own_folders_are_read(
    store: backstay.Store, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(base))
    with pytest.raises(backstay.NotFoundError, match="there is no such folder"):
        formats.import_(store, system="codex")
    codex(base, codex_talk())
    old = told.lines(codex_talk()).replace(THREAD, "older")
    put(base / "archived_sessions" / "rollout-older.jsonl", old)
    report = formats.import_(store, system="codex", strict=True)
    assert (set(report.sessions), report.checkpoints) == ({THREAD, "older"}, 8)
    assert set(formats.import_(store, system="codex").skipped) == {THREAD, "older"}
    with pytest.raises(backstay.InvalidInputError, match="no folder of its own"):
        formats.import_(store, system="smooth")
    with pytest.raises(backstay.InvalidInputError, match="neither"):
        formats.import_(store)
    with pytest.raises(backstay.UnsupportedError, match="read and not written"):
        formats.export(store, THREAD, base / "to", system="codex")


def test_a_thread_that_goes_on_from_another_file_says_so(store: backstay.Store, base: Path) -> None:
    first = codex_talk()[0]
    first["payload"] |= {"forked_from_id": "other", "history_base": {"ordinal": 5}}
    codex(base, [first, *codex_talk()[1:]])
    report = formats.import_(store, base, strict=True)
    assert "'other'" in str(report.notes[0])


ODD: list[Any] = [None, [], "x", {}, {"type": "message"}, {"type": "message", "role": 5, "content": {}}, {"type": 7}]
ODD += [{"type": "thread_rolled_back", "num_turns": turns} for turns in (0, 10**9, -1, "x")]
INFOS: list[Any] = [None, [], {"total_token_usage": {"input_tokens": 1e300}}]
ODD += [{"type": "token_count", "info": info} for info in INFOS]


@pytest.mark.parametrize("payload", ODD, ids=repr)
@pytest.mark.parametrize("kind", ["response_item", "event_msg", "compacted", "turn_context", "new_kind"])
def test_a_line_that_is_odd_stops_nothing(kind: str, payload: Any, store: backstay.Store, base: Path) -> None:
    odd = {"timestamp": "whenever", "type": kind, "payload": payload}
    codex(base, [*codex_talk(), odd, said(9, "user", "Still here.")])
    assert formats.import_(store, base).sessions == (THREAD,)
    assert "Still here." in str(store.session(THREAD).load())
    assert store.verify().ok
