"""What other processes write is seen soon, on every backend, and nothing of it is missed."""

import asyncio
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import backstay
from backstay import aio
from backstay.errors import ClosedError, InvalidInputError
from backstay.model import SessionInfo
from tests.backends.conftest import Fresh

SOON_S = 30.0  # of a test that hangs; how soon is measured in `bench`
WRITER = """
import sys, backstay
with backstay.open(sys.argv[1]) as store:
    print("ready", flush=True)
    for line in sys.stdin:
        for word in line.split():
            store.session(word).commit({"by": "another process"}, expect=backstay.ANY)
        print("done", flush=True)
"""
KINDS = ["sqlite", "files", "postgres"]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        fresh: Fresh = request.getfixturevalue("fresh_schema")
        return f"{url}{'&' if '?' in url else '?'}schema={fresh()}"
    places = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'a.db'}", "files": f"file://{tmp_path / 'a'}"}
    return places[request.param]


@pytest.fixture
def write(url: str) -> Iterator[Callable[[str], None]]:
    """Another process, which writes to sessions when it is told their names, and has then done so."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    assert stdout.readline() == "ready\n"

    def write(names: str) -> None:
        stdin.write(f"{names}\n")
        stdin.flush()
        assert stdout.readline() == "done\n"

    yield write
    stdin.close()
    stdout.close()
    assert process.wait(SOON_S) == 0


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_what_another_process_writes_is_seen(url: str, write: Callable[[str], None]) -> None:
    with backstay.open(url) as store:
        store.session("old").commit({"n": 1})
        before = store.changes()
        every, one = store.watch(timeout_s=SOON_S), store.watch("b", timeout_s=SOON_S)
        write("a b")
        assert store.changes() != before
        assert [next(every).id, next(every).id] == ["a", "b"]
        first = next(one)
        assert (first.id, first.checkpoints, first.crashed) == ("b", 1, False)
        write("a b c")
        assert [next(every).id for _ in range(3)] == ["a", "b", "c"]
        assert next(one).checkpoints == 2
        store.session("old").commit({"n": 2})
        assert next(every).id == "old"


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_what_another_process_writes_is_seen_by_whoever_awaits(url: str, write: Callable[[str], None]) -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        async with aio.open(url) as store:
            before = await store.changes()
            watching = store.watch(timeout_s=SOON_S)
            first = asyncio.ensure_future(anext(watching))
            while not seen:  # the first step looks what is there already
                await asyncio.to_thread(write, "a")
                if first.done():
                    seen.append(first.result().id)
            assert await store.changes() != before
            await asyncio.to_thread(write, "b")
            while seen[-1] != "b":
                seen.append((await anext(watching)).id)
        return seen

    assert set(asyncio.run(main())) == {"a", "b"}


@pytest.mark.parametrize("url", ["memory", *KINDS], indirect=True)
def test_a_watch_ends_in_time_and_tells_of_nothing_that_was_there_before(url: str) -> None:
    with backstay.open(url) as store:
        store.session("a").commit({"n": 1})
        assert not list(store.watch(timeout_s=0))
        assert not list(store.watch("a", timeout_s=0.3))
        assert not list(store.watch("never", timeout_s=0))


def test_threads_of_one_process_see_each_other() -> None:
    with backstay.open("memory://") as store:
        watching = store.watch(timeout_s=SOON_S)
        store.session("a").commit({"n": 1})
        assert next(watching).id == "a"
        late: list[SessionInfo] = []
        thread = threading.Thread(target=lambda: late.append(next(watching)))
        thread.start()
        store.session("b").commit({"n": 1})
        thread.join(SOON_S)
        assert [info.id for info in late] == ["b"]


def test_of_many_sessions_none_is_missed() -> None:
    with backstay.open("memory://") as store:
        for number in range(450):
            store.session(f"old {number}").commit({"n": number})
        watching = store.watch(timeout_s=SOON_S)
        names = [f"old {number}" for number in range(450)] + [f"new {number}" for number in range(250)]
        for name in names:
            store.session(name).commit({"again": name}, expect=backstay.ANY)
        assert [next(watching).id for _ in names] == names


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_write_that_is_committed_after_a_later_one_is_seen(url: str, postgres_url: str) -> None:
    schema = url.rpartition("=")[2]
    with backstay.open(url) as store, psycopg.connect(postgres_url) as other:
        store.session("slow").commit({"n": 1})
        watching = store.watch(timeout_s=SOON_S)
        other.execute(  # a process that has been given its number and is not done
            f"UPDATE {schema}.sessions SET touched = nextval('{schema}.touches') WHERE id = 'slow'"
        )
        store.session("quick").commit({"n": 1})
        assert next(watching).id == "quick"
        other.commit()
        assert next(watching).id == "slow"


def test_a_watch_that_cannot_be_is_refused_at_once() -> None:
    store = backstay.open("memory://")
    for timeout_s in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidInputError, match="timeout_s"):
            store.watch(timeout_s=timeout_s)
    with pytest.raises(InvalidInputError, match="session"):
        store.watch("")
    watching = store.watch()
    store.close()
    with pytest.raises(ClosedError):
        next(watching)
    with pytest.raises(ClosedError):
        store.changes()
    with pytest.raises(ClosedError):
        store.watch()
