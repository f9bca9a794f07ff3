"""Parallel tools: calls in flight side by side, each recorded by itself, and a limit on what a run may cost.

    python examples/parallel.py
    python examples/parallel.py --die  # killed when two of three have answered; run it again: one is asked

Parallel calls need a `key`: it tells a resumed run which recorded answer belongs to which call.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import backstay
from backstay import aio

CITIES = {"Oslo": 4, "Rome": 17, "Cairo": 24}


async def weather(city: str) -> int:
    """A tool that takes a while; each call of it is printed."""
    if "--die" in sys.argv and city == "Cairo":
        await asyncio.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.05)
    print("asked for", city)
    return CITIES[city]


async def work(run: aio.AsyncRun) -> None:
    """Ask for all cities at once. The task group waits for all of them before the step is recorded."""
    async with asyncio.TaskGroup() as group:
        tasks = {
            city: group.create_task(
                run.call("weather", lambda city=city: weather(city), key=city, args={"city": city}, on_doubt="retry")
            )
            for city in CITIES
        }
    run.state["degrees"] = {city: task.result() for city, task in tasks.items()}
    run.use(cost=0.01)
    await run.step()


async def main() -> None:
    """A weather report; the guard halts a run that costs more than a cent and a half."""
    guard = backstay.LoopGuard(max_cost=0.015)
    async with aio.open() as store, store.run("report", agent="weather", loops=guard) as run:
        await work(run)
    print(run.state["degrees"])


if __name__ == "__main__":
    asyncio.run(main())
