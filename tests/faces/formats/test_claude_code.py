"""Transcripts of Claude Code as sessions: the conversation as the model had it, what was left, who was sent for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import formats
from tests.faces.formats import told
from tests.faces.formats.made import put, tree
from tests.faces.formats.told import SESSION, claude, claude_talk, reply, result, use, user


def log(session: backstay.Session, ref: str = "main") -> list[tuple[str, str]]:
    return [(str(point.id), point.summary) for point in session.log(ref)][::-1]


def test_a_transcript_reads_as_the_conversation_it_was(store: backstay.Store, base: Path) -> None:
    before = tree(claude(base, claude_talk()).parent)
    report = formats.import_(store, base, strict=True)
    assert (report.system, report.sessions, report.checkpoints) == ("claude-code", (SESSION,), 7)
    session = store.session(SESSION)
    assert log(session) == [
        ("u1", "user: List the files and count them."),
        ("a2", "assistant: I look."),
        ("a3", "assistant: I look. -> Bash"),
        ("a4", "assistant: I look. -> Bash, Bash"),
        ("r1", "tool_result: a.txt"),
        ("r2", "tool_result: 1"),
        ("a5", "assistant: There is one file."),
    ]
    messages = session.load()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert [block["type"] for block in messages[1]["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == ["t1", "t2"]
    assert backstay.repair_messages(messages) == messages  # a provider takes it as it is
    head = session.checkpoint()
    assert (head.status, head.agent, head.created_at.isoformat()[:19]) == (
        "completed",
        "claude-code",
        "2026-06-15T10:00:07",
    )
    assert head.metadata["claude-code"]["model"] == "claude-sonnet-4-5"
    assert tree(base / "projects" / "-work-app") == before
    assert store.verify().ok


@pytest.mark.parametrize("order", [("r1", "r2"), ("r2", "r1"), ("r1", "a4", "r2")], ids="-".join)
def test_results_of_calls_made_at_once_are_all_there_in_whatever_order_they_came(
    order: tuple[str, ...], store: backstay.Store, base: Path
) -> None:
    records = {record["uuid"]: record for record in claude_talk() if "uuid" in record}
    first = [records[id_] for id_ in ("u1", "a1", "a2", "a3", "a4") if id_ not in order]
    claude(base, [*first, *[records[id_] for id_ in order], reply("a5", "r2", 9, "There is one file.", "msg_2")])
    formats.import_(store, base, strict=True)
    session = store.session(SESSION)
    assert list(session.branches()) == ["main"]
    messages = session.load()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert [block.get("id") for block in messages[1]["content"][2:]] == ["t1", "t2"]
    assert {block["tool_use_id"] for block in messages[2]["content"]} == {"t1", "t2"}


def test_only_the_calls_that_no_result_follows_are_in_doubt(store: backstay.Store, base: Path) -> None:
    claude(base, claude_talk()[:7])
    assert formats.import_(store, base).doubts == {SESSION: 1}
    assert [call.key for call in store.session(SESSION).calls(pending=True)] == ["t2"]


def test_the_usage_that_each_line_of_a_reply_repeats_is_counted_once(store: backstay.Store, base: Path) -> None:
    claude(base, claude_talk())
    formats.import_(store, base)
    session = store.session(SESSION)
    total = session.checkpoint().total_usage
    assert (total.tokens_in, total.tokens_out, total.extra) == (206, 14, {"cache_read_input_tokens": 200})
    assert session.checkpoint("a4").usage == backstay.Usage()
    assert session.checkpoint("a5").usage.tokens_out == 5


def rewound() -> list[dict[str, Any]]:
    return [
        user("u2", "a5", 8, "wrong turn"),
        reply("a6", "u2", 9, "Hm.", "msg_3"),
        user("u3", "a5", 10, "right turn"),
        reply("a7", "u3", 11, "Good.", "msg_4"),
    ]


def test_a_rewind_leaves_a_branch_and_main_is_what_goes_on(store: backstay.Store, base: Path) -> None:
    claude(base, [*claude_talk(), *rewound()])
    formats.import_(store, base, strict=True)
    session = store.session(SESSION)
    assert {name: point.id for name, point in session.branches().items()} == {"main": "a7", "rewound": "a6"}
    assert session.load("rewound")["messages"][-2]["content"] == "wrong turn"
    assert "wrong turn" not in str(session.load())


def test_after_a_compaction_the_conversation_is_the_summary_and_the_log_goes_on(
    store: backstay.Store, base: Path
) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "cb", "parentUuid": None}
    more = [
        boundary | {"logicalParentUuid": "a5", "timestamp": told.at(12)},
        user("cs", "cb", 13, "They counted files.", isCompactSummary=True),
        user("u4", "cs", 14, "next"),
    ]
    claude(base, [*claude_talk(), *more])
    formats.import_(store, base)
    session = store.session(SESSION)
    assert [message["content"] for message in session.load()["messages"]] == ["They counted files.", "next"]
    assert [id_ for id_, _ in log(session)][-3:] == ["a5", "cs", "u4"]
    assert session.checkpoint("cs").trigger == "compaction"


def side(agent: str = "abc") -> list[dict[str, Any]]:
    more: dict[str, Any] = {"isSidechain": True, "agentId": agent}
    return [user("g1", None, 4, "Count words", **more), reply("g2", "g1", 5, "Three.", "msg_s", **more)]


def spawning() -> list[dict[str, Any]]:
    return [
        user("u1", None, 0, "Count words in a.txt"),
        reply("a1", "u1", 1, use("t1", "Agent", description="count"), "msg_1"),
        user("r1", "a1", 9, result("t1", "Three."), toolUseResult={"agentId": "abc"}),
        reply("a2", "r1", 10, "Three words.", "msg_2"),
    ]


@pytest.mark.parametrize("where", ["beside", "inside"])
def test_a_sub_agent_is_a_branch_that_begins_with_nothing(where: str, store: backstay.Store, base: Path) -> None:
    main = spawning()
    if where == "inside":
        claude(base, [*main[:2], *side(), *main[2:]])
    else:
        folder = claude(base, main).with_suffix("") / "subagents"
        put(folder / "agent-abc.jsonl", told.lines(side()))
        put(folder / "agent-abc.meta.json", '{"agentType": "counter", "toolUseId": "t1"}')
    formats.import_(store, base, strict=True)
    session = store.session(SESSION)
    assert {name: point.id for name, point in session.branches().items()} == {"main": "a2", "agent-abc": "g2"}
    assert [message["content"] for message in session.load("agent-abc")["messages"][:1]] == ["Count words"]
    assert [id_ for id_, _ in log(session, "agent-abc")] == ["u1", "a1", "g1", "g2"]
    assert session.checkpoint("agent-abc").agent == ("counter" if where == "beside" else "claude-code")
    assert session.checkpoint().total_usage.tokens_out == 10


def test_a_sub_agent_hangs_on_the_call_that_began_it_and_not_on_the_last_thing_said(
    store: backstay.Store, base: Path
) -> None:
    talk = [*spawning()[:2], reply("a9", "a1", 2, use("t2", "Agent", description="other"), "msg_1")]
    folder = claude(base, talk).with_suffix("") / "subagents"
    put(folder / "agent-abc.jsonl", told.lines(side()))
    put(folder / "agent-abc.meta.json", '{"toolUseId": "t1"}')
    formats.import_(store, base, strict=True)
    assert [id_ for id_, _ in log(store.session(SESSION), "agent-abc")] == ["u1", "a1", "g1", "g2"]


def test_a_transcript_that_has_grown_adds_only_what_is_new(store: backstay.Store, base: Path) -> None:
    talk = claude_talk()
    path = claude(base, talk[:6])
    path.write_text(path.read_text() + '{"parentUuid": "a4", "ty')  # it is being written
    first = formats.import_(store, base, strict=True)
    session = store.session(SESSION)
    assert (first.checkpoints, first.doubts) == (4, {SESSION: 2})
    assert "half written" in str(first.notes[0])
    assert {call.key for call in session.calls(pending=True)} == {"t1", "t2"}
    claude(base, talk)
    dry = formats.import_(store, base, dry_run=True)
    assert (dry.extended, len(list(session.log()))) == ({SESSION: 3}, 4)
    second = formats.import_(store, base)
    assert (second.sessions, second.extended, second.ok) == ((), {SESSION: 3}, True)
    assert session.calls(pending=True) == []
    assert formats.import_(store, base).skipped == (SESSION,)
    with backstay.open("memory://") as other:
        formats.import_(other, base)
        assert other.session(SESSION).load() == session.load()
        assert [point.id for point in other.session(SESSION).log()] == [point.id for point in session.log()]


def test_a_rewind_since_the_last_import_goes_on_beside_main(store: backstay.Store, base: Path) -> None:
    claude(base, [*claude_talk(), *rewound()[:2]])
    formats.import_(store, base)
    claude(base, [*claude_talk(), *rewound()])
    assert formats.import_(store, base).extended == {SESSION: 2}
    session = store.session(SESSION)
    assert {name: point.id for name, point in session.branches().items()} == {"main": "a6", "continued": "a7"}
    claude(base, [*claude_talk(), *rewound(), user("u5", "a7", 12, "and on")])
    assert formats.import_(store, base).extended == {SESSION: 1}
    assert session.checkpoint("continued").id == "u5"


def test_a_session_that_went_on_here_is_left_alone(store: backstay.Store, base: Path) -> None:
    claude(base, claude_talk()[:6])
    formats.import_(store, base)
    session = store.session(SESSION)
    session.abandon(reason="by hand")
    session.commit({"messages": [], "mine": True})
    claude(base, claude_talk())
    report = formats.import_(store, base)
    assert (report.extended, report.skipped) == ({}, (SESSION,))
    assert "lacks 3" in str(report)
    assert session.load()["mine"] is True


def test_pruned_checkpoints_stay_pruned_when_a_transcript_has_grown(store: backstay.Store, base: Path) -> None:
    claude(base, claude_talk())
    formats.import_(store, base)
    session = store.session(SESSION)
    session.prune(backstay.Retention(keep_last=1, keep_days=0))
    claude(base, [*claude_talk(), user("u9", "a5", 20, "and now?")])
    assert formats.import_(store, base).extended == {SESSION: 1}
    assert [id_ for id_, _ in log(session)] == ["a5", "u9"]


def test_reminders_and_bookkeeping_are_no_checkpoints_but_what_the_model_saw_is_there(
    store: backstay.Store, base: Path
) -> None:
    records = [
        {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION},
        user("m1", None, 0, "<system-reminder>be brief</system-reminder>", isMeta=True),
        {"type": "attachment", "uuid": "at", "parentUuid": "m1", "timestamp": told.at(0)},
        user("u1", "at", 1, "hello"),
        {"type": "progress", "uuid": "p1", "parentUuid": "u1", "data": {}},
        reply("a1", "p1", 2, "Hi.", "msg_1"),
        {"type": "ai-title", "aiTitle": "A greeting", "sessionId": SESSION},
        {"type": "summary", "summary": "an older title", "leafUuid": "a1"},
    ]
    claude(base, records)
    formats.import_(store, base, strict=True)
    session = store.session(SESSION)
    assert [id_ for id_, _ in log(session)] == ["u1", "a1"]
    assert len(session.load()["messages"]) == 3
    assert [info.title for info in store.sessions()] == ["A greeting"]


def test_what_the_program_prints_as_a_stream_is_a_conversation_too(store: backstay.Store, base: Path) -> None:
    def line(kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "session_id": SESSION, **more}

    stream = [
        line("system", subtype="init", model="claude-sonnet-4-5", tools=[]),
        line("assistant", message={"id": "m1", "role": "assistant", "content": [use("t1", command="ls")]}),
        line("user", message={"role": "user", "content": "by a sub-agent"}, parent_tool_use_id="t1"),
        line("assistant", message={"id": "s1", "role": "assistant", "content": "aside"}, parent_tool_use_id="t1"),
        line("user", message={"role": "user", "content": result("t1", "a.txt")}, parent_tool_use_id=None),
        line("assistant", message={"id": "m2", "role": "assistant", "content": [{"type": "text", "text": "One."}]}),
        line("result", subtype="success", result="One.", total_cost_usd=0.01),
    ]
    path = put(base / "out.jsonl", told.lines(stream))
    assert formats.recognise(path) == "claude-code"
    assert formats.import_(store, path, strict=True).sessions == (SESSION,)
    session = store.session(SESSION)
    assert [line for _, line in log(session)] == ["assistant: -> Bash", "tool_result: a.txt", "assistant: One."]
    assert len(session.load()["messages"]) == 3
    assert [message["content"] for message in session.load("agent-t1")["messages"]] == ["by a sub-agent", "aside"]
    put(path, told.lines([*stream[:6], line("user", message={"role": "user", "content": "thanks"})]))
    assert formats.import_(store, path).extended == {SESSION: 1}


@pytest.mark.parametrize("given", ["home", "projects", "project", "file"])
def test_any_of_its_folders_may_be_given(given: str, store: backstay.Store, base: Path) -> None:
    path = claude(base, claude_talk())
    put(base / "history.jsonl", '{"display": "x", "project": "/work/app"}\n')
    put(base / "projects" / "-work-app" / "memory" / "notes.md", "notes")
    where = {"home": base, "projects": base / "projects", "project": path.parent, "file": path}[given]
    assert formats.recognise(where) == "claude-code"
    assert formats.import_(store, where, strict=True).sessions == (SESSION,)


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[1]",
        '{"type": "user"',
        '{"type":"user","uuid":"x","message":' + "[" * 5000,
        '{"a": NaN}',
        '"\\ud800"',
    ],
)
def test_a_damaged_line_is_reported_and_costs_itself_only(line: str, store: backstay.Store, base: Path) -> None:
    path = claude(base, claude_talk()[:2])
    path.write_text(path.read_text() + line + "\n" + told.lines([reply("a9", "u1", 9, "Still here.", "msg_9")]))
    report = formats.import_(store, base)
    assert (report.checkpoints, len(report.problems)) == (2, 1)
    assert f"{SESSION}.jsonl:3" in str(report.problems[0])


ODD: list[dict[str, Any]] = [
    {"uuid": 5},
    {"uuid": "u1"},
    {"parentUuid": "x1"},
    {"parentUuid": 7},
    {"parentUuid": "nowhere"},
    {"timestamp": None},
    {"timestamp": "soon"},
    {"message": None},
    {"message": {"role": "user"}},
    {"message": {"role": "robot", "content": "x"}},
    {"message": {"role": "assistant", "content": [5, None, {"type": 3}, {"type": {}}], "usage": [], "id": {}}},
    {"message": {"role": "assistant", "content": "x", "usage": {"input_tokens": -5, "output_tokens": "9"}}},
    {"message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": 4}]}},
    {"isSidechain": True, "agentId": "a" * 5000},
    {"sessionId": "x" * 5000},
    {"type": ["user"]},
]


@pytest.mark.parametrize("change", ODD, ids=repr)
def test_a_line_that_is_odd_in_one_field_stops_nothing(
    change: dict[str, Any], store: backstay.Store, base: Path
) -> None:
    odd = user("x1", "u1", 5, "odd") | change
    claude(base, [*claude_talk()[:2], odd, reply("a9", "x1", 9, "Still here.", "msg_9")])
    report = formats.import_(store, base)
    assert report.sessions
    assert "Still here." in str(store.session(report.sessions[0]).load())
    assert store.verify().ok


def test_lines_that_are_their_own_ancestors_end_somewhere(store: backstay.Store, base: Path) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "cb", "logicalParentUuid": "b2"}
    loops = [
        {"type": "system", "uuid": "s1", "parentUuid": "s2"},
        {"type": "system", "uuid": "s2", "parentUuid": "s1"},
        user("x1", "s1", 5, "in a loop"),
        boundary | {"parentUuid": None, "timestamp": told.at(6)},
        user("cs", "cb", 7, "Summary.", isCompactSummary=True),
        reply("b2", "cs", 6, "kept over", "msg_7"),
        user("p1", "b2", 8, "after"),
    ]
    claude(base, [*claude_talk(), *loops])
    formats.import_(store, base)
    assert store.session(SESSION).load()["messages"][0]["content"] == "Summary."
    assert store.verify().ok
