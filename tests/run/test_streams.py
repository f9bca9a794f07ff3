"""Streams: chunks as they come, recorded whole at the end; what was cut off is kept, and never taken for the whole."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import InDoubtError, InvalidInputError, aio
from tests.run.conftest import url_of
from tests.run.crashes import World, cut_off


@pytest.fixture
def world() -> World:
    return World()


def words(world: World, *chunks: Any, breaks: Exception | None = None) -> Any:
    """A model that answers in chunks, and may break off."""

    def answer() -> Iterator[Any]:
        world.done.append("asked")
        yield from chunks
        if breaks is not None:
            raise breaks

    return answer


def test_chunks_are_live_recorded_whole_and_replayed_from_the_journal(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run:
        assert list(run.stream("model", words(world, "a", ("b", 1)), args={})) == ["a", ("b", 1)]
    with store.run("t") as run:
        assert run.replaying
        assert list(run.stream("model", words(world, "never"), args={})) == ["a", ("b", 1)]
        assert not run.replaying
        run.state["n"] = 1
    assert world.done == ["asked"]
    (call,) = store.session("t").calls()
    assert (call.status, call.result, call.partial) == ("done", ["a", ("b", 1)], None)


def test_a_stream_closed_early_is_kept_as_partial_and_asked_again(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run:
        for chunk in (stream := run.stream("model", words(world, "a", "b", "c"), args={})):
            if chunk == "b":
                break
        stream.close()  # type: ignore[attr-defined]
    (call,) = store.session("t").calls(pending=True)
    assert (call.status, call.partial, call.result) == ("cut_off", ["a", "b"], None)
    with store.run("t") as run:
        assert list(run.stream("model", words(world, "x", "y"), args={})) == ["x", "y"]
        run.state["n"] = 1
    assert world.done == ["asked", "asked"]
    (call,) = store.session("t").calls()
    assert (call.status, call.result, call.partial) == ("done", ["x", "y"], None)
    assert store.verify().ok


def test_what_was_cut_off_on_purpose_does_not_hold_up_a_boundary(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:
        stream = run.stream("model", words(world, "a", "b"), args={})
        assert next(stream) == "a"
        with pytest.raises(InvalidInputError, match="in flight"):
            run.step()
        stream.close()  # type: ignore[attr-defined]
        run.state["n"] = 1
        assert run.step() is not None
    (call,) = store.session("t").calls("main~1")
    assert (call.status, call.partial) == ("cut_off", ["a"])


def test_a_stream_that_breaks_off_raises_what_it_raised_and_keeps_what_had_come(
    store: backstay.Store, world: World
) -> None:
    with cut_off(store) as run:
        with pytest.raises(OSError, match="no network"):
            list(run.stream("model", words(world, "a", breaks=OSError("no network")), args={}))
        assert list(run.stream("model", words(world, "b"), args={})) == ["b"]
    (call,) = store.session("t").calls(pending=True)
    assert (call.status, call.result) == ("done", ["b"])


def test_a_tool_that_streams_and_is_cut_off_is_in_doubt(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run:
        stream = run.stream("tool", words(world, "a", "b"), kind="tool", args={})
        assert next(stream) == "a"
        stream.close()  # type: ignore[attr-defined]
    (call,) = store.session("t").calls(pending=True)
    assert (call.status, call.partial) == ("in_doubt", ["a"])
    with pytest.raises(InDoubtError), store.run("t") as run:
        list(run.stream("tool", words(world, "never"), kind="tool", args={}))


def test_calls_of_the_loop_between_chunks_do_not_belong_to_the_stream(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:
        for chunk in run.stream("model", words(world, "a", "b"), args={}):
            run.call("tool", world.do(chunk), key=chunk, args={})
        run.state["n"] = 1
    assert [(call.name, call.parent) for call in store.session("t").calls() if call.kind == "tool"] == [
        ("tool", None),
        ("tool", None),
    ]


def test_the_same_awaited(tmp_path: Path) -> None:
    asked: list[str] = []

    async def answer() -> AsyncIterator[str]:
        asked.append("asked")
        for word in ("a", "b"):
            await asyncio.sleep(0)
            yield word

    async def main() -> list[Any]:
        got: list[Any] = []
        async with aio.open(url_of("sqlite", tmp_path)) as store:
            for _ in range(2):
                async with store.run("t") as run:
                    got.append([chunk async for chunk in run.stream("model", answer, args={})])
                    run.pause("for now")
            async with store.run("u") as run:
                stream = run.stream("model", answer, args={})
                async for _ in stream:
                    break
                await stream.aclose()  # type: ignore[attr-defined]
                run.pause("for now")
            got.append([(call.status, call.partial) for call in await store.session("u").calls(pending=True)])
        return got

    assert asyncio.run(main()) == [["a", "b"], ["a", "b"], [("cut_off", ["a"])]]
    assert asked == ["asked", "asked"]
