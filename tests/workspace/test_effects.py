"""A call that only changes files is rolled back and made again where it was cut off: its effect is there once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import backstay
from backstay.errors import InDoubtError, InvalidInputError


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "log").write_text("start\n")
    (folder / "gone").write_text("to be removed\n")
    return folder


AGENT = textwrap.dedent("""
    import os, signal, sys, backstay
    from pathlib import Path
    store_path, work, die_at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    def edit():
        steps = [
            lambda: (work / "log").open("a").write("edited\\n"),
            lambda: (work / "gone").unlink(),
            lambda: (work / "sub").mkdir(),
            lambda: (work / "sub" / "new").write_text("new\\n"),
            lambda: (work / "log").chmod(0o755),
        ]
        for number, step in enumerate(steps):
            if number == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            step()
        return "done"
    with backstay.open(store_path) as store, store.run("s", workspace=work) as run:
        if not run.state:
            run.state["n"] = 1
            run.step()
        (work / "between").write_text("by the loop\\n") if not run.resumed else None
        run.call("look", lambda: 1)
        run.call("edit", edit, effects="files")
        run.state["n"] = 2
""")


def run_agent(store: Path, work: Path, die_at: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", AGENT, str(store), str(work), str(die_at)], check=False, capture_output=True, text=True
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def tree(work: Path) -> dict[str, str]:
    return {
        str(path.relative_to(work)): path.read_text()
        for path in sorted(work.rglob("*"))
        if path.is_file() and ".backstay" not in path.parts
    }


@pytest.mark.parametrize("die_at", [1, 3, 4])
def test_a_call_killed_half_way_takes_effect_once(tmp_path: Path, work: Path, die_at: int) -> None:
    store = tmp_path / "store.db"
    assert run_agent(store, work, die_at) == -signal.SIGKILL
    assert run_agent(store, work, 99) == 0
    expected = {"log": "start\nedited\n", "sub/new": "new\n", "between": "by the loop\n"}
    assert tree(work) == expected
    assert (work / "log").stat().st_mode & 0o777 == 0o755
    with backstay.open(store) as opened:
        session = opened.session("s")
        assert session.load() == {"n": 2}
        (aside,) = [name for name in session.branches() if name.startswith("before-rollback/")]
        half = session.checkpoint(aside).files
        assert half is not None
        assert half["log"].read() == b"start\nedited\n"
        head = session.checkpoint().files
        assert head is not None
        assert {file.path for file in head.list() if file.kind == "file"} == set(expected)
        assert opened.verify().ok


@pytest.mark.exhaustive
def test_a_call_killed_anywhere_again_and_again_takes_effect_once(tmp_path: Path, work: Path) -> None:
    rng = random.Random(7)
    for round_ in range(40):
        folder = tmp_path / f"work{round_}"
        folder.mkdir()
        (folder / "log").write_text("start\n")
        (folder / "gone").write_text("x")
        for _ in range(rng.randrange(1, 4)):
            run_agent(tmp_path / f"s{round_}.db", folder, rng.randrange(5))
        assert run_agent(tmp_path / f"s{round_}.db", folder, 99) == 0
        assert tree(folder) == {"log": "start\nedited\n", "sub/new": "new\n", "between": "by the loop\n"}


def interrupted(store: backstay.Store, work: Path, **options: object) -> None:
    def edit() -> None:
        (work / "log").write_text("half\n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.run("s", workspace=work) as run:
        run.call("edit", edit, **options)  # type: ignore[call-overload]


def test_other_calls_are_asked_about_as_ever(work: Path) -> None:
    with backstay.open("memory://") as store:
        interrupted(store, work)
        with pytest.raises(InDoubtError), store.run("s", workspace=work) as run:
            run.call("edit", lambda: None)
        assert (work / "log").read_text() == "half\n"


def test_a_run_without_its_workspace_does_not_roll_back(work: Path) -> None:
    with backstay.open("memory://") as store:
        interrupted(store, work, effects="files")
        with pytest.raises(InvalidInputError, match="workspace"), store.run("s") as run:
            run.call("edit", lambda: None, effects="files")
        with pytest.raises(InDoubtError), store.run("s") as run:
            run.call("edit", lambda: None)


def test_on_doubt_rollback_asks_where_nothing_was_kept_to_go_back_to(work: Path) -> None:
    with backstay.open("memory://") as store:
        interrupted(store, work)
        with pytest.raises(InDoubtError), store.run("s", workspace=work, on_doubt="rollback") as run:
            run.call("edit", lambda: None)


def test_a_call_around_one_that_is_done_is_asked_about(work: Path) -> None:
    def outer(run: backstay.Run) -> None:
        run.call("inner", lambda: 1)
        (work / "log").write_text("half\n")
        raise KeyboardInterrupt

    with backstay.open("memory://") as store:
        with pytest.raises(KeyboardInterrupt), store.run("s", workspace=work) as run:
            run.call("outer", lambda: outer(run), effects="files")
        with pytest.raises(InDoubtError), store.run("s", workspace=work) as run:
            run.call("outer", lambda: None, effects="files")


def test_a_call_with_effects_is_made_when_no_other_tool_is(work: Path) -> None:
    order: list[str] = []
    started, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait(10)
        order.append("slow")

    with backstay.open("memory://") as store, store.run("s", workspace=work) as run:
        first = threading.Thread(target=lambda: run.call("slow", slow, key="1"))
        first.start()
        started.wait(10)
        second = threading.Thread(
            target=lambda: run.call("edit", lambda: order.append("edit"), key="2", effects="files")
        )
        second.start()
        go_on.set()
        first.join()
        second.join()
    assert order == ["slow", "edit"]


def test_effects_that_no_call_has_are_refused(work: Path) -> None:
    with backstay.open("memory://") as store, store.run("s", workspace=work) as run:
        with pytest.raises(InvalidInputError):
            run.call("x", lambda: 1, effects="money")  # type: ignore[call-overload]
        with pytest.raises(InvalidInputError):
            run.call("x", lambda: 1, kind="llm", effects="files")


def test_nothing_of_a_rollback_is_left_in_the_folder(tmp_path: Path, work: Path) -> None:
    run_agent(tmp_path / "store.db", work, 3)
    run_agent(tmp_path / "store.db", work, 99)
    tmp = work / ".backstay" / "tmp"
    assert not tmp.exists() or os.listdir(tmp) == []


def half_done(store: backstay.Store, work: Path, **effects: str) -> str:
    """A call that was cut off after it had changed a file; its id."""

    def edit() -> None:
        (work / "log").write_text("half")
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), store.run("s", workspace=work) as run:
        run.step()
        run.call("edit", edit, key="1", args=[], **effects)  # type: ignore[call-overload]
    (call,) = store.session("s").calls(pending=True)
    return call.id


def test_a_person_can_have_a_call_in_doubt_rolled_back_from_outside(work: Path) -> None:
    with backstay.open("memory://") as store:
        id_ = half_done(store, work, effects="files")
        (work / "gone").write_text("mine")
        with pytest.raises(InvalidInputError, match="workspace"):
            store.session("s").resolve(id_, "rollback")
        session = store.session("s", workspace=work)
        session.resolve(id_, "rollback")
        assert (work / "log").read_text() == "start\n"
        files = session.checkpoint(f"before-rollback/{id_}").files
        assert files is not None
        assert files["log"].read() == b"half"
        (work / "log").write_text("changed after it was decided")
        with store.run("s", workspace=work) as run:
            run.call("edit", lambda: None, key="1", args=[], effects="files")
        assert (work / "log").read_text() == "changed after it was decided"
        assert store.crashed() == []


def test_a_call_that_kept_no_files_cannot_be_rolled_back(work: Path) -> None:
    with backstay.open("memory://") as store:
        id_ = half_done(store, work)
        session = store.session("s", workspace=work)
        with pytest.raises(InvalidInputError, match="no files that could be put back"):
            session.resolve(id_, "rollback")
        assert [call.status for call in session.calls(pending=True)] == ["in_doubt"]
        session.resolve(id_, "skip")
