"""Claude Code's hooks when something is wrong: the agent goes on in any case, and `backstay status` tells."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay.adapters.claude_code import client, places
from backstay.adapters.claude_code.hook_server import HookServer
from backstay.adapters.claude_code.hooked import HookedProject
from tests.faces.adapters.fake_claude import FakeClaude, kill_helpers, tree
from tests.faces.cli import shell

_NOBODY = 65534
root_only = pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    yield made
    for folder in (made, *made.rglob("long*")):
        kill_helpers(folder)


@pytest.fixture
def shared() -> Iterator[FakeClaude]:
    """A session in a folder that other users can look into."""
    with tempfile.TemporaryDirectory(prefix="backstay-test-") as name:
        made = Path(name)
        made.chmod(0o755)
        for folder in ("home", "project"):
            (made / folder).mkdir(mode=0o700)
        yield FakeClaude(made / "project", made / "home")
        kill_helpers(made / "home")


@pytest.fixture
def claude(tmp_path: Path, home: Path) -> FakeClaude:
    (tmp_path / "project").mkdir()
    return FakeClaude(tmp_path / "project", home)


def status(claude: FakeClaude) -> str:
    """What `backstay status` says of the hooks, in the colours of a terminal."""
    done = shell.run("status", folder=claude.project, FORCE_COLOR="1", TMPDIR=claude.env["TMPDIR"])
    assert done.code == 0, done.err
    return done.out


RED = "\x1b[31m"


def names(claude: FakeClaude) -> list[str]:
    with backstay.open(claude.project / ".backstay" / "store.db") as store:
        session = store.session(claude.session)
        return [call.name for point in session.log() for call in session.calls(point)][::-1]


@pytest.mark.parametrize(
    "payload",
    [b"", b"no json", b"[]", b"{}", b'{"session_id": 7}', b'{"session_id": ""}', b"[" * 100_000, b"\xff\xfe", b"null"],
    ids=["nothing", "text", "a list", "no session", "a number", "an empty id", "deep", "bytes", "null"],
)
def test_an_event_that_makes_no_sense_is_told_in_red_and_stops_no_agent(tmp_path: Path, payload: bytes) -> None:
    project = HookedProject(str(tmp_path), None)
    assert project.take(payload) is False
    assert len(places.problems_of(str(tmp_path))) == 1
    project.close()
    backstay.open(tmp_path / ".backstay" / "store.db").close()
    done = shell.run("status", folder=tmp_path, FORCE_COLOR="1")
    assert f"{RED}an event was not recorded" in done.out


def test_events_with_odd_values_are_recorded_as_far_as_they_can_be(tmp_path: Path) -> None:
    project = HookedProject(str(tmp_path), None)
    odd = {"\ud800": ["\ud801", 2**70, None, 1.5], "long": "x" * 100_000}
    call = {"session_id": "s", "tool_name": "Odd", "tool_use_id": "t", "tool_input": odd}
    assert project.take(json.dumps({**call, "hook_event_name": "UserPromptSubmit", "prompt": "p\ud800\n" * 9}).encode())
    assert project.take(json.dumps({**call, "hook_event_name": "PreToolUse"}).encode())
    assert project.take(json.dumps({**call, "hook_event_name": "PostToolUse", "tool_response": odd}).encode())
    assert project.take(json.dumps({**call, "hook_event_name": "NewEvent", "tool_response": odd}).encode())
    assert project.take(json.dumps({**call, "hook_event_name": "Stop", "transcript_path": "/dev/null"}).encode())
    project.close()
    with backstay.open(tmp_path / ".backstay" / "store.db") as store:
        (made,) = store.session("s").calls()
        assert made.args["?"][1] == str(2**70)
        assert made.args["long"].endswith("(100,000 characters)")
    assert places.problems_of(str(tmp_path)) == []


def test_a_turn_whose_files_could_not_be_captured_at_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    project = HookedProject(str(folder), f"sqlite:///{tmp_path}/store.db")
    assert project.take(b'{"session_id": "s", "hook_event_name": "UserPromptSubmit", "prompt": "hello"}')
    folder.rename(tmp_path / "moved")
    project.take(b'{"session_id": "s", "hook_event_name": "Stop"}')
    project.close()
    (tmp_path / "moved").rename(folder)
    assert len(places.problems_of(str(folder))) == 1


def test_a_call_that_a_person_wants_to_be_made_again_does_not_hold_the_turn_up(tmp_path: Path) -> None:
    call = {"session_id": "s", "tool_name": "Bash", "tool_input": {}, "tool_use_id": "t"}
    project = HookedProject(str(tmp_path), None)
    assert project.take(json.dumps({**call, "hook_event_name": "PreToolUse"}).encode())
    project.close()
    with backstay.open(tmp_path / ".backstay" / "store.db") as store:
        session = store.session("s")
        session.resolve(session.calls(pending=True)[0].id, "retry")
    assert project.take(json.dumps({**call, "hook_event_name": "Stop"}).encode())
    project.close()
    with backstay.open(tmp_path / ".backstay" / "store.db") as store:
        assert [made.status for made in store.session("s").calls()] == ["unknown"]
    assert places.problems_of(str(tmp_path)) == []


def test_of_a_folder_that_is_refused_the_talk_is_kept_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    project = HookedProject(str(tmp_path), None)
    assert project.take(b'{"session_id": "s", "hook_event_name": "UserPromptSubmit", "prompt": "hello"}')
    assert "too much" in str(places.problems_of(str(tmp_path))[0]["what"])
    assert project.take(b'{"session_id": "s", "hook_event_name": "Stop", "last_assistant_message": "hi"}')
    project.close()
    with backstay.open(tmp_path / ".backstay" / "store.db") as store:
        assert [each["content"] for each in store.session("s").load()["messages"]] == ["hello", "hi"]
    assert places.problems_of(str(tmp_path))


@pytest.mark.exhaustive
def test_a_huge_event_is_not_recorded_and_told(claude: FakeClaude) -> None:
    claude.start()
    claude.finish(claude.raw(b"x" * (client.MAX_BYTES + 10)))
    assert f"{RED}an event of more than" in status(claude)


def test_a_full_disk_stops_no_agent_and_is_told_until_a_checkpoint_has_everything(claude: FakeClaude) -> None:
    shell.run("init", "--claude-code", folder=claude.project)
    claude.file_limit = 20_000  # of a byte more the disk is full
    for number in range(3):
        claude.write(f"{number}.txt", "x" * 1000)
    assert f"{RED}" in status(claude)
    assert "could not be recorded" in status(claude)
    kill_helpers(claude.home)
    claude.file_limit = None
    claude.stop()
    assert "could not be recorded" not in status(claude)
    with backstay.open(claude.project / ".backstay" / "store.db") as store:
        files = store.session(claude.session).checkpoint().files
        assert files is not None
        assert {"0.txt", "1.txt", "2.txt"} <= set(files)


@root_only
def test_a_store_that_cannot_be_written_stops_no_agent_and_is_told(shared: FakeClaude) -> None:
    claude, place = shared, shared.home.parent
    claude.start()
    kill_helpers(claude.home)
    shutil.rmtree(claude.home / f"backstay-{os.getuid()}")
    for path in place.rglob("*"):
        os.chown(path, _NOBODY, -1, follow_symlinks=False)
    for path in ((claude.project / ".backstay"), *(claude.project / ".backstay").rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    for event in ("UserPromptSubmit", "Stop"):
        assert as_nobody(claude, claude.payload(event, prompt="work")) == 0
    (noted,) = (claude.home / f"backstay-{_NOBODY}").glob("*.problems")
    assert [each["what"].split(" was not")[0] for each in json.loads(noted.read_text())] == ["UserPromptSubmit", "Stop"]


def as_nobody(claude: FakeClaude, payload: dict[str, Any]) -> int:
    """A hook in a process of another user, who may not start this Python: so it is forked, and works alone."""
    handed, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(handed, 0)
            os.close(end)
            os.environ.update(claude.env)
            os.environ.pop("XDG_RUNTIME_DIR", None)
            os.setuid(_NOBODY)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            os._exit(client.run([]))
        finally:
            os._exit(99)
    os.write(end, json.dumps(payload).encode())
    os.close(end)
    os.close(handed)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("what", ["a damaged store", "a folder in its place"])
def test_a_store_that_cannot_be_opened_stops_no_agent_and_is_told(claude: FakeClaude, what: str) -> None:
    (claude.project / ".backstay").mkdir(mode=0o700)
    store = claude.project / ".backstay" / "store.db"
    store.write_bytes(b"no store" * 1000) if what == "a damaged store" else store.mkdir()
    claude.write("a.txt", "a")
    assert all(["was not recorded" in str(each["what"]) for each in places.problems_of(str(claude.project))])
    assert len(places.problems_of(str(claude.project))) == 2


@pytest.mark.exhaustive
def test_a_store_that_was_deleted_is_made_again(claude: FakeClaude) -> None:
    claude.start()
    claude.write("a.txt", "a")
    shutil.rmtree(claude.project / ".backstay")
    claude.write("b.txt", "b")
    claude.stop()
    assert names(claude) == ["Write"]


def test_a_stale_socket_and_a_path_that_is_too_long_are_no_hindrance(claude: FakeClaude, home: Path) -> None:
    deep = home.joinpath(*["long" * 12] * 4)
    deep.mkdir(parents=True, mode=0o700)
    claude.env["TMPDIR"] = str(deep)
    folder = deep / f"backstay-{os.getuid()}"
    folder.mkdir(mode=0o700)
    left = folder / places.socket_name(str(claude.project), None)
    here = Path.cwd()
    try:
        os.chdir(folder)
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(left.name)
    finally:
        os.chdir(here)
    claude.start()
    claude.await_helper()
    claude.write("a.txt", "a")
    assert names(claude) == ["Write"]
    kill_helpers(deep)


@pytest.mark.parametrize("what", ["open to others", "a link", "another user's"])
def test_a_folder_for_sockets_that_others_could_enter_is_not_used(claude: FakeClaude, home: Path, what: str) -> None:
    folder = home / f"backstay-{os.getuid()}"
    if what == "a link":
        (home / "real").mkdir(mode=0o700)
        folder.symlink_to(home / "real")
    else:
        folder.mkdir(mode=0o700)
        folder.chmod(0o755) if what == "open to others" else os.chown(folder, _NOBODY, -1)
    if what == "another user's" and os.getuid() != 0:
        pytest.skip("needs a second user")
    claude.start()
    assert list(folder.iterdir()) == []
    with backstay.open(claude.project / ".backstay" / "store.db") as store:
        assert [info.id for info in store.sessions()] == [claude.session]


@root_only
def test_neither_end_of_a_socket_speaks_to_another_user(shared: FakeClaude) -> None:
    claude = shared
    claude.start()
    claude.await_helper()
    folder = claude.home / f"backstay-{os.getuid()}"
    (name,) = [path for path in folder.iterdir() if path.is_socket()]
    for path in (claude.home, folder, name):
        path.chmod(0o777)
    speak = """
