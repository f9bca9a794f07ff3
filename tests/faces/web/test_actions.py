"""Forms: each does what it says, once, on what was shown; and nothing at all where that has moved."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import backstay
from tests.faces.web.serving import Visitor

SESSION = "/s/fix-login-bug"


def doubt(store: backstay.Store) -> str:
    (call,) = [call for call in store.session("fix-login-bug").calls(pending=True) if call.status == "in_doubt"]
    return call.id


def test_a_branch_that_has_moved_since_it_was_shown_is_left_alone(visitor: Visitor, store: backstay.Store) -> None:
    session = store.session("churn-2026-46")
    shown, target = session.checkpoint("main"), session.checkpoint("main~2")
    session.commit({"phase": "later"}, expect=backstay.ANY)
    for action in ("restore", "undo"):
        answer = visitor.post(f"/s/churn-2026-46/do/{action}", at=target.id, branch="main", head=shown.id)
        page = visitor.notice(answer)
        assert "Nothing was done." in page
        assert "has moved since this was shown" in page
    assert session.load("main") == {"phase": "later"}


def test_a_doubt_is_decided_once(visitor: Visitor, store: backstay.Store) -> None:
    call = doubt(store)
    done = visitor.post(f"{SESSION}/do/resolve", call=call, decision="result", result='{"pushed": true}')
    assert "recorded as done, with that result" in visitor.notice(done)
    again = visitor.post(f"{SESSION}/do/resolve", call=call, decision="skip")
    assert "Nothing was done." in visitor.notice(again)
    (decided,) = [each for each in store.session("fix-login-bug").calls(pending=True) if each.id == call]
    assert (decided.status, decided.result) == ("done", {"pushed": True})


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"decision": "done"}, "done"),
        ({"decision": "retry"}, "retry"),
        ({"decision": "skip"}, "skipped"),
        ({"decision": "failed", "reason": "the remote said no"}, "failed"),
    ],
)
def test_every_decision_about_a_doubt_is_recorded(
    visitor: Visitor, store: backstay.Store, form: dict[str, str], status: str
) -> None:
    call = doubt(store)
    visitor.notice(visitor.post(f"{SESSION}/do/resolve", call=call, **form))
    (decided,) = [each for each in store.session("fix-login-bug").calls(pending=True) if each.id == call]
    assert decided.status == status


def test_the_second_of_two_answers_is_told_of_the_first(visitor: Visitor, store: backstay.Store) -> None:
    (wait,) = store.session("ticket-8812").waiting()
    form = {"wait": wait.id or "", "branch": "main"}
    assert "Approved." in visitor.notice(visitor.post("/s/ticket-8812/do/answer", decision="approve", **form))
    page = visitor.notice(visitor.post("/s/ticket-8812/do/answer", decision="reject", reason="no", **form))
    assert "Nothing was done." in page
    assert store.session("ticket-8812").calls(pending=True)[-1].status == "done"


def test_a_question_is_answered_in_words_or_in_json(visitor: Visitor, store: backstay.Store) -> None:
    (wait,) = store.session("onboarding-mail").waiting()
    form = {"wait": wait.id or "", "branch": "main", "decision": "answer", "as_json": "1"}
    assert "this is not JSON" in visitor.notice(visitor.post("/s/onboarding-mail/do/answer", value="{", **form))
    visitor.notice(visitor.post("/s/onboarding-mail/do/answer", value=json.dumps({"tone": "friendly"}), **form))
    assert store.session("onboarding-mail").calls(pending=True)[-1].result == {"tone": "friendly"}


@pytest.mark.parametrize(
    "form",
    [
        {"branch": "main"},  # taken
        {"branch": ""},
        {"branch": "new", "index": "99", "message": "x"},
        {"branch": "new", "index": "-1", "message": "x"},
        {"branch": "new", "at": "nothing"},
    ],
)
def test_a_fork_that_cannot_be_made_leaves_no_branch(
    visitor: Visitor, store: backstay.Store, form: dict[str, str]
) -> None:
    before = store.session("fix-login-bug").branches().keys()
    page = visitor.notice(visitor.post(f"{SESSION}/do/fork", **{"at": "main", **form}))
    assert "Nothing was done." in page
    assert store.session("fix-login-bug").branches().keys() == before


def test_what_was_pending_can_be_given_up(visitor: Visitor, store: backstay.Store) -> None:
    visitor.notice(visitor.post(f"{SESSION}/do/abandon", branch="main", reason="by hand"))
    assert not store.crashed()


def test_verify_says_how_far_it_is_and_what_it_found(
    visitor: Visitor, until: Callable[[Callable[[], bool]], None]
) -> None:
    visitor.notice(visitor.post("/store/do/verify"))
    until(lambda: "checkpoints verified" in visitor.get("/store").text)
    assert "Store intact" in visitor.get("/").text


@pytest.mark.parametrize(
    "path", ["/s/fix-login-bug/do/delete", "/s/fix-login-bug/do/prune", "/do/tag", "/store/do/x", "/"]
)
def test_there_are_no_other_actions(visitor: Visitor, path: str) -> None:
    assert visitor.post(path).status == 404


@pytest.mark.parametrize("back", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"])
def test_a_form_leads_back_to_a_page_of_this_server_only(visitor: Visitor, back: str) -> None:
    answer = visitor.post(f"{SESSION}/do/tag", at="main", name="x", back=back)
    assert answer.headers["location"].startswith("/?note=")
