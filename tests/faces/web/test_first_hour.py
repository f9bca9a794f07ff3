"""The first hour of a user: a port that is taken, ssh, a store that is moved, a session that is gone."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

import backstay
from backstay.cli import web as command
from backstay.web import serve
from tests.faces.web.serving import Visitor, served


def test_a_port_that_is_taken_is_named_with_the_way_out(store: backstay.Store) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(backstay.UnavailableError, match=f"port {port} of 127.0.0.1 is in use") as refused:
            serve(store, "agents.db", port=port)
    assert "without --port" in str(getattr(refused.value.hint, "shell", refused.value.hint))


@pytest.mark.parametrize(
    ("connection", "wanted"),
    [
        ("10.0.0.2 5555 10.0.0.1 22", "ssh -N -L 8080:127.0.0.1:8080 ann@10.0.0.1"),
        ("fe80::1 5555 fe80::2 2222", "ssh -N -L 8080:127.0.0.1:8080 -p 2222 ann@fe80::2"),
        ("", None),
        ("odd", None),
    ],
)
def test_over_ssh_the_command_says_how_the_page_is_reached(
    connection: str, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", connection)
    monkeypatch.setenv("USER", "ann")
    assert command.forward("http://127.0.0.1:8080/enter?token=x") == wanted
    assert command.forward("http://10.1.1.1:8080/enter?token=x") is None


def test_a_page_of_a_store_that_was_replaced_says_so_and_writes_nothing(store: backstay.Store, file: Path) -> None:
    with served(store, place=file) as port:
        visitor = Visitor(port)
        assert "moved or replaced" not in visitor.get("/").text
        aside = file.parent / "aside"
        aside.mkdir()
        for each in file.parent.glob("demo.db*"):
            each.rename(aside / each.name)
        with backstay.open(file) as other:
            other.session("new").commit({"n": 1})
        assert "The file of this store was moved or replaced." in visitor.get("/").text
        head = store.session("fix-login-bug").checkpoint("main").id
        page = visitor.notice(visitor.post("/s/fix-login-bug/do/tag", at=head, name="late"))
        assert "Nothing was done." in page
        assert "late" not in store.session("fix-login-bug").tags()
        for each in aside.iterdir():
            each.replace(file.parent / each.name)
        assert "moved or replaced" not in visitor.get("/").text


def test_a_session_that_was_deleted_in_another_window_is_told_as_gone(visitor: Visitor, store: backstay.Store) -> None:
    store.delete("churn-2026-46")
    gone = visitor.get("/s/churn-2026-46")
    assert gone.status == 404
    assert "there is no session" in gone.text
    assert "All sessions" in gone.text


def test_a_checkpoint_with_very_many_long_names_shows_a_few_of_them(visitor: Visitor, store: backstay.Store) -> None:
    session = store.session("n" * 256, title="T" * 200)
    made = session.commit({"messages": [{"role": "user", "content": "hello"}]})
    for number in range(40):
        session.fork(made, f"branch-{number}-{'b' * 200}")
    for path in ("", "/compare", "/c/main", "/d/main/main"):
        page = visitor.get(f"/s/{session.id}{path}")
        assert page.status == 200
        assert len(page.text) < 150_000
    assert "37 more names" in visitor.get(f"/s/{session.id}/c/main").text
