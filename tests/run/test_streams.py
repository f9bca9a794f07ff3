"""Streams: chunks as they come, recorded whole at the end; what was cut off is kept, and never taken for the whole."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

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


def test_what_had_come_is_kept_while_it_comes_and_never_taken_for_the_whole(
    store: backstay.Store, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.run.streaming.KEEP_S", 0.0)
    with store.run("t") as run:
        kinds: list[tuple[Literal["llm", "tool"], str]] = [("llm", "cut_off"), ("tool", "started")]
        for kind, meanwhile in kinds:
            stream = run.stream(kind, words(world, "a", "b", "c"), kind=kind, args={})
            assert [next(stream), next(stream)] == ["a", "b"]
            call = store.session("t").calls(pending=True)[-1]  # this, and no more, is what a kill would leave
            assert (call.status, call.partial, call.result, call.ended_at) == (meanwhile, ["a", "b"], None, None)
            assert list(stream) == ["c"]
            call = store.session("t").calls(pending=True)[-1]
            assert (call.status, call.partial, call.result) == ("done", None, ["a", "b", "c"])
        run.state["n"] = 1
    assert store.verify().ok


def test_a_kill_leaves_what_had_come_of_a_stream_and_the_model_is_asked_again(tmp_path: Path, world: World) -> None:
    url = url_of("sqlite", tmp_path)
    with subprocess.Popen([sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "came\n"
        process.kill()
    with backstay.open(url) as store:
        (call,) = store.session("t").calls(pending=True)
        assert (call.status, call.result, call.ended_at) == ("cut_off", None, None)
        assert call.partial == ["x" * 100_000]  # the chunk after it was too short, and came too soon
        with store.run("t") as run:
            assert not run.replaying
            assert list(run.stream("model", words(world, "whole"), args={})) == ["whole"]
        (call,) = store.session("t").calls()
        assert (call.status, call.result, call.partial) == ("done", ["whole"], None)


KILLED = """
import sys, time, backstay

def answer():
    yield "x" * 100_000
    yield "y"
    print("came", flush=True)
    time.sleep(60)

with backstay.open(sys.argv[1]) as store, store.run("t") as run:
    list(run.stream("model", answer, args={}))
"""


def test_a_long_stream_is_written_a_few_times_and_not_with_every_chunk(world: World) -> None:
    with backstay.open("memory://") as store, store.run("t") as run:
        before = store.changes()
        assert len(list(run.stream("model", words(world, *["x" * 1000] * 3000), args={}))) == 3000
        assert 2 < store.changes() - before < 40  # each but the last is a quarter longer than the one before


def test_a_stop_lets_a_stream_come_to_its_end(store: backstay.Store, world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("backstay.run.streaming.KEEP_S", 0.0)
    with store.run("t") as run:
        stream = run.stream("tool", words(world, "a", "b"), kind="tool", args={})
        assert next(stream) == "a"
        store.session("t").cancel(reason="enough")
        assert list(stream) == ["b"]
        run.call("never", world.do("never"), args={})
    assert world.done == ["asked"]
    assert next(iter(store.sessions())).status == "cancelled"
