"""What is left to the next run when one of the OpenAI Agents SDK with BackstayHooks is killed or interrupted."""

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
from tests.crash.ring.nursery import Nursery
from tests.house.test_docs import blocks
from tests.house.tree import ROOT

pytest.importorskip("agents", reason="the extra `openai-agents` is not installed")

from agents import RunState

from backstay.adapters.openai_agents import NOT_RUN, BackstayHooks, BackstaySession
from tests.faces.adapters.killed import look, meet, paste, work
from tests.faces.adapters.scripted import agent, cautious, heard, history, lines, says, turn

UNKNOWN = "Outcome unknown"
Kill = Callable[[str, str, Path], None]


def on(*kinds: str) -> pytest.MarkDecorator:
    """With the fixture `url` on stores of these kinds."""
    return pytest.mark.parametrize("new_url", kinds, indirect=True)


@pytest.fixture
def killed(nursery: Nursery) -> Kill:
    def kill(url: str, how: str, world: Path) -> None:
        born = nursery.run(work, url, how, world)
        assert born.ended == -9, born.trouble

    return kill


@pytest.fixture(scope="module")
def killed_once(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store whose run was killed inside a tool; to be copied."""
    folder = tmp_path_factory.mktemp("killed")
    assert nursery.run(work, f"{folder}/store.db", "async", folder / "world").ended == -9
    return folder


@pytest.fixture
def killed_store(killed_once: Path, tmp_path: Path) -> Iterator[backstay.Store]:
    shutil.copytree(killed_once, tmp_path / "copy")
    with backstay.open(f"{tmp_path}/copy/store.db") as opened:
        yield opened


@pytest.mark.parametrize(
    ("new_url", "how"),
    [
        ("sqlite", "async"), ("sqlite", "sync streamed"), ("files", "sync"), ("files", "async streamed"),
        ("postgres", "async streamed"),
    ],
    indirect=["new_url"],
)  # fmt: skip
def test_killed_inside_a_tool_the_next_run_has_what_was_paid_for_and_knows_what_is_unknown(
    killed: Kill, url: str, how: str, tmp_path: Path
) -> None:
    world = tmp_path / "world"
    killed(url, how, world)
    name = "pay_slowly" if "sync" in how.split() else "pay"
    with backstay.open(url) as store:
        assert [info.id for info in store.crashed()] == ["t"]
        session = BackstaySession("t", store)
        seen = lines(asyncio.run(session.get_items()))
        assert store.session("t").calls(pending=True), "looking at a conversation writes nothing"
        after = agent([says("I will check")])
        asyncio.run(turn(after, "go on", session=session, hooks=BackstayHooks(), streamed="streamed" in how))
        assert heard(after) == [*seen, "user: go on"]
        assert seen[:4] == ["user: pay order 7", "call c1 look", f"call c2 {name}", "out c1 order 7 is paid"]
        assert seen[4].startswith(f"out c2 {UNKNOWN}")
        assert len(seen) == 5
        assert lines(asyncio.run(session.get_items())) == [*heard(after), "assistant: I will check"]
        taken = [call for _, calls in history(store) for call in calls]
        assert set(taken[:3]) == {("model", None, "done"), ("look", "c1", "done"), (name, "c2", "unknown")}
        assert store.crashed() == []
        assert store.verify().ok
    assert sorted(world.read_text().splitlines()) == ["look 7", "pay 7"]


@pytest.mark.parametrize("how", ["before", "end", "later"])
def test_killed_elsewhere_nothing_that_was_paid_for_is_lost(killed: Kill, how: str, tmp_path: Path) -> None:
    url = f"{tmp_path}/store.db"
    killed(url, how, tmp_path / "world")
    with backstay.open(url) as store:
        seen = lines(asyncio.run(BackstaySession("t", store).get_items()))
    user, calls = "user: pay order 7", ["call c1 look", "call c2 pay"]
    if how == "before":
        assert seen == [user, *calls, f"out c1 {NOT_RUN}", f"out c2 {NOT_RUN}"]
    elif how == "end":
        assert seen == [user, "assistant: bye"]
    else:
        assert seen[:6] == [user, "call c0 look", "out c0 order 6 is paid", *calls, "out c1 order 7 is paid"]
        assert seen[6].startswith(f"out c2 {UNKNOWN}")


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        ({"result": "paid, receipt 9"}, "paid, receipt 9"),
        ({"failed": "card refused"}, "The call failed: decided: card refused"),
        ({"decision": "retry"}, NOT_RUN),
        ({"decision": "skip"}, UNKNOWN),
    ],
    ids=["result", "failed", "retry", "skip"],
)
def test_what_somebody_found_out_about_a_call_in_doubt_is_what_the_model_hears(
    decision: dict[str, Any], told: str, killed_store: backstay.Store
) -> None:
    session = killed_store.session("t")
    (doubtful,) = [call for call in session.calls(pending=True) if call.status == "in_doubt"]
    session.resolve(doubtful.id, **decision)
    after = agent([says("good")])
    asyncio.run(turn(after, "go on", session=BackstaySession("t", killed_store), hooks=BackstayHooks()))
    (line,) = [line for line in heard(after) if line.startswith("out c2")]
    assert line.removeprefix("out c2 ").startswith(told)
    assert killed_store.verify().ok


@pytest.mark.parametrize("first", ["add", "pop", "clear", "restore", "fork"])
def test_whatever_is_done_first_after_a_kill_nothing_paid_for_is_lost(first: str, killed_store: backstay.Store) -> None:
    async def story(session: BackstaySession) -> None:
        if first == "add":
            await session.add_items([{"role": "user", "content": "hm"}])
        elif first == "pop":
            assert lines([await session.pop_item()])[0].startswith(f"out c2 {UNKNOWN}")
        elif first == "clear":
            await session.clear_session()
            assert await session.get_items() == []
        elif first == "restore":
            await session.restore(await anext(session.log(limit=1)))
            assert lines(await session.get_items()) == ["user: pay order 7"]
        else:
            other = await session.fork("main", "what-if")
            assert lines(await other.get_items()) == ["user: pay order 7"]
            assert len(await session.get_items()) == 5

    asyncio.run(story(BackstaySession("t", killed_store)))
    if first in {"add", "pop", "clear", "restore"}:
        kept = [lines(each.state["messages"])[:4] for each in killed_store.session("t").log()]
        taken = [call for _, calls in history(killed_store) for call in calls]
        assert ("look", "c1", "done") in taken
        assert first in {"clear", "restore"} or kept[0][3] == "out c1 order 7 is paid"


def test_what_the_page_shows_works_by_paste(nursery: Nursery, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adapters.md").read_text("utf-8")
    shown = [body for info, _, body in blocks(page) if info == "python no-run openai-agents"]
    printed = [body for info, _, body in blocks(page) if info == "text openai-agents"]
    assert shown
    (tmp_path / "page.py").write_text("\n".join(shown), "utf-8")
    (out,) = nursery.do(paste, tmp_path / "page.py")
    assert re.sub(r"\s+", " ", out).strip() == re.sub(r"\s+", " ", "\n".join(printed)).strip()


@on("sqlite", "postgres")
@pytest.mark.parametrize("how", ["approved", "approved withheld"])
def test_killed_inside_an_approved_tool_its_outcome_is_unknown_and_it_is_not_run_again(
    killed: Kill, how: str, url: str, tmp_path: Path
) -> None:
    world = tmp_path / "world"
    killed(url, how, world)
    waiting = Path(f"{world}.state").read_text()
    paid: list[int] = []

    async def pay(order: int) -> str:
        paid.append(order)
        return "paid again"

    async def again(session: BackstaySession) -> None:
        acting = cautious([says("hm")], look, pay, withheld="withheld" in how)
        state = await RunState.from_string(acting, waiting)
        state.approve(state.get_interruptions()[0])
        async with BackstayHooks(session) as hooks:
            await turn(acting, state, session=session, hooks=hooks)

    with backstay.open(url) as store:
        session = BackstaySession("t", store)
        seen = lines(asyncio.run(session.get_items()))
        assert seen[:4] == ["user: pay order 7", "call c1 look", "call c2 pay", "out c1 order 7 is paid"]
        assert seen[4].startswith("out c2 Outcome unknown")
        for _ in range(2):
            with pytest.raises(Exception, match="was begun by a run before"):
                asyncio.run(again(session))
        after = agent([says("I will check")])
        asyncio.run(turn(after, "and?", session=session, hooks=BackstayHooks()))
        assert heard(after) == [*seen, "user: and?"]
        assert store.verify().ok
    assert paid == []


@on("sqlite", "files", "postgres")
def test_of_two_processes_one_is_told_before_it_pays_and_goes_on_when_the_other_is_killed(
    nursery: Nursery, url: str
) -> None:
    told, after = nursery.do(meet, url)
    assert told == ("LeaseHeldError", 0)
    assert after[:2] == ["user: one", "call c1 stay"]
    assert after[2].startswith(f"out c1 {UNKNOWN}")
    assert after[3:] == ["user: two"]


@on("sqlite", "postgres")
@pytest.mark.parametrize("how", ["async", "sync", "async streamed"])
def test_interrupted_inside_a_tool_the_paid_answer_is_there_and_the_lease_is_free(
    nursery: Nursery, url: str, how: str, tmp_path: Path
) -> None:
    born = nursery.run(work, url, f"interrupted {how}", tmp_path / "world")
    assert born.trouble.rstrip().endswith("KeyboardInterrupt")
    with backstay.open(url) as store:
        after = agent([says("I will check")])
        asyncio.run(turn(after, "and?", session=BackstaySession("t", store), hooks=BackstayHooks()))
        told = heard(after)
    assert told[:2] == ["user: pay order 7", "call c1 look"]
    assert told[3] == "out c1 order 7 is paid"
    assert told[4].startswith(f"out c2 {UNKNOWN}")
    assert told[5:] == ["user: and?"]
