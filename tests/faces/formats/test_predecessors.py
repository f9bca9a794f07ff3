"""What broke the predecessors, done to Backstay itself; and what they could do, done here.

The numbers are those of docs/predecessors.md. What concerns their files is tested beside each reader.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import backstay


def interrupted() -> None:
    raise KeyboardInterrupt


def test_03_two_openings_of_one_store_lose_nobodys_session(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "s.db") as one, backstay.open(tmp_path / "s.db") as two:
        one.session("a").commit({"n": 1})
        two.session("b").commit({"n": 2})
        assert {info.id for info in one.sessions()} == {info.id for info in two.sessions()} == {"a", "b"}


def test_04_a_save_does_not_cost_more_as_the_session_grows(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "s.db", durability="relaxed") as store:
        session = store.session("s")
        state: dict[str, Any] = {"messages": []}
        sizes: list[int] = []
        for number in range(400):
            state["messages"].append({"role": "user", "content": f"{number} and what was said"})
            session.commit(state)
            if number % 100 == 99:
                sizes.append(store.stats().stored_bytes)
        assert sizes[3] - sizes[2] < 4 * (sizes[1] - sizes[0]) + 100_000


def test_09_what_is_deleted_stays_deleted(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "s.db") as store:
        session = store.session("s")
        points = [session.commit({"n": number}) for number in range(3)]
        session.delete(points[1])
    with backstay.open(tmp_path / "s.db") as store:
        assert [point.id for point in store.session("s").log()] == [points[2].id, points[0].id]
        assert store.verify().ok


def test_10_a_fork_outlives_the_checkpoint_it_was_made_from(store: backstay.Store) -> None:
    session = store.session("s")
    first = session.commit({"n": 1})
    middle = session.commit({"n": 2})
    session.fork(middle, "what-if")
    session.commit({"n": 3}, branch="what-if")
    session.commit({"n": 4})
    session.delete(middle)
    assert (session.load("what-if"), session.load(), session.load(first)) == ({"n": 3}, {"n": 4}, {"n": 1})


def test_11_deleting_a_session_takes_no_other_whose_name_begins_like_it(store: backstay.Store) -> None:
    for name in ("a", "a_b", "a*", "ab"):
        store.session(name).commit({"name": name})
    store.delete("a")
    assert {info.id for info in store.sessions()} == {"a_b", "a*", "ab"}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_19_a_store_of_somebody_else_is_not_used_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_31_a_session_that_runs_elsewhere_is_not_taken_for_a_crashed_one(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "s.db") as store:
        with store.run("alive") as run:
            run.step()
            assert store.crashed() == []
            with pytest.raises(backstay.LeaseHeldError):
                store.session("alive").commit({"n": 1})
        code = (
            "import os, sys, backstay\n"
            "with backstay.open(sys.argv[1]) as store:\n"
            "    for name in 'ab':\n"
            "        run = store.run(name); run.__enter__(); run.state['n'] = 1; run.step()\n"
            "    os._exit(1)\n"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "s.db")], check=False, timeout=60)
        assert sorted(info.id for info in store.crashed()) == ["a", "b"]


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


def test_40_every_nth_iteration_is_saved_once(store: backstay.Store) -> None:
    with store.run("s", strategy=backstay.EveryN(2)) as run:
        for number in range(6):
            run.call("model", lambda: "x", kind="llm", args=number)
            run.call("tool", lambda: "y", args=number)
            run.state["n"] = number
            run.step()
    assert [point.state["n"] for point in store.session("s").log()] == [5, 5, 3, 1]
    with pytest.raises(backstay.InvalidInputError):
        backstay.EveryN(0)


def test_41_a_save_that_fails_ends_the_run_and_is_not_a_line_in_a_log(store: backstay.Store) -> None:
    reached: list[str] = []

    def loop() -> None:
        with store.run("s") as run:
            run.state["n"] = 1
            store.close()
            run.step()
            reached.append("the next step")

    with pytest.raises(backstay.ClosedError):
        loop()
    assert reached == []


# what the predecessors could do


def test_a_turn_is_parked_until_a_person_approves_and_goes_on_from_there(store: backstay.Store) -> None:
    refunds: list[str] = []

    def turn() -> None:
        with store.run("ticket", input="refund order 7") as run:
            run.state.setdefault("messages", [{"role": "user", "content": run.input}])
            plan = run.call("model", lambda: {"tool": "refund", "order": 7}, kind="llm")
            if run.state.get("approved") is None:
                run.state["waiting_for"] = plan
                run.checkpoint(label="waiting for approval")
                run.halt("waiting for approval")
            if run.state["approved"]:
                run.call("refund", lambda: refunds.append("order 7"), key="7", args=plan)
            del run.state["waiting_for"]

    turn()
    assert [(info.id, info.reason) for info in store.sessions(status="halted")] == [("ticket", "waiting for approval")]
    session = store.session("ticket")
    assert session.load()["waiting_for"] == {"tool": "refund", "order": 7}
    session.commit({**session.load(), "approved": True}, trigger="approval", metadata={"by": "Ada"})
    turn()
    assert refunds == ["order 7"]
    assert store.session("ticket").checkpoint().status == "completed"


def test_expiry_is_a_retention_and_finished_sessions_go_as_a_whole(store: backstay.Store) -> None:
    store.session("done").commit({"n": 1}, status=backstay.Status.COMPLETED)
    store.session("open").commit({"n": 1})
    report = store.prune(backstay.Retention(keep_last=10, finished_days=0))
    assert report.sessions == ("done",)


def test_a_hook_hears_of_every_checkpoint_and_whether_there_is_one_can_be_asked(store: backstay.Store) -> None:
    heard: list[str] = []
    store.on("checkpoint", lambda point: heard.append(point.label))
    session = store.session("s")
    assert session.head() is None
    session.commit({"n": 1}, label="first")
    assert (heard, session.head() is not None) == (["first"], True)


def test_an_agent_may_be_given_checkpoints_as_tools(store: backstay.Store) -> None:
    session = store.session("s")
    tools: dict[str, Any] = {
        "create_checkpoint": lambda label: session.commit({"n": 1}, label=label, trigger="tool").id,
        "list_checkpoints": lambda: [(point.id, point.label) for point in session.log()],
        "restore_checkpoint": lambda id_: session.restore(id_).id,
    }
    made = tools["create_checkpoint"]("before the refactor")
    assert tools["list_checkpoints"]() == [(made, "before the refactor")]
    tools["restore_checkpoint"](made)
    assert session.checkpoint().restored_from == made


def test_an_interval_is_a_strategy(store: backstay.Store) -> None:
    with store.run("s", strategy=backstay.EverySeconds(3600) | backstay.AfterToolCall()) as run:
        for number in range(4):
            if number == 2:
                run.call("tool", lambda: "x", args=number)
            run.state["n"] = number
            run.step()
    saved = [point.state["n"] for point in store.session("s").log()]
    assert saved[0] == 3
    assert 2 in saved


def test_threads_may_list_while_another_saves(store: backstay.Store) -> None:
    session = store.session("s")
    done = threading.Event()

    def save() -> None:
        for number in range(50):
            session.commit({"n": number})
        done.set()

    thread = threading.Thread(target=save)
    thread.start()
    while not done.is_set():
        list(store.sessions())
    thread.join()
    assert len(list(session.log())) == 50
