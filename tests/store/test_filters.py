"""Sessions asked for by what is said of them, page by page; and where a text first came up."""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import backstay
import backstay.aio
from backstay import InvalidInputError, NotFoundError, Session, Status, Store
from tests.run.conftest import BACKENDS, url_of
from tests.run.crashes import Cut


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with backstay.open(url) as opened:
        yield opened


def names(store: Store, **options: Any) -> list[str]:
    return [str(info.id) for info in store.sessions(**options)]


# what is said of a session


def test_a_session_is_described_when_it_is_named_and_its_line_has_it(store: Store) -> None:
    session = store.session("chat", owner="ana", title="Refund of order 7", metadata={"tenant": "acme", "vip": True})
    assert list(store.sessions()) == []  # nothing is written yet
    session.commit({})
    (info,) = store.sessions()
    assert (info.owner, info.title, info.metadata) == ("ana", "Refund of order 7", {"tenant": "acme", "vip": True})
    with store.session("run", owner="bob").run():
        pass
    with store.session("edit", owner="eve").edit() as state:
        state["n"] = 1
    assert {info.id: info.owner for info in store.sessions()} == {"chat": "ana", "run": "bob", "edit": "eve"}


def test_naming_a_session_fills_what_it_does_not_say_and_changes_nothing_else(store: Store) -> None:
    store.session("chat", owner="ana").commit({})
    store.session("chat", owner="mallory", title="New chat").commit({})
    (info,) = store.sessions()
    assert (info.owner, info.title) == ("ana", "New chat")


def test_a_description_can_be_changed_and_taken_away_and_stays_through_commits(store: Store) -> None:
    session = store.session("chat", owner="ana", metadata={"a": 1})
    with pytest.raises(NotFoundError):
        session.describe(title="too soon")
    session.commit({})
    store.session("other").commit({})
    info = session.describe(title="Refund")
    assert (info.owner, info.title, info.metadata) == ("ana", "Refund", {"a": 1})
    assert names(store) == ["chat", "other"]  # it was touched
    session.describe(owner="bob", metadata={"b": (1, 2)})
    session.commit({"n": 1})
    session.fork("main", "b")
    with session.run():
        pass
    info = session.describe()
    assert (info.owner, info.title, info.metadata, info.checkpoints) == ("bob", "Refund", {"b": (1, 2)}, 3)
    info = session.describe(owner=None, title=None, metadata=None)
    assert (info.owner, info.title, info.metadata) == (None, None, {})
    assert store.verify().ok


@pytest.mark.parametrize(
    "wrong",
    [
        {"owner": ""},
        {"owner": 5},
        {"owner": "a" * 300},
        {"title": 5},
        {"title": "a" * 2000},
        {"title": "\ud800"},
        {"metadata": 5},
        {"metadata": {1: 2}},
        {"metadata": {"a": object()}},
        {"metadata": {"a": "x" * 20_000}},
    ],
    ids=["no owner", "number", "long owner", "title", "long title", "half", "no dict", "key", "object", "long"],
)
def test_a_description_that_cannot_be_is_refused(store: Store, wrong: dict[str, Any]) -> None:
    session = store.session("chat")
    session.commit({})
    with pytest.raises(InvalidInputError):
        session.describe(**wrong)
    with pytest.raises(InvalidInputError):
        store.session("new", **wrong)


def test_a_description_travels_with_its_session(store: Store, tmp_path: Path) -> None:
    store.session("chat", owner="ana", title="Refund", metadata={"a": 1}).commit({})
    store.export(tmp_path / "out.backstay")
    with backstay.open("memory://") as there:
        there.import_(tmp_path / "out.backstay")
        (info,) = there.sessions(owner="ana", metadata={"a": 1})
        assert info.title == "Refund"


# filters


@pytest.fixture
def many(store: Store) -> Store:
    for number in range(300):
        owner, tenant = f"owner-{number % 10}", f"tenant-{number % 3}"
        session = store.session(f"{number % 2}/{number}", agent=f"agent-{number % 4}", owner=owner)
        session.commit({}, status=Status.COMPLETED if number % 5 == 0 else None)
        session.describe(metadata={"tenant": tenant, "n": number})
    for number in (7, 107, 207):
        with contextlib.suppress(Cut), store.run(f"1/{number}"):
            raise Cut
    with store.run("1/9") as run:
        run.wait("approval")
    return store


