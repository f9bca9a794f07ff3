"""An agent that dies: `python killed.py URL how`. It is killed where `how` says, and never says a last word."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import holdfast
from holdfast.adapters.openai_agents import HoldfastHooks, HoldfastSession
from tests.faces.adapters.scripted import agent, asks, cautious, says, turn


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    raise AssertionError


def note(what: str) -> None:
    """What a tool has done to the world."""
    with Path(sys.argv[3]).open("a") as world:
        world.write(what + "\n")


def keep(state: str) -> None:
    Path(sys.argv[3] + ".state").write_text(state)


def wait() -> None:
    """Until the tool beside this one is done, and that is on disk."""
    with holdfast.open(sys.argv[1]) as store:
        while not any(each.key == "c1" and each.status == "done" for each in store.session("t").calls(pending=True)):
            time.sleep(0.01)


def look(order: int) -> str:
    note(f"look {order}")
    return f"order {order} is paid"


async def pay(order: int) -> str:
    note(f"pay {order}")
    if "approved" not in sys.argv[2]:
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


async def approved(session: HoldfastSession, withheld: bool) -> None:
    """Killed inside a tool that had to be approved. What one needs to approve it again is left beside the world."""
    acting = cautious([asks(("c1", "look", {"order": 7}), ("c2", "pay", {"order": 7}))], look, pay, withheld=withheld)
    waiting = await turn(acting, "pay order 7", session=session, hooks=HoldfastHooks(session))
    state = waiting.to_state()
    keep(state.to_string())
    state.approve(waiting.interruptions[0])
    await turn(acting, state, session=session, hooks=HoldfastHooks(session))


def main() -> None:
    url, how = sys.argv[1:3]
    if "approved" in how:
        asyncio.run(approved(HoldfastSession("t", holdfast.open(url)), "withheld" in how))
    payment = "pay_slowly" if "sync" in how.split() else "pay"
    both = asks(("c1", "look", {"order": 7}), ("c2", payment, {"order": 7}))
    hooks = {"before": BeforeTools, "end": AtTheEnd}.get(how, HoldfastHooks)()
    first = [asks(("c0", "look", {"order": 6}))] if how == "later" else []
    steps = [says("bye")] if how == "end" else [*first, both]
    acting = agent(steps, look, pay, pay_slowly)
    session = HoldfastSession("t", holdfast.open(url))
    asyncio.run(turn(acting, "pay order 7", session=session, hooks=hooks, streamed="streamed" in how))


if __name__ == "__main__":
    main()
