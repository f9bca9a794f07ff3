"""What is being done while the storage fails: a short working day with everything a store is asked for.

A step is done whole or not at all, so after a crash a store looks as it looked after some step. `look` says how it
looks: every checkpoint's state by its number in the session, every name, every line of ancestors.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import backstay
from backstay.backends.files import rewrite
from backstay.face import Session, Store
from backstay.model import StateDict
from backstay.retention import Retention
from backstay.store import packing
from tests.crash.ring.rooms import room
from tests.crash.ring.running import Agent, ids_of, look_at_runs

Look = dict[str, Any]

EXPORTED = 20  # the step that writes the bundle


def text(seed: int, size: int) -> str:
    """Text that does not pack, so that it takes the pages it should."""
    return random.Random(seed).randbytes(size // 2).hex()


class Day:
    """The steps, on one store; Sessions are kept between them, as a program would.

    A day is short, so it packs at every second checkpoint and merges each segment with the one before: all that comes
    later is done to packed checkpoints too. A process has one day, and this is set for all of it.
    """

    def __init__(self, open_store: Callable[[], Store], bundle: Path) -> None:
        packing.PACK_ROWS, packing.MERGED = 2, 1
        rewrite.TAIL_BYTES = 3_000
        self._open = open_store
        self._bundle = bundle
        self.store = open_store()
        self._sessions: dict[str, Session] = {}
        self.steps: list[Callable[[], object]] = [
            lambda: self.grow("alpha", 1),
            lambda: self.grow("alpha", 2),
            lambda: self.grow("beta", 1, note=text(1, 9_000)),
            lambda: self.of("alpha").fork("main~1", "try"),
            lambda: self.grow("alpha", 3, branch="try"),
            lambda: self.of("alpha").tag("main", "kept"),
            lambda: self.grow("alpha", 3),
            lambda: self.of("alpha").restore("main~2"),
            lambda: self.of("alpha").undo(),
            lambda: self.grow("beta", 2, note=text(1, 9_000) + "more"),
            self.reopen,
            lambda: self.of("alpha").delete("main~2"),
            lambda: self.grow("gamma", 1, note=text(2, 30_000)),
            lambda: self.store.delete("beta"),
            lambda: self.grow("gamma", 2),
            lambda: self.of("alpha").delete_branch("try"),
            lambda: self.grow("alpha", 5),
            lambda: self.of("alpha").prune(Retention(keep_last=2, keep_labelled=False)),
            lambda: self.grow("alpha", 6),
            lambda: self.store.export(self._bundle, session="alpha", overwrite=True),
            lambda: self.store.import_(self._bundle, rename="delta"),
            self.reopen,
            lambda: self.agent().enter(),
            lambda: self.agent().start("one"),
            lambda: self.agent().finish("one"),
            lambda: self.boundary(1),
            lambda: self.agent().start("two"),
            lambda: self.agent().leave(),
            self.reopen,
            lambda: self.agent().enter(),
            lambda: self.agent().finish("two"),
            lambda: self.boundary(2),
            lambda: self.of("echo").fork("main", "try"),
            lambda: self.agent("try").enter(),
            lambda: self.agent("try").start("three"),
            lambda: self.of("echo").delete("main~1"),
            lambda: self.agent("try").leave("failed"),
            lambda: self.boundary(3, ends_run=True),
            lambda: self.agent("try").abandon(),
            lambda: self.of("echo").delete_branch("try"),
        ]

    def of(self, name: str) -> Session:
        """The session this program holds."""
        return self._sessions.setdefault(name, self.store.session(name))

    def grow(self, name: str, turn: int, *, branch: str = "main", note: str = "") -> None:
        """One turn of an agent: the state with two more messages."""
        state = self.next_state(name, turn, branch=branch, note=note)
        self.of(name).commit(state, branch=branch, step=turn, label=f"turn {turn}")

    def next_state(self, name: str, turn: int, *, branch: str = "main", note: str = "") -> StateDict:
        """The state with two more messages."""
        session = self.of(name)
        state: StateDict = session.load(branch) if session.head(branch) is not None else {"messages": []}
        said = [{"role": role, "content": f"{role} of {name} at {turn} " + text(turn, 80)} for role in ("user", "ai")]
        state["messages"] = [*state["messages"], *said]
        if note:
            state["note"] = note
        return state

    def agent(self, branch: str = "main") -> Agent:
        """Whoever runs a branch of the session that has runs."""
        return Agent(self.store.backend, "echo", branch)

    def boundary(self, turn: int, **more: bool) -> None:
        """A turn of that agent."""
        session, state = self.of("echo"), self.next_state("echo", turn)
        self.agent().boundary(session, state, step=turn, **more)

    def reopen(self) -> None:
        """Close the store, open it again."""
        self.store.close()
        self._sessions.clear()
        self.store = self._open()

    def run(self, acknowledged: Callable[[int], object]) -> None:
        """All steps; each is acknowledged once it has returned."""
        acknowledged(0)
        for number, step in enumerate(self.steps, 1):
            step()
            acknowledged(number)
        self.store.close()


def look(store: Store) -> Look:
    """Everything there is to see in a store."""
    return {info.id: look_at(store, info.id) for info in store.sessions()}


def look_at(store: Store, name: str) -> Look:
    """Everything there is to see of one session."""
    session = store.session(name)
    known = {id_: session.checkpoint(id_).sequence for id_ in ids_of(store.backend, name)}
    branches = session.branches()
    return {
        "states": {sequence: session.load(id_) for id_, sequence in known.items()},
        "branches": {name: found.sequence for name, found in branches.items()},
        "tags": {name: found.sequence for name, found in session.tags().items()},
        "lines": {name: [found.sequence for found in session.log(name)] for name in branches},
        "heads": {name: session.load(name) for name in branches},
        **look_at_runs(store.backend, name),
    }


@functools.cache
def looks() -> list[Look]:
    """How a store looks after each step when nothing goes wrong.

    Worked out by a child: an export is a SQLite file, and a process that has opened one has its checksums on the
    ordinary files for good, so that no fault could be mounted beneath it. What it has imported is imported here too.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump((_work_out(), [name for name in sys.modules if name.startswith("backstay")]), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        seen, modules = pickle.load(pipe)
    assert os.waitpid(pid, 0)[1] == 0
    for name in modules:
        importlib.import_module(name)
    found: list[Look] = seen
    return found


def _work_out() -> list[Look]:
    store = backstay.open("memory://")
    close, store.close = store.close, lambda: None  # type: ignore[method-assign]
    seen: list[Look] = []
    with room() as folder:
        Day(lambda: store, folder / "bundle").run(lambda _: seen.append(look(store)))
    close()
    return seen


def judge_bundle(bundle: Path, expected: list[Look], step: int) -> None:
    """What was exported is there whole or not at all, and there if that was acknowledged."""
    there = bundle.exists()
    assert there or step < EXPORTED, "the export was acknowledged and is gone"
    if there:
        with backstay.open("memory://") as store:
            store.import_(bundle)
            assert look(store) == {"alpha": expected[EXPORTED]["alpha"]}


class Verdict(NamedTuple):
    """How a store was found: like after which steps (a reopening changes nothing, so there may be several)."""

    steps: tuple[int, ...]
    found: Look


def judge(store: Store, expected: list[Look]) -> Verdict:
    """Which step a store looks like; AssertionError for a store that looks like none, or does not verify."""
    found = look(store)
    report = store.verify()
    assert report.ok, report.problems
    steps = tuple(number for number, wanted in enumerate(expected) if wanted == found)
    assert steps, f"this is no state that was ever written: {'; '.join(shorten(found))}"
    return Verdict(steps, found)


def shorten(found: Look) -> Iterator[str]:
    """A look, for a person."""
    return (f"{name}: {sorted(seen['states'])}, {seen['branches']}, {seen['tags']}" for name, seen in found.items())


def go_on(store: Store, turns: int = 5) -> None:
    """A few more steps, each read back."""
    for name in ("alpha", "omega"):
        session = store.session(name)
        there = session.head() is not None
        state: StateDict = session.load() if there else {"messages": []}
        for turn in range(turns):
            state = {**state, "messages": [*state["messages"], {"role": "user", "content": f"on we go, {turn}"}]}
            session.commit(state)
            assert store.session(name).load() == state
    report = store.verify()
    assert report.ok, report.problems
