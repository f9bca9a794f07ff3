"""The agent of the demo: a script for a model, three tools that change an outside world, and the loop that runs them.

    python -m backstay.cli.agent STORE WORLD [TOOL | approval]

The world is a file to which every tool, and the model, adds a line when it really does something: what happened can be
told from it without asking Backstay. With TOOL the process stands still inside that tool, after the deed and before it
can say so, and says "inside" on its output, so that it can be killed there. With `approval` it works on another ticket,
whose refund waits for a person.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backstay
from backstay.messages import repair_messages

if TYPE_CHECKING:
    from backstay.run import Run

SESSION, AGENT = "ticket-42", "support"
QUESTION = "My lamp (order 7) came broken. Refund?"
LARGE = "ticket-43"
LARGE_QUESTION = "My chandelier (order 8) came broken. Refund?"
REFUND_DAYS = 30

# As long as such things are. It is in every state, and stored once.
SYSTEM = "You are the support agent of a lamp shop. Be kind, be brief, follow the rules.\n" + "\n".join(
    f"Rule {n}. For orders of category {n}: ask for the order, look it up before you answer, refund in full within "
    f"{REFUND_DAYS} days of delivery, offer a voucher afterwards, and never promise what a tool has not confirmed."
    for n in range(1, 61)
)


class World:
    """The world outside: lines that stay when a process is killed."""

    def __init__(self, path: Path, *, stand_still_in: str | None = None) -> None:
        self.path = path
        self._stand_still_in = stand_still_in

    def deeds(self, what: str = "") -> list[str]:
        """The deeds that were really done."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [line for line in lines if line.startswith(what)]

    def do(self, what: str) -> None:
        """Do something that cannot be taken back."""
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{what}\n".encode())
        finally:
            os.close(file)
        if self._stand_still_in is not None and what.startswith(self._stand_still_in):
            sys.stdout.write("inside\n")
            sys.stdout.flush()
            sys.stdin.read()  # until this process is killed


def work(run: Run, world: World) -> None:
    """The loop, as anyone would write it: ask the model, make the calls it wants, until it wants none."""
    run.state.setdefault("system", SYSTEM)
    run.state.setdefault("messages", [{"role": "user", "content": run.input}])
    while run.state["messages"][-1]["role"] != "assistant":
        reply = run.call("model", lambda: ask(run.state["messages"], world), kind="llm")
        run.append(reply)
        run.use(tokens_in=len(str(run.state)) // 4, tokens_out=len(str(reply)) // 4)
        for wanted in reply.get("tool_calls", []):
            tool = partial(TOOLS[wanted["name"]], world, **wanted["args"])
            out = run.call(wanted["name"], tool, key=wanted["id"], args=wanted["args"])
            run.append({"role": "tool", "tool_call_id": wanted["id"], "content": out})
            run.state["last_tool"] = wanted["name"]
        run.step()


def work_with_approval(run: Run, world: World) -> None:
    """A ticket whose refund is large: it is made when a person has approved it, with the arguments approved."""
    run.state.setdefault("messages", [{"role": "user", "content": run.input}])
    args = {"order": 8, "euro": 490}
    run.call("model", lambda: world.do("model asked about order 8"), kind="llm", args={})
    try:
        out = run.call("refund", lambda args: refund_large(world, **args), args=args, approve=True)
    except backstay.CallFailedError as error:
        out = f"no refund: {error.text}"
    run.append({"role": "assistant", "content": out})


def refund_large(world: World, order: int, euro: int) -> str:
    """A tool that runs only once it was approved."""
    world.do(f"refund order {order}: {euro} EUR")
    return f"refund of {euro} EUR issued"


def ask(messages: list[dict[str, Any]], world: World) -> dict[str, Any]:
    """The model, as a script: its answer depends on the messages alone. Asking costs, and is noted by the world."""
    messages = repair_messages(messages)
    world.do(f"model asked with {len(messages)} messages")
    last = messages[-1]
    if last["role"] == "user":
        return _wants("look_up", order=7)
    if "delivered" in last["content"]:
        days = int(last["content"].split()[-3])
        return _wants("refund", order=7) if days <= REFUND_DAYS else _wants("voucher", order=7, euro=10)
    return {"role": "assistant", "content": f"Sorry! Done: {last['content']}."}


def _wants(tool: str, **args: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": f"{tool}-1", "name": tool, "args": args}]}


def look_up(world: World, order: int) -> str:
    """A tool that only reads; that it ran is noted all the same."""
    world.do(f"look_up order {order}")
    return "lamp, 49.90 EUR, delivered 12 days ago"


def refund(world: World, order: int) -> str:
    """A tool that must not run twice."""
    world.do(f"refund order {order}: 49.90 EUR")
    return "refund of 49.90 EUR issued"


def voucher(world: World, order: int, euro: int) -> str:
    """Another one."""
    world.do(f"voucher order {order}: {euro} EUR")
    return f"voucher of {euro}.00 EUR sent"


TOOLS: dict[str, Callable[..., str]] = {"look_up": look_up, "refund": refund, "voucher": voucher}


def main(store_file: str, world_file: str, stand_still_in: str | None = None) -> int:
    """Start the ticket, or go on with it: the same line. 3 if a call is in doubt and must be decided first."""
    if stand_still_in == "approval":
        world = World(Path(world_file))
        with backstay.open(Path(store_file)) as store, store.run(LARGE, agent=AGENT, input=LARGE_QUESTION) as run:
            work_with_approval(run, world)
        return 0
    world = World(Path(world_file), stand_still_in=stand_still_in)
    try:
        with backstay.open(Path(store_file)) as store, store.run(SESSION, agent=AGENT, input=QUESTION) as run:
            work(run, world)
    except backstay.InDoubtError:
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
