"""An agent that dies, as a child of a nursery: where `how` says, and without a last word."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

import holdfast
from holdfast.adapters.openai_agents import HoldfastHooks, HoldfastSession
from tests.crash.ring.nursery import Say
from tests.faces.adapters.scripted import agent, asks, says, turn

given: list[str] = []  # the store's URL and the file that is the world, once in the life of a child


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    raise AssertionError


def note(what: str) -> None:
    """What a tool has done to the world."""
    with Path(given[1]).open("a") as world:
        world.write(what + "\n")


def wait() -> None:
    """Until the tool beside this one is done, and that is on disk."""
    with holdfast.open(given[0]) as store:
        until = time.monotonic() + 30
        while not any(each.key == "c1" and each.status == "done" for each in store.session("t").calls(pending=True)):
            if time.monotonic() > until:
                os._exit(1)  # not with an error: the SDK would tell the model of it and go on
            time.sleep(0.01)


def look(order: int) -> str:
    note(f"look {order}")
    return f"order {order} is paid"


async def pay(order: int) -> str:
    note(f"pay {order}")
    await asyncio.to_thread(wait)
    die()


def pay_slowly(order: int) -> str:
    note(f"pay {order}")
    wait()
    die()


class BeforeTools(HoldfastHooks):
    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        die()


class AtTheEnd(HoldfastHooks):
    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        await super().on_agent_end(context, agent, output)
        die()


def work(say: Say, url: str, how: str, world: Path) -> None:
    """One turn, from its first word to the moment of death."""
    given[:] = url, str(world)
    payment = "pay_slowly" if "sync" in how.split() else "pay"
    both = asks(("c1", "look", {"order": 7}), ("c2", payment, {"order": 7}))
    hooks = {"before": BeforeTools, "end": AtTheEnd}.get(how, HoldfastHooks)()
    first = [asks(("c0", "look", {"order": 6}))] if how == "later" else []
    steps = [says("bye")] if how == "end" else [*first, both]
    acting = agent(steps, look, pay, pay_slowly)
    session = HoldfastSession("t", holdfast.open(url))
    asyncio.run(turn(acting, "pay order 7", session=session, hooks=hooks, streamed="streamed" in how))
