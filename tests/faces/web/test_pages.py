"""Every view is a URL, and says the same as the command line: asked without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import backstay
from backstay.port import Kind
from backstay.shapes import SHAPES
from tests.faces.cli.test_json import wrong
from tests.faces.web.serving import Visitor, served
from tests.store.rows import harm

SESSION = "/s/fix-login-bug"
PATHS = {
    "/": "session",
    "/?status=waiting": "session",
    "/?status=in_doubt": "session",
    "/?agent=coder": "session",
    "/?q=clamp": "found",
    SESSION: "logged",
    f"{SESSION}?branch=try-token": "logged",
    f"{SESSION}/timeline": "call",
    f"{SESSION}/timeline?range=hour": "call",
    f"{SESSION}/timeline?range=crash": "call",
    f"{SESSION}/calls": "call",
    f"{SESSION}/compare": "branch",
    f"{SESSION}/compare?b=main&b=docs-only": "branch",
    f"{SESSION}/c/main~3": "shown",
    f"{SESSION}/c/main?tab=state": "shown",
    f"{SESSION}/c/main?tab=calls": "shown",
    f"{SESSION}/c/main?tab=raw": "shown",
    f"{SESSION}/c/main?tab=fields": "shown",
    f"{SESSION}/c/before-edit?act=restore&branch=main": "shown",
    f"{SESSION}/c/main?act=fork&index=0": "shown",
    f"{SESSION}/d/before-edit/main": "diff",
    f"{SESSION}/d/main/main": "diff",
    "/s/fix-login-bug%2Freview": "logged",
    "/s/churn-2026-46/c/main": "shown",
    "/s/churn-2026-46/timeline": "call",
    f"{SESSION}/c/main?tab=files": "file",
    f"{SESSION}/files": "file",
    "/s/flaky-scheduler/files": "file",
    "/s/flaky-scheduler/files?branch=main": "file",
    "/s/flaky-scheduler/c/main~2?tab=files": "file",
    "/s/flaky-scheduler/c/main~2?tab=files&path=app/queue.py": "file",
    "/s/flaky-scheduler/c/main~2": "shown",
    "/s/flaky-scheduler/d/main~4/main": "diff",
    "/s/flaky-scheduler/d/main~4/main?path=app/queue.py": "diff",
    "/store": "stats",
}


@pytest.fixture(scope="module")
def visitor(made: Path) -> Iterator[Visitor]:
    """Of a server that all tests here share: they only look."""
    with backstay.open(made) as store, served(store) as port:
        yield Visitor(port)


class Balance(HTMLParser):
    """Finds elements that are not closed, ids that come twice, and style that the policy would refuse."""

    EMPTY = frozenset({"meta", "link", "input", "br", "img", "path", "rect", "circle", "polyline", "use", "col", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.wrong += [f"<{tag} {name}>" for name in names if name == "style" or name.startswith("on")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_whole_and_its_json_has_the_shape_of_the_command_line(path: str, visitor: Visitor) -> None:
    page = visitor.get(path)
    assert page.status == 200
    found = Balance()
    found.feed(page.text)
    assert (found.open, found.wrong) == ([], [])
    assert len(found.ids) == len(set(found.ids)), [each for each in found.ids if found.ids.count(each) > 1]
    assert len(page.text) < 150_000
    answer = visitor.get(f"{path}{'&' if '?' in path else '?'}format=json")
    assert answer.headers["content-type"] == "application/json"
    shape = PATHS[path]
    for each in answer.json if isinstance(answer.json, list) else [answer.json]:
        assert wrong(each, shape) == []
    assert shape in SHAPES


def test_every_link_of_every_page_leads_somewhere(visitor: Visitor) -> None:
    seen: set[str] = set()
    todo = ["/", SESSION, f"{SESSION}/timeline", f"{SESSION}/c/main", f"{SESSION}/compare", "/store"]
    while todo and len(seen) < 160:
        path = todo.pop(0).partition("#")[0].replace("&amp;", "&")
        if not path or path in seen or "/export" in path:
            continue
        seen.add(path)
        page = visitor.get(path)
        assert page.status in (200, 303), path
        if "format=json" not in path:
            todo += re.findall(r'href="(/[^"]*)"', page.text)
    assert len(seen) > 60


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/s/nothing", 404),
        (f"{SESSION}/c/nothing", 404),
        (f"{SESSION}/d/main/nothing", 404),
        (f"{SESSION}/nothing", 404),
        (f"{SESSION}/c/main?tab=nothing", 400),
        ("/s/flaky-scheduler/c/main?tab=files&path=nothing", 404),
        ("/s/flaky-scheduler/c/main?tab=files&raw=nothing", 404),
        ("/?status=nothing", 400),
        ("/?before=x", 400),
        ("/s/%00", 400),
        (f"{SESSION}/compare?b=nothing", 404),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(path: str, status: int, visitor: Visitor) -> None:
    page = visitor.get(path)
    assert page.status == status
    assert "Traceback" not in page.text
    assert "All sessions" in page.text


def test_what_needs_a_person_is_on_top(visitor: Visitor) -> None:
    page = visitor.get("/").text
    assert re.search(r"Did <code>git_push</code> happen\?", page)
    assert re.search(r"Approve <code>refund</code>\?", page)
    assert "Shall the mail be formal or friendly?" in page
    assert page.index("Needs you") < page.index("<table")


def test_a_session_can_be_taken_away_as_a_file(visitor: Visitor) -> None:
    answer = visitor.get(f"{SESSION}/export?as=html")
    assert answer.headers["content-disposition"] == 'attachment; filename="fix-login-bug.html"'
    assert "<script" not in answer.text
    assert "Both clamps are gone" in answer.text
    assert visitor.get(f"{SESSION}/export").headers["content-disposition"].endswith('"fix-login-bug.backstay"')


def test_a_page_of_a_hundred_sessions_leads_to_the_next(tmp_path_factory: pytest.TempPathFactory) -> None:
    with backstay.open(tmp_path_factory.mktemp("many") / "s.db", durability="relaxed") as store:
        for number in range(105):
            store.session(f"s-{number:03d}").commit({"n": number})
        with served(store) as port:
            visitor = Visitor(port)
            first = json.loads(visitor.get("/?format=json").text)
            older = re.search(r'href="(/\?before=\d+)">Older', visitor.get("/").text)
            assert older is not None
            rest = json.loads(visitor.get(older[1] + "&format=json").text)
    assert [each["id"] for each in first + rest] == [f"s-{number:03d}" for number in range(104, -1, -1)]


def test_a_page_stays_small_whatever_a_session_holds(tmp_path_factory: pytest.TempPathFactory) -> None:
    words = "many words that somebody said " * 700
    with backstay.open(tmp_path_factory.mktemp("large") / "s.db", durability="relaxed") as store:
        with store.run("s") as run:
            run.state["messages"] = []
            run.state["notes"] = {f"k{n}": [words[:900]] * 20 for n in range(300)}
            for step in range(70):
                run.append(
                    [{"role": "user", "content": words}, {"role": "assistant", "content": f"{step} {words}"}][step % 2]
                )
                for call in range(8):
                    run.call(f"tool {call}", lambda: words[:3000], key=f"{step}.{call}", args={"text": words[:3000]})
                run.step()
        session = store.session("s")
        session.fork("main~60", "other")
        session.commit({"messages": [{"role": "user", "content": f"{n} {words}"} for n in range(60)]}, branch="other")
        with served(store) as port:
            visitor = Visitor(port)
            for path in (
                "",
                "/timeline",
                "/calls",
                "/c/main",
                "/c/main?tab=state",
                "/c/main?tab=raw",
                "/c/main?tab=calls",
                "/d/main/other",
            ):
                page = visitor.get(f"/s/s{path}")
                assert page.status == 200
                assert len(page.text.encode()) < 160_000, path
            assert len(visitor.get("/s/s/c/main?full=69").text) > len(words)


def test_a_damaged_session_shows_what_is_intact_and_says_what_is_not(
    file: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    with backstay.open(file) as store:
        damaged = store.session("search-spike").checkpoint("main~2").sequence
    harm(file, "search-spike", Kind.CHECKPOINT, damaged, lambda body: bytes(len(body)))
    with backstay.open(file) as store, served(store) as port:
        visitor = Visitor(port)
        page = visitor.get("/s/search-spike")
        assert page.status == 200
        assert page.text.count('chip-bad">damaged') == 1
        assert len(re.findall(r'<li class="row[^"]*" id="c-', page.text)) == 4
        visitor.post("/store/do/verify")
        until(lambda: "Damage found" in visitor.get("/").text)
        assert "Damaged session" in visitor.get("/s/search-spike").text


def test_a_search_that_takes_long_says_how_far_it_came_and_goes_on(
    visitor: Visitor, store: backstay.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.web.pages.sessions._SEARCH_S", -1.0)
    newest = next(iter(store.sessions()))
    page = visitor.get("/?q=clamp").text
    assert f"{newest.id}</bdi> is long, and was searched in part" in page
    found = []
    for _ in range(store.stats().sessions):
        page = visitor.get(f"/?q=clamp&before={newest.cursor}").text
        found += re.findall(r'<ul class="hits">', page)
        rest = re.search(r"before=(\d+)\">Search older sessions", page)
        if rest is None:
            break
        newest = next(info for info in store.sessions() if str(info.cursor) == rest[1])
    else:
        pytest.fail("it goes on for ever")
