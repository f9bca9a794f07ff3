"""Ctrl-C at any instruction of a piece of work, and at no other place."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(strikes: int) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Give a function that does its work again and again until a KeyboardInterrupt strikes inside it.

    A signal that comes late, when the work has been left already, does nothing: on a busy machine it would otherwise
    end the test run.
    """

    def raise_interrupt(_number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is repeat.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    def repeat(work: Callable[[], object]) -> None:
        while True:
            work()

    struck = 0

    def strike(work: Callable[[], object]) -> None:
        nonlocal struck
        # And again later: Python drops what is raised while it collects something.
        signal.setitimer(signal.ITIMER_REAL, 0.001 + struck % strikes * 0.0002, 0.1)
        try:
            repeat(work)
        except KeyboardInterrupt:
            struck += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    previous = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        yield strike
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
