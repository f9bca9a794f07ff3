"""Crashes that need no process to die: the loop is cut off by what is no Exception, and its journal stays."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import backstay
from backstay.run import Run


class Cut(BaseException):
    """Ends a run where it stands: it stands for Ctrl-C, a cancellation, a kill."""


@contextmanager
def cut_off(store: backstay.Store, id_: str = "t", **options: Any) -> Iterator[Run]:
    """A run whose body, come to its end, is cut off there."""
    run = store.run(id_, **options)
    with ends_by(Cut, run):
        yield run
        raise Cut


@contextmanager
def ends_by(error: type[BaseException], run: Run, match: str | None = None) -> Iterator[Run]:
    """A run that must be left by this error."""
    with pytest.raises(error, match=match), run:
        yield run


class World:
    """What the tools of a test have done to the world, in order."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def do(self, what: Any, result: Any = None) -> Callable[[], Any]:
        """A function that does it."""

        def doing() -> Any:
            self.done.append(what)
            return what if result is None else result

        return doing

    def cut(self, what: Any) -> Callable[[], Any]:
        """A function that does it, and is cut off before it can say so."""

        def doing() -> Any:
            self.done.append(what)
            raise Cut

        return doing

    def break_(self, what: Any, error: Exception) -> Callable[[], Any]:
        """A function that does it and raises."""

        def doing() -> Any:
            self.done.append(what)
            raise error

        return doing


def leave_in_doubt(store: backstay.Store, world: World, name: str = "pay", *, id_: str = "t", **options: Any) -> str:
    """A run cut off inside a tool: its call is in doubt. Gives the call's id."""
    with pytest.raises(Cut), store.run(id_) as run:
        run.call(name, world.cut(name), args={}, **options)
    (call,) = [call for call in store.session(id_).calls(pending=True) if call.status == "in_doubt"]
    return call.id
