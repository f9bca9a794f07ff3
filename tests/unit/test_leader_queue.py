"""The queue of a group commit: an interrupt, wherever it strikes, and a fork leave it in order."""

import dis
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from backstay.port import leader_queue
from backstay.port.leader_queue import Job, LeaderQueue

_WAIT_S = 20.0


class Numbered(Job):
    """A job that counts how often it was done."""

    def __init__(self, number: int) -> None:
        self.number = number


class Works:
    """A queue whose jobs are noted as they are done; `gate`, if it is shut, keeps the leader inside."""

    def __init__(self, *, at_once: int = 99) -> None:
        self.done: list[int] = []
        self.rounds: list[int] = []
        self.gate, self.inside = threading.Event(), threading.Event()
        self.gate.set()
        self.at_once = at_once
        self.queue = LeaderQueue(self.lead)

    def lead(self, jobs: list[Numbered]) -> None:
        self.inside.set()
        assert self.gate.wait(_WAIT_S)
        self.rounds.append(len(jobs))
        for job in jobs[: self.at_once]:
            if job.gone:
                continue
            if not job.done:
                self.done.append(job.number)
            job.finish(job.number * 10)

    def threads(self, count: int, *, after: int = 0) -> list[threading.Thread]:
        """Start some, each with a job of its own, and wait until all of them are in the queue."""

        def run(number: int) -> None:
            assert self.queue.run(Numbered(number)) == number * 10

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(1, count + 1)]
        for number, thread in enumerate(threads, 1 + after):
            thread.start()
            deadline = time.monotonic() + _WAIT_S
            while self.queue.waiting < number:
                assert time.monotonic() < deadline
                time.sleep(0.0005)
        return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(_WAIT_S)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"


def test_threads_that_wait_are_served_together() -> None:
    works = Works()
    assert works.queue.hold(1)
    threads = works.threads(5)
    works.queue.release()
    join(threads)
    assert works.rounds == [5]
    assert works.queue.idle


def test_jobs_that_a_leader_leaves_are_done_by_the_next() -> None:
    works = Works(at_once=1)
    assert works.queue.hold(1)
    threads = works.threads(4)
    works.queue.release()
    join(threads)
    assert works.done == [1, 2, 3, 4]


def test_an_error_reaches_the_thread_whose_job_it_was() -> None:
    def lead(jobs: list[Job]) -> None:
        jobs[0].fail(ValueError("no"), KeyError("why"))

    with pytest.raises(ValueError, match="no") as caught:
        LeaderQueue(lead).run(Job())
    assert isinstance(caught.value.__cause__, KeyError)


# interrupts

_CHECKED = {"RESUME", "JUMP_BACKWARD"}  # where, besides after calls, the interpreter looks for signals


def _strike_points(code: CodeType) -> Iterator[int]:
    """Offsets before which a signal's handler can run, and be caught as if it had run where it does."""
    instructions = list(dis.get_instructions(code))
    ranges = [(entry.start, entry.end) for entry in dis._parse_exception_table(code)]  # type: ignore[attr-defined]
    for before, here in itertools.pairwise(instructions):
        checked = before.opname in _CHECKED or before.opname.startswith("CALL")
        if checked and all((start <= before.offset < end) == (start <= here.offset < end) for start, end in ranges):
            yield here.offset