import os, socket, sys
os.seteuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as ours:
    ours.connect(sys.argv[1])
    try:
        ours.sendall(b"backstay-hook 1 2\\n{}")
        sys.exit(len(ours.recv(16)))
    except (ConnectionResetError, BrokenPipeError):
        sys.exit(0)
"""
    words = [sys.executable, "-c", speak, str(name)]
    theirs = subprocess.run([*words, str(_NOBODY)], check=False)
    ours = subprocess.run([*words, "0"], check=False)
    assert (theirs.returncode, ours.returncode) == (0, 3)
    folder.chmod(0o700)
    kill_helpers(claude.home)
    name.unlink()
    listen = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX);"
        "os.chdir(sys.argv[1]); s.bind(sys.argv[2]); os.seteuid(65534); s.listen();"
        "print('up', flush=True); c, _ = s.accept(); print(len(c.recv(99)), flush=True)"
    )
    words = [sys.executable, "-c", listen, str(folder), name.name]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as liar:
        assert liar.stdout is not None
        assert liar.stdout.readline() == "up\n"
        claude.write("a.txt", "a")
        assert liar.stdout.readline() == "0\n"
    assert names(claude) == ["Write"]


def test_a_helper_that_is_killed_over_an_event_leaves_it_to_the_next_one(claude: FakeClaude) -> None:
    claude.start()
    number = claude.await_helper()
    os.kill(number, signal.SIGSTOP)
    call = {"tool_name": "Write", "tool_input": {}, "tool_use_id": "t"}
    started = claude.begin_hook("PreToolUse", **call)
    threading.Timer(0.5, lambda: os.kill(number, signal.SIGKILL)).start()
    claude.finish(started)
    (claude.project / "a.txt").write_text("a")
    claude.hook("PostToolUse", **call, tool_response={})
    claude.stop()
    assert names(claude) == ["Write"]


def test_a_helper_that_hangs_holds_the_agent_up_for_two_seconds_at_most(claude: FakeClaude) -> None:
    claude.start()
    number = claude.await_helper()
    os.kill(number, signal.SIGSTOP)
    began = time.monotonic()
    claude.hook("UserPromptSubmit", prompt="work")
    waited = time.monotonic() - began
    os.kill(number, signal.SIGCONT)
    assert 1.5 < waited < 30  # a busy machine starts processes slowly
    claude.stop()
    with backstay.open(claude.project / ".backstay" / "store.db") as store:
        assert [p.label for p in store.session(claude.session).log() if p.label] == ["work"]


def test_a_helper_without_work_leaves_and_a_second_one_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    second: list[bool] = []
    helper = HookServer(str(tmp_path), "sock", HookedProject(str(tmp_path), None), idle_s=1.0)
    thread = threading.Thread(target=helper.serve)
    thread.start()
    while not Path("sock").exists():
        time.sleep(0.01)
    second.append(HookServer(str(tmp_path), "sock", HookedProject(str(tmp_path), None)).serve())
    thread.join(60)
    assert (thread.is_alive(), second, Path("sock").exists()) == (False, [False], False)


@pytest.mark.parametrize("what", ["a link out", "a link in it", "a pipe", "a folder"])
def test_notes_of_what_went_wrong_go_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    project, out, own = tmp_path / "project", tmp_path / "out", tmp_path / "project" / ".backstay"
    project.mkdir()
    out.mkdir()
    (out / "hook-problems").write_text("theirs")
    if what == "a link out":
        own.symlink_to(out)
    else:
        own.mkdir()
        place = own / "hook-problems"
        place.symlink_to(out / "hook-problems") if what == "a link in it" else None
        os.mkfifo(place) if what == "a pipe" else None
        place.mkdir() if what == "a folder" else None
    assert places.note_problem(str(project), "this went wrong")
    assert [each["what"] for each in places.problems_of(str(project))] == ["this went wrong"]
    assert (out / "hook-problems").read_text() == "theirs"
    assert [path.name for path in out.iterdir()] == ["hook-problems"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_helpers_killed_at_any_moment_lose_no_file_and_no_call_that_was_told(claude: FakeClaude, seed: int) -> None:
    chance = random.Random(seed)
    claude.start()
    claude.prompt("work")
    stopped = threading.Event()

    def kill() -> None:
        while not stopped.wait(chance.uniform(0.05, 0.8)):
            kill_helpers(claude.home)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for number in range(25):
            claude.write(f"{number}.txt", str(number))
    finally:
        stopped.set()
        killer.join()
    claude.stop()
    with backstay.open(claude.project / ".backstay" / "store.db") as store:
        session = store.session(claude.session, workspace=claude.project)
        assert names(claude) == ["Write"] * 25
        assert store.verify().ok
        assert store.crashed() == []
        first = list(session.log())[-1]
        now = tree(claude.project)
        # A kill may cost the event before a call: its changes then count as yours, and are put back if you say so.
        session.restore(first, files=True, keep_mine=False)
        assert tree(claude.project) == {}
        session.undo()
        assert tree(claude.project) == now


def test_a_cancelled_turn_is_free_when_the_helper_next_looks(tmp_path: Path) -> None:
    project = HookedProject(str(tmp_path), None)
    for event, fields in (
        ("UserPromptSubmit", {"prompt": "work"}),
        ("PreToolUse", {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "t"}),
    ):
        payload = {"session_id": "s", "hook_event_name": event, "cwd": str(tmp_path), **fields}
        assert project.take(json.dumps(payload).encode())
    try:
        held = shell.run("restore", "s", "main", "-y", folder=tmp_path)
        assert held.code == 3
        assert "stop it with `backstay cancel SESSION`" in held.err
        asked = shell.run("cancel", "s", folder=tmp_path)
        assert "s is asked to stop: cancelled at the command line. It ends at its next call or boundary." in asked.out
        project.tend()
        with backstay.open(tmp_path / ".backstay" / "store.db") as store:
            assert not any(run.live for run in store.session("s").runs())
        done = shell.run("rewind", "s", "main", "--theirs", "-y", folder=tmp_path)
        assert done.code == 0, done.err
    finally:
        project.close()
