"""A warm process that has everything imported, no store open and no thread: its children cost a few milliseconds.

    with Nursery() as nursery:                     # or Nursery("a.module"), for children that need more of it
        born = nursery.run(function, folder, 17)   # in a child of its own, killed or not

The function is called with `say` first; what it says reaches the test even if the child is killed the moment after.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import backstay

_PLACES = os.pathsep.join([str(Path(backstay.__file__).parents[1]), str(Path(__file__).parents[3])])
Say = Callable[[object], None]


class Born(NamedTuple):
    """What a child said, and how it ended: 0, a negative signal, or 1 with the trace it left."""

    said: list[Any]
    ended: int
    trouble: str


class Nursery:
    """See the module's text."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules

    def __enter__(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": _PLACES}
        self._warm = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.ring.nursery", *self._modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._warm.stdin, self._warm.stdout):
            assert pipe is not None
            pipe.close()
        self._warm.wait(30)

    def run(self, function: Callable[..., None], *arguments: object) -> Born:
        """Call a function of a module in a new child."""
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        pickle.dump((function, arguments), self._warm.stdin)
        self._warm.stdin.flush()
        born: Born = pickle.load(self._warm.stdout)
        return born

    def do(self, function: Callable[..., None], *arguments: object) -> list[Any]:
        """The same for what must end well."""
        born = self.run(function, *arguments)
        assert not born.trouble, born.trouble
        assert born.ended == 0, f"ended by {born.ended}"
        return born.said


def _bear(function: Callable[..., None], arguments: tuple[object, ...]) -> Born:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os._exit(_live(function, arguments, writer))
    os.close(writer)
    said: list[Any] = []
    with os.fdopen(reader, "rb") as pipe:
        while True:
            try:
                said.append(pickle.load(pipe))
            except (EOFError, pickle.UnpicklingError):
                break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    trouble = "".join([each.text for each in said if isinstance(each, _Trouble)])  # a child's children have theirs
    return Born([each for each in said if not isinstance(each, _Trouble)], status, trouble)


class _Trouble(NamedTuple):
    text: str


def _live(function: Callable[..., None], arguments: tuple[object, ...], writer: int) -> int:
    def say(thing: object) -> None:
        data = pickle.dumps(thing)
        while data:
            data = data[os.write(writer, data) :]

    # Standard output is the nursery's own line to the test.
    os.dup2(2, 1)
    try:
        function(say, *arguments)
    except BaseException:  # noqa: BLE001 - whatever it is, the test must hear it
        say(_Trouble(traceback.format_exc()))
        return 1
    return 0


def main() -> None:
    """Bear children as they are asked for, until nobody asks."""
    import backstay.backends.files
    import backstay.backends.memory
    import backstay.backends.sqlite  # noqa: F401
    import tests.crash.ring.children  # noqa: F401
    from tests.crash.ring.workload import looks

    looks()  # a whole day: what is loaded when it is first asked for is loaded now, and not by each child
    for module in sys.argv[1:]:
        importlib.import_module(module)

    asking, answering = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    while (asked := _next(asking)) is not None:
        pickle.dump(_bear(*asked), answering)
        answering.flush()


def _next(asking: IO[bytes]) -> tuple[Callable[..., None], tuple[object, ...]] | None:
    try:
        asked: tuple[Callable[..., None], tuple[object, ...]] = pickle.load(asking)
    except EOFError:
        return None
    return asked


if __name__ == "__main__":
    # By its own name: run as a program this module is called __main__, and what is pickled there means nothing here.
    from tests.crash.ring import nursery

    nursery.main()
