"""The page at its edges, in a real Chromium: hostile text, no JavaScript, no mouse, no network, narrow and dark.

    pytest -m exhaustive tests/faces/web

`BACKSTAY_PICTURES=1` writes the pictures that README and docs show; they are taken from the demo's store.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

import backstay
from tests.faces.web import hostile_text
from tests.faces.web.browsing import browser, needs_browser, reader
from tests.faces.web.serving import TOKEN, served
from tests.house.tree import ROOT

pytestmark = [needs_browser, pytest.mark.exhaustive]
SESSION = "/s/fix-login-bug"
VIEWS = {
    "sessions": "/",
    "session": SESSION,
    "timeline": f"{SESSION}/timeline",
    "calls": f"{SESSION}/calls",
    "compare": f"{SESSION}/compare",
    "checkpoint": f"{SESSION}/c/main~3",
    "state": f"{SESSION}/c/main?tab=state",
    "fields": f"{SESSION}/c/main?tab=fields",
    "restore": f"{SESSION}/c/before-edit?act=restore&branch=main",
    "edit": f"{SESSION}/c/main?act=fork&index=0",
    "difference": f"{SESSION}/d/try-cookie/try-token",
    "files": "/s/flaky-scheduler/c/main~2?tab=files",
    "file": "/s/flaky-scheduler/c/main~2?tab=files&path=app/queue.py",
    "files restore": "/s/flaky-scheduler/c/main~2?act=restore&branch=main",
    "wide": f"/s/{'w' * 200}",
    "wide conversation": f"/s/{'w' * 200}/c/main",
    "wide difference": f"/s/{'w' * 200}/d/main~3/main",
    "wide branches": f"/s/{'w' * 200}/compare",
    "session files": "/s/flaky-scheduler/files",
    "part of a timeline": f"{SESSION}/timeline?range=hour",
    "files difference": "/s/flaky-scheduler/d/main~4/main",
    "search": "/?q=clamp",
    "nothing": "/?q=refnud",
    "store": "/store",
}
PICTURES = {"sessions": 1400, "session": 1400, "checkpoint": 1400, "timeline": 1400, "difference": 1400}
_PICTURE_HEIGHT = 860


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def port(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("browsed")
    for each in made.parent.glob("demo.db*"):
        shutil.copy2(each, folder / each.name)
    with backstay.open(folder / "demo.db") as store, served(store, place=folder / "demo.db") as found:
        make_wide(store)
        yield found


def make_wide(store: backstay.Store) -> None:
    """A conversation as agents have them: a long prompt, arguments and results on one line, text that cannot break."""
    line = "# Policy of the airline\n\nThe current time is 2026-11-16 15:00:00 and " + "you follow these rules; " * 60
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"all": "' + "x" * 400 + '"}'}}
    asked: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [
        {"role": "system", "content": line},
        {"role": "user", "content": "W" * 300},
        asked,
        {"role": "tool", "tool_call_id": "c1", "content": '{"found": ["' + "y" * 3000 + '"]}'},
    ]
    session = store.session("w" * 200, agent="a" * 100, title="Wide " * 40)
    for end in range(1, len(messages) + 1):
        session.commit({"messages": messages[:end], "notes": "z" * 500 + "\n" * end}, step=end)
    for number in range(20):
        session.fork("main", f"branch-{number}-{'b' * 80}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 900, 390, 320])
def test_nothing_keeps_a_reader_out_and_nothing_runs_over_the_edge(
    opened: Browser, port: int, width: int, scheme: str
) -> None:
    with reader(opened, port, width=width, scheme=scheme, bypass_csp=True) as person:
        for name, path in VIEWS.items():
            page = person.go(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            if width in (1400, 390):
                found = Axe().run(page).response["violations"]
                told = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found]
                assert told == [], (name, width, scheme)


def test_every_view_and_every_form_works_without_javascript(opened: Browser, file: Path) -> None:
    with (
        backstay.open(file) as store,
        served(store) as port,
        reader(opened, port, java_script_enabled=False) as person,
    ):
        for path in VIEWS.values():
            assert person.go(path).locator("main").count() == 1
        session = store.session("fix-login-bug")
        page = person.go(SESSION)
        page.get_by_role("button", name="Skip").click()
        person.sees("The call is skipped")
        page = person.go(f"{SESSION}/c/before-edit?act=restore&branch=main")
        page.get_by_role("button", name="Restore").click()
        person.sees("Restored main to")
        page.locator("#notice").get_by_role("button", name="Undo").click()
        person.sees("Undone on main.")
        page = person.go(f"{SESSION}/c/main?act=tag")
        page.get_by_label("Name").fill("kept")
        page.get_by_role("button", name="Tag").click()
        person.sees("as kept.")
        page = person.go(f"{SESSION}/c/main?act=fork&index=0")
        page.get_by_role("button", name="Fork with this message").click()
        person.sees("Forked")
        page = person.go("/")
        page.locator(".need", has_text="ticket-8812").get_by_role("button", name="Approve", exact=True).click()
        person.sees("Approved.")
        page.locator(".need", has_text="onboarding-mail").get_by_label("Answer").fill("friendly")
        page.locator(".need", has_text="onboarding-mail").get_by_role("button", name="Answer").click()
        person.sees("Answered.")
        page = person.go("/store")
        page.get_by_role("button", name="Verify now").click()
        person.sees("Verifying: everything is read again.")
        assert "kept" in session.tags()


def test_a_person_without_a_mouse_reaches_and_uses_every_action(opened: Browser, file: Path) -> None:
    with backstay.open(file) as store, served(store) as port, reader(opened, port) as person:
        page = person.go(SESSION)
        _tab_to(page, "Skip")
        page.keyboard.press("Enter")
        person.sees("The call is skipped")
        page = person.go(f"{SESSION}/c/before-edit")
        _tab_to(page, "Restore main to this")
        page.keyboard.press("Enter")
        _tab_to(page, "Show what would change")
        page.keyboard.press("Enter")
        person.sees("The state changes in")
        _tab_to(page, "Restore")
        page.keyboard.press("Enter")
        person.sees("Restored main to")
        page = person.go("/")
        page.keyboard.press("/")
        page.keyboard.type("clamp")
        page.keyboard.press("Enter")
        person.sees("each at the first checkpoint that has it")


def _tab_to(page: Page, name: str) -> None:
    """Press Tab until the element of that name has the focus, and see that it shows."""
    for _ in range(400):
        page.keyboard.press("Tab")
        words = page.evaluate("document.activeElement.innerText || document.activeElement.value || ''")
        if words.split("\n")[0].strip() == name:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    pytest.fail(f"{name} is not reached")


def test_hostile_text_is_shown_and_does_nothing(opened: Browser, tmp_path: Path) -> None:
    with backstay.open(tmp_path / "hostile.db", durability="relaxed") as store:
        shown = hostile_text.make(store)
        with served(store) as port, reader(opened, port) as person:
            page = person.go("/")
            ids = [row["id"] for row in page.evaluate("fetch('/?format=json').then(answer => answer.json())")]
            assert len(ids) == 100
            person.sees(f"{len(hostile_text.TEXTS) + 1} sessions")
            for width in (1400, 900, 390):
                page.set_viewport_size({"width": width, "height": 900})
                for path in ("/", "/s/all", "/s/all/calls", "/s/all/c/main", "/s/all/compare"):
                    page = person.go(path)
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            page.set_viewport_size({"width": 1400, "height": 900})
            page = person.go("/")
            links = page.locator("a.ttl").evaluate_all("all => all.map(each => each.getAttribute('href'))")
            for link in links[:: max(1, len(links) // 40)]:
                page = person.go(link)
                assert page.locator("h1").count() == 1
            page = person.go("/s/all")
            assert page.locator("#rows .row").count() >= 150
            assert "\u202e" not in page.content()
            for view in (
                "timeline",
                "calls",
                "compare",
                "c/main",
                "c/main?tab=state",
                "c/main?tab=raw",
                "c/main?tab=calls",
            ):
                person.go(f"/s/all/{view}")
            page = person.go("/s/all/c/main?from=00")
            words = " ".join(page.locator("article").inner_text().split())
            for text in shown:
                assert " ".join(text.split()) in words, text


def test_a_seventh_tab_works_and_a_tab_behind_lets_go(opened: Browser, port: int) -> None:
    with reader(opened, port) as person:
        pages = [person.page]
        for _ in range(6):
            page = person.context.new_page()
            page.goto(person.at + "/")
            pages.append(page)
        pages[-1].get_by_role("link", name="Fix sign-out after 30 days").first.click()
        pages[-1].get_by_text("Cost by branch").wait_for()


def test_a_page_says_when_its_session_is_gone_and_when_its_process_is(opened: Browser, file: Path) -> None:
    with backstay.open(file) as store:
        context = opened.new_context()
        with served(store) as port:
            pages = [context.new_page(), context.new_page()]
            pages[0].goto(f"http://127.0.0.1:{port}/enter?token={TOKEN}")
            pages[1].goto(f"http://127.0.0.1:{port}/s/churn-2026-46")
            pages[1].locator("#live-word", has_text="live").wait_for()
            store.delete("churn-2026-46")
            pages[1].get_by_text("there is no session 'churn-2026-46'").wait_for()
        for page in pages:
            page.get_by_text("The page lost its process").wait_for()
            assert page.locator("#live-word").inner_text() == "lost"
        context.close()


def test_the_pictures_of_the_docs_are_taken_from_the_page(opened: Browser, made: Path, tmp_path: Path) -> None:
    folder = ROOT / "docs" / "pictures" if os.environ.get("BACKSTAY_PICTURES") == "1" else tmp_path
    folder.mkdir(exist_ok=True)
    with backstay.open(made) as store, served(store) as port:
        for name, width in PICTURES.items():
            with reader(opened, port, width=width) as person:
                person.go(VIEWS[name]).wait_for_timeout(300)
                person.page.screenshot(path=folder / f"{name}.png", clip=_clip(person.page, width))
    assert all((folder / f"{name}.png").stat().st_size < 300_000 for name in PICTURES)


def _clip(page: Page, width: int) -> Any:
    height = min(_PICTURE_HEIGHT, page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": width, "height": height})
    return {"x": 0, "y": 0, "width": width, "height": height}


def test_no_page_is_shown_to_a_browser_that_was_not_let_in(opened: Browser, port: int) -> None:
    context = opened.new_context()
    page = context.new_page()
    answer = page.goto(f"http://127.0.0.1:{port}/")
    assert answer is not None
    assert answer.status == 403
    page.goto(f"http://127.0.0.1:{port}/enter?token={TOKEN}")
    assert TOKEN not in page.url
    assert page.locator("h1").inner_text() == "Sessions"
    context.close()
