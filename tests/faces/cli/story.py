"""A store whose every id and time is known: three sessions, a fork, a restore, a crash with a call in doubt.

Examples and golden outputs are made from it, so that they read the same on every machine and every day.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import backstay

BEGIN = datetime(2025, 6, 2, 9, 0, 0, tzinfo=UTC)
NOW = BEGIN + timedelta(hours=3, minutes=20)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def passes(self, **amount: float) -> None:
        self.at += timedelta(**amount)

    def ns(self) -> int:
        return int(self.at.timestamp() * 1_000_000) * 1000


@contextlib.contextmanager
def fixed(at: datetime = BEGIN, seed: str = "") -> Iterator[Clock]:
    """Ids from a counter and a clock that stands: what is made inside is the same every time."""
    clock, numbers = Clock(at), itertools.count()

    def token_bytes(size: int = 32) -> bytes:
        return hashlib.sha256(f"{seed}{next(numbers)}".encode()).digest()[:size]

    def token_hex(size: int = 32) -> str:
        return token_bytes(size).hex()

    # Only where sessions, checkpoints and calls get their ids: what a backend draws for itself is its own affair.
    drawn = SimpleNamespace(token_bytes=token_bytes, token_hex=token_hex)
    with contextlib.ExitStack() as patched:
        patched.enter_context(mock.patch("backstay.store.planning.urandom", token_bytes))
        for module in ("run", "run.live_journal", "run.journal", "run.deciding", "run.wait_journal"):
            patched.enter_context(mock.patch(f"backstay.{module}.secrets", drawn))
        patched.enter_context(mock.patch.object(time, "time_ns", clock.ns))
        yield clock


def make(where: Path | str) -> None:
    """Write the store."""
    with fixed() as clock, backstay.open(where, durability="relaxed") as store:
        _nightly(store, clock)
        _ticket(store, clock)
        _crash(store, clock)


def _nightly(store: backstay.Store, clock: Clock) -> None:
    session = store.session("nightly report/06-01", agent="reports")
    session.commit({"phase": "collect", "rows": 1204}, step=1, usage=backstay.Usage(900, 120, 0.0051))
    clock.passes(minutes=4)
    session.commit(
        {"phase": "write", "rows": 1204, "files": ["a.csv", "b.csv"]},
        step=2,
        status=backstay.Status.FAILED("disk full"),
        usage=backstay.Usage(410, 60, 0.0022),
        metadata={"host": "worker-3"},
    )
    clock.passes(hours=1)


def _says(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _wants(name: str, **args: Any) -> dict[str, Any]:
    return _says("assistant", "", tool_calls=[{"id": f"{name}-1", "name": name, "args": args}])


def _work(run: backstay.Run, clock: Clock, answers: list[dict[str, Any]], results: dict[str, Any]) -> None:
    run.state.setdefault("messages", [_says("user", run.input)])
    for answer in answers:
        reply = run.call("model", partial(dict, answer), kind="llm")
        clock.passes(seconds=3)
        run.append(reply)
        run.use(tokens_in=420 + 40 * len(run.state["messages"]), tokens_out=35, cost=0.0021)
        for wanted in reply.get("tool_calls", []):
            name = wanted["name"]
            out = run.call(name, results[name], key=wanted["id"], args=wanted["args"])
            run.append(_says("tool", out, tool_call_id=wanted["id"]))
            run.state["last_tool"] = name
        clock.passes(seconds=2)
        run.step()


def _ticket(store: backstay.Store, clock: Clock) -> None:
    """Refunded on main, a voucher on what-if; main went back once and forward again."""
    question = "My lamp (order 7) came broken. Refund?"
    session = store.session("ticket-42", agent="support")
    session.commit({"messages": [_says("user", question)], "phase": "plan"}, label="asked", step=0)
    session.tag("main", "asked")
    clock.passes(minutes=1)
    looked = _wants("look_up", order=7)
    with session.run(input=question) as run:
        _work(
            run,
            clock,
            [looked, _wants("refund", order=7), _says("assistant", "Sorry! Done: refund of 49.90 EUR issued.")],
            {
                "look_up": lambda: "lamp, 49.90 EUR, delivered 12 days ago",
                "refund": lambda: "refund of 49.90 EUR issued",
            },
        )
    clock.passes(minutes=20)
    session.fork("main~3", "what-if")
    with session.run(branch="what-if") as run:
        run.state["messages"][-1]["content"] = "lamp, 49.90 EUR, delivered 45 days ago"
        _work(
            run,
            clock,
            [_wants("voucher", order=7, euro=10), _says("assistant", "Sorry! You have a voucher of 10.00 EUR.")],
            {"voucher": lambda: "voucher of 10.00 EUR sent"},
        )
    clock.passes(minutes=10)
    session.restore("asked")
    clock.passes(minutes=2)
    session.undo()
    clock.passes(minutes=5)


def _crash(store: backstay.Store, clock: Clock) -> None:
    """Killed inside a tool: the model's answer is kept, the refund is in doubt."""

    def cut_off() -> str:
        raise KeyboardInterrupt

    with (
        contextlib.suppress(KeyboardInterrupt),
        store.run("ticket-43", agent="support", input="Refund order 9, it never came.") as run,
    ):
        _work(
            run,
            clock,
            [_wants("look_up", order=9), _wants("refund", order=9, euro=20)],
            {"look_up": lambda: "kettle, 20.00 EUR, lost by the carrier", "refund": cut_off},
        )


def wait_too(where: Path | str) -> None:
    """A fourth session in it, left waiting: a refund is to be approved by a person."""
    with fixed(BEGIN + timedelta(hours=1), "wait") as clock, backstay.open(where, durability="relaxed") as store:
        _wait(store, clock)


def files_too(where: Path | str, folder: Path) -> None:
    """One more session in it, with the files of a folder: an agent edits one and adds another."""
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "main.py").write_text("print('hello')\n" * 20)
    with backstay.open(where) as store:
        session = store.session("fix-bug", workspace=backstay.Workspace(folder, exclude=["*.db*", "checkpoints"]))
        session.commit({"messages": [_says("user", "Fix the bug.")]}, step=1)
        (folder / "src" / "main.py").write_text("print('hello')\n" * 19 + "print('bye')\n")
        (folder / "notes.txt").write_text("fixed\n")
        session.commit({"messages": [_says("user", "Fix the bug."), _says("assistant", "Done.")]}, step=2)


def _wait(store: backstay.Store, clock: Clock) -> None:
    with store.run("ticket-44", agent="support", input="Refund order 9, all of it.") as run:
        run.append(_says("user", run.input))
        run.append(run.call("model", lambda: _wants("refund", order=9, euro=200), kind="llm"))
        clock.passes(seconds=2)
        run.step()
        run.call("refund", lambda: "never", args={"order": 9, "euro": 200}, approve=True)
    clock.passes(minutes=3)


def copy(made: Path, to: Path) -> None:
    """A closed store, as it is, in another place."""
    to.parent.mkdir(parents=True, exist_ok=True)
    for file in made.parent.glob(f"{made.name}*"):
        shutil.copy(file, to.with_name(to.name + file.name.removeprefix(made.name)))
