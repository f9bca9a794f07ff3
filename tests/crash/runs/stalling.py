"""Children that are stopped, taken over and woken again; and others that recover what crashed, all at once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator

import backstay
from backstay import FencedError, InDoubtError, LeaseHeldError
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place
from tests.crash.runs.agent import SESSION, Outside

LEASE_S = 0.7  # long enough for a busy machine to stop a process before it is over
WAYS = ("tool", "outcome", "failure", "model", "boundary", "checkpoint", "leave", "raise", "halt")


class Line:
    """A pipe on which one word at a time is passed."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def say(self, word: str) -> None:
        os.write(self._writer, word.encode().ljust(16))

    def hear(self) -> str:
        found, _, _ = select.select([self._reader], [], [], 30)
        assert found, "nobody says anything"
        return os.read(self._reader, 16).decode().strip()


@contextlib.contextmanager
def child(work: Callable[[], None]) -> Iterator[int]:
    """A process of its own for some work; waited for at the end, killed if need be."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _first(place: Place, way: str, ready: Line, go: Line, ended: Line) -> None:
    """The run that is stopped, and on waking does what the way says."""
    outside = Outside(place.folder.parent)

    def pay(*, fail: bool = False) -> str:
        outside.note("first pay")
        ready.say("ready")
        go.hear()
        if fail:
            message = "card refused"
            raise OSError(message)
        return "paid by first"

    with place.open() as store:
        try:
            with store.run(SESSION, lease_s=LEASE_S) as run:
                run.state["by"] = "first"
                run.call("setup", lambda: outside.note("first setup"), args={})
                run.step()
                if way in ("outcome", "failure"):
                    run.call("pay", lambda: pay(fail=way == "failure"), args={})
                else:
                    ready.say("ready")
                    go.hear()
                run.state["by"] = "first, awake"
                _act(run, way, outside)
        except FencedError:
            ended.say("fenced")
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear it
            ended.say(type(error).__name__)
        else:
            ended.say("went on")


def _act(run: backstay.Run, way: str, outside: Outside) -> None:
    if way == "tool":
        run.call("pay", lambda: outside.note("first pay"), args={})
    elif way == "model":
        run.call("ask", lambda: outside.note("first ask"), kind="llm")
    elif way == "boundary":
        run.step()
    elif way == "checkpoint":
        run.checkpoint()
    elif way == "halt":
        run.halt("enough")
    elif way == "raise":
        message = "a bug in the loop"
        raise OSError(message)


def stall(say: Say, place: Place, way: str) -> None:
    """Stop a run past its lease, take it over, wake it, and go on. Says how the first one ended."""
    ready, go, ended = Line(), Line(), Line()
    place.folder.mkdir(parents=True, exist_ok=True)
    outside = Outside(place.folder.parent)
    with child(lambda: _first(place, way, ready, go, ended)) as first:
        assert ready.hear() == "ready"
        os.kill(first, signal.SIGSTOP)
        os.waitpid(first, os.WUNTRACED)
        with place.open() as store:
            _refused(store)
            time.sleep(LEASE_S * 1.2)
            with store.run(SESSION) as run:
                assert run.state == {"by": "first"}
                _take_over(store, run, outside, way)
                os.kill(first, signal.SIGCONT)
                go.say("go")
                say(ended.hear())
                run.step()
    with place.open() as store:
        session = store.session(SESSION)
        points = list(session.log())[::-1]
        assert [point.state["by"] for point in points] == ["first", "second", "second", "second"]
        assert [point.parent_id for point in points] == [None, *[point.id for point in points[:-1]]]
        assert store.verify().ok
        assert next(iter(store.sessions())).status is backstay.Status.COMPLETED


def _refused(store: backstay.Store) -> None:
    """While the lease lasts a stopped process is not taken over."""
    try:
        with store.run(SESSION):
            raise AssertionError
    except LeaseHeldError:
        pass


def _take_over(store: backstay.Store, run: backstay.Run, outside: Outside, way: str) -> None:
    if way in ("outcome", "failure"):
        assert [call.name for call in run.in_doubt] == ["pay"]
        try:
            run.call("pay", lambda: outside.note("second pay"), args={})
            raise AssertionError
        except InDoubtError:
            store.session(SESSION).resolve(run.in_doubt[0].id, result="by hand")
        assert run.call("pay", lambda: outside.note("second pay"), args={}) == "by hand"
    else:
        assert run.in_doubt == []
        run.call("pay", lambda: outside.note("second pay"), args={})
    run.state["by"] = "second"
    run.step()


def crash_many(say: Say, place: Place, count: int) -> None:
    """Enters so many runs, each with a call done, and dies."""
    place.folder.mkdir(parents=True, exist_ok=True)
    outside = Outside(place.folder.parent)
    store = place.open()
    for number in range(count):
        run = store.run(f"s{number}", input=number)
        run.__enter__()
        run.call("begin", lambda number=number: outside.note(f"begin {number}"), args={})
    os.kill(os.getpid(), signal.SIGKILL)


def recover_at_once(say: Say, place: Place, processes: int, dying: int) -> None:
    """So many processes recover at once; some of them die in the middle of their second session."""
    go, said = Line(), Line()
    outside = Outside(place.folder.parent)

    def work(me: int) -> None:
        mine = 0

        def handler(run: backstay.Run) -> None:
            nonlocal mine
            mine += 1
            assert run.resumed
            run.call("begin", lambda: outside.note(f"begin {run.input}"), args={})
            run.call("end", lambda: outside.note(f"end {run.input}"), args={})
            if me < dying and mine == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            run.state["by"] = me

        with place.open() as store:
            go.hear()
            report = backstay.recover(store, handler)
            said.say(f"{me} {len(report.completed) if not report.failed else -1000}")

    with contextlib.ExitStack() as stack:
        pids = [stack.enter_context(_raw_child(lambda me=me: work(me))) for me in range(processes)]  # type: ignore[misc]
        for _ in pids:
            go.say("go")
        counts = [int(said.hear().split()[1]) for _ in range(processes - dying)]
    say(counts)


@contextlib.contextmanager
def _raw_child(work: Callable[[], None]) -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    yield pid
    os.waitpid(pid, 0)
