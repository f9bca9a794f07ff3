"""sessions, log, search: what is listed is what was asked for, and a graph is the history it draws."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay.cli.graph import Drawn, draw
from tests.faces.cli import shell, story


def ids(done: shell.Done) -> list[str]:
    return [json.loads(line)["id"] for line in done.out.splitlines()]


@pytest.mark.parametrize(
    "command",
    [
        "sessions",
        "log ticket-42 --graph --all",
        "log ticket-43 --calls",
        "show ticket-42",
        "diff ticket-42 main what-if",
        "branches ticket-42",
        "recover",
        "search EUR",
        "restore ticket-42 asked",
        "undo ticket-42",
        "delete ticket-42",
    ],
)
def test_a_store_of_files_reads_like_one_of_sqlite(command: str, folder: Path, files: Path) -> None:
    theirs = shell.run(*command.split(), "--store", f"file:{files}", folder=folder)
    assert theirs == shell.run(*command.split(), folder=folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "store"
    story.make(f"file:{folder}")
    return folder


def test_sessions_can_be_chosen_by_status_agent_and_number(folder: Path) -> None:
    def found(*args: str) -> list[str]:
        return ids(shell.run("sessions", "--json", *args, folder=folder))

    assert found() == ["ticket-43", "ticket-42", "nightly report/06-01"]
    assert found("--status", "failed") == ["nightly report/06-01"]
    assert found("--status", "crashed") == found("--crashed") == ["ticket-43"]
    assert found("--agent", "support") == ["ticket-43", "ticket-42"]
    assert found("--agent", "reports", "--crashed") == []
    assert found("-n", "1") == ["ticket-43"]


def test_sessions_can_be_chosen_by_what_is_said_of_them(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        for number, owner in enumerate(["ana", "ben", "ana"]):
            about = {"tier": number, "team": "red" if number else "blue"}
            store.session(f"job/{number}", owner=owner, title=f"Job {number}", metadata=about).commit({"n": number})
        store.session("other").commit({"n": 9})

    def found(*args: str) -> list[str]:
        return sorted(ids(shell.run("sessions", "--json", *args, "--store", "store.db", folder=tmp_path)))

    assert found("--owner", "ana") == ["job/0", "job/2"]
    assert found("--prefix", "job/") == ["job/0", "job/1", "job/2"]
    assert found("--metadata", "team=red") == ["job/1", "job/2"]
    assert found("--metadata", "team=red", "--metadata", "tier=2") == ["job/2"]
    assert found("--owner", "ana", "--metadata", "team=blue") == ["job/0"]
    assert found("--waiting") == found("--crashed") == []
    assert len(found("--since", "2020-01-01")) == 4
    assert found("--since", "2999-01-01") == []
    shown = shell.run("sessions", "--store", "store.db", folder=tmp_path).out
    assert "Job 1" in shown
    assert "ben" in shown
    wrong = shell.run("sessions", "--metadata", "team", "--store", "store.db", folder=tmp_path)
    assert (wrong.code, wrong.out) == (2, "")
    assert "'team' is not KEY=VALUE" in wrong.err


def test_sessions_can_be_put_in_any_order(folder: Path) -> None:
    def found(*args: str) -> list[str]:
        return ids(shell.run("sessions", "--json", "--sort", *args, folder=folder))

    nightly, forty_two, forty_three = "nightly report/06-01", "ticket-42", "ticket-43"
    assert found("touched") == [forty_three, forty_two, nightly]
    assert found("touched", "--reverse") == found("created", "--reverse") == [nightly, forty_two, forty_three]
    assert found("name") == [nightly, forty_two, forty_three]
    assert found("name", "--reverse", "-n", "1") == [forty_three]
    assert found("checkpoints") == found("tokens") == [forty_two, nightly, forty_three]
    assert found("cost") == [nightly, forty_two, forty_three]
    assert found("status") == [forty_two, forty_three, nightly]
    assert found("agent")[0] == nightly
    wrong = shell.run("sessions", "--sort", "size", folder=folder)
    assert (wrong.code, wrong.out) == (2, "")


@pytest.mark.parametrize("command", ["sessions", "log ticket-42 --graph --all"])
def test_a_first_screen_does_not_wait_for_what_it_does_not_show(command: str, folder: Path) -> None:
    code = f"import sys; from backstay.cli import main; main({command.split()!r}); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=shell.plain_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"asyncio", "json", "logging", "rich", "shutil", "socket", "sqlite3", "subprocess", "tempfile"}


def test_a_log_begins_where_it_is_told_and_ends_after_as_many_as_it_is_told(folder: Path) -> None:
    whole = ids(shell.run("log", "ticket-42", "--json", folder=folder))
    assert ids(shell.run("log", "ticket-42", "main~2", "-n", "2", "--json", folder=folder)) == whole[2:4]
    every = ids(shell.run("log", "ticket-42", "--all", "--json", folder=folder))
    assert len(every) == len(set(every)) == 10
    assert set(whole) < set(every)
    plain = shell.run("log", "ticket-42", folder=folder).out
    assert [line.split()[0] for line in plain.splitlines() if line[:1].strip()] == [id_[:8] for id_ in whole]


def test_a_graph_of_any_shape_has_every_checkpoint_once_and_parents_below(tmp_path: Path) -> None:
    rng = random.Random(7)
    with backstay.open(tmp_path / "store.db", durability="relaxed") as store:
        session = store.session("s")
        session.commit({"n": 0})
        names = ["main"]
        for number in range(1, 120):
            kind = rng.random()
            points = list(session.branches().values())
            if kind < 0.12:
                names.append(f"b{number}")
                session.fork(rng.choice(list(session.log(rng.choice(points)))), names[-1])
            elif kind < 0.2:
                session.restore(rng.choice(list(session.log(rng.choice(points)))), branch=rng.choice(names))
            else:
                session.commit({"n": number}, branch=rng.choice(names))
        drawn = list(draw(session, list(session.branches().values())))
        seen = [each.point.id for each in drawn]
        assert sorted(seen) == sorted(set(seen))
        assert [each.point.sequence for each in drawn] == sorted([each.point.sequence for each in drawn], reverse=True)
        for place, each in enumerate(drawn):
            assert each.mark.count("*") == 1
            assert set("".join([*each.before, each.mark, *each.after])) <= set("*|/\\_ ")
            if each.point.parent_id is not None:
                assert each.point.parent_id in seen[place + 1 :]
        reached = {point.id for head in session.branches().values() for point in session.log(head)}
        assert set(seen) == reached
        assert _lanes_hang_together(drawn)
    rows = shell.run("log", "s", "--graph", "--all", "--oneline", "--store", "store.db", folder=tmp_path).out
    assert sum("*" in row for row in rows.splitlines()) == len(seen)


def _lanes_hang_together(drawn: list[Drawn]) -> bool:
    """Every lane that stands beside a checkpoint has something under it in the next row."""
    rows = [row for each in drawn for row in (*each.before, each.mark, *each.after)]
    for above, below in pairwise(rows):
        for place, char in enumerate(above):
            if char == "|" and not set(below[max(0, place - 1) : place + 2]) & set("|*/\\"):
                return False
    return True


def test_a_graph_is_not_read_before_it_is_looked_at(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db", durability="relaxed") as store:
        session = store.session("s")
        for number in range(400):
            session.commit({"n": number})
        asked = []
        whole = store.backend.ancestors

        def ancestors(*args: Any, **kwargs: Any) -> Any:
            asked.append(args)
            return whole(*args, **kwargs)

        store.backend.ancestors = ancestors  # type: ignore[method-assign]
        drawn = draw(session, [session.checkpoint("main")])
        for _ in range(20):
            next(drawn)
        assert len(asked) == 1


def test_search_finds_the_first_checkpoint_that_said_it(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        session = store.session("s")
        messages: list[dict[str, object]] = []
        said = {}
        for number in range(60):
            messages = [
                *messages[-20:],
                {"role": "user" if number % 2 else "assistant", "content": f"word{number:02}!"},
            ]
            said[number] = session.commit({"messages": messages, "pad": f"scratch{'.' * number}needle"}).id
        session.commit({"messages": [{"role": "user", "content": "Ünïcode and a LONG one: " + "x" * 70_000 + "tail"}]})

    def found(*args: str) -> list[dict[str, object]]:
        done = shell.run("search", "--json", "--store", "store.db", *args, folder=tmp_path)
        return [json.loads(line) for line in done.out.splitlines()]

    for number in (0, 7, 31, 59):
        (hit,) = found(f"WORD{number:02}")
        assert hit["checkpoint"] == said[number]
        assert hit["path"][0] == "messages"  # type: ignore[index]
    assert found("word07", "--role", "assistant") == []
    assert len(found("word07", "--role", "user")) == 1
    assert len(found("üNÏCODE")) == 1
    assert len(found("xtail")) == 1
    assert len(found(".needle")) == 59, "what a patch completes"
    assert len(found("word", "-n", "5")) == 5
    nothing = shell.run("search", "nowhere", "--store", "store.db", folder=tmp_path)
    assert (nothing.code, nothing.out) == (1, "Nothing says 'nowhere'.\n")


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "pay", "arguments": '{"euro": 10}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "paid"},
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "pay", "input": {"euro": 10}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "paid"}]},
        ),
        (
            {"type": "function_call", "call_id": "1", "name": "pay", "arguments": '{"euro": 10}'},
            {"type": "function_call_output", "call_id": "1", "output": "paid"},
        ),
    ],
    ids=["chat", "anthropic", "responses"],
)
def test_tools_are_shown_and_found_in_every_shape_in_use(
    call: dict[str, object], answer: dict[str, object], tmp_path: Path
) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        store.session("s").commit({"messages": [call, answer]})
    shown = shell.run("show", "s", "--messages", "--store", "store.db", folder=tmp_path).out
    assert "-> pay(euro=10)" in shown
    assert "paid" in shown
    assert shell.run("search", "paid", "--tool", "pay", "--store", "store.db", folder=tmp_path).code == 0
    assert shell.run("search", "paid", "--tool", "other", "--store", "store.db", folder=tmp_path).code == 1


def test_what_waits_is_shown_with_what_for_since_when_and_whose_it_is(folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "store.db"
    with backstay.open(where) as store:
        store.session("idle").commit({})
        with store.session("job", owner="ana", agent="support").run() as run:
            run.call("refund", lambda: None, args={"euro": 5}, approve=True)
    for name in ("sessions", "status", "waiting"):
        shown = shell.run(name, "--store", "store.db", folder=tmp_path, columns=160).out
        (line,) = [line for line in shown.splitlines() if "job" in line]
        assert "ana" in line, name
        assert "for approval of 'refund'" in line, name
        assert name == "waiting" or "since just now" in line or "s ago" in line, name
    lines = shell.run("sessions", "--json", "--store", "store.db", folder=tmp_path).out.splitlines()
    waits = {info["id"]: info["waits"] for info in map(json.loads, lines)}
    assert waits["idle"] == []
    (wait,) = waits["job"]
    assert (wait["reason"], wait["owner"], wait["args"]) == ("for approval of 'refund'", "ana", {"euro": 5})
    assert wait["since"]
