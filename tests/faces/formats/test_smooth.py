"""smooth's stores as users have them: same-second rows, torn files, logs that nobody may touch, trees of messages."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import formats
from tests.faces.formats.made import (
    put,
    said,
    smooth,
    smooth_checkpoint,
    smooth_database,
    smooth_rows,
    text,
    tree,
    uuid,
)

CALLS = [
    {"id": "call-1", "name": "read", "arguments": {"path": "a"}},
    {"id": "call-2", "name": "bash", "arguments": {}},
]


def problems(report: formats.FormatReport) -> str:
    return "\n".join(map(str, report.problems))


def ids(session: backstay.Session, ref: str = "main") -> list[str]:
    return [checkpoint.id for checkpoint in session.log(ref)]


@pytest.mark.parametrize("iteration", [None, 7], ids=["iterations differ", "one iteration"])
def test_34_rows_of_one_second_stay_in_order(iteration: int | None, store: backstay.Store, base: Path) -> None:
    shuffled = [5, 1, 4, 2, 3]  # ids say nothing
    said_so_far = [said(1)]
    points = [
        smooth_checkpoint(number, messages=said_so_far, iteration=at if iteration is None else iteration)
        for at, number in enumerate(shuffled)
    ]
    smooth_database(base / "c.db", smooth_rows(points, seconds=1_775_239_300)).close()
    report = formats.import_(store, base)
    session = store.session("agent-1")
    assert (report.system, ids(session)) == ("smooth", [uuid(number) for number in reversed(shuffled)])
    session.prune(backstay.Retention(keep_last=1, keep_days=0))
    assert ids(session) == [uuid(3)]


def test_35_one_torn_file_costs_itself_only(store: backstay.Store, base: Path) -> None:
    smooth(base, [smooth_checkpoint(number) for number in (1, 2, 3)])
    put(base / "agent-1" / f"{uuid(3)}.json", b'{"id": "')
    report = formats.import_(store, base)
    assert ids(store.session("agent-1")) == [uuid(2), uuid(1)]
    assert "it is torn" in problems(report)


def test_36_a_restart_finds_its_session_by_the_name_it_was_given(store: backstay.Store, base: Path) -> None:
    formats.import_(store, smooth(base, [smooth_checkpoint(2)]))
    with store.run("agent-1") as run:
        assert len(run.state["messages"]) == 2


def test_37_a_tool_call_without_its_result_is_in_doubt_and_can_be_mended(store: backstay.Store, base: Path) -> None:
    messages = [said(1), said(2, "assistant", tool_calls=CALLS), said(3, "tool", tool_call_id="call-1")]
    formats.import_(store, smooth(base, [smooth_checkpoint(1, messages=messages)]))
    session = store.session("agent-1")
    (call,) = session.calls(pending=True)
    assert (call.name, call.key, call.status) == ("bash", "call-2", "in_doubt")
    mended = backstay.repair_messages(session.load()["messages"])
    assert [message.get("tool_call_id") for message in mended[-2:]] == ["call-1", "call-2"]


def test_37_calls_that_were_answered_or_passed_over_are_not_in_doubt(store: backstay.Store, base: Path) -> None:
    answered = [said(at, "tool", tool_call_id=call["id"]) for at, call in enumerate(CALLS, 3)]
    asked = [said(1), said(2, "assistant", tool_calls=CALLS)]
    smooth(base, [smooth_checkpoint(1, "done", messages=[*asked, *answered])])
    smooth(base, [smooth_checkpoint(2, "passed", messages=[*asked, said(6)])])
    assert formats.import_(store, base).in_doubt == 0


def test_38_the_iteration_is_kept_and_a_second_run_does_not_lose_to_the_first(
    store: backstay.Store, base: Path
) -> None:
    smooth(base, [smooth_checkpoint(1, iteration=40), smooth_checkpoint(2, iteration=1)])
    formats.import_(store, base)
    assert [point.step for point in store.session("agent-1").log()] == [1, 40]


def test_42_ids_belong_to_their_agent(store: backstay.Store, base: Path) -> None:
    smooth(base, [smooth_checkpoint(1, "a"), smooth_checkpoint(1, "b", messages=[said(9)])])
    put(base / "a" / f"{uuid(7)}.json", text(smooth_checkpoint(7, "../b")))
    put(base / "a" / f"{uuid(8)}.json", text(smooth_checkpoint(9, "a")))
    report = formats.import_(store, base)
    assert (sorted(report.sessions), len(report.problems)) == (["a", "b"], 2)
    assert store.session("a").load() != store.session("b").load()


def test_43_a_database_with_a_log_is_read_with_it_and_left_as_it_was(store: backstay.Store, base: Path) -> None:
    rows = smooth_rows([smooth_checkpoint(number) for number in (1, 2, 3)])
    with contextlib.closing(smooth_database(base / "c.db", rows, wal=True)):
        assert (base / "c.db-wal").stat().st_size > 0
        (base / "c.db-shm").chmod(0o400)
        before = tree(base)
        report = formats.import_(store, base / "c.db")
        assert (report.system, report.checkpoints) == ("smooth", 3)
        assert tree(base) == before


def test_43_a_database_that_cannot_be_written_is_read(store: backstay.Store, base: Path) -> None:
    smooth_database(base / "c.db", smooth_rows([smooth_checkpoint(1)])).close()
    (base / "c.db").chmod(0o400)
    base.chmod(0o500)
    try:
        assert formats.import_(store, base / "c.db").checkpoints == 1
        assert [path.name for path in base.iterdir()] == ["c.db"]
    finally:
        base.chmod(0o700)


def test_44_a_preview_of_any_language_is_cut_between_letters(store: backstay.Store, base: Path) -> None:
    message = said(1) | {"content": "日本語😀" * 40}
    formats.import_(store, smooth(base, [smooth_checkpoint(1, messages=[message])]))
    assert len(store.session("agent-1").checkpoint().summary) <= 60


def test_what_is_a_file_and_a_row_is_one_checkpoint_and_the_exact_time_wins(store: backstay.Store, base: Path) -> None:
    points = [smooth_checkpoint(1), smooth_checkpoint(2)]
    smooth(base / "files", points[:1])
    smooth_database(base / "sqlite" / "c.db", smooth_rows(points)).close()
    report = formats.import_(store, base)
    assert (report.system, report.checkpoints) == ("smooth", 2)
    assert store.session("agent-1").checkpoint(uuid(1)).metadata["smooth"]["created_at"].endswith(".300Z")


def test_what_came_as_files_is_known_when_it_comes_as_a_database(store: backstay.Store, base: Path) -> None:
    points = [smooth_checkpoint(1, created_at="2026-04-03T18:00:01.300Z")]
    formats.import_(store, smooth(base / "files", points))
    smooth_database(base / "c.db", smooth_rows(points, seconds=1_775_239_201)).close()
    report = formats.import_(store, base / "c.db", strict=True)
    assert (report.skipped, report.ok) == (("agent-1",), True)


@pytest.mark.parametrize(
    ("column", "value"),
    [(3, b"{"), (3, b"[]"), (3, None), (2, "one"), (4, "[]"), (4, '{"a": 1}'), (5, "now"), (2, -1), (1, b"\0")],
)
def test_a_row_that_smooth_would_not_load_costs_itself_only(
    column: int, value: Any, store: backstay.Store, base: Path
) -> None:
    rows = smooth_rows([smooth_checkpoint(1), smooth_checkpoint(2)])
    bad = (*rows[1][:column], value, *rows[1][column + 1 :])
    base.mkdir()
    with contextlib.closing(sqlite3.connect(base / "c.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE checkpoints(id, agent_id, iteration, conversation, metadata, created_at)")
        connection.executemany("INSERT INTO checkpoints VALUES(?, ?, ?, ?, ?, ?)", [rows[0], bad])
    report = formats.import_(store, base)
    assert (report.checkpoints, len(report.problems)) == (1, 1)


def test_a_damaged_database_is_reported_and_not_a_crash(store: backstay.Store, base: Path) -> None:
    points = [smooth_checkpoint(number, messages=[said(1) | {"content": "x" * 3000}]) for number in range(1, 9)]
    smooth_database(base / "c.db", smooth_rows(points)).close()
    data = bytearray((base / "c.db").read_bytes())
    data[5 * 4096 : 7 * 4096] = b"\xee" * 8192
    put(base / "c.db", bytes(data))
    report = formats.import_(store, base, system="smooth")
    assert report.problems
    assert store.verify().ok


def test_a_database_with_a_view_in_place_of_its_table_runs_nothing(store: backstay.Store, base: Path) -> None:
    base.mkdir()
    with contextlib.closing(sqlite3.connect(base / "c.db")) as connection:
        connection.execute(
            "CREATE VIEW checkpoints AS SELECT 'x' AS id, 'a' AS agent_id, 1 AS iteration, "
            "randomblob(9) AS conversation, '{}' AS metadata, 1 AS created_at"
        )
    report = formats.import_(store, base, system="smooth")
    assert (report.checkpoints, len(report.problems)) == (0, 1)


def test_a_session_goes_back_as_a_database_too(store: backstay.Store, base: Path) -> None:
    rows = smooth_rows([smooth_checkpoint(number) for number in (1, 2)])
    smooth_database(base / "c.db", rows).close()
    formats.import_(store, base)
    formats.export(store, "agent-1", base / "back.db", system="smooth")
    with contextlib.closing(sqlite3.connect(base / "back.db")) as connection:
        assert connection.execute("SELECT * FROM checkpoints ORDER BY created_at").fetchall() == rows
    with pytest.raises(backstay.AlreadyExistsError):
        formats.export(store, "agent-1", base / "back.db", system="smooth")


# branchable sessions


def entry(id_: str, parent: str | None, number: int = 1) -> str:
    return text(
        {"id": id_, "parent_id": parent, "message": said(number), "timestamp": said(number)["timestamp"]}, compact=True
    )


def lines(base: Path, head: str | None, *entries: str) -> Path:
    first = text({"current_head": head, "id": "tree", "type": "session_meta"}, compact=True)
    return put(base / "tree.jsonl", "\n".join([first, *entries]) + "\n").parent


def test_a_tree_of_messages_comes_with_its_branches_and_its_head(store: backstay.Store, base: Path) -> None:
    lines(base, "b", entry("a", None, 1), entry("b", "a", 2), entry("c", "b", 3), entry("d", "a", 4))
    report = formats.import_(store, base, strict=True)
    session = store.session("tree")
    assert (report.system, report.checkpoints, ids(session)) == ("smooth", 4, ["b", "a"])
    assert sorted(point.id for point in session.branches().values()) == ["b", "c", "d"]
    assert [message["content"] for message in session.load("d")["messages"]] == ["said 1: ✓", "said 4: ✓"]
    formats.export(store, "tree", base.parent / "to", system="smooth")
    with backstay.open("memory://") as other:
        formats.import_(other, base.parent / "to", strict=True)
        assert other.session("tree").load() == session.load()


def test_a_torn_last_line_and_a_head_that_is_lost_cost_themselves_only(store: backstay.Store, base: Path) -> None:
    lines(
        base,
        "zz",
        entry("a", None, 1),
        entry("b", "a", 2),
        entry("a", "b", 3),
        entry("e", "gone", 3),
        '{"id": "c", "par',
    )
    report = formats.import_(store, base / "tree.jsonl")
    assert (report.checkpoints, len(report.problems)) == (3, 2)
    assert store.verify().ok


@pytest.mark.parametrize("first", ["", "{}", '{"type": "other", "id": "x"}', "no"])
def test_lines_without_a_beginning_are_reported(first: str, store: backstay.Store, base: Path) -> None:
    put(base / "x.jsonl", first + "\n" + entry("a", None))
    assert formats.import_(store, base, system="smooth").problems


@pytest.mark.parametrize(
    "change",
    [
        {"iteration": 2**32},
        {"metadata": {"a": 1}},
        {"conversation": {}},
        {"conversation": {"id": "c", "messages": [{"role": "user"}], "max_context_tokens": 1}},
        {"conversation": {"id": "c", "messages": [said(1, "robot")], "max_context_tokens": 1}},
        {"conversation": {"id": "c", "messages": [said(1, tool_calls=[{"id": "x"}])], "max_context_tokens": 1}},
        {"created_at": 5},
    ],
)
def test_a_checkpoint_that_smooth_would_not_load_is_refused_by_name(
    change: dict[str, Any], store: backstay.Store, base: Path
) -> None:
    smooth(base, [smooth_checkpoint(1), smooth_checkpoint(2) | change])
    report = formats.import_(store, base)
    assert (report.checkpoints, len(report.problems)) == (1, 1)


def test_messages_of_others_get_what_smooth_asks_for(store: backstay.Store, base: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": '{"b":1,"a":2}'}}
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "1", "content": [{"text": "a"}, {"text": "b"}]},
    ]
    store.session("s").commit({"messages": messages})
    report = formats.export(store, "s", base, system="smooth")
    assert len(report.notes) == 1
    with backstay.open("memory://") as other:
        formats.import_(other, base, strict=True)
        (first, second, third) = other.session("s").load()["messages"]
    assert (first["role"], second["tool_calls"]) == ("user", [{"id": "1", "name": "ls", "arguments": {"a": 2, "b": 1}}])
    assert (third["content"], third["tool_call_id"]) == ("ab", "1")
