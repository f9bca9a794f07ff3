"""Agents that die, as children of a nursery: where `how` says, and without a last word. Those beside them live on."""

import asyncio
import contextlib
import io
import os
import runpy
import signal
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

import backstay
from backstay.adapters.openai_agents import BackstayHooks, BackstaySession
from tests.crash.ring.nursery import Say
from tests.faces.adapters.scripted import agent, asks, cautious, heard, says, turn

given: list[str] = []  # the store's URL, how to die, and the file that is the world: once in the life of a child


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    raise AssertionError


def note(what: str) -> None:
    """What a tool has done to the world."""
    with Path(given[2]).open("a") as world:
        world.write(what + "\n")


def keep(state: str) -> None:
    Path(given[2] + ".state").write_text(state)


def wait() -> None:
    """Until the tool beside this one is done, and that is on disk."""
    with backstay.open(given[0]) as store:
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
    if "approved" not in given[1]:
        await asyncio.to_thread(wait)
    if "interrupted" not in given[1]:
        die()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(30)
    return "not interrupted"


def pay_slowly(order: int) -> str:
    note(f"pay {order}")
    wait()
    if "interrupted" not in given[1]:
        die()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)  # a thread cannot be stopped: it comes to its end, and nobody hears
    return "not interrupted"


class BeforeTools(BackstayHooks):
    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        die()


class AtTheEnd(BackstayHooks):
    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        await super().on_agent_end(context, agent, output)
        die()


async def approved(session: BackstaySession, withheld: bool) -> None:
    """Killed inside a tool that had to be approved. What one needs to approve it again is left beside the world."""
    acting = cautious([asks(("c1", "look", {"order": 7}), ("c2", "pay", {"order": 7}))], look, pay, withheld=withheld)
    waiting = await turn(acting, "pay order 7", session=session, hooks=BackstayHooks(session))
    state = waiting.to_state()
    keep(state.to_string())
    state.approve(waiting.interruptions[0])
    await turn(acting, state, session=session, hooks=BackstayHooks(session))


def work(say: Say, url: str, how: str, world: Path) -> None:
    """One turn, from its first word to the moment of death."""
    given[:] = url, how, str(world)
    session = BackstaySession("t", backstay.open(url))
    if "approved" in how:
        asyncio.run(approved(session, "withheld" in how))
    payment = "pay_slowly" if "sync" in how.split() else "pay"
    both = asks(("c1", "look", {"order": 7}), ("c2", payment, {"order": 7}))
    hooks = {"before": BeforeTools, "end": AtTheEnd}.get(how, BackstayHooks)()
    first = [asks(("c0", "look", {"order": 6}))] if how == "later" else []
    steps = [says("bye")] if how == "end" else [*first, both]
    acting = agent(steps, look, pay, pay_slowly)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(turn(acting, "pay order 7", session=session, hooks=hooks, streamed="streamed" in how))


def meet(say: Say, url: str) -> None:
    """Two processes run one session: this one says what it is told while the other lives, and after it was killed."""
    inside, tell = os.pipe()

    async def stay() -> str:
        os.write(tell, b"!")
        await asyncio.sleep(60)
        return ""

    other = os.fork()
    if other == 0:
        acting = agent([asks(("c1", "stay", {}))], stay)
        asyncio.run(turn(acting, "one", session=BackstaySession("t", backstay.open(url)), hooks=BackstayHooks()))
        os._exit(1)
    os.read(inside, 1)
    with backstay.open(url) as store:
        second = agent([says("me")])

        async def attempt() -> None:
            await turn(second, "two", session=BackstaySession("t", store), hooks=BackstayHooks())

        try:
            asyncio.run(attempt())
        except backstay.BackstayError as error:
            say((type(error).__name__, len(second.model.calls)))
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
        asyncio.run(attempt())
        say(heard(second))


def add_at_once(say: Say, url: str) -> None:
    """Forks three writers, so that none still imports the SDK while another is done."""

    async def write(who: int) -> None:
        with backstay.open(url) as store:
            session = BackstaySession("t", store)
            for number in range(10):
                await session.add_items([{"role": "user", "content": f"{who}-{number}"}])

    pids = []
    for who in range(3):
        pids.append(os.fork())
        if pids[-1] == 0:
            asyncio.run(write(who))
            os._exit(0)
    for pid in pids:
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def paste(say: Say, script: Path) -> None:
    """What a script prints, if it comes to its end without a warning."""
    os.chdir(script.parent)
    warnings.simplefilter("error")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(script), run_name="__main__")
    say(printed.getvalue())
