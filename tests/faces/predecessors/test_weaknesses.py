"""What broke the predecessors, done to Backstay itself.

The numbers are those of docs/predecessors.md. What concerns their files is tested beside each reader. Each test was
seen to fail with the weakness it names put back.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import backstay


def interrupted() -> None:
    raise KeyboardInterrupt


def start(code: str, *args: str) -> subprocess.Popen[str]:
    """Another process, which speaks by its output and hears by its input."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", dedent(code), *args], stdin=pipe, stdout=pipe, text=True)


def ask(process: subprocess.Popen[str], word: str) -> str:
    """Tell it something, and wait for a line of its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


SAVER = """
    import sys, backstay
    store = backstay.open(sys.argv[1])
    shared = store.session("shared")
    for line in sys.stdin:
        word, _, name = line.strip().partition(" ")
        try:
            if word == "list":
                print(len(list(store.sessions())), flush=True)
            elif word == "save":
                print(store.session(name).commit({"name": name}).sequence, flush=True)
            elif word == "load":
                state = shared.load()
                print(len(state["by"]), flush=True)
            else:
                state["by"].append(name)
                shared.commit(state)
                print("saved", flush=True)
        except backstay.ConflictError:
            print("overtaken", flush=True)
"""


def test_03_two_processes_that_save_by_turns_lose_nothing(url: str, processes: list[subprocess.Popen[str]]) -> None:
    with backstay.open(url) as store:
        store.session("shared").commit({"by": []})
        processes += [start(SAVER, url), start(SAVER, url)]
        for process in processes:
            assert ask(process, "list") == "1"  # whatever it remembers of the store, it remembers from now on
        for number in range(10):
            assert ask(processes[number % 2], f"save {number}") == "1"
        assert [ask(process, "list") for process in processes] == ["11", "11"]
        assert [store.session(str(number)).load()["name"] for number in range(10)] == list("0123456789")
        one, two = processes
        assert [ask(process, "load") for process in processes] == ["0", "0"]
        assert (ask(one, "add a"), ask(two, "add b")) == ("saved", "overtaken")
        assert (ask(two, "load"), ask(two, "add b")) == ("1", "saved")
        assert store.session("shared").load() == {"by": ["a", "b"]}


def test_04_a_save_costs_what_is_new_and_not_what_was_said_before(url: str) -> None:
    said = random.Random(4)
    with backstay.open(url, durability="relaxed") as store:
        session = store.session("s")
        state: dict[str, Any] = {"messages": []}
        sizes: list[int] = []
        for number in range(800):
            state["messages"].append({"role": "user", "content": said.randbytes(200).hex()})
            session.commit(state)
            if number % 200 == 199:
                sizes.append(store.stats().stored_bytes)
        whole = len(json.dumps(state))
        # A store that keeps the whole conversation each time has 400 times the last one, and each part grows.
        assert sizes[-1] < 12 * whole
        assert sizes[3] - sizes[2] < 1.5 * (sizes[1] - sizes[0]) + whole


def test_09_a_deleted_checkpoint_stays_deleted_for_every_process_and_after_a_kill(
    url: str, processes: list[subprocess.Popen[str]]
) -> None:
    code = """
        import os, sys, backstay
        store = backstay.open(sys.argv[1])
        session = store.session("s")
        seen = [point.id for point in session.log()]
        print(len(seen), flush=True)
        sys.stdin.readline()
        session.delete(seen[1])
        print(seen[1], flush=True)
        sys.stdin.readline()
    """
    with backstay.open(url) as store:
        session = store.session("s")
        points = [session.commit({"said": [f"{at}" for at in range(number + 1)]}) for number in range(4)]
        assert len(list(session.log())) == 4
        process = start(code, url)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "4\n"
        gone = ask(process, "delete")
        process.kill()
        process.wait()
        assert gone == points[2].id
        assert [point.id for point in session.log()] == [points[3].id, points[1].id, points[0].id]
        session.commit({"said": ["after"]})  # whoever remembers the deleted one must not write it back
        with pytest.raises(backstay.NotFoundError):
            session.load(gone)
    with backstay.open(url) as store:
        left = store.session("s")
        assert gone not in [point.id for point in left.log()]
        assert left.load(points[3].id) == {"said": ["0", "1", "2", "3"]}
        assert store.verify().ok


def test_10_a_fork_outlives_the_checkpoint_it_was_made_from(url: str) -> None:
    said = [f"{number} and what was said" for number in range(40)]
    with backstay.open(url) as store:
        session = store.session("s")
        points = [session.commit({"messages": said[: 10 * count]}) for count in (1, 2, 3)]
        session.fork(points[1], "only-named")
        session.fork(points[1], "what-if")
        session.commit({"messages": [*said[:20], "what if"]}, branch="what-if")
        session.delete(points[1])
        assert session.load("only-named") == {"messages": said[:10]}  # a branch at it goes to the one before
    with backstay.open(url) as store:
        session = store.session("s")
        assert session.load("what-if") == {"messages": [*said[:20], "what if"]}
        assert (session.load(), session.load(points[0].id)) == ({"messages": said[:30]}, {"messages": said[:10]})
        for branch in ("main", "what-if"):
            assert [point.id for point in session.log(branch)][1:] == [points[0].id]
        assert store.verify().ok


def test_11_deleting_a_session_takes_no_other_whose_name_begins_like_it(store: backstay.Store) -> None:
    for name in ("a", "a_b", "a*", "ab"):
        store.session(name).commit({"name": name})
    store.delete("a")
    assert {info.id for info in store.sessions()} == {"a_b", "a*", "ab"}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_19_a_store_of_another_user_is_not_used_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".backstay").mkdir()
    os.chown(tmp_path / ".backstay", 12345, 12345)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(backstay.UnsupportedError, match="another user"):
        backstay.open()


def test_25_an_id_that_looks_like_a_pattern_finds_itself_only(store: backstay.Store) -> None:
    session = store.session("s")
    point = session.commit({"n": 1})
    for ref in ("*", f"{point.id[:4]}*", "[0-9a-f]*", "%", "____"):
        with pytest.raises(backstay.NotFoundError):
            session.load(ref)


def test_27_old_checkpoints_go_when_they_are_told_to(store: backstay.Store) -> None:
    session = store.session("s")
    for number in range(20):
        session.commit({"n": number})
    session.prune(backstay.Retention(keep_last=3, keep_days=0))
    assert len(list(session.log())) == 3


def test_31_a_session_that_runs_in_another_process_is_not_taken_for_a_crashed_one(
    url: str, processes: list[subprocess.Popen[str]]
) -> None:
    code = """
        import sys, backstay
        store = backstay.open(sys.argv[1])
        for name in sys.argv[2]:
            run = store.run(name)
            run.__enter__()
            run.state["n"] = 1
            run.step()
        print("running", flush=True)
        sys.stdin.readline()
    """
    with backstay.open(url) as store:
        for names in ("a", "bc"):
            processes.append(start(code, url, names))
            output = processes[-1].stdout
            assert output is not None
            assert output.readline() == "running\n"
        assert store.crashed() == []
        with pytest.raises(backstay.LeaseHeldError):
            store.session("a").commit({"n": 2})
        processes[1].kill()
        processes[1].wait()
        assert sorted(info.id for info in store.crashed()) == ["b", "c"]  # all of them, and not the living one
        report = backstay.recover(store, lambda run: run.state.update(n=run.state["n"] + 1))
        assert sorted(report.completed) == ["b", "c"]


def test_33_a_listing_opens_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with backstay.open(tmp_path / "s.db") as store:
        store.session("s").commit({"big": "x" * 100_000})
        monkeypatch.setattr(store.backend, "state", None)
        assert [info.checkpoints for info in store.sessions()] == [1]
        assert len(list(store.session("s").log())) == 1


def test_38_a_run_that_goes_on_goes_on_counting(store: backstay.Store) -> None:
    with contextlib.suppress(KeyboardInterrupt), store.run("s") as run:
        for _ in range(3):
            run.use(tokens_in=10, cost=0.5)
            run.state["n"] = run.state.get("n", 0) + 1
            run.step()
        interrupted()
    with store.run("s") as run:
        assert (run.resumed, run.iteration, run.usage.cost) == (True, 3, 1.5)


def test_39_going_on_repeats_no_message_and_no_answer_that_was_paid_for(store: backstay.Store) -> None:
    asked: list[str] = []

    def loop(*, stop: bool) -> None:
        with store.run("s", input="hello") as run:
            messages = run.state.setdefault("messages", [{"role": "user", "content": run.input}])

            def model() -> dict[str, str]:
                asked.append("model")
                return {"role": "assistant", "content": f"to {len(messages)}"}

            run.append(run.call("model", model, kind="llm"))
            if stop:
                interrupted()

    with contextlib.suppress(KeyboardInterrupt):
        loop(stop=True)
    loop(stop=False)
    state = store.session("s").load()
    assert (asked, [message["role"] for message in state["messages"]]) == (["model"], ["user", "assistant"])


def test_34_of_saves_within_one_second_the_newest_is_the_latest_and_is_kept(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_775_000_000 * 10**9)
    with backstay.open(url) as store:
        session = store.session("s")
        points = [session.commit({"n": number}, step=7) for number in range(20)]
    with backstay.open(url) as store:
        session = store.session("s")
        assert {point.created_at.timestamp() for point in session.log()} == {1_775_000_000}
        assert (session.load(), [point.id for point in session.log()][:2]) == (
            {"n": 19},
            [points[19].id, points[18].id],
        )
        session.prune(backstay.Retention(keep_last=1, keep_days=0))
        assert [point.id for point in session.log()] == [points[19].id]


def test_40_every_nth_iteration_is_saved_once_whatever_happens_in_it(store: backstay.Store) -> None:
    with store.run("s", strategy=backstay.EveryN(2)) as run:
        for number in range(6):
            run.state["n"] = number
            run.call("model", lambda: "x", kind="llm", args=number)
            run.event(backstay.Event.LLM_RESPONSE)
            for tool in range(3):
                run.call("tool", lambda: "y", key=f"{number}-{tool}", args=tool)
                run.state["tool"] = tool
                run.event(backstay.Event.TOOL_CALL_COMPLETE)
            run.step()
    saved = [(point.state["n"], point.step, point.trigger) for point in store.session("s").log()][::-1]
    assert [(n, step) for n, step, _ in saved[:-1]] == [(1, 2), (3, 4), (5, 6)]
    assert len(saved) == 4  # and the end
    for never in (0, -1):
        with pytest.raises(backstay.InvalidInputError):
            backstay.EveryN(never)


FULL = """
    import resource, signal, sys, backstay
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    asked = []
    try:
        with backstay.open(sys.argv[1]) as store, store.run("s") as run:
            run.state["n"] = 1
            run.step()
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))      # from now on no file can grow
            run.state["n"] = "x" * 10_000_000
            try:
                run.step()
            except backstay.BackstayError as error:
                print(type(error).__name__)
            try:
                run.call("model", lambda: asked.append("paid for"))
            except backstay.BackstayError as error:
                print(type(error).__name__)
    except backstay.BackstayError:
        pass
    print(asked)
