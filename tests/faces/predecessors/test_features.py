"""What the predecessors could do beside saving and loading, done here: rows of docs/predecessors.md."""

from __future__ import annotations

import threading
from typing import Any

import backstay


def test_a_turn_is_parked_until_a_person_approves_and_goes_on_from_there(store: backstay.Store) -> None:
    asked: list[str] = []
    refunds: list[str] = []

    def model() -> dict[str, int]:
        asked.append("model")
        return {"order": 7}

    def turn() -> None:
        with store.run("ticket", input="refund order 7") as run:
            run.state.setdefault("messages", [{"role": "user", "content": run.input}])
            plan = run.call("model", model, kind="llm")
            run.call("refund", lambda: refunds.append("order 7"), key="7", args=plan, approve=True)
            run.append({"role": "assistant", "content": "done"})

    turn()
    assert [(wait.session_id, wait.name, wait.args) for wait in store.waiting()] == [("ticket", "refund", {"order": 7})]
    assert (refunds, store.crashed()) == ([], [])
    store.session("ticket").answer("refund", True, by="Ada")
    turn()
    assert (asked, refunds) == (["model"], ["order 7"])  # the answer that was paid for is not asked again
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
