"""A scripted agent of five steps whose tools leave a line in an outside file, and how its sessions are judged.

Everything that happens outside is a line written at once by `os.write`: what the model was asked, what a tool did. A
test compares these lines with the journal, as a person would who was called at night.
"""

from __future__ import annotations

import functools
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import backstay
import backstay.face.recovery
from backstay import AfterLlmResponse, AfterToolCall, Always, EveryN, EverySeconds, InDoubtError, Never, Strategy
from backstay.upkeep import verifying  # noqa: F401 - loaded once, in the nursery, and not by each of its children
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place
from tests.faults import Faults, Posix, mount

KINDS = ("sqlite", "files")
STEPS = 5
SESSION = "ticket"

STRATEGIES: dict[str, Strategy] = {
    "always": Always(),
    "after tools": AfterToolCall(),
    "after models": AfterLlmResponse(),
    "every 5": EveryN(5),
    "every 2": EveryN(2),
    "every moment": EverySeconds(1e-9),
    "every hour": EverySeconds(3600),
    "never": Never(),
    "2 or tools": EveryN(2) | AfterToolCall(),
    "5 or hour": EveryN(5) | EverySeconds(3600) | Never(),
}

# Where a child can be told to die, besides at a storage call.
MOMENTS = ("before started", "before fn", "after fn", "after the outcome", "before the step", "after the step")


class Outside:
    """The world: an append-only file that no crash of ours can take back."""

    def __init__(self, folder: Path, die_at: tuple[str, str] | None = None) -> None:
        self.path = folder / "outside"
        self._die_at = die_at

    def note(self, line: str) -> None:
        """Something happened."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def lines(self) -> list[str]:
        """All that happened, in order."""
        return self.path.read_text("utf-8").splitlines() if self.path.exists() else []

    def moment(self, which: str, what: str) -> None:
        """A place to die at."""
        if self._die_at == (which, what):
            os.kill(os.getpid(), signal.SIGKILL)


def live(run: backstay.Run, outside: Outside) -> None:
    """The agent: a model call in each step, and after it none, one or two tools."""
    state = run.state
    state.setdefault("messages", [{"role": "user", "content": run.input}])
    while state.get("n", 0) < STEPS:
        n = state.get("n", 0)
        outside.moment("before started", f"model {n}")
        reply = run.call("model", functools.partial(_ask, outside, n), kind="llm")
        outside.moment("after the outcome", f"model {n}")
        run.append(reply)
        for name in reply["tools"]:
            outside.moment("before started", name)
            result = run.call(name, functools.partial(_do, outside, name), key=name, args={"n": n})
            outside.moment("after the outcome", name)
            run.append({"role": "tool", "name": name, "content": result})
        run.use(tokens_in=10, cost=0.5)
        state["n"] = n + 1
        outside.moment("before the step", str(n))
        run.step()
        outside.moment("after the step", str(n))


def _ask(outside: Outside, n: int) -> dict[str, Any]:
    outside.moment("before fn", f"model {n}")
    outside.note(f"model {n}")
    outside.moment("after fn", f"model {n}")
    return {"role": "assistant", "content": f"answer {n} " * 40, "tools": [f"tool {n}.{k}" for k in range(n % 3)]}


def _do(outside: Outside, name: str) -> str:
    outside.moment("before fn", name)
    outside.note(name)
    outside.moment("after fn", name)
    return f"result of {name} " * 20


def places_to_die() -> list[tuple[str, str]]:
    """Every moment of the loop, in the order of the loop."""
    found = []
    for n in range(STEPS):
        names = [f"model {n}", *[f"tool {n}.{k}" for k in range(n % 3)]]
        found += [(moment, name) for name in names for moment in MOMENTS[:4]]
        found += [(moment, str(n)) for moment in MOMENTS[4:]]
    return found


class Told(NamedTuple):
    """What a child is told."""

    place: Place
    strategy: str = "always"
    die_at: tuple[str, str] | None = None
    kill_at: int | None = None
    lease_s: float = 30.0


def go(say: Say, told: Told) -> None:
    """The child: the same line starts it and resumes it. Says how many storage calls that took."""
    faults = Faults(kill_at=told.kill_at)
    told.place.folder.mkdir(parents=True, exist_ok=True)
    outside = Outside(told.place.folder.parent, told.die_at)
    with mount(faults), Posix(faults, told.place.folder), told.place.open() as store:
        try:
            with store.run(
                SESSION, input="refund order 7", strategy=STRATEGIES[told.strategy], lease_s=told.lease_s
            ) as run:
                say(run.resumed)
                live(run, outside)
        except InDoubtError:
            say("in doubt")
    say(faults.calls)


class Finding(NamedTuple):
    """What a look at the store after a crash gave."""

    finished: bool
    in_doubt: list[str]


def history(session: backstay.Session) -> list[backstay.Call]:
    """Every call that the history of the branch took in, and those since."""
    points = list(session.log())[::-1] if session.head() is not None else []
    return [*[call for point in points for call in session.calls(point)], *session.calls(pending=True)]


def examine(store: backstay.Store, outside: Outside) -> Finding:
    """After a crash: nothing recorded as done ran twice, nothing that ran is unknown, no answer is paid for twice."""
    report = store.verify()
    assert report.ok, str(report)
    if not any(info.id == SESSION for info in store.sessions()):
        assert outside.lines() == []
        return Finding(finished=False, in_doubt=[])
    session = store.session(SESSION)
    calls, lines = history(session), Counter(outside.lines())
    known = {call.name if call.kind == "tool" else f"model {model_number(call)}": call for call in calls}
    assert len(known) == len(calls), "a call is in the history twice"
    for name, count in lines.items():
        if name.startswith("tool"):
            assert count == 1, f"{name} ran {count} times"
            assert name in known, f"{name} ran, and nobody knows of it"
    for name, call in known.items():
        assert call.status in ("done", "in_doubt", "retry"), f"{name} is {call.status}"
        assert call.status != "retry" or not lines[name], f"{name} is to be made again, and has happened"
        if call.status == "done":
            assert lines[name], f"{name} is recorded as done, and did not happen"
            if call.kind == "tool":
                assert call.result == f"result of {name} " * 20
    info = next(info for info in store.sessions() if info.id == SESSION)
    finished = info.status is backstay.Status.COMPLETED
    assert info.crashed == (not finished), f"it is {info.status} {info.reason}, crashed: {info.crashed}"
    assert [each.id for each in store.crashed()] == ([] if finished else [SESSION])
    return Finding(finished, [call.id for call in calls if call.status == "in_doubt"])


def model_number(call: backstay.Call) -> int:
    """Which of the model's answers this is."""
    return int(call.result["content"].split()[1])


