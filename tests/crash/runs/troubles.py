"""Children that are interrupted, run out of disk, have clocks that jump, or die with many threads at work."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import backstay
from backstay import ClosedError, InDoubtError, LeaseHeldError, UnavailableError
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place
from tests.crash.runs.agent import SESSION, STRATEGIES, Outside, examine, judge_end, live, settle
from tests.crash.runs.stalling import Line, child
from tests.faults import Faults, Posix, mount


class Interrupter:
    """InOrder a signal into an exception, once per arming, wherever the program is at that moment."""

    def __init__(self, number: int, error: type[BaseException]) -> None:
        self.armed = False
        self._error = error
        signal.signal(number, self._strike)

    def _strike(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise self._error


def interrupt(say: Say, place: Place, seed: int, strategy: str, name: str) -> None:
    """Run the agent to its end while a process beside it sends signals at random. Says how often it was struck."""
    chance = random.Random(seed)
    number = signal.SIGINT if name == "SIGINT" else signal.SIGTERM
    error = KeyboardInterrupt if name == "SIGINT" else SystemExit
    place.folder.mkdir(parents=True, exist_ok=True)
    me, interrupter = os.getpid(), Interrupter(number, error)
    outside = Outside(place.folder.parent)

    def pester() -> None:
        signal.signal(number, signal.SIG_DFL)
        while True:
            time.sleep(chance.random() ** 2 * 0.03)
            os.kill(me, number)

    struck = 0
    with child(pester), place.open() as store:
        while True:
            try:
                with store.run(SESSION, input="refund order 7", strategy=STRATEGIES[strategy]) as run:
                    interrupter.armed = True
                    live(run, outside)
                interrupter.armed = False
                break
            except error:
                struck += 1
            except InDoubtError:
                interrupter.armed = False
            finding = examine(store, outside)
            assert not finding.finished or struck
            if finding.finished:
                break
            settle(store, outside, finding.in_doubt)
        judge_end(store, outside, struck)
    say(struck)


def fill_disk(say: Say, place: Place, strategy: str, full_from: int) -> None:
    """The disk is full from some storage call on; later there is room again, and the run goes on."""
    faults = Faults(fail_from=full_from, error=errno.ENOSPC)
    place.folder.mkdir(parents=True, exist_ok=True)
    outside = Outside(place.folder.parent)
    with mount(faults), Posix(faults, place.folder):
        try:
            store = place.open()
        except UnavailableError:
            faults.lift()
            store = place.open()
        with store:
            for attempt in range(50):  # noqa: B007 - used behind the loop
                if _go_on(store, outside, faults, strategy):
                    break
                if faults.fail_from is not None:
                    head = store.session(SESSION).head() if list(store.sessions()) else None
                    assert head is None or head.state is not None
                    faults.lift()
                if list(store.sessions()):
                    _settle_what_ended(store, outside)
            else:
                raise AssertionError
            faults.lift()
            judge_end(store, outside, attempt)
    say(bool(faults.struck))


def _go_on(store: backstay.Store, outside: Outside, faults: Faults, strategy: str) -> bool:
    try:
        with store.run(
            SESSION, input="refund order 7", strategy=STRATEGIES[strategy], lease_s=0.05, on_failed="retry"
        ) as run:
            try:
                live(run, outside)
            except UnavailableError:
                before = outside.lines()
                for act in (lambda: run.call("late", lambda: outside.note("late")), run.step, run.checkpoint):
                    try:
                        act()
                    except ClosedError:
                        continue
                    raise AssertionError("a run went on after a write had failed") from None
                assert outside.lines() == before
                raise
    except (UnavailableError, InDoubtError):
        return False
    except LeaseHeldError:
        time.sleep(0.02)  # what could not be given back for lack of room expires
        return False
    return True


def _settle_what_ended(store: backstay.Store, outside: Outside) -> None:
    session = store.session(SESSION)
    with contextlib.suppress(UnavailableError):  # what could not be moved from the log is reported once more
        settle(store, outside, [call.id for call in session.calls(pending=True) if call.status == "in_doubt"])


def work_in_threads(say: Say, place: Place, die_after: int | None, threads: int, each: int) -> None:
    """Keyed calls from many threads on one run; killed once so many tools have done their work."""
    place.folder.mkdir(parents=True, exist_ok=True)
    outside = Outside(place.folder.parent)
    done, lock = 0, threading.Lock()

    def tool(key: str) -> str:
        nonlocal done
        outside.note(key)
        with lock:
            done += 1
            if done == die_after:
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)
        return f"result {key}"

    def happened(call: backstay.Call) -> Any:
        return f"result {call.key}" if call.key in outside.lines() else tool(str(call.key))

    with place.open() as store, store.run(SESSION, on_doubt=happened) as run:

        def work(thread: int) -> list[str]:
            keys = [f"{thread}.{number}" for number in range(each)]
            return [run.call("tool", lambda key=key: tool(key), key=key, args=key) for key in keys]

        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(work, range(threads)))
        run.state["results"] = results
        run.step()
    say(results)


def jump(hours: int) -> None:
    """From now on the calendar of this process is wrong."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + 3600 * hours
    time.time_ns = lambda: real_ns() + 3600 * hours * 10**9


def hold(place: Place, hours: int, ready: Line, go: Line) -> None:
    """A run whose calendar jumps while it is alive."""
    with place.open() as store, store.run(SESSION, lease_s=20) as run:
        run.state["n"] = 1
        run.step()
        jump(hours)
        run.state["n"] = 2
        run.step()
        ready.say("ready")
        go.hear()
        run.call("pay", lambda: "paid", args={})
        run.state["n"] = 3
        run.step()


def jump_clocks(say: Say, place: Place, hours: int, neighbour_hours: int) -> None:
    """While one process with a wrong calendar runs, another with another one tries to take it over."""
    ready, go = Line(), Line()
    place.folder.mkdir(parents=True, exist_ok=True)
    with child(lambda: hold(place, hours, ready, go)) as pid:
        ready.hear()
        jump(neighbour_hours)
        with place.open() as store:
            for _ in range(3):
                try:
                    with store.run(SESSION):
                        say("stolen")
                except LeaseHeldError:
                    pass
            assert store.crashed() == []
            assert backstay.recover(store, lambda run: say("recovered")).handled == 0  # noqa: ARG005
            go.say("go")
            while Path(f"/proc/{pid}/stat").read_text("ascii").split(") ")[1][0] != "Z":
                time.sleep(0.005)
            with store.run(SESSION) as run:
                assert run.state["n"] == 3
                run.state["n"] = 4
            log = list(store.session(SESSION).log())[::-1]
            assert [point.state["n"] for point in log] == [1, 2, 3, 3, 4]
            assert [point.sequence for point in log] == [1, 2, 3, 4, 5]


def die_and_stay(say: Say, place: Place) -> None:
    """A child is killed and not waited for: it answers to its number, and is dead."""
    ready = Line()
    place.folder.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid == 0:
        store = place.open()
        run = store.run(SESSION, lease_s=3600)
        run.__enter__()
        run.call("pay", lambda: "paid", args={})
        ready.say("ready")
        time.sleep(600)
    ready.hear()
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}/stat").read_text("ascii").split(") ")[1][0] != "Z":
        time.sleep(0.001)
    with place.open() as store:
        assert [info.id for info in store.crashed()] == [SESSION]
        with store.run(SESSION) as run:
            say(run.call("pay", lambda: "paid again", args={}))
    os.waitpid(pid, 0)
