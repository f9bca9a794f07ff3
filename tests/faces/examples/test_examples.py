"""The files of examples/ run as a reader would run them: from a folder of their own, killed, answered, run again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import backstay
from tests.backends.conftest import Fresh, fresh_schema, postgres_url
from tests.house.tree import ROOT

__all__ = ["fresh_schema", "postgres_url"]  # fixtures

KILLED = -9


def run(folder: Path, name: str, *words: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "BACKSTAY_URL"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    env |= {"BACKSTAY_URL": url} if url else {}
    command = [sys.executable, str(ROOT / "examples" / name), *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_killed_loop_names_its_doubt_and_goes_on_when_it_is_decided(tmp_path: Path) -> None:
    assert run(tmp_path, "loop.py", "--die").returncode == KILLED
    doubtful = run(tmp_path, "loop.py")
    assert doubtful.returncode == 1
    assert "backstay recover" in doubtful.stderr
    with backstay.open(tmp_path / ".backstay" / "store.db") as store:
        (call,) = [call for call in store.session("ticket-42").calls(pending=True) if call.status == "in_doubt"]
        store.session("ticket-42").resolve(call.id, result="refund for order 7 issued")
    assert said(run(tmp_path, "loop.py")) == ["Done: refund for order 7 issued (0.004 EUR)"]


def test_parallel_tools_that_had_answered_before_a_kill_are_not_asked_again(tmp_path: Path) -> None:
    first = run(tmp_path, "parallel.py", "--die")
    assert first.returncode == KILLED
    assert said(run(tmp_path, "parallel.py")) == ["asked for Cairo", "{'Oslo': 4, 'Rome': 17, 'Cairo': 24}"]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (["--yes"], "order 7: 49 EUR paid back"),
        (["--yes", "--edit", '{"order": 7, "euro": 40}'], "order 7: 40 EUR paid back"),
        (["--no", "--reason", "too much"], "The refund was refused"),
    ],
    ids=["yes", "edit", "no"],
)
def test_a_refund_waits_for_its_approval_and_goes_on_in_another_process(
    tmp_path: Path, answer: list[str], outcome: str
) -> None:
    (line,) = said(run(tmp_path, "approval.py"))
    assert line.startswith("ticket-44 waits for approval of 'refund'")
    command = [sys.executable, "-m", "backstay", "answer", "ticket-44", *answer]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=60)
    (line,) = said(run(tmp_path, "approval.py"))
    assert line.startswith(outcome)


def test_the_files_of_a_coding_agent_go_back_with_the_conversation(tmp_path: Path) -> None:
    assert said(run(tmp_path, "coding.py")) == ["3 steps; 2 files in the checkpoint"]
    (tmp_path / "mine.txt").write_text("mine")
    with contextlib.chdir(tmp_path), backstay.open() as store:
        session = store.session("fix-bug", workspace=".")
        session.restore("main~2", files=True, keep_mine=True)
        assert "4 * n" in (tmp_path / "price.py").read_text()
        assert (tmp_path / "mine.txt").read_text() == "mine"
        session.undo()
    assert "4 + n" in (tmp_path / "price.py").read_text()


def test_a_graph_keeps_its_thread(tmp_path: Path) -> None:
    pytest.importorskip("langgraph", reason="langgraph is not installed")
    assert said(run(tmp_path, "graph.py")) == [
        "Done.",
        "4 messages kept; the tool said: refund for order 7 issued",
    ]


def test_a_turn_of_an_openai_agent_is_taken_back(tmp_path: Path) -> None:
    pytest.importorskip("agents", reason="openai-agents is not installed")
    assert said(run(tmp_path, "openai_agents.py")) == ["Which order?", "Refunded.", "2 items after going back"]


def test_every_job_is_done_by_one_of_the_workers(tmp_path: Path, postgres_url: str, fresh_schema: Fresh) -> None:
    joined = "&" if "?" in postgres_url else "?"
    url = f"{postgres_url}{joined}schema={fresh_schema()}"
    said(run(tmp_path, "workers.py", "add", "6", url=url))
    done = [run(tmp_path, "workers.py", "work", "0", url=url) for _ in range(2)]
    assert all(one.returncode == 0 for one in done), done
    with backstay.open(url) as store:
        lengths = {info.id: store.session(info.id).load()["length"] for info in store.sessions()}
    assert lengths == {f"job-{number}": number for number in range(6)}
