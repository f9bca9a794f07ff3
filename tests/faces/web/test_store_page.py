"""The page of the store: doctor and the preview of a prune say what the commands say, and remove nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import backstay
from backstay.fitness import NOT_COVERED
from tests.faces.web.serving import Visitor, served


@pytest.fixture
def visitor(store: backstay.Store, file: Path) -> Iterator[Visitor]:
    with served(store, place=file) as port:
        yield Visitor(port)


Until = Callable[[Callable[[], bool]], None]


def test_doctor_says_what_was_tried_and_what_is_not_covered(visitor: Visitor, file: Path, until: Until) -> None:
    before = sorted(file.parent.iterdir())
    assert "Checking this machine" in visitor.notice(visitor.post("/store/do/doctor"))
    until(lambda: "Checked" in visitor.get("/store").text)
    page = visitor.get("/store").text
    for words in ("a checkpoint was written, read again and verified", "every page carries one", "11 sessions"):
        assert words in page
    assert all(check in page for check, _ in NOT_COVERED)
    assert "1 session: `backstay recover`" in page
    assert sorted(file.parent.iterdir()) == before


def test_a_preview_says_what_a_retention_would_remove_and_removes_nothing(
    visitor: Visitor, store: backstay.Store, until: Until
) -> None:
    wanted = store.prune(backstay.Retention(keep_last=2), dry_run=True)
    before = store.stats()
    assert "Nothing is removed" in visitor.notice(visitor.post("/store/do/preview", keep_last="2"))
    until(lambda: "would go" in visitor.get("/store").text)
    page = visitor.get("/store").text
    assert f"<b>{wanted.count} checkpoints</b> would go" in page
    assert "backstay prune --keep-last 2" in page
    assert all(f"/s/{name.replace('/', '%2F')}" in page for name in wanted.checkpoints)
    assert store.stats() == before
    visitor.post("/store/do/preview", keep_days="1000")
    until(lambda: "Nothing would go" in visitor.get("/store").text)


@pytest.mark.parametrize(
    ("given", "said"), [({}, "this retention has no rule"), ({"keep_last": "x"}, "&#39;x&#39; is not a number")]
)
def test_a_preview_without_a_rule_is_refused(visitor: Visitor, given: dict[str, str], said: str) -> None:
    page = visitor.notice(visitor.post("/store/do/preview", **given))
    assert "Nothing was done." in page
    assert said in page


def test_no_page_offers_to_remove_anything(visitor: Visitor, store: backstay.Store) -> None:
    for path in ("/store/do/prune", "/store/do/delete", "/s/fix-login-bug/do/delete", "/s/fix-login-bug/do/prune"):
        assert visitor.post(path).status == 404
    assert "fix-login-bug" in [info.id for info in store.sessions()]
