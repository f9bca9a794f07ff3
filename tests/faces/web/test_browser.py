"""The page as a person uses it, in a real Chromium: the stories that it is for, clicked through.

The default tier has one test, so that a run of all tests starts one browser.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import backstay
from backstay.cli import agent
from tests.faces.web.browsing import Reader, browser, needs_browser, reader
from tests.faces.web.serving import served

pytestmark = needs_browser
SESSION = "/s/fix-login-bug"
_PATIENCE_S = 60
COMMIT = """
import backstay, sys
session = backstay.open(sys.argv[1]).session("churn-2026-46")
session.load()
session.commit({"phase": "sent"}, summary="sent to all")
"""


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with browser() as launched:
        yield launched


def test_a_person_settles_goes_back_forks_and_compares(opened: Browser, file: Path, tmp_path: Path) -> None:
    with backstay.open(file) as store, served(store) as port, reader(opened, port) as person:
        a_crash_is_decided_and_the_agent_goes_on(person, file, tmp_path)
        an_approval_is_given_and_another_refused(person, store)
        a_restore_is_previewed_made_and_undone(person, store)
        a_message_is_changed_in_a_fork(person, store)
        two_branches_are_compared(person)
        a_commit_of_another_process_appears_where_it_belongs(person, file)


def a_crash_is_decided_and_the_agent_goes_on(person: Reader, file: Path, folder: Path) -> None:
    """Killed inside a tool; in doubt on the page; decided there; the effect happened once."""
    person.go("/")
    world = agent.World(folder / "world")
    command = [sys.executable, "-m", "backstay.cli.agent", str(file), str(world.path)]
    with subprocess.Popen([*command, "refund"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"inside\n"
        person.page.locator("#lines").get_by_text("ticket-42").first.wait_for()  # it is live, and on the page
        dying.kill()
    need = person.page.locator(".need", has_text="ticket-42")
    need.get_by_text("In doubt after a crash").wait_for()  # no reload: the page noticed by itself
    assert need.get_by_role("heading").inner_text() == "Did refund happen?"
    person.page.locator("#lines").get_by_text("ticket-42").first.click()
    person.page.get_by_text("It happened, with a result").click()
    person.page.get_by_label("Result, JSON").fill('"refund of 49.90 EUR issued"')
    person.page.get_by_role("button", name="Record this result").click()
    person.sees("The call is recorded as done, with that result.")
    assert subprocess.run(command, check=False, timeout=_PATIENCE_S).returncode == 0
    person.page.locator(".head .st", has_text="Completed").wait_for()
    assert len(world.deeds("refund")) == 1


def an_approval_is_given_and_another_refused(person: Reader, store: backstay.Store) -> None:
    person.go("/")
    need = person.page.locator(".need", has_text="ticket-8812")
    need.get_by_text("Edit, then approve").click()
    need.get_by_label("Arguments, JSON").fill('{"order": "A-20417", "amount": 100.0}')
    need.get_by_role("button", name="Approve with these").click()
    person.sees("Approved with these arguments.")
    assert person.page.locator(".need", has_text="ticket-8812").count() == 0
    (wait,) = [each for each in store.session("ticket-8812").calls(pending=True) if each.kind == "wait"]
    assert (wait.status, wait.edited) == ("done", {"order": "A-20417", "amount": 100.0})
    question = person.page.locator(".need", has_text="Shall the mail be formal or friendly?")
    question.get_by_role("button", name="Reject").click()
    person.sees("Rejected.")
    (call_,) = [each for each in store.session("onboarding-mail").calls(pending=True) if each.kind == "wait"]
    assert (call_.status, call_.by) == ("rejected", "the page")


def a_restore_is_previewed_made_and_undone(person: Reader, store: backstay.Store) -> None:
    session = store.session("fix-login-bug")
    person.go(f"{SESSION}/c/before-edit?act=restore&branch=main")
    person.sees("nothing is restored before")  # a call is in doubt
    person.go(SESSION)
    person.page.get_by_role("button", name="Skip").click()
    person.sees("The call is skipped")
    before, target = session.checkpoint("main"), session.checkpoint("before-edit")
    person.go(f"{SESSION}/c/before-edit")
    person.page.get_by_text("Restore main to this").click()
    person.page.get_by_role("button", name="Show what would change").click()
    person.sees("Leaves the head, stays in the history")
    assert session.checkpoint("main") == before, "a preview writes nothing"
    person.page.get_by_role("button", name="Restore").click()
    person.sees("Restored main to")
    assert session.checkpoint("main").state == target.state
    person.page.locator("#notice").get_by_role("button", name="Undo").click()
    person.sees("Undone on main.")
    assert session.checkpoint("main").state == before.state


def a_message_is_changed_in_a_fork(person: Reader, store: backstay.Store) -> None:
    person.go(f"{SESSION}/c/before-edit")
    person.page.get_by_label("Edit message 1 in a fork").click()
    person.page.locator("#edit-message").fill("People are signed out after 7 days.\nFind out why.")
    person.page.get_by_role("textbox", name="Branch").fill("seven/days ~ é")
    person.page.get_by_role("button", name="Fork with this message").click()
    person.sees("Forked: branch seven/days ~ é is there.")
    state = store.session("fix-login-bug").load("seven/days ~ é")
    assert state["messages"] == [{"role": "user", "content": "People are signed out after 7 days.\nFind out why."}]


def two_branches_are_compared(person: Reader) -> None:
    page = person.go(SESSION)
    page.locator(".row", has_text="try-cookie").hover()
    page.locator(".row", has_text="try-cookie").get_by_label("as A").check()
    page.locator(".row", has_text="try-token").get_by_label("as B").check()
    page.get_by_role("button", name="Show what differs").click()
    page.get_by_role("heading", name="try-cookie to try-token").wait_for()
    person.sees("not in A")
    person.goes_from_change_to_change()
    page = person.go(f"{SESSION}/compare")
    page.get_by_label("docs-only").uncheck()
    page.get_by_role("button", name="Compare").click()
    assert page.locator("tbody tr", has_text="docs-only").count() == 0
    assert page.locator("tbody tr", has_text="try-token").count() == 1


def a_commit_of_another_process_appears_where_it_belongs(person: Reader, file: Path) -> None:
    """Focus and scroll stay where they are; a half-written text stays too."""
    page = person.go("/s/churn-2026-46")
    page.locator("#live-word", has_text="live").wait_for()
    link = page.locator("#rows a.id").first
    link.focus()
    subprocess.run([sys.executable, "-c", COMMIT, str(file)], check=True, timeout=_PATIENCE_S)
    person.sees("sent to all")
    assert link.evaluate("element => document.activeElement.textContent") != ""
    assert page.evaluate("document.activeElement.className") == "id"
