"""The page on every kind of store: the same views say the same, and the same forms do the same.

pytest -m exhaustive tests/faces/web/test_other_stores.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import backstay
from tests.faces.web.serving import Visitor, process, served
from tests.faces.web.test_pages import PATHS

pytestmark = pytest.mark.exhaustive
UNLIKE = ("/store",)  # sizes on disk


@pytest.fixture(scope="module")
def exported(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's sessions as an export."""
    file = tmp_path_factory.mktemp("export") / "all.backstay"
    with backstay.open(made) as store:
        store.export(file)
    return file


@pytest.fixture(params=["sqlite", "files", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, testrun_uid: str) -> Iterator[str]:
    """A store that was not used."""
    if request.param != "postgres":
        yield {"sqlite": f"sqlite:///{tmp_path}/other.db", "files": f"file://{tmp_path}/other"}[request.param]
        return
    psycopg = pytest.importorskip("psycopg", reason="the extra `postgres`")
    from tests.backends import server

    schema = f"web{os.getpid()}"
    with server.running(testrun_uid) as base:
        yield f"{base}{'&' if '?' in base else '?'}schema={schema}"
        with closing(psycopg.connect(base, autocommit=True)) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def told(visitor: Visitor) -> dict[str, Any]:
    """All views as JSON."""
    found = {}
    for path, shape in PATHS.items():
        if path not in UNLIKE:
            found[path] = visitor.get(f"{path}{'&' if '?' in path else '?'}format=json").json
            assert visitor.get(path).status == 200, path
        if shape == "session":  # an import touches them in an order of its own
            found[path] = sorted([{**row, "cursor": None} for row in found[path]], key=lambda row: str(row["id"]))
    return found


def test_every_view_and_every_form_is_the_same_on_every_kind_of_store(url: str, exported: Path) -> None:
    with backstay.open(exported) as store, served(store, read_only=True) as port:
        wanted = told(Visitor(port))
    with backstay.open(url) as store:
        store.import_(exported)
        with served(store) as port:
            visitor = Visitor(port)
            for path, seen in told(visitor).items():
                assert seen == wanted[path], path
            decide(visitor, store)
            go_back(visitor, store)


def decide(visitor: Visitor, store: backstay.Store) -> None:
    session = store.session("fix-login-bug")
    (doubt,) = [call for call in session.calls("main", pending=True) if call.status == "in_doubt"]
    done = visitor.post("/s/fix-login-bug/do/resolve", call=doubt.id, branch="main", decision="skip")
    assert "The call is skipped" in visitor.notice(done)
    (wait,) = store.session("ticket-8812").waiting()
    done = visitor.post("/s/ticket-8812/do/answer", wait=wait.id or "", branch="main", decision="approve")
    assert "Approved." in visitor.notice(done)


def go_back(visitor: Visitor, store: backstay.Store) -> None:
    session = store.session("fix-login-bug")
    head, target = session.checkpoint("main"), session.checkpoint("before-edit")
    done = visitor.post("/s/fix-login-bug/do/restore", branch="main", head=head.id, at=target.id)
    assert "Restored main to" in visitor.notice(done)
    assert session.checkpoint("main").state == target.state
    done = visitor.post("/s/fix-login-bug/do/undo", branch="main", head=session.checkpoint("main").id)
    assert "Undone on main." in visitor.notice(done)
    assert session.checkpoint("main").state == head.state
    done = visitor.post("/s/fix-login-bug/do/fork", at=target.id, branch="other", message="changed", index="0")
    assert "Forked: branch other is there." in visitor.notice(done)
    assert session.load("other")["messages"] == [{"role": "user", "content": "changed"}]
    done = visitor.post("/s/fix-login-bug/do/tag", at=target.id, name="kept")
    assert "as kept." in visitor.notice(done)


def test_an_export_is_shown_and_never_written_to(exported: Path, tmp_path: Path) -> None:
    before = exported.read_bytes()
    with process(exported, folder=tmp_path) as address:
        visitor = Visitor(int(address.split(":")[2].partition("/")[0]), address.partition("token=")[2])
        page = visitor.get("/").text
        assert "read-only" in page
        assert "<button" not in page
        assert visitor.post("/s/fix-login-bug/do/tag", at="main", name="x").status == 403
        assert "All 11" in page
    assert exported.read_bytes() == before