"""


def test_41_a_save_that_fails_ends_the_run_before_anything_more_is_paid_for(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", dedent(FULL), url], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines()[0] == "UnavailableError", done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert done.stdout.splitlines()[-1] == "[]"
    with backstay.open(url) as store:
        assert store.session("s").load() == {"n": 1}
        assert [info.id for info in store.sessions(status="completed")] == []


def test_22_a_cost_that_is_no_number_costs_no_checkpoint(url: str) -> None:
    with backstay.open(url) as store:
        session = store.session("s")
        session.commit({"n": 1}, usage=backstay.Usage(cost=0.5))
        for cost in (math.nan, math.inf, -math.inf):
            with contextlib.suppress(backstay.InvalidInputError):
                session.commit({"n": 2}, usage=backstay.Usage(cost=cost), expect=backstay.ANY)
            with contextlib.suppress(backstay.InvalidInputError), store.run("r") as run:
                run.state["n"] = 2
                run.use(cost=cost)
                run.step()
        session.commit({"n": 3}, usage=backstay.Usage(cost=0.25), expect=backstay.ANY)
    with backstay.open(url) as store:
        session = store.session("s")
        assert session.load() == {"n": 3}
        assert [point.state["n"] for point in session.log()][-1] == 1
        assert session.checkpoint().total_usage.cost == 0.75
