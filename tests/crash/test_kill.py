"""kill -9 at any moment: what was acknowledged is there, whole, and the store goes on."""

import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import backstay
from tests.store.children import start

# Commits without end to three sessions from two threads, and says so line by line, after each commit has returned.
COMMIT = """
import os, sys, threading, backstay
store = backstay.open(sys.argv[1], durability=sys.argv[2])
seed = int(sys.argv[3])
print("open", flush=True)
def work(name):
    session = store.session(name)
    head = session.head()
    state = dict(session.load()) if head else {"messages": [], "pad": ""}
    number = head.sequence if head else 0
    while True:
        number += 1
        state["messages"].append({"n": number, "text": f"{seed} {number} " * (number % 40)})
        state["pad"] += "x" * (number % 97)
        if number % 17 == 0:
            del state["messages"][: len(state["messages"]) // 2]
        if number % 13 == 0:
            state["blob"] = os.urandom(9000)
        if number % 11 == 0:
            session.restore("main~1") if number > 2 else None
            session.undo() if number > 2 else None
        if number % 29 == 0:
            session.delete("main~3")
        point = session.commit(state)
        line = f"{name} {point.id} {point.digest} {len(state['messages'])}\\n"
        sys.stdout.write(line)
        sys.stdout.flush()
threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
for thread in threads:
    thread.start()
"""


def acknowledged(child: subprocess.Popen[str], after_s: float) -> list[list[str]]:
    """Let the child run for a while, kill it, and give every acknowledgement it got out whole."""
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    time.sleep(after_s)
    child.kill()
    out, err = child.communicate()
    assert "Traceback" not in err, err
    return [line.split() for line in out.splitlines(keepends=True) if line.endswith("\n")]


def all_there(path: Path, lines: list[list[str]], gone: set[str], when: str) -> None:
    """Every acknowledged checkpoint is there and loads; the store verifies and goes on."""
    with backstay.open(path) as store:
        report = store.verify()
        assert report.ok, f"{path}, {when}: {report}"
        known: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
        for name, points in known.items():
            session = store.session(name)
            if session.head() is not None:
                points.update({point.id: point for point in session.log()})
        for number, (name, id_, digest, count) in enumerate(lines, 1):
            if id_ not in known[name]:
                # Only what the program itself deleted may be missing: three before one that is there.
                gone.add(id_)
                continue
            point = known[name][id_]
            step = f"{path}, {when}: acknowledgement {number} of {len(lines)}, {id_} of session {name!r}"
            assert point.digest == digest, f"{step}, has digest {point.digest} and was acknowledged with {digest}"
            found = len(point.state["messages"])
            assert found == int(count), f"{step}, has {found} messages and was acknowledged with {count}"
        for name in [name for name, points in known.items() if points]:
            session = store.session(name)
            state = session.load()
            for number in range(5):
                state["after"] = number
                session.commit(state)
            assert store.session(name).load() == state, f"{path}, {when}: session {name!r} does not go on"
        report = store.verify()
        assert report.ok, f"{path}, {when}, after five more commits: {report}"


def missing(path: Path, lines: list[list[str]], gone: set[str], when: str) -> str:
    """Which acknowledged steps are not there, in which store, and what is."""
    steps = [f"{number} ({line[1]} of session {line[0]!r})" for number, line in enumerate(lines, 1) if line[1] in gone]
    with backstay.open(path) as store:
        heads = {info.id: getattr(store.session(info.id).head(), "id", None) for info in store.sessions()}
    return f"{path}, {when}: of {len(lines)} acknowledgements these are missing: {', '.join(steps)}; heads are {heads}"


def deleted_by_the_program(lines: list[list[str]]) -> int:
    return len(lines) // 29 + 2


def kill_again_and_again(path: Path, durability: str, kills: int, *, seed: int = 16) -> None:
    rng = random.Random(seed)
    total = 0
    for number in range(kills):
        child = start(COMMIT, path, durability, number)
        lines = acknowledged(child, rng.random() ** 2 * 0.12)
        total += len(lines)
        gone: set[str] = set()
        when = f"{durability}, kill {number + 1} of {kills}"
        all_there(path, lines, gone, when)
        assert len(gone) <= 2 * deleted_by_the_program(lines), missing(path, lines, gone, when)
        # The newest of each session was never deleted, whatever happened.
        for name in ("a", "b"):
            mine = [id_ for session, id_, _, _ in lines if session == name]
            assert not mine or mine[-1] not in gone, missing(path, lines, gone, when)
    assert total  # the kills met real work


@pytest.mark.parametrize("durability", [pytest.param("full", marks=pytest.mark.quick), "relaxed"])
def test_what_was_acknowledged_survives_kill_9_at_any_moment(path: Path, durability: str) -> None:
    kill_again_and_again(path, durability, 16)


# Each part has a store of its own: all that was ever committed is read after each kill, so one long one takes minutes.
@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_what_was_acknowledged_survives_hundreds_of_kills(path: Path, durability: str, part: int) -> None:
    kill_again_and_again(path, durability, 50, seed=part)


DELETE = """
import sys, backstay
store = backstay.open(sys.argv[1])
print("open", flush=True)
number = 0
while True:
    number += 1
    session = store.session(f"short-lived {number}")
    for step in range(6):
        session.commit({"messages": ["secret-marker"] * step, "noise": bytes(range(256)) * 40})
    store.delete(session.id)
    sys.stdout.write(f"{session.id}\\n")
    sys.stdout.flush()
"""


def test_a_delete_cut_off_by_kill_9_is_done_or_not_done(path: Path) -> None:
    rng = random.Random(3)
    for _ in range(8):
        child = start(DELETE, path)
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        time.sleep(rng.random() * 0.2)
        child.kill()
        out, _ = child.communicate()
        done = {line[:-1] for line in out.splitlines(keepends=True) if line.endswith("\n")}
        with backstay.open(path) as store:
            left = {info.id for info in store.sessions()}
            assert not left & done, f"{path}: their deletion was acknowledged, and they are there: {left & done}"
            assert len(left) <= 1, f"{path}: one at most was alive when its process was killed, not {left}"
            report = store.verify()
            assert report.ok, f"{path}, after the deletion of {len(done)} sessions: {report}"
            for id_ in left:
                assert list(store.session(id_).log())
                store.delete(id_)
            assert store.stats().logical_bytes == 0
    with backstay.open(path) as store:
        assert store.verify(repair=True).ok  # what the last kill may have left hidden goes too
    assert b"secret-marker" not in path.read_bytes()
