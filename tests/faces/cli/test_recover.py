"""`backstay recover`: a crash is seen from any process, and every way of deciding it is what the next run is given."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import backstay
from tests.faces.cli import shell

# Enters a run, says so, and waits inside a tool to be killed.
WORKER = """
import sys, time, backstay
with backstay.open(sys.argv[1]) as store, store.run("job", agent="a", input="go") as run:
    run.state["n"] = 1
    run.step()
    def tool():
        print("inside", flush=True)
        time.sleep(60)
    run.call("pay", tool, key="k", args={"euro": 10})
"""


@contextlib.contextmanager
def worker(file: Path) -> Any:
    with subprocess.Popen([sys.executable, "-c", WORKER, str(file)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        try:
            yield process
        finally:
            process.kill()


def next_outcome(file: Path, *, on_failed: str = "raise") -> Any:
    """What the tool gives to the run that goes on, or "made" if it is made again."""
    with backstay.open(file) as store, store.run("ticket-43") as run:
        reply = run.call("model", lambda: "never", kind="llm")
        run.append(reply)
        wanted = reply["tool_calls"][0]
        out = run.call("refund", lambda: "made", key=wanted["id"], args=wanted["args"])
        run.append({"role": "tool", "content": out})
    return out


@pytest.mark.parametrize(
    ("decision", "given"),
    [
        (["--result", '{"paid": 20}'], {"paid": 20}),
        (["--result", "null"], None),
        (["--retry"], "made"),
        (["--skip"], None),
    ],
)
def test_what_is_decided_is_what_the_next_run_is_given(decision: list[str], given: Any, folder: Path) -> None:
    done = shell.run("recover", "ticket-43", *decision, folder=folder)
    assert (done.code, done.err) == (0, "")
    assert next_outcome(folder / ".backstay" / "store.db") == given
    assert shell.run("recover", folder=folder).out == "Nothing crashed, and no call is in doubt.\n"


def test_a_call_marked_as_failed_fails_with_the_reason_that_was_given(folder: Path) -> None:
    assert shell.run("recover", "ticket-43", "--mark-failed", "--reason", "no money", folder=folder).code == 0
    with pytest.raises(backstay.CallFailedError, match="no money"):
        next_outcome(folder / ".backstay" / "store.db")


def test_what_is_abandoned_is_no_longer_pending(folder: Path) -> None:
    assert shell.run("recover", "ticket-43", "--abandon", folder=folder).code == 0
    with backstay.open(folder / ".backstay" / "store.db") as store:
        assert store.crashed() == []
        assert store.session("ticket-43").calls(pending=True) == []
    assert shell.run("recover", "ticket-43", "--abandon", folder=folder).code == 1


def test_a_call_is_named_by_a_start_of_its_id_and_a_wrong_one_lists_those_there_are(folder: Path) -> None:
    (line,) = shell.run("recover", "--json", folder=folder).out.splitlines()
    (id_,) = json.loads(line)["in_doubt"]
    wrong = shell.run("recover", "ticket-43", "--call", "zzz", "--skip", folder=folder)
    assert wrong.code == 1
    assert id_ in wrong.err
    assert shell.run("recover", "ticket-43", "--call", id_[:5], "--skip", folder=folder).code == 0
    again = shell.run("recover", "ticket-43", "--skip", folder=folder)
    assert again.code == 1
    assert "no call of session 'ticket-43' is in doubt" in again.err


def test_where_several_calls_are_in_doubt_they_are_listed_and_not_guessed(tmp_path: Path) -> None:
    def cut_off() -> None:
        raise KeyboardInterrupt

    with backstay.open(tmp_path / "store.db") as store:
        for branch in ("main", "other"):
            with contextlib.suppress(KeyboardInterrupt), store.session("s").run(branch=branch) as run:
                run.state["n"] = 1
                run.checkpoint()
                if branch == "main":
                    store.session("s").fork("main", "other")
                run.call(f"pay-{branch}", cut_off, args={})
    assert "backstay recover --call ID s" in shell.run("recover", "--store", "store.db", folder=tmp_path).out
    graph = shell.run("log", "s", "--graph", "--all", "--store", "store.db", folder=tmp_path).out
    assert "crashed here: pay-main in doubt" in graph
    assert "crashed here: pay-other in doubt" in graph
    asked = shell.run("recover", "s", "--retry", "--store", "store.db", folder=tmp_path)
    assert asked.code == 1
    assert "pay-main" in asked.err
    assert "pay-other" in asked.err
    assert shell.run("recover", "s", "--abandon", "--store", "store.db", folder=tmp_path).code == 1
    assert shell.run("recover", "s", "--retry", "--branch", "other", "--store", "store.db", folder=tmp_path).code == 0
    assert shell.run("recover", "s", "--abandon", "--branch", "main", "--store", "store.db", folder=tmp_path).code == 0


def test_a_run_that_is_alive_is_not_taken_for_a_crash_and_one_that_was_killed_is(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with worker(file) as process:
        assert shell.run("recover", "--store", "store.db", folder=tmp_path).out.startswith("Nothing crashed")
        alive = shell.run("recover", "job", "--store", "store.db", folder=tmp_path)
        assert "a run is alive" in alive.out
        assert "o  a run is alive here" in shell.run("log", "job", "--store", "store.db", folder=tmp_path).out
        held = shell.run("restore", "job", "main", "-y", "--store", "store.db", folder=tmp_path)
        assert (held.code, len(held.err.splitlines())) == (3, 1)
        assert shell.run("delete", "job", "-y", "--store", "store.db", folder=tmp_path).code == 3
        process.kill()
        process.wait()
    out = shell.run("recover", "--store", "store.db", folder=tmp_path).out
    assert "tool pay(euro=10) in doubt" in out
    assert "crashed" in shell.run("sessions", "--store", "store.db", folder=tmp_path).out
    doubtful = shell.run("restore", "job", "main", "-y", "--store", "store.db", folder=tmp_path)
    assert doubtful.code == 1
    assert "backstay recover" in doubtful.err


def test_a_run_that_crashed_before_its_first_checkpoint_is_shown_too(tmp_path: Path) -> None:
    with (
        backstay.open(tmp_path / "store.db") as store,
        contextlib.suppress(KeyboardInterrupt),
        store.run("early", input="x"),
    ):
        raise KeyboardInterrupt
    assert "stood before its first checkpoint" in shell.run("recover", "--store", "store.db", folder=tmp_path).out
    assert "before the first checkpoint" in shell.run("log", "early", "--store", "store.db", folder=tmp_path).out
    assert shell.run("branches", "early", "--store", "store.db", folder=tmp_path).code == 0
    assert shell.run("show", "early", "--store", "store.db", folder=tmp_path).code == 1
    assert shell.run("recover", "early", "--abandon", "--store", "store.db", folder=tmp_path).code == 0
