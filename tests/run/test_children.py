"""Children: a run inside a run, which is never made twice, waits for its parent, and counts in its usage once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import AlreadyExistsError, ChildEndedError, InvalidInputError, Status, aio
from tests.run.conftest import url_of
from tests.run.crashes import Cut, World, cut_off


@pytest.fixture
def world() -> World:
    return World()


def research(sub: backstay.Run, world: World) -> None:
    sub.use(tokens_in=10)
    sub.state["found"] = sub.call("search", world.do("searched"), args={})


def parent_of(run: backstay.Run, world: World, *, end: bool = True) -> None:
    with run.child("research", input={"about": "lamps"}) as sub:
        assert sub.input == {"about": "lamps"} or sub.resumed
        research(sub, world)
    run.state["got"] = sub.state["found"]
    if not end:
        raise Cut


def statuses(store: backstay.Store) -> dict[str, Status]:
    return {str(info.id): info.status for info in store.sessions()}


def test_a_child_is_a_session_of_its_own_linked_both_ways_and_its_usage_counts_once(
    store: backstay.Store, world: World
) -> None:
    with store.run("t", agent="support") as run:
        run.use(tokens_in=1)
        parent_of(run, world)
    assert statuses(store) == {"t": Status.COMPLETED, "t/research": Status.COMPLETED}
    session = store.session("t")
    assert [info.id for info in session.children()] == ["t/research"]
    assert (store.session("t/research").parent, session.parent) == ("t", None)
    assert store.session("t/research").load() == {"found": "searched"}
    assert session.load() == {"got": "searched"}
    head = session.head()
    assert head is not None
    assert head.total_usage.tokens_in == 11
    assert store.verify().ok


def test_a_child_that_ended_is_not_made_again_after_a_crash_of_its_parent(store: backstay.Store, world: World) -> None:
    for _ in range(2):
        with pytest.raises(Cut), store.run("t") as run:
            parent_of(run, world, end=False)
    with store.run("t") as run:
        parent_of(run, world)
    assert world.done == ["searched"]
    assert store.session("t").load() == {"got": "searched"}
    head = store.session("t").head()
    assert head is not None
    assert head.total_usage.tokens_in == 10
    assert len(list(store.session("t/research").log())) == 1


def test_a_child_that_ended_in_the_moment_in_which_its_parent_died_is_not_made_again(
    store: backstay.Store, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(backstay.Run, "_record_child", dies)  # the child has ended, and its parent has not said so
        with pytest.raises(Cut), store.run("t") as run:
            parent_of(run, world)
    assert statuses(store)["t/research"] is Status.COMPLETED
    with store.run("t") as run:
        parent_of(run, world)
    assert world.done == ["searched"]
    assert store.session("t").load() == {"got": "searched"}
    assert store.session("t").checkpoint().total_usage.tokens_in == 10
    assert len(list(store.session("t/research").log())) == 1


def test_a_child_that_is_called_again_counts_what_came_since(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:
        for turn in range(3):
            with run.child("research", input=turn) as sub:
                research(sub, world)
                sub.state["turn"] = turn
            run.state["turn"] = turn
            run.step()
    assert world.done == ["searched"] * 3
    assert store.session("t/research").checkpoint().total_usage.tokens_in == 30
    assert [point.total_usage.tokens_in for point in store.session("t").log()][::-1][:3] == [10, 20, 30]


def broken(run: backstay.Run, world: World) -> None:
    with run.child("research", input=1) as sub:
        sub.call("search", world.do("searched"), args={})
        raise OSError("no network")


def test_a_child_that_failed_begins_anew_when_it_is_called_again(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:
        with pytest.raises(ChildEndedError):
            broken(run, world)
        run.state["n"] = 1
        run.step()
        with run.child("research", input=2) as sub:
            assert (sub.input, sub.resumed) == (2, False)
            sub.state["found"] = sub.call("search", world.do("searched again"), args={})
    assert world.done == ["searched", "searched again"]
    assert store.session("t/research").load() == {"found": "searched again"}


def test_a_child_that_died_goes_on_where_it_was(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run, run.child("research", input="x") as sub:
        sub.call("search", world.do("searched"), args={})
        sub.state["n"] = 1
        sub.step()
        sub.call("read", world.do("read"), args={})
        raise Cut
    assert {str(info.id) for info in store.crashed()} == {"t", "t/research"}

    def again(run: backstay.Run) -> None:
        assert run.session.id == "t"  # roots only
        with run.child("research", input="x") as sub:
            assert (sub.resumed, sub.state) == (True, {"n": 1})
            sub.call("read", world.do("twice"), args={})

    assert backstay.recover(store, again).completed == ("t",)
    assert world.done == ["searched", "read"]
    assert set(statuses(store).values()) == {Status.COMPLETED}


def test_a_child_that_waits_lets_its_parent_wait_and_its_answer_wakes_the_root(
    store: backstay.Store, world: World
) -> None:
    def work(run: backstay.Run) -> None:
        assert run.session.id == "t"
        with run.child("research") as sub:
            sub.call("search", world.do("searched"), args={})
            sub.state["ok"] = sub.wait("ok")
        run.state["ok"] = sub.state["ok"]

    with store.run("t") as run:
        work(run)
    assert statuses(store) == {"t": Status.WAITING, "t/research": Status.WAITING}
    assert [(wait.session_id, wait.name) for wait in store.waiting()] == [("t/research", "ok")]
    assert backstay.recover(store, work).handled == 0
    store.session("t/research").answer("ok", "yes")
    assert backstay.recover(store, work).completed == ("t",)
    assert store.session("t").load() == {"ok": "yes"}
    assert world.done == ["searched"]
    assert set(statuses(store).values()) == {Status.COMPLETED}


@pytest.mark.parametrize("how", ["halt", "raise"])
def test_a_child_that_failed_or_halted_is_an_error_of_its_parent(store: backstay.Store, how: str) -> None:
    def work(run: backstay.Run) -> str:
        try:
            with run.child("research") as sub:
                if how == "halt":
                    sub.halt("enough")
                message = "no network"
                raise OSError(message)
        except ChildEndedError as error:
            return error.text
        return ""

    with cut_off(store) as run:
        first = work(run)
    with store.run("t") as run:
        assert work(run) == first == ("enough" if how == "halt" else "no network")
        run.state["n"] = 1
    assert statuses(store) == {"t": Status.COMPLETED, "t/research": Status.HALTED if how == "halt" else Status.FAILED}


def test_a_stop_reaches_the_children(store: backstay.Store) -> None:
    with store.run("t") as run, run.child("research") as sub:
        sub.wait("ok")
    store.session("t").cancel(reason="enough")
    assert statuses(store) == {"t": Status.CANCELLED, "t/research": Status.CANCELLED}
    with store.run("t", input="next") as run, run.child("research") as sub:
        store.session("t").cancel(reason="again")
        sub.call("never", lambda: pytest.fail("it was stopped"), args={})
    assert statuses(store) == {"t": Status.CANCELLED, "t/research": Status.CANCELLED}


def test_a_fork_of_the_parent_does_not_reuse_the_answers_of_the_child(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:
        parent_of(run, world)
        run.step()
        run.state["n"] = 1
    session = store.session("t")
    session.fork("main~1", "other")
    with session.run(branch="other") as run:
        with run.child("research", input="again") as sub:
            assert sub.state == {"found": "searched"}  # as it was at the fork
            sub.state["found"] = sub.call("search", world.do("searched again"), args={})
        run.state["got"] = sub.state["found"]
    assert world.done == ["searched", "searched again"]
    child = store.session("t/research")
    assert (child.load(), child.load("other")) == ({"found": "searched"}, {"found": "searched again"})


def test_a_session_that_is_no_child_is_not_taken_for_one(store: backstay.Store) -> None:
    store.session("t/research").commit({"n": 1})
    with pytest.raises(AlreadyExistsError, match="no child of 't'"), store.run("t") as run, run.child("research"):
        pass
    assert store.session("t").children() == []


def test_children_are_deleted_and_exported_with_their_parent(
    store: backstay.Store, world: World, tmp_path: Path
) -> None:
    with store.run("t") as run, run.child("research") as sub, sub.child("deeper") as deeper:
        deeper.state["n"] = 1
    store.export(tmp_path / "all.backstay", session="t")
    store.export(tmp_path / "one.backstay", session="t", children=False)
    store.delete("t")
    assert list(store.sessions()) == []
    store.import_(tmp_path / "all.backstay")
    assert set(statuses(store)) == {"t", "t/research", "t/research/deeper"}
    assert [info.id for info in store.session("t/research").children()] == ["t/research/deeper"]
    with backstay.open("memory://") as other:
        other.import_(tmp_path / "one.backstay")
        assert set(statuses(other)) == {"t"}
    assert world.done == []


def test_children_that_are_imported_under_another_name_stay_with_their_parent(
    store: backstay.Store, world: World, tmp_path: Path
) -> None:
    def work(run: backstay.Run) -> None:
        with run.child("research", input=1) as sub:
            with sub.child("deeper") as deeper:
                deeper.state["n"] = deeper.call("search", world.do("searched"), args={})
            sub.state["ok"] = sub.wait("ok")
        run.state["ok"] = sub.state["ok"]

    with store.run("t") as run:
        work(run)
    store.session("other").commit({"n": 1})
    file = tmp_path / "all.backstay"
    store.export(file)
    store.session("new/research").commit({"not": "a child"})
    family = ("new", "new/research", "new/research/deeper")
    with pytest.raises(AlreadyExistsError, match="new/research"):
        store.import_(file, rename={"t": "new", "other": "another"})
    store.delete("new/research")
    with pytest.raises(InvalidInputError, match="child of 't'"):
        store.import_(file, rename={"t/research": "new", "other": "another"})
    store.export(tmp_path / "t.backstay", session="t")
    assert store.import_(tmp_path / "t.backstay", rename="new").sessions == family
    store.session("t (2)/research").commit({"in": "the way"})
    renamed = dict(store.import_(file, on_exists="rename").renamed)
    assert renamed == {"other": "other (2)", "t": "t (3)", "t/research": "t (3)/research",
                       "t/research/deeper": "t (3)/research/deeper"}  # fmt: skip
    for id_ in ("new", "t (3)"):
        assert [info.id for info in store.session(id_).children()] == [f"{id_}/research"]
        assert store.session(f"{id_}/research/deeper").parent == f"{id_}/research"
        store.session(f"{id_}/research").answer("ok", id_)
        with store.run(id_) as run:
            work(run)
        assert store.session(id_).load() == {"ok": id_}
    assert world.done == ["searched"]  # by the one that was exported
    store.delete("new")
    assert not {info.id for info in store.sessions()} & set(family)
    store.export(tmp_path / "child.backstay", session="t/research")
    assert store.import_(tmp_path / "child.backstay", rename="alone").sessions == ("alone", "alone/deeper")
    assert store.session("alone").parent is None
    assert store.verify().ok


def test_the_same_awaited(tmp_path: Path) -> None:
    done: list[str] = []

    async def work(store: aio.AsyncStore) -> None:
        async with store.run("t") as run:
            async with run.child("research", input=1) as sub:
                await sub.call("search", lambda: done.append("searched"), args={})
                sub.state["ok"] = await sub.wait("ok")
            run.state["ok"] = sub.state["ok"]

    async def main() -> Any:
        async with aio.open(url_of("sqlite", tmp_path)) as store:
            await work(store)
            child = store.session("t/research")
            await child.answer("ok", "yes")
            await work(store)
            assert [info.id for info in await store.session("t").children()] == ["t/research"]
            assert await child.parent == "t"
            return await store.session("t").load()

    assert asyncio.run(main()) == {"ok": "yes"}
    assert done == ["searched"]