class Strike:
    """Raises KeyboardInterrupt at the nth point of the queue's code that this thread comes to."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.struck = False
        self._thread = threading.get_ident()
        self._points = {code: set(_strike_points(code)) for code in _codes(leader_queue.__file__, LeaderQueue)}

    def at(self, code: CodeType, offset: int) -> None:
        """The interpreter stands before this instruction."""
        if self.struck or threading.get_ident() != self._thread or offset not in self._points.get(code, ()):
            return
        self.left -= 1
        if self.left < 0:
            self.struck = True
            raise KeyboardInterrupt

    def run(self, queue: LeaderQueue[Any], job: Job) -> None:
        try:
            with _each_instruction(self._points, self.at):
                queue.run(job)
        except KeyboardInterrupt:
            assert self.struck


def _codes(file: str, *classes: type) -> Iterator[CodeType]:
    """The code of these classes and of what stands inside their functions, but for what `lead` calls."""
    left = [each.__code__ for one in classes for each in vars(one).values() if isinstance(each, FunctionType)]
    while left:
        code = left.pop()
        if code.co_filename == file and code.co_name not in ("finish", "waiting"):
            yield code
            left += [each for each in code.co_consts if isinstance(each, CodeType)]


@contextmanager
def _each_instruction(codes: Iterable[CodeType], at: Callable[[CodeType, int], None]) -> Iterator[None]:
    """Call `at` before each instruction of these; what it raises is raised there."""
    if sys.version_info >= (3, 12):  # its settrace leaves instructions out
        tool, event = sys.monitoring.DEBUGGER_ID, sys.monitoring.events.INSTRUCTION
        sys.monitoring.use_tool_id(tool, "strike")
        sys.monitoring.register_callback(tool, event, at)
        for code in codes:
            sys.monitoring.set_local_events(tool, code, event)
        try:
            yield
        finally:
            for code in codes:
                sys.monitoring.set_local_events(tool, code, 0)
            sys.monitoring.register_callback(tool, event, None)
            sys.monitoring.free_tool_id(tool)
        return

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            at(frame.f_code, frame.f_lasti)
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(tracing)


def _interrupted(number: int, *, leads: bool) -> bool:
    """One interrupt; False if the code has fewer points than that."""
    works, job, strike = Works(), Numbered(0), Strike(number)
    threads: list[threading.Thread] = []
    if leads:
        shut = threading.Event()

        def lead(jobs: list[Numbered]) -> None:
            if not shut.is_set():
                shut.set()
                threads.extend(works.threads(3))  # come while this one leads
            works.lead(jobs)

        works.queue._lead = lead
        strike.run(works.queue, job)
        if not shut.is_set():
            shut.set()
    else:
        assert works.queue.hold(1)
        threads.extend(works.threads(1))
        timer = threading.Thread(target=_release_when_two_wait, args=(works,), daemon=True)
        timer.start()
        strike.run(works.queue, job)
        timer.join(_WAIT_S)
    join(threads)
    assert works.queue.run(Numbered(7)) == 70, "the queue is dead"
    assert works.queue.idle
    assert len(set(works.done)) == len(works.done), "a job was done twice"
    assert job.done == (0 in works.done), "a job was done, and its thread told otherwise"
    return strike.struck


def _release_when_two_wait(works: Works) -> None:
    deadline = time.monotonic() + 0.05  # where the strike comes before it waits, no second one ever does
    while works.queue.waiting < 2 and time.monotonic() < deadline:
        time.sleep(0.0002)
    works.queue.release()


@pytest.mark.parametrize("leads", [True, False])
def test_an_interrupt_at_any_moment_leaves_the_queue_alive(leads: bool) -> None:
    number = 0
    while _interrupted(number, leads=leads):
        number += 1
    assert number > 8


@pytest.mark.parametrize("finished", [0, 1, 2, 3])
def test_an_interrupt_in_the_middle_of_the_work_leaves_the_rest_to_the_next(finished: int) -> None:
    works = Works()
    own = works.lead

    def lead(jobs: list[Numbered]) -> None:
        own(jobs[:finished])
        if works.rounds == [finished]:
            raise KeyboardInterrupt
        own(jobs)

    works.queue._lead = lead
    assert works.queue.hold(1)
    leader = threading.Thread(target=_expect_interrupt, args=(works,), daemon=True)
    leader.start()
    while works.queue.waiting < 1:
        time.sleep(0.0005)
    threads = works.threads(3, after=1)
    works.queue.release()
    join([leader, *threads])
    assert sorted(works.done) == ([0, 1, 2, 3] if finished else [1, 2, 3]), "a job was lost, or done twice"
    assert works.queue.idle


def _expect_interrupt(works: Works) -> None:
    with pytest.raises(KeyboardInterrupt):
        works.queue.run(Numbered(0))


# forking


def test_a_holder_is_next_however_many_wait() -> None:
    works = Works()
    works.gate.clear()
    leading = threading.Thread(target=works.queue.run, args=(Numbered(9),), daemon=True)
    leading.start()
    assert works.inside.wait(_WAIT_S)
    threads = works.threads(3)
    assert not works.queue.hold(0.01), "it holds what another thread leads"
    opener = threading.Timer(0.02, works.gate.set)
    opener.start()
    assert works.queue.hold(_WAIT_S)
    assert works.done == [9]
    assert works.queue.waiting == 3
    works.queue.release()
    join([leading, *threads])
    assert works.queue.idle


def test_a_process_that_forks_while_threads_wait_goes_on() -> None:
    works = Works()
    assert works.queue.hold(1)
    threads = works.threads(3)
    child = os.fork()
    if not child:
        # Its threads stayed with the parent: a queue of its own works, and the parent's is left alone.
        os._exit(0 if Works().queue.run(Numbered(1)) == 10 and not works.done else 1)
    works.queue.release()
    join(threads)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(works.done) == [1, 2, 3]
