"""log -p, --since and --follow: what changed, since when, and as it happens."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import backstay
from tests.faces.cli import shell


def logged(done: shell.Done) -> list[dict[str, object]]:
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


def test_a_patch_shows_what_each_checkpoint_brought_and_took_away(folder: Path) -> None:
    out = shell.run("log", "ticket-42", "-p", folder=folder).out
    assert "+ messages[5] assistant: Sorry! Done: refund of 49.90 EUR issued." in out
    assert "- messages[5] assistant: Sorry! Done: refund of 49.90 EUR issued." in out, "the restore took it away"
    assert "+ messages[0] user: My lamp (order 7) came broken. Refund?" in out, "the first one brought all it has"
    assert "~ last_tool: 'look_up' -> 'refund'" in out
    assert max(map(len, out.splitlines())) <= 80
    graph = shell.run("log", "ticket-42", "-p", "--graph", "--all", folder=folder).out
    assert "+ messages[4] tool: voucher of 10.00 EUR sent" in graph
    assert max(map(len, graph.splitlines())) <= 80


def test_a_patch_is_what_diff_says(folder: Path) -> None:
    first, second, *_ = logged(shell.run("log", "ticket-42", "-p", "--json", folder=folder))
    with_parent = json.loads(shell.run("diff", "ticket-42", "main~1", "main", "--json", folder=folder).out)
    assert first["diff"]["parts"] == with_parent["parts"]  # type: ignore[index]
    assert logged(shell.run("log", "ticket-42", "--json", folder=folder))[1]["diff"] is None
    assert second["diff"] is not None


def test_a_patch_of_many_messages_says_how_many_more_there_are(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        store.session("s").commit({"messages": [{"role": "user", "content": f"{n} " + "x" * 999} for n in range(50)]})
    out = shell.run("log", "s", "-p", "--store", "store.db", folder=tmp_path).out
    assert "… 38 more in messages before these (--json)" in out
    assert "messages[49]" in out
    assert len(out.splitlines()) < 50


def test_a_run_that_failed_or_was_halted_says_why_above_its_last_checkpoint(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        for name, end in (("lost", "fail"), ("stuck", "halt")):
            with store.run(name) as run:
                run.state["n"] = 1
                run.step()
                getattr(run, end)("the bank said no")
    for name, status in (("lost", "failed"), ("stuck", "halted")):
        log = shell.run("log", name, "--store", "store.db", folder=tmp_path).out
        assert log.splitlines()[0] == f"!  {status}: the bank said no"
        (branch,) = logged(shell.run("branches", name, "--json", "--store", "store.db", folder=tmp_path))
        assert (branch["status"], branch["reason"], branch["run"]) == (status, "the bank said no", None)
        assert status in shell.run("branches", name, "--store", "store.db", folder=tmp_path).out


@pytest.mark.parametrize(
    ("since", "count"),
    [("5m", 0), ("110m", 2), ("3h", 7), ("1w", 7), ("2025-06-02", 7), ("2025-06-02T10:36:00", 1), ("2030-01-01", 0)],
)
def test_a_log_can_begin_at_a_moment(since: str, count: int, folder: Path) -> None:
    assert len(logged(shell.run("log", "ticket-42", "--since", since, "--json", folder=folder))) == count
    shown = shell.run("log", "ticket-42", "--since", since, "--oneline", folder=folder).out
    assert shown == "No checkpoint was made since then.\n" if not count else len(shown.splitlines()) == count
    assert shell.run("log", "ticket-42", "--since", since, "--graph", "--all", folder=folder).code == 0


def test_what_is_no_moment_is_explained(folder: Path) -> None:
    done = shell.run("log", "ticket-42", "--since", "yesterdy", folder=folder)
    assert (done.code, done.out) == (2, "")
    assert "write 30m, 2h, 3d" in done.err


@contextmanager
def following(*args: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*shell.CLI, "log", *args],
        cwd=folder,
        env=shell.plain_environment(COLUMNS="80"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("url", ["store.db", "file:store"])
def test_a_log_that_is_followed_shows_what_another_process_records(url: str, tmp_path: Path) -> None:
    with _open(url, tmp_path) as store:
        session = store.session("s")
        session.commit({"n": 0}, step=0)
        session.commit({"n": 1}, step=1)
        with following("s", "--follow", "--json", "--store", url, folder=tmp_path) as process:
            assert process.stdout is not None
            steps = [json.loads(process.stdout.readline())["step"] for _ in range(2)]
            for step in range(2, 5):
                session.commit({"n": step}, step=step)
                steps.append(json.loads(process.stdout.readline())["step"])
            session.fork("main~1", "aside")
            session.commit({"n": 9}, branch="aside", step=9)
            session.commit({"n": 5}, step=5)
            steps.append(json.loads(process.stdout.readline())["step"])
            assert steps == [0, 1, 2, 3, 4, 5]
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert process.stderr is not None
            assert process.stderr.read() == ""


def _open(url: str, folder: Path) -> backstay.Store:
    return backstay.open(f"file:{folder / 'store'}" if url.startswith("file:") else folder / url)


def test_a_log_that_is_followed_ends_when_its_session_goes(folder: Path) -> None:
    with following("ticket-42", "-f", "--all", "--oneline", "-n", "3", folder=folder) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert "restore of d98b1396" in lines[1]
        with backstay.open(folder / ".backstay" / "store.db") as store:
            store.delete("ticket-42")
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert "session 'ticket-42' was deleted" in process.stderr.read()


@pytest.mark.parametrize("args", [["--graph"], ["asked"], ["main~1"]], ids=" ".join)
def test_only_what_moves_can_be_followed(args: list[str], folder: Path) -> None:
    done = shell.run("log", "ticket-42", "--follow", *args, folder=folder)
    assert (done.code, done.out) == (2, "")
    assert "--follow takes the name of a branch" in done.err
