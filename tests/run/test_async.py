"""Runs on an event loop: a task that is cancelled leaves what a kill leaves, and parallel tasks are independent."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import backstay
import backstay.aio
from tests.run.conftest import BACKENDS, url_of


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


def test_a_cancelled_call_is_in_doubt_and_its_lease_is_free_at_once(url: str) -> None:
    async def main() -> list[str]:
        done: list[str] = []
        inside = asyncio.Event()

        async def pay() -> None:
            done.append("paid")
            inside.set()
            await asyncio.sleep(60)

        async def loop() -> None:
            async with store.run("t") as run:
                await run.call("get", lambda: done.append("got"), args={})
                await run.call("pay", pay, args={})

        async with backstay.aio.open(url) as store:
            task = asyncio.create_task(loop())
            await inside.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert [info.id for info in await store.crashed()] == ["t"]
            async with store.run("t", on_doubt="skip") as run:
                assert [call.name for call in run.in_doubt] == ["pay"]
                await run.call("get", lambda: done.append("got twice"), args={})
                assert await run.call("pay", pay, args={}) is None
        return done

    assert asyncio.run(main()) == ["got", "paid"]


def test_tasks_cancelled_at_any_moment_repeat_nothing(url: str) -> None:
    async def main() -> list[str]:
        done: list[str] = []

        async def tool(key: str) -> str:
            await asyncio.sleep(0)
            done.append(key)
            await asyncio.sleep(0)
            return key

        def happened(call: backstay.Call) -> Any:
            if str(call.key) not in done:
                done.append(str(call.key))
            return call.key

        async def loop() -> list[str]:
            async with store.run("t", on_doubt=happened) as run:
                if "results" in run.state:  # cancelled after its last boundary
                    return list(run.state["results"])
                calls = [run.call("tool", lambda key=key: tool(key), key=key, args=key) for key in "abcdef"]
                results = await asyncio.gather(*calls)
                run.state["results"] = results
                await run.step()
            return list(results)

        async with backstay.aio.open(url) as store:
            for delay_ms in range(0, 24, 2):
                task = asyncio.create_task(loop())
                await asyncio.sleep(delay_ms / 4000)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    assert await task == list("abcdef")
                    break
            else:
                assert await loop() == list("abcdef")
            assert await store.session("t").load() == {"results": list("abcdef")}
        return done

    done = asyncio.run(main())
    assert sorted(done) == list("abcdef")
