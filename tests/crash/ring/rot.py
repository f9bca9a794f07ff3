"""The rot ring: small stores, closed or cut off with their newest commits still in the log, damaged and read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from backstay.errors import BackstayError
from backstay.face import Session, Store
from backstay.port import Ask
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place
from tests.crash.ring.running import Agent, ids_of, look_at_runs, pending_calls
from tests.crash.ring.workload import Look, look, text

PAGE_BYTES = 4096
NAMES = ("one", "two", "three")
RUNS = ("runs", "calls", "pending", "taken in")

_left: list[Store] = []


def image() -> bytes:
    """What only session two has: bytes that do not pack, over several pages of their own."""
    return random.Random(5).randbytes(20_000)


def step_of(found: Look, looks: list[Look]) -> int:
    """After which step a store looked like this."""
    steps = [number for number, known in enumerate(looks) if known == found]
    assert steps, "this is no state that was ever written"
    return steps[0]


def leave(say: Say, place: Place, cut: bool) -> None:
    """Write the sessions; with `cut`, half of it stays in the log because nobody closes the store. Says each look."""
    place.folder.mkdir(parents=True)
    store = place.open()
    for turn in range(6):
        if cut and turn == 3:
            store.close()
            store = place.open()
        for name in NAMES:
            session = store.session(name)
            state = session.load() if session.head() else {"messages": []}
            state["messages"] = [*state["messages"], {"role": "user", "content": f"{name} {turn} {text(turn, 60)}"}]
            if name == "two" and turn == 1:
                state["image"] = image()
            session.commit(state, step=turn)
            say(look(store))
        if turn == 4:
            store.session("one").tag("main~1", "kept")
            say(look(store))
            store.session("three").fork("main~2", "side")
            say(look(store))
    agent = Agent(store.backend, "one")
    for act in (agent.enter, partial(agent.start, "call"), partial(agent.finish, "call"), agent.leave):
        act()
        say(look(store))
    if cut:
        _left.append(store)  # and out, without closing it
    else:
        store.close()


class Read(NamedTuple):
    """What came of reading everything: which sessions were readable in full, and how many reads were refused."""

    whole: set[str]
    refused: int


def read_all(place: Place, truth: Look) -> Read:
    """Read everything in every way: a true value or an error of ours, and nothing else."""
    try:
        store = place.open()
    except BackstayError:
        return Read(set(), 1)
    with store:
        refused = int(not told(lambda: [info.id for info in store.sessions()], ["one", "three", "two"]))
        whole = set()
        for name in NAMES:
            wrong = sum(not told(read, true) for read, true in reads(store, name, truth[name]))
            refused += wrong
            if not wrong:
                whole.add(name)
        if refused:
            told(lambda: store.verify().ok, False)
    return Read(whole, refused)


def told(read: Callable[[], Any], true: Any) -> bool:
    """True if the read told the truth, False if it was refused; anything else is what must never be."""
    try:
        found = read()
    except BackstayError:
        return False
    assert found == true, "damage became a value"
    return True


def reads(store: Store, name: str, truth: Look) -> Iterator[tuple[Callable[[], Any], Any]]:
    session = store.session(name)
    by_number: dict[int, str] = {}

    def ids() -> list[int]:
        found = {session.checkpoint(id_).sequence: id_ for id_ in ids_of(store.backend, name)}
        by_number.update(found)
        return sorted(found)

    yield ids, sorted(truth["states"])
    yield lambda: {each: found.sequence for each, found in session.branches().items()}, truth["branches"]
    yield lambda: {each: found.sequence for each, found in session.tags().items()}, truth["tags"]
    yield lambda: store.backend.read(Ask(name)).session is not None, True
    yield partial(look_at_runs, store.backend, name), {part: truth[part] for part in RUNS}
    for branch, calls in truth["pending"].items():
        yield partial(pending_on, store, name, branch), calls
    for branch, line in truth["lines"].items():
        yield partial(session.load, branch), truth["heads"][branch]
        yield partial(numbers, session, branch), line
        yield partial(head, session, branch), truth["branches"][branch]
    for number, state in truth["states"].items():
        if number in by_number:
            yield partial(session.load, by_number[number]), state


def pending_on(store: Store, name: str, branch: str) -> list[Any]:
    return [replace(call, run=0) for call in pending_calls(store.backend, name, branch)]


def numbers(session: Session, branch: str) -> list[int]:
    return [found.sequence for found in session.log(branch)]


def head(session: Session, branch: str) -> int | None:
    found = session.head(branch)
    return None if found is None else found.sequence


class Damage:
    """Copies of a store to be damaged, one at a time."""

    def __init__(self, original: Place) -> None:
        self._place = original._replace(folder=original.folder.with_name("damaged"))
        self._files = {
            str(file.relative_to(original.folder)): file.read_bytes()
            for file in original.folder.rglob("*")
            if file.is_file() and not file.name.endswith("-shm")
        }

    def names(self) -> list[str]:
        """All files with something in them."""
        return sorted(name for name, data in self._files.items() if data)

    def size(self, name: str) -> int:
        """How long a file is, without the zeros that the log was grown by."""
        return len(self._files[name].rstrip(b"\0"))

    def find(self, data: bytes) -> int:
        """Where bytes lie in the store."""
        return self._files["store.db"].index(data)

    def copy(self) -> Place:
        """An undamaged copy."""
        self._place.clear()
        for name, data in self._files.items():
            (self._place.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self._place.folder / name).write_bytes(data)
        return self._place

    def write(self, name: str, at: int, data: bytes) -> Place:
        """A copy with other bytes at a place."""
        place = self.copy()
        with (place.folder / name).open("r+b") as file:
            file.seek(at)
            file.write(data)
        return place

    def flip(self, name: str, at: int, bit: int) -> Place:
        """A copy with one bit flipped."""
        return self.write(name, at, bytes([self._files[name][at] ^ 1 << bit]))

    def cut(self, name: str, size: int) -> Place:
        """A copy with a file cut off."""
        place = self.copy()
        with (place.folder / name).open("r+b") as file:
            file.truncate(size)
        return place

    def drop(self, name: str) -> Place:
        """A copy without a file."""
        place = self.copy()
        (place.folder / name).unlink()
        return place
