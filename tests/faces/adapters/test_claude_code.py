"""Claude Code's hooks, with a scripted agent that does real work between real hook processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
from tests.faces.adapters.fake_claude import FakeClaude, Tree, kill_helpers, tree
from tests.faces.cli import shell


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    yield made
    kill_helpers(made)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "keep.txt").write_text("keep\n")
    (made / "gone.txt").write_text("gone\n")
    return made


@pytest.fixture
def claude(project: Path, home: Path) -> FakeClaude:
    return FakeClaude(project, home)


def store_of(claude: FakeClaude) -> backstay.Store:
    return backstay.open(claude.project / ".backstay" / "store.db")


def problems(project: Path) -> list[str]:
    done = shell.run("status", "--json", folder=project)
    assert done.code == 0, done.err
    return [each["what"] for each in json.loads(done.out)["problems"]]


STEPS = [
    ("write", "price.py", "def price(n):\n    return 4 * n\n"),
    ("edit", "price.py", "4 * n", "4 * n + 1"),
    ("bash", "echo more >> price.py"),
    ("bash", "rm gone.txt"),
    ("bash", "echo new > new.txt"),
    ("bash", "mv new.txt moved.txt"),
    ("bash", "chmod 755 moved.txt"),
    ("bash", "ln -s moved.txt link"),
    ("bash", "mkdir -p deep/empty deep/full && echo x > deep/full/x && rm -r deep/full"),
    ("bash", "rm -rf deep price.py && printf 'a\\0b' > binary"),
]


def work(claude: FakeClaude) -> list[Tree]:
    """A turn of ten tools; the folder before the first and after each."""
    claude.start()
    claude.prompt("mend the price\nand all else")
    seen = [tree(claude.project)]
    for verb, *args in STEPS:
        getattr(claude, verb)(*args)
        seen.append(tree(claude.project))
    claude.stop()
    return seen


def test_every_tool_call_of_a_session_can_be_gone_back_to_file_by_file(claude: FakeClaude) -> None:
    seen = work(claude)
    with store_of(claude) as store:
        session = store.session(claude.session, workspace=claude.project)
        points = list(session.log())[::-1]
        assert [point.label for point in points if point.label] == ["mend the price"]
        steps = [point for point in points if session.calls(point)]
        assert [call.name for point in steps for call in session.calls(point)] == [
            {"write": "Write", "edit": "Edit", "bash": "Bash"}[verb] for verb, *_ in STEPS
        ]
        for point, then in reversed(list(zip([points[1], *steps], seen, strict=True))):
            session.restore(point, files=True)
            assert tree(claude.project) == then
            session.undo()
            assert tree(claude.project) == seen[-1]
        assert session.checkpoint().status.value == "completed"
        assert [message["role"] for message in session.load()["messages"]] == [
            "user",
            *["assistant", "user"] * 10,
            "assistant",
        ]


def test_an_edit_of_yours_between_two_calls_is_kept_and_each_line_has_its_author(claude: FakeClaude) -> None:
    claude.start()
    claude.prompt("make a price")
    claude.write("price.py", "def price(n):\n    return 4 * n\n")
    (claude.project / "notes.txt").write_text("mine\n")
    claude.edit("price.py", "4 *", "4 +")
    answer = claude.stop()
    claude.prompt("go on")
    claude.bash("ls")
    claude.bash("rm price.py")
    claude.stop()
    claude.end()
    project, id_ = claude.project, claude.session
    blamed = shell.run("blame", id_, "price.py", "--ref", "main~2", "--json", folder=project)
    assert [json.loads(line)["call"] for line in blamed.out.splitlines()] == ["Write", "Edit"]
    assert json.loads(blamed.out.splitlines()[0])["prompt"] == "make a price"
    found = shell.run(
        "bisect", id_, "--good", "main~5", "--bad", "main~2", "--", "grep", "-q", "4 [*]", "price.py", folder=project
    )
    assert "Edit" in found.out, found
    listed = shell.run("files", id_, "main~2", folder=project)
    assert "price.py" in listed.out
    assert "outside" in listed.out
    differing = shell.run("diff", id_, "main~3", "main~2", "--files", folder=project)
    assert "price.py" not in differing.out  # a prompt changes no file
    for line in (["diff", id_, "main~3", "main", "--files"], ["diff", id_, "main~3", "main", "--json"], ["show", id_]):
        told = shell.run(*line, folder=project).out
        assert "messages" in told or "go on" in told
        assert "claude_code" not in told, "that is the hooks' own"
    assert "price.py" in shell.run("diff", id_, "main~2", "main~1", "--files", folder=project).out
    log = shell.run("log", id_, folder=project)
    assert '"go on"' in log.out
    back = shell.run("rewind", id_, "main~2", "-y", folder=project)
    assert back.code == 0, back.err
    assert f"To go on from there: claude --resume {id_} --resume-session-at {answer} -p 'go on'" in back.out
    assert (project / "price.py").read_text() == "def price(n):\n    return 4 + n\n"
    wrote = json.loads(blamed.out.splitlines()[0])["checkpoint"]
    back = shell.run("rewind", id_, wrote, "-y", folder=project)
    assert (project / "price.py").read_text() == "def price(n):\n    return 4 * n\n"
    assert (project / "notes.txt").read_text() == "mine\n"
    for _ in range(2):
        assert shell.run("undo", id_, "-y", folder=project).code == 0
    assert (project / "price.py").read_text() == "def price(n):\n    return 4 * n\n"
    assert problems(project) == []


def test_calls_in_flight_at_once_are_all_recorded_and_share_what_changed(claude: FakeClaude) -> None:
    claude.start()
    claude.prompt("two at once")
    calls = [{"tool_name": "Bash", "tool_input": {"command": "same"}, "tool_use_id": f"t{n}"} for n in range(4)]
    for started in [claude.begin_hook("PreToolUse", **call) for call in calls]:
        claude.finish(started)
    (claude.project / "a.txt").write_text("a")
    refused = shell.run("rewind", claude.session, "main~1", "-y", folder=claude.project)
    assert refused.code != 0
    assert "lease" in refused.err or "run" in refused.err
    for started in [claude.begin_hook("PostToolUse", **call, tool_response={}) for call in calls]:
        claude.finish(started)
    claude.stop()
    with store_of(claude) as store:
        session = store.session(claude.session)
        assert sorted([call.key or "" for point in session.log() for call in session.calls(point)]) == [
            "t0",
            "t1",
            "t2",
            "t3",
        ]
        files = session.checkpoint().files
        assert files is not None
        assert files["a.txt"].author.startswith("call")
    assert problems(claude.project) == []


def test_two_sessions_in_one_folder_do_not_mix(claude: FakeClaude) -> None:
    other = FakeClaude(claude.project, claude.home)
    for each in (claude, other):
        each.start()
        each.prompt("work")
    call = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "theirs"}
    other.hook("PreToolUse", **call)
    claude.write("mine.txt", "one")
    other.hook("PostToolUse", **call, tool_response={})
    claude.stop()
    other.stop()
    with store_of(claude) as store:
        assert {info.id for info in store.sessions()} == {claude.session, other.session}
        session = store.session(claude.session)
        assert [call.name for point in session.log() for call in session.calls(point)] == ["Write"]
    assert problems(claude.project) == []


@pytest.mark.parametrize("ends", ["killed", pytest.param("told", marks=pytest.mark.exhaustive)])
def test_a_helper_that_goes_between_a_call_and_its_end_loses_nothing(claude: FakeClaude, ends: str) -> None:
    import signal

    claude.start()
    claude.prompt("work")
    (claude.project / "mine.txt").write_text("mine")
    call = {"tool_name": "Write", "tool_input": {"file_path": "x"}, "tool_use_id": "t1"}
    claude.hook("PreToolUse", **call)
    (claude.project / "x.txt").write_text("x")
    claude.await_helper()
    assert kill_helpers(claude.home, signal.SIGKILL if ends == "killed" else signal.SIGTERM) == 1
    claude.hook("PostToolUse", **call, tool_response={"ok": 1})
    claude.stop()
    with store_of(claude) as store:
        session = store.session(claude.session)
        (done,) = [call for point in session.log() for call in session.calls(point)]
        assert (done.status, done.result) == ("done", {"ok": 1})
        files = session.checkpoint().files
        assert files is not None
        assert files["x.txt"].author == f"call:{done.id}"
        assert files["mine.txt"].author == "outside"
        assert store.crashed() == []
    assert problems(claude.project) == []


def test_an_interrupted_turn_ends_at_the_next_prompt_with_its_call_unknown(claude: FakeClaude) -> None:
    claude.start()
    claude.prompt("work")
    claude.hook("PreToolUse", tool_name="Bash", tool_input={"command": "sleep 9"}, tool_use_id="t1")
    (claude.project / "half.txt").write_text("half")
    claude.prompt("something else")
    claude.tool("Bash", {"command": "false"}, lambda: 1 / 0)
    claude.stop()
    with store_of(claude) as store:
        session = store.session(claude.session)
        calls = [call for point in session.log() for call in session.calls(point)][::-1]
        assert (calls[0].key, calls[0].status) == ("t1", "unknown")
        assert (calls[1].status, "division" in (calls[1].error or "")) == ("failed", True)
        files = session.checkpoint().files
        assert files is not None
        assert files["half.txt"].author == f"call:{calls[0].id}"
        assert store.crashed() == []
        assert next(iter(store.sessions())).title == "work"


@pytest.mark.exhaustive
def test_a_turn_that_was_interrupted_in_a_call_can_be_cancelled_and_rewound(claude: FakeClaude) -> None:
    claude.start()
    claude.prompt("work")
    claude.write("a.txt", "one")
    call = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "t"}
    claude.hook("PreToolUse", **call)  # a person says no, and Claude Code says nothing more
    (claude.project / "a.txt").write_text("half")
    assert shell.run("rewind", claude.session, "main", "-y", folder=claude.project).code != 0
    assert shell.run("cancel", claude.session, folder=claude.project).code == 0
    with store_of(claude) as store:
        until = time.monotonic() + 60
        while any([run.live for run in store.session(claude.session).runs()]):
            assert time.monotonic() < until
            time.sleep(0.05)
    done = shell.run("rewind", claude.session, "main", "--theirs", "-y", folder=claude.project)
    assert done.code == 0, done.err
    assert (claude.project / "a.txt").read_text() == "one"
    claude.prompt("something else")
    claude.write("b.txt", "two")
    claude.stop()
    assert problems(claude.project) == []


def test_a_sub_agent_works_on_a_branch_of_its_own(claude: FakeClaude) -> None:
    claude.start()
    claude.prompt("delegate")
    task = {"tool_name": "Task", "tool_input": {"prompt": "find out"}, "tool_use_id": "task"}
    claude.hook("PreToolUse", **task)
    claude.write("sub.txt", "sub", agent_id="a1", agent_type="general")
    own = claude.home / "agent.jsonl"
    line = {
        "type": "assistant",
        "uuid": "u1",
        "isSidechain": False,
        "message": {"role": "assistant", "content": "found"},
    }
    own.write_text(json.dumps(line) + "\n")
    claude.hook("SubagentStop", agent_id="a1", agent_type="general", agent_transcript_path=str(own))
    claude.hook("SubagentStop")  # of a version that does not say whose
    claude.write("lost.txt", "lost", agent_id="a2", agent_type="general")
    claude.hook("PostToolUse", **task, tool_response="found")
    claude.stop()
    claude.end()
    with store_of(claude) as store:
        session = store.session(claude.session)
        assert set(session.branches()) == {"main", "agent-a1", "agent-a2"}
        assert session.runs() == []
        assert [call.name for point in session.log("agent-a1") for call in session.calls(point)] == ["Write"]
        assert [call.name for point in session.log() for call in session.calls(point)] == ["Task"]
        assert session.load("agent-a1")["messages"] == [{"role": "assistant", "content": "found"}]
        files = session.checkpoint().files
        assert files is not None
        assert files["sub.txt"].author.startswith("call:")
    assert problems(claude.project) == []


def test_a_rewind_between_two_calls_of_a_turn_is_where_the_next_call_goes_on(claude: FakeClaude) -> None:
    claude.start()
    claude.prompt("work")
    claude.write("a.txt", "one")
    claude.write("a.txt", "two")
    done = shell.run("rewind", claude.session, "main~1", "-y", folder=claude.project)
    assert done.code == 0, done.err
    assert (claude.project / "a.txt").read_text() == "one"
    claude.write("b.txt", "three")
    claude.stop()
    with store_of(claude) as store:
        session = store.session(claude.session)
        files = session.checkpoint().files
        assert files is not None
        assert files["a.txt"].read() == b"one"
        assert session.checkpoint().status.value == "completed"
    assert problems(claude.project) == []


@pytest.mark.exhaustive
def test_going_back_inside_claude_code_takes_the_talk_back_here(claude: FakeClaude) -> None:
    claude.start()
    claude.prompt("first")
    answer = claude.stop("one")
    claude.prompt("second")
    claude.stop("two")
    claude.say("user", "another second", parentUuid=answer)
    claude.stop("three")
    with store_of(claude) as store:
        messages = store.session(claude.session).load()["messages"]
    texts = [each["content"] if isinstance(each["content"], str) else each["content"][0]["text"] for each in messages]
    assert texts == ["first", "one", "another second", "three"]


def test_reading_tools_leave_no_trace(claude: FakeClaude) -> None:
    claude.tool("Read", {"file_path": "keep.txt"}, lambda: "keep")
    claude.tool("Grep", {"pattern": "x"}, lambda: "")
    assert not (claude.project / ".backstay").exists()


def test_a_command_that_only_a_hook_needs_loads_nothing_heavy(claude: FakeClaude) -> None:
    claude.start()
    code = "import sys; from backstay.__main__ import run; sys.argv=['backstay','hook']; run(); print(*sys.modules)"
    given = json.dumps(claude.payload("PreToolUse", tool_name="Read")).encode()
    done = subprocess.run([shell.CLI[0], "-c", code], input=given, capture_output=True, env=claude.env, check=True)
    loaded = set(done.stdout.decode().split())
    assert "backstay.adapters.claude_code.client" in loaded
    heavy = {
        "typing",
        "socket",
        "json",
        "click",
        "msgspec",
        "apsw",
        "contextlib",
        "subprocess",
        "hashlib",
        "backstay.cli",
    }
    # A Python that was installed with hooks of its own into `site` loads some of these before us.
    bare = subprocess.run([shell.CLI[0], "-c", "import sys; print(*sys.modules)"], capture_output=True, check=True)
    assert not (loaded - set(bare.stdout.decode().split())) & heavy


@pytest.mark.exhaustive
def test_a_hook_without_a_helper_records_the_same(project: Path, home: Path, tmp_path: Path) -> None:
    def record(alone: bool, where: Path) -> list[Any]:
        shutil.copytree(project, where)
        claude = FakeClaude(where, home, session="same", alone=alone)
        claude.transcript = where.with_suffix(".jsonl")
        seen = work(claude)
        (where / "mine.txt").write_text("mine\n")
        claude.prompt("again")
        claude.bash("rm mine.txt")
        claude.end()
        with store_of(claude) as store:
            session = store.session("same")
            told: list[Any] = [
                (p.label, p.status, p.trigger, [c.name for c in session.calls(p)]) for p in session.log()
            ]
            return [*told, seen, [each["role"] for each in session.load()["messages"]]]

    assert record(alone=True, where=tmp_path / "alone") == record(alone=False, where=tmp_path / "helped")
    assert problems(tmp_path / "alone") == []
