"""A branch that is committed to and pruned at once is there at every moment: no reader is told that there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import backstay
from backstay import Retention, Session, Store
from tests.store.travel import KINDS, open_kind

READS = 150


def _head_state(session: Session) -> object:
    head = session.head()
    assert head is not None
    try:
        return head.state
    except backstay.ConflictError:  # it was pruned since, and that is said: not that it never was
        return None


ASKED: dict[str, Callable[[Session], object]] = {
    "load": lambda session: session.load()["n"],
    "log": lambda session: next(iter(session.log())).id,
    "whole log": lambda session: [point.id for point in session.log()] or pytest.fail("a history of nothing"),
    "calls": lambda session: session.calls(),
    "checkpoint": lambda session: session.checkpoint().id,
    "head": _head_state,
    "branches": lambda session: session.branches()["main"].id,
    "load before": lambda session: session.load("main~1")["n"],
    "checkpoint before": lambda session: session.checkpoint("main~1").id,
    "diff": lambda session: session.diff("main", "main"),
}


def keep_changing(store: Store, stop: threading.Event, failures: list[BaseException]) -> None:
    """Commit and prune in turn, for as long as others read."""
    session, turn = store.session("s"), 1
    try:
        while not stop.is_set():
            with session.run() as run:
                for _ in range(3):
                    turn += 1
                    run.state["n"] = run.call("count", partial(int, turn))
                    run.state["words"] = run.call("speak", partial(str, "words " * 100))
                    run.checkpoint()
            session.prune(Retention(keep_last=2))
    except BaseException as error:  # noqa: BLE001 - told to the one who reads
        failures.append(error)


def watch_while_it_changes(store: Store, reads: int) -> None:
    """Ask everything, again and again, while another thread commits and prunes."""
    stop, failures = threading.Event(), list[BaseException]()
    session = store.session("s")
    session.commit({"n": 0})
    session.commit({"n": 1})
    thread = threading.Thread(target=keep_changing, args=(store, stop, failures))
    thread.start()
    try:
        for number in range(reads):
            for what, ask in ASKED.items():
                try:
                    ask(store.session("s"))
                except backstay.BackstayError as error:
                    message = f"{what}, read {number}: {error}"
                    raise AssertionError(message) from error
    finally:
        stop.set()
        thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_reader_is_told_that_a_branch_does_not_exist_while_it_is_committed_to_and_pruned(
    kind: str, tmp_path: Path
) -> None:
    with open_kind(kind, tmp_path) as store:
        watch_while_it_changes(store, READS)
