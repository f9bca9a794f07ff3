"""A scripted refund that waits for a person, a time and a message; and the people who answer it. Both may be killed."""

from __future__ import annotations

from typing import Any

import backstay
from backstay import InDoubtError, Status
from tests.crash.ring.nursery import Say
from tests.crash.runs.agent import Outside, Told
from tests.faults import Faults, Messages, Posix, mount

REFUND, CHILD, STOPPED = "refund", "refund/check", "stopped"


def work(run: backstay.Run, outside: Outside) -> None:
    """The agent: a model, a refund that is approved, an opinion, a moment of sleep, a message."""
    state = run.state
    if "out" not in state:
        run.call("model", lambda: outside.note("model"), kind="llm", args={})
        state["out"] = run.call("refund", lambda args: _refund(outside, args), args={"order": 7}, approve=True)
        run.step()
    if "said" not in state:
        state["said"] = run.wait("opinion", ask={"how": "was it?"})
        run.step()
    if "checked" not in state:
        with run.child("check", input={"order": 8}) as sub:
            sub.use(tokens_in=5)
            sub.state["checked"] = sub.call("check", lambda: _check(outside), args={})
            sub.wait("sure")
        state["checked"] = sub.state["checked"]
        run.step()
    run.sleep(0)
    state["got"] = run.receive("inbox")


def _refund(outside: Outside, args: Any) -> str:
    outside.note(f"refund {args['order']}")
    return "refunded"


def _check(outside: Outside) -> str:
    outside.note("check")
    return "checked"


def answer(store: backstay.Store) -> None:
    """The people: they answer what waits, with the same words each time."""
    session = store.session(REFUND)
    for wait in session.waiting():
        if wait.what == "approval":
            session.answer(wait.name, True, by="ana", args={"order": 8})
        elif wait.what == "answer":
            session.answer(wait.name, "fine", by="bob")
        elif wait.what == "message":
            session.send(wait.name, "hello")
    child = store.session(CHILD)
    for wait in child.waiting():
        child.answer(wait.name, True, by="eve")


def go(say: Say, told: Told) -> None:
    """The child: the run, its people, its worker, until the end; then a session that is stopped while it waits."""
    faults = Faults(kill_at=told.kill_at)
    told.place.folder.mkdir(parents=True, exist_ok=True)
    outside = Outside(told.place.folder.parent)
    with mount(faults), Posix(faults, told.place.folder), Messages(faults), told.place.open() as store:
        try:
            if not [line for line in store.sessions() if line.id == REFUND]:
                with store.run(REFUND, input="refund order 7") as run:
                    work(run, outside)
            for _ in range(10):
                answer(store)
                backstay.recover(store, lambda run: work(run, outside) if run.session.id == REFUND else stop(run))
            stopping(store)
        except InDoubtError:
            say("in doubt")
    say(faults.calls)


def stop(run: backstay.Run) -> None:
    """The other session: a call, then a wait that no answer comes to."""
    run.call("once", lambda: "done", args={}, on_doubt="retry")
    run.wait("never")


def stopping(store: backstay.Store) -> None:
    """It waits, and is stopped."""
    lines = {str(line.id): line.status for line in store.sessions()}
    if STOPPED not in lines or lines[STOPPED] is Status.IN_PROGRESS:
        with store.run(STOPPED) as run:
            stop(run)
    store.session(STOPPED).cancel(reason="enough")


def examine(store: backstay.Store, outside: Outside) -> bool:
    """After a crash: what was answered is kept, what was done is known, nothing was done twice. True at the end."""
    report = store.verify()
    assert report.ok, str(report)
    lines = outside.lines()
    assert lines.count("refund 7") == 0, "it was made with args that were not approved"
    assert lines.count("refund 8") <= 1, "the refund was made twice"
    assert lines.count("check") <= 1, "the child did it twice"
    assert lines.count("model") <= 2
    infos = {str(info.id): info for info in store.sessions()}
    assert not [info for info in infos.values() if info.status in (Status.FAILED, Status.HALTED)], infos
    for id_, line, result in ((REFUND, "refund 8", "refunded"), (CHILD, "check", "checked")):
        session = store.session(id_)
        for call in session.calls(pending=True) if id_ in infos else ():
            if call.status == "in_doubt":
                session.resolve(call.id, result=result) if line in lines else session.resolve(call.id, "retry")
    if STOPPED not in infos or infos[STOPPED].status is not Status.CANCELLED:
        return False
    assert infos[REFUND].status is Status.COMPLETED
    assert store.session(REFUND).load() == {"out": "refunded", "said": "fine", "checked": "checked", "got": "hello"}
    assert (lines.count("refund 8"), lines.count("check")) == (1, 1)
    assert infos[CHILD].status is Status.COMPLETED
    assert store.session(REFUND).checkpoint().total_usage.tokens_in == 5
    taken = [call for point in store.session(REFUND).log() for call in store.session(REFUND).calls(point)]
    answers = {call.name: (call.status, call.by, call.edited) for call in taken if call.kind == "wait"}
    assert answers["refund"] == ("done", "ana", {"order": 8})
    assert answers["opinion"] == ("done", "bob", None)
    assert store.waiting() == []
    assert store.crashed() == []
    return True