def settle(store: backstay.Store, outside: Outside, in_doubt: list[str]) -> None:
    """Decide as a person would: look outside whether it happened."""
    session, lines = store.session(SESSION), outside.lines()
    for call in session.calls(pending=True):
        if call.id in in_doubt and call.name in lines:
            session.resolve(call.id, result=f"result of {call.name} " * 20)
        elif call.id in in_doubt:
            session.resolve(call.id, "retry")


def judge_end(store: backstay.Store, outside: Outside, models_cut: int) -> None:
    """The session has come to its end as if nothing had happened."""
    session = store.session(SESSION)
    finding = examine(store, outside)
    assert finding == Finding(finished=True, in_doubt=[])
    assert session.load() == undisturbed()
    lines = Counter(outside.lines())
    tools = {f"tool {n}.{k}" for n in range(STEPS) for k in range(n % 3)}
    assert {name: count for name, count in lines.items() if name.startswith("tool")} == dict.fromkeys(tools, 1)
    asked = sum(count for name, count in lines.items() if name.startswith("model"))
    assert STEPS <= asked <= STEPS + models_cut, f"the model was asked {asked} times, and cut off {models_cut} times"
    sequences = [point.sequence for point in session.log()]
    assert sequences == sorted(sequences, reverse=True)
    points = list(session.log())[::-1]
    assert [point.parent_id for point in points] == [None, *[point.id for point in points[:-1]]]
    assert session.checkpoint().total_usage.tokens_in == 10 * STEPS
    assert points[-1].step == STEPS
    recorded = [name_of(call) for call in history(session)]
    assert recorded == [name for n in range(STEPS) for name in [f"model {n}", *[f"tool {n}.{k}" for k in range(n % 3)]]]


def name_of(call: backstay.Call) -> str:
    """A call as the outside file names it."""
    return call.name if call.kind == "tool" else f"model {model_number(call)}"


@functools.cache
def undisturbed() -> dict[str, Any]:
    """The state at the end of a run that nothing disturbed."""
    with backstay.open("memory://") as store:
        with store.run(SESSION, input="refund order 7") as run:
            live(run, _Nowhere())
        return store.session(SESSION).load()


class _Nowhere(Outside):
    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))

    def note(self, line: str) -> None:
        """Nobody looks."""


def models_asked_twice(outside: Outside) -> int:
    """How many model calls were made beyond one each."""
    lines = Counter(outside.lines())
    return sum(count - 1 for name, count in lines.items() if name.startswith("model"))


def through(
    run_child: Callable[[Told], tuple[list[Any], int]], told: Told, *, again: Callable[[int], Told | None]
) -> int:
    """Run, be killed, look, decide, resume, until the end. How often it was killed.

    `again` says what the nth resume is told; None: nothing more is to happen to it.
    """
    outside = Outside(told.place.folder.parent)
    kills = models_cut = 0
    for attempt in range(1, 100):
        before = outside.lines()
        _, ended = run_child(told)
        assert ended in (0, -signal.SIGKILL)
        kills += ended != 0
        with told.place.open() as store:
            finding = examine(store, outside)
            since = outside.lines()[len(before) :]
            # Asked, and cut off before the answer was recorded: only then may it be asked again.
            if ended and since and since[-1].startswith("model"):
                recorded = [name_of(call) for call in history(store.session(SESSION)) if call.kind == "llm"]
                models_cut += since[-1] not in recorded
            assert models_asked_twice(outside) <= models_cut
            if finding.finished:
                judge_end(store, outside, models_cut)
                return kills
            settle(store, outside, finding.in_doubt)
        told = again(attempt) or Told(told.place, told.strategy)
    raise AssertionError("it never came to its end")