def test_each_filter_and_all_of_them_together_give_what_they_say(many: Store) -> None:
    order = [*[f"1/{number}" for number in (9, 207, 107, 7)], *[f"{n % 2}/{n}" for n in range(299, -1, -1)]]
    order = list(dict.fromkeys(order))
    number = {id_: int(id_.split("/")[1]) for id_ in order}
    asked: list[tuple[dict[str, Any], Any]] = [
        ({}, lambda _: True),
        ({"owner": "owner-3"}, lambda n: n % 10 == 3),
        ({"owner": "nobody"}, lambda _: False),
        ({"prefix": "1/2"}, lambda n: n % 2 == 1 and str(n)[0] == "2"),
        ({"metadata": {"tenant": "tenant-1"}}, lambda n: n % 3 == 1),
        ({"metadata": {"tenant": "tenant-1", "n": 4}}, lambda n: n == 4),
        ({"metadata": {"n": True}}, lambda _: False),
        ({"metadata": {"other": None}}, lambda _: False),
        ({"agent": "agent-2", "owner": "owner-2"}, lambda n: n % 4 == 2 and n % 10 == 2),
        ({"status": "completed"}, lambda n: n % 5 == 0),
        ({"crashed": True}, lambda n: n in (7, 107, 207)),
        ({"crashed": True, "agent": "agent-3", "owner": "owner-7"}, lambda n: n in (7, 107, 207)),
        ({"crashed": True, "prefix": "0"}, lambda _: False),
        ({"crashed": False, "owner": "owner-7"}, lambda n: n % 10 == 7 and n not in (7, 107, 207)),
        ({"waiting": True}, lambda n: n == 9),
        ({"waiting": True, "crashed": True}, lambda _: False),
        ({"waiting": True, "crashed": False, "owner": "owner-9"}, lambda n: n == 9),
        ({"waiting": False, "owner": "owner-9"}, lambda n: n % 10 == 9 and n != 9),
        ({"waiting": False, "owner": "owner-1"}, lambda n: n % 10 == 1),
        ({"since": datetime.now(UTC) + timedelta(days=1)}, lambda _: False),
        ({"since": datetime.now(UTC) - timedelta(days=1), "owner": "owner-1"}, lambda n: n % 10 == 1),
    ]
    for options, fits in asked:
        expected = [id_ for id_ in order if fits(number[id_])]
        assert names(many, **options) == expected, options
        assert names(many, **options, limit=2) == expected[:2], options
        paged: list[str] = []
        before: int | None = None
        while page := list(many.sessions(**options, before=before, limit=7)):
            paged += [str(info.id) for info in page]
            before = page[-1].cursor
        assert paged == expected, options


def test_a_filter_of_the_wrong_kind_is_refused_by_the_call_itself(store: Store) -> None:
    wrong: list[dict[str, Any]] = [
        {"status": "finished"},
        {"owner": 5},
        {"prefix": 5},
        {"metadata": ["tenant"]},
        {"metadata": {"a": object()}},
        {"since": "yesterday"},
        {"since": datetime(2026, 1, 1)},
        {"before": "cursor"},
        {"limit": -1},
    ]
    for options in wrong:
        with pytest.raises(InvalidInputError):
            store.sessions(**options)


# search


@pytest.fixture
def told(store: Store) -> Session:
    session = store.session("ticket-42", agent="support")
    state: dict[str, Any] = {"messages": [{"role": "user", "content": "My kettle is broken, order 7"}]}
    session.commit(state)
    state["messages"].append({"role": "assistant", "content": "I will send a voucher. " + "And so on. " * 40})
    session.commit(state)
    state["note"] = {"by": ["Ana wrote VOUCHER here"]}
    session.commit(state)
    store.session("other", agent="sales").commit({"text": "a voucher, too"})
    return session


def test_a_text_is_found_where_it_first_came_up(store: Store, told: Session) -> None:
    first, second, third = reversed(list(told.log()))
    hits = list(store.search("voucher"))
    assert [(hit.session, hit.path) for hit in hits] == [
        ("other", ("text",)),
        ("ticket-42", ("messages", 1, "content")),
        ("ticket-42", ("note", "by", 0)),
    ]
    assert [hit.checkpoint for hit in hits[1:]] == [second, third]
    assert hits[1].excerpt.startswith("I will send a voucher. And so on.")
    assert hits[1].excerpt.endswith("…")
    assert len(hits[1].excerpt) < 200
    assert hits[2].excerpt == "Ana wrote VOUCHER here"
    (kettle,) = store.search("KETTLE")
    assert kettle.checkpoint == first
    assert kettle.checkpoint.state["messages"][0]["content"] == "My kettle is broken, order 7"


def test_a_search_can_be_narrowed(store: Store, told: Session) -> None:
    assert [hit.session for hit in store.search("voucher", session="other")] == ["other"]
    assert [hit.session for hit in store.search("voucher", agent="sales")] == ["other"]
    assert [hit.path for hit in store.search("VOUCHER", ignore_case=False)] == [("note", "by", 0)]
    assert len(list(store.search("voucher", limit=2))) == 2
    assert list(store.search("voucher", limit=0)) == []
    assert list(store.search("nobody said this")) == []
    refused: list[dict[str, Any]] = [{"text": ""}, {"text": 5}, {"text": "a", "limit": -1}]
    for wrong in refused:
        with pytest.raises(InvalidInputError):
            store.search(**wrong)
    with pytest.raises(NotFoundError):
        store.search("a", session="nope")


def test_all_of_it_can_be_awaited(url: str) -> None:
    async def main() -> None:
        async with backstay.aio.open(url) as store:
            session = store.session("chat", owner="ana", title="Refund", metadata={"a": 1})
            await session.commit({"text": "a voucher"})
            await store.session("other").commit({})
            assert [info.title async for info in store.sessions(owner="ana", metadata={"a": 1}, crashed=False)] == [
                "Refund"
            ]
            assert (await session.describe(owner="bob")).owner == "bob"
            assert [hit.session async for hit in store.search("voucher")] == ["chat"]
            with pytest.raises(InvalidInputError):
                await anext(store.search(""))

    asyncio.run(main())
