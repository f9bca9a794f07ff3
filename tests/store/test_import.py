"""Import: everything there as it was, on every backend; verified before it can be seen; all of a file or nothing."""

import contextlib
import signal
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backstay
from backstay import AlreadyExistsError, InvalidInputError, NotFoundError, Session, Store
from backstay.backends.memory import MemoryBackend
from backstay.model import StateDict
from backstay.port import Ask, Decide, Kind, SessionQuery, View
from backstay.testing.author import next_turn
from backstay.testing.exact import exactly_equal
from backstay.testing.growth import CHANGES, Change, apply
from backstay.upkeep.copying import copy_session
from tests.store.children import start
from tests.store.travel import KINDS, about, ids_of, kept, live, open_kind


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sessions.backstay"


@pytest.fixture
def there() -> Store:
    return backstay.open("memory://")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """An export of two small sessions."""
    path = tmp_path / "small"
    with backstay.open("memory://") as store:
        session = store.session("s", agent="a")
        for turn in range(7):
            session.commit({"messages": [f"message {n}" for n in range(turn)]}, step=turn)
        store.session("t").commit({"n": 1})
        store.export(path)
    return path


def is_empty(store: Store) -> bool:
    hidden = list(store.backend.sessions(SessionQuery(hidden=True)))
    return not list(store.sessions()) and not store.stats().checkpoints and not hidden and store.verify().ok


# nothing is lost


@pytest.mark.parametrize("journey", [("memory", "sqlite", "files", "memory"), ("files", "sqlite", "sqlite", "files")])
def test_a_session_comes_through_every_kind_of_store_as_it_was(journey: tuple[str, ...], tmp_path: Path) -> None:
    stores = []
    for number, kind in enumerate(journey):
        folder = tmp_path / str(number)
        folder.mkdir()
        stores.append(open_kind(kind, folder))
    session = live(stores[0], turns=90)
    first, states = about(stores[0]), {id_: session.load(id_) for id_ in ids_of(stores[0])}
    for number, (here, there) in enumerate(pairwise(stores)):
        path = tmp_path / f"{number}.backstay"
        here.export(path)
        report = there.import_(path)
        assert (report.sessions, report.checkpoints) == (("ticket-42",), len(states))
        assert about(there) == first
        assert there.verify().ok
        for id_, state in states.items():
            assert exactly_equal(there.session("ticket-42").load(id_), state)
    ends = [store.session("ticket-42") for store in (stores[0], stores[-1])]
    undone = [end.undo().state for end in ends]
    assert exactly_equal(*undone)
    for end in ends:
        end.restore("good")
        assert end.commit({"goes": "on"}).sequence == first[0][-1].sequence + 3
        end.delete("main~40")
    for store in stores:
        assert store.verify().ok
        store.close()


ACTS = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 3), st.lists(CHANGES, min_size=1, max_size=2)),
    st.tuples(st.just("fork"), st.integers(0, 30), st.none()),
    st.tuples(st.just("restore"), st.integers(0, 3), st.integers(0, 30)),
    st.tuples(st.just("undo"), st.integers(0, 3), st.none()),
    st.tuples(st.just("delete"), st.integers(0, 30), st.none()),
    st.tuples(st.just("tag"), st.integers(0, 30), st.none()),
    st.tuples(st.just("forget"), st.integers(0, 3), st.none()),
)


def act(session: Session, what: str, first: int, second: Any) -> None:
    branches = sorted(session.branches())
    found: Any = session._backend.scan(session.id, Kind.CHECKPOINT, limit=10_000)
    ids = [row.id for row in found]
    if what == "fork" and len(branches) < 12:
        session.fork(ids[first % len(ids)], f"branch {len(ids)} {first}")
    elif what == "tag":
        session.tag(ids[first % len(ids)], f"tag {len(session.tags())}")
    elif what == "delete":
        session.delete(ids[first % len(ids)])
    elif branches:
        branch = branches[first % len(branches)]
        if what == "commit":
            state = session.load(branch)
            change: Change
            for change in second:
                apply(change, state)
            session.commit(state, branch=branch)
        elif what == "restore":
            session.restore(ids[second % len(ids)], branch=branch)
        elif what == "undo":
            session.undo(branch=branch)
        elif what == "forget" and len(branches) > 1:
            session.delete_branch(branch)


@given(st.lists(ACTS, min_size=1, max_size=40))
def test_any_history_arrives_as_it_was(tmp_path_factory: pytest.TempPathFactory, acts: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("any")
    with backstay.open("memory://") as here, backstay.open("memory://") as there:
        session = here.session("ticket-42")
        session.commit({"messages": []})
        for what, first, second in acts:
            with contextlib.suppress(InvalidInputError, NotFoundError, AlreadyExistsError):
                act(session, what, first, second)
        here.export(folder / "file")
        there.import_(folder / "file")
        assert str(about(there)) == str(about(here))  # as text, because a NaN is not itself
        assert there.verify().ok
        assert not list(there.backend.check())


# names that are taken


def test_a_session_that_is_here_is_refused_and_stays_as_it_is(store: Store, file: Path) -> None:
    session = live(store)
    store.export(file)
    session.commit({"more": "since"})
    before = about(store)
    with pytest.raises(AlreadyExistsError, match="ticket-42"):
        store.import_(file)
    assert about(store) == before


def test_a_session_that_is_here_can_be_skipped_or_get_another_name(store: Store, file: Path) -> None:
    live(store, "a")
    live(store, "b")
    store.export(file)
    store.delete("b")
    before = about(store, "a")
    report = store.import_(file, on_exists="skip")
    assert (report.sessions, report.skipped, dict(report.renamed)) == (("b",), ("a",), {})
    report = store.import_(file, on_exists="rename")
    assert dict(report.renamed) == {"a": "a (2)", "b": "b (2)"}
    report = store.import_(file, on_exists="rename")
    assert report.sessions == ("a (3)", "b (3)")
    assert "'a' is now 'a (3)'" in str(report)
    assert about(store, "a") == about(store, "a (3)") == before
    assert store.verify().ok


def test_a_name_of_the_longest_length_can_be_renamed(there: Store, file: Path) -> None:
    name = "x" * 256
    there.session(name).commit({"n": 1})
    there.export(file)
    (new,) = there.import_(file, on_exists="rename").sessions
    assert new == "x" * 252 + " (2)"


def test_a_new_name_does_not_take_that_of_another_in_the_file(there: Store, file: Path) -> None:
    for name in ("a", "a (2)"):
        there.session(name).commit({"is": name})
    there.export(file)
    there.delete("a (2)")
    report = there.import_(file, on_exists="rename")
    assert dict(report.renamed) == {"a": "a (3)"}
    assert there.session("a (2)").load() == {"is": "a (2)"}


def test_a_session_gets_the_name_that_is_asked_for(store: Store, there: Store, file: Path) -> None:
    live(store, "a")
    live(store, "b")
    store.export(file, session="a")
    assert there.import_(file, rename="mine").sessions == ("mine",)
    store.export(file, overwrite=True)
    assert there.import_(file, rename={"a": "b", "b": "a"}).sessions == ("b", "a")
    assert about(there, "b") == about(store, "a")
    assert about(there, "mine") == about(store, "a")


@pytest.mark.parametrize(
    "options",
    [
        {"rename": "one for two"},
        {"rename": {"nobody": "x"}},
        {"rename": {"a": "x", "b": "x"}},
        {"rename": {"a": "b"}},
        {"rename": {"a": ""}},
        {"rename": "a\0b"},
        {"on_exists": "overwrite"},
    ],
)
def test_a_wish_that_cannot_be_met_changes_nothing(there: Store, store: Store, file: Path, options: Any) -> None:
    live(store, "a")
    live(store, "b")
    store.export(file)
    with pytest.raises(InvalidInputError):
        there.import_(file, **options)
    assert is_empty(there)


def test_of_a_file_with_one_session_that_is_here_none_is_taken_in(store: Store, there: Store, file: Path) -> None:
    for name in ("a", "b", "c"):
        live(store, name)
    store.export(file)
    there.session("b").commit({"mine": True})
    with pytest.raises(AlreadyExistsError):
        there.import_(file)
    assert [info.id for info in there.sessions()] == ["b"]


def test_a_session_that_is_here_twice_can_be_used_and_deleted_apart(store: Store, there: Store, file: Path) -> None:
    live(store)
    store.export(file)
    for name in ("one", "two", "three"):
        there.import_(file, rename=name)
    states = {id_: there.session("one").load(id_) for id_ in ids_of(there, "one")}
    there.session("two").commit({"only": "here"})
    there.delete("one")
    there.delete("three")
    assert there.session("two").load() == {"only": "here"}
    for id_, state in states.items():
        assert exactly_equal(there.session("two").load(id_), state)
    assert there.verify().ok
    assert not there.backend.sessions(SessionQuery(hidden=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_within_a_store_costs_no_large_value_twice_and_goes_its_own_way(kind: str, tmp_path: Path) -> None:
    with open_kind(kind, tmp_path) as store:
        session = live(store)
        session.commit({"picture": b"p" * 100_000}, expect=backstay.ANY)
        before = about(store)
        copy_session(store.backend, "ticket-42", "copy")
        assert about(store, "copy") == before
        with pytest.raises(AlreadyExistsError):
            copy_session(store.backend, "ticket-42", "copy")
        with pytest.raises(NotFoundError):
            copy_session(store.backend, "nobody", "other")
        assert not store.backend.sessions(SessionQuery(hidden=True))
        store.delete("ticket-42")
        assert store.session("copy").load() == {"picture": b"p" * 100_000}
        assert store.verify().ok


# others who write meanwhile


class Watched(MemoryBackend):
    """A store in memory that says when it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.told: Callable[[], object] | None = None

    def write(self, ask: Ask, decide: Decide) -> View:
        view = super().write(ask, decide)
        if self.told is not None:
            self.told()
        return view


@pytest.fixture
def watched() -> Store:
    return Store(Watched())


def watch(store: Store, told: Callable[[], object]) -> None:
    backend = store.backend
    assert isinstance(backend, Watched)

    def tell() -> None:
        backend.told = None
        try:
            told()
        finally:
            backend.told = tell

    backend.told = tell


def test_a_name_taken_meanwhile_takes_back_what_had_come(store: Store, there: Store, file: Path) -> None:
    for name in ("a", "b"):
        live(store, name)
    store.export(file)

    def quicker(done: int, total: int | None) -> None:
        if done == total:
            there.session("b").commit({"quicker": True})

    with pytest.raises(AlreadyExistsError):
        there.import_(file, progress=quicker)
    assert [info.id for info in there.sessions()] == ["b"]
    assert there.stats().checkpoints == 1
    assert not there.backend.sessions(SessionQuery(hidden=True))
    assert there.import_(file, on_exists="skip").sessions == ("a",)


def test_what_somebody_has_gone_on_with_is_not_taken_back(store: Store, watched: Store, file: Path) -> None:
    for name in ("a", "b", "c"):
        live(store, name)
    store.export(file)

    def interfere() -> None:
        seen = {info.id for info in watched.sessions()}
        if seen == {"a"}:
            watched.session("a").commit({"gone": "on"}, expect=backstay.ANY)
        elif seen == {"a", "b"} and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    interrupted: list[bool] = []
    watch(watched, interfere)
    with pytest.raises(KeyboardInterrupt):
        watched.import_(file)
    assert [info.id for info in watched.sessions()] == ["a"]
    assert watched.session("a").load() == {"gone": "on"}


def test_nothing_of_a_file_is_seen_before_all_of_it_was_looked_at(store: Store, watched: Store, file: Path) -> None:
    for name in ("a", "b", "c"):
        live(store, name)
    store.export(file)
    seen: list[int] = []
    watch(watched, lambda: seen.append(len(list(watched.sessions()))))
    watched.import_(file, progress=lambda _done, _total: seen.append(-len(list(watched.sessions()))))
    assert [count for count in seen if count < 0] == []
    assert sorted(seen) == seen
    assert seen[-1] == 3


# kill, and how far


IMPORT = """
import sys, time, backstay
def tell(done, total):
    if done > 0.75 * total:
        print(done, flush=True)
        time.sleep(60)
backstay.open(sys.argv[1]).import_(sys.argv[2], progress=tell)
"""


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_kill_while_importing_leaves_nothing_to_be_seen(kind: str, tmp_path: Path, file: Path) -> None:
    url = f"sqlite:///{tmp_path}/there.db" if kind == "sqlite" else f"file://{tmp_path}/there"
    with backstay.open("memory://") as here:
        live(here, turns=600)
        here.export(file)
        backstay.open(url).close()
        child = start(IMPORT, url, file)
        assert child.stdout is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.communicate()
        with backstay.open(url) as there:
            assert not list(there.sessions())
            assert there.backend.sessions(SessionQuery(hidden=True))
            there.import_(file)
            assert not there.backend.sessions(SessionQuery(hidden=True))
            assert about(there) == about(here)
            assert there.verify().ok


def test_progress_goes_from_the_first_checkpoint_to_the_last(store: Store, there: Store, file: Path) -> None:
    live(store, "a", turns=200)
    live(store, "b")
    store.export(file)
    steps: list[tuple[int, int | None]] = []
    there.import_(file, progress=lambda done, total: steps.append((done, total)))
    total = len(kept(store, "a")) + len(kept(store, "b"))
    assert steps[-1] == (total, total)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_the_session_neither_on_the_way_out_nor_in(path: Path, file: Path, tmp_path: Path) -> None:
    out, into = [], []
    with backstay.open(path, durability="relaxed") as store:
        for turns in (300, 2_000):
            session = store.session(f"{turns}")
            state: StateDict = {}
            for turn in range(turns):
                state = next_turn(state, turn)
                session.commit(state)
            out.append(peak(lambda: store.export(file, session=f"{turns}", overwrite=True)))  # noqa: B023
            with backstay.open(tmp_path / f"{turns}.db") as there:
                into.append(peak(lambda: there.import_(file)))
    # A portion of some megabytes, and the digests of some thousand checkpoints that others may rest on.
    assert max(out + into) < 15_000_000


def test_a_closed_store_takes_nothing_in(small: Path, there: Store) -> None:
    there.close()
    with pytest.raises(backstay.ClosedError):
        there.import_(small)


async def _through_aio(url: str, file: Path) -> tuple[backstay.ImportReport, list[int]]:
    from backstay import aio

    done: list[int] = []
    async with aio.open(url) as store:
        report = await store.import_(file, progress=lambda now, _total: done.append(now))
        await store.export(file.with_suffix(".again"), progress=lambda now, _total: done.append(now))
    return report, done


def test_whoever_awaits_can_move_sessions_too(small: Path, there: Store) -> None:
    import asyncio

    report, done = asyncio.run(_through_aio("memory://", small))
    assert report.checkpoints == 8
    assert done[-1] == 8
    assert there.import_(small.with_suffix(".again")).checkpoints == 8


def test_a_report_says_what_came(small: Path, there: Store) -> None:
    assert str(there.import_(small)) == "2 sessions with 8 checkpoints imported"
    assert "'s' was here already" in str(there.import_(small, on_exists="skip"))
    assert len(kept(there, "s")) == 7
