"""Who comes in: another page, another name, another user of the machine, a guess. All against the real server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay
from tests.faces.cli import shell
from tests.faces.web.serving import TOKEN, Visitor, process, served

HOSTS = ["127.0.0.1:PORT", "localhost:PORT", "evil.example:PORT", ""]
ORIGINS = ["", "own", "http://evil.example"]
COOKIES = ["", "wrong", "right"]
METHODS = ["GET", "POST"]
CASES = list(itertools.product(HOSTS, ORIGINS, COOKIES, METHODS))


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    with backstay.open(tmp_path_factory.mktemp("door") / "s.db") as store:
        store.session("s").commit({"n": 1})
        with served(store) as port:
            yield Visitor(port)


def expected(host: str, origin: str, cookie: str, method: str) -> int:
    if not host:
        return 400  # no HTTP/1.1
    if host == "evil.example:PORT":
        return 421
    if origin == "http://evil.example" or (method == "POST" and origin != "own"):
        return 403
    if cookie != "right":
        return 403
    return 200 if method == "GET" else 303


def test_there_are_seventy_two_ways_to_ask_and_six_lead_in(visitor: Visitor) -> None:
    assert len(CASES) == 72
    came_in = 0
    for host, origin, cookie, method in CASES:
        name = host.replace("PORT", str(visitor.port))
        given = {"": "", "wrong": f"backstay-{visitor.port}=guess", "right": visitor.cookie}[cookie]
        own = f"http://{name}" if origin == "own" else origin
        path = "/" if method == "GET" else "/s/s/do/tag"
        form = {"at": "main", "name": f"t{came_in}"}
        answer = visitor.ask(method, path, form, cookie=given, host=name, origin=own)
        assert answer.status == expected(host, origin, cookie, method), (host, origin, cookie, method, answer)
        came_in += answer.status < 400
    assert came_in == 6  # two names; read with no origin or the own one, write with the own one


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_on_another_port_of_this_computer_can_neither_read_nor_write(visitor: Visitor, site: str) -> None:
    assert visitor.ask("GET", "/", sec_fetch_site=site).status == 403
    assert visitor.ask("POST", "/s/s/do/tag", {"at": "main", "name": "x"}, sec_fetch_site=site).status == 403
    assert visitor.ask("GET", f"/enter?token={TOKEN}", cookie="", sec_fetch_site=site).status == 403


@pytest.mark.parametrize(
    "origin", ["null", "http://127.0.0.1", "https://127.0.0.1:PORT", "http://127.0.0.1:PORT.evil.example"]
)
def test_an_origin_that_is_like_the_own_one_is_another(visitor: Visitor, origin: str) -> None:
    form = {"at": "main", "name": "x"}
    assert visitor.ask("POST", "/s/s/do/tag", form, origin=origin.replace("PORT", str(visitor.port))).status == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_there_are_no_other_ways_than_to_read_and_to_post(visitor: Visitor, method: str) -> None:
    answer = visitor.ask(method, "/")
    assert answer.status == 405
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_only_the_token_that_was_printed_opens(visitor: Visitor) -> None:
    for token in ("", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é", "%ff"):
        assert visitor.ask("GET", f"/enter?token={token.replace('é', '%C3%A9')}", cookie="").status == 403
    answer = visitor.ask("GET", f"/enter?token={TOKEN}", cookie="")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"backstay-{visitor.port}=")
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


@pytest.mark.parametrize("path", ["/", "/static/style.css", "/nope", "/live?x", "/s/s?format=json"])
def test_every_answer_forbids_what_no_page_needs(visitor: Visitor, path: str) -> None:
    for cookie in (visitor.cookie, ""):
        if path.startswith("/live") and cookie:
            continue  # goes on
        headers = visitor.ask("GET", path, cookie=cookie).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers


@pytest.mark.parametrize(
    "path", ["/static/../door.py", "/static/%2e%2e/door.py", "/static/VENDORED", "/static/", "/%ff"]
)
def test_no_file_comes_out_that_is_not_for_a_page(visitor: Visitor, path: str) -> None:
    assert visitor.get(path).status == 404


def test_a_page_for_a_shared_screen_changes_nothing(store: backstay.Store) -> None:
    with served(store, read_only=True) as port:
        visitor = Visitor(port)
        assert visitor.post("/s/fix-login-bug/do/tag", at="main", name="x").status == 403
        assert visitor.post("/store/do/verify").status == 403
        for path in ("/", "/s/fix-login-bug", "/s/fix-login-bug/c/main", "/store"):
            page = visitor.get(path)
            assert page.status == 200
            assert 'method="post"' not in page.text
    assert "x" not in store.session("fix-login-bug").tags()


def test_a_form_that_is_too_large_is_not_read(visitor: Visitor) -> None:
    assert visitor.ask("POST", "/s/s/do/tag", content_length=str(100 << 20)).status == 413


def test_others_than_this_computer_need_a_token_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / ".backstay").mkdir(mode=0o700)
    backstay.open(tmp_path / ".backstay" / "store.db").close()
    done = shell.run("web", "--host", "0.0.0.0", folder=tmp_path)
    assert done.code == 1
    assert "--token-file" in done.err
    (tmp_path / "token").write_text("x" * 40)
    (tmp_path / "token").chmod(0o644)
    done = shell.run("web", "--token-file", "token", folder=tmp_path)
    assert done.code == 1
    assert "chmod 600" in done.err
    (tmp_path / "token").write_text("short")
    (tmp_path / "token").chmod(0o600)
    assert "at least 16 characters" in shell.run("web", "--token-file", "token", folder=tmp_path).err


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [
        name for name in sys.modules if name.partition(".")[0] == "starlette" or name.startswith("backstay.web")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)  # as if it were not there
    done = shell.run("web", folder=tmp_path)
    assert done.code == 1
    assert "pip install 'backstay[web]'" in done.err
    assert len(done.err.splitlines()) == 1


def test_one_command_serves_until_it_is_stopped(file: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    os.chmod(tmp_path / "token", 0o600)  # noqa: PTH101
    with process(file, "--token-file", "token", folder=tmp_path) as address:
        assert address.endswith(f"/enter?token={TOKEN}")
        visitor = Visitor(int(address.split(":")[2].partition("/")[0]))
        assert "fix-login-bug" in visitor.get("/").text


def test_a_malformed_cookie_of_another_server_on_this_machine_locks_nobody_out(visitor: Visitor) -> None:
    for other in ('{"a": 1}', "x", "a=b c,d;=;;", 'theme="dark'):
        assert visitor.ask("GET", "/", cookie=f"{other}; {visitor.cookie}").status == 200


def test_the_demo_is_gone_when_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with process(tmp_path / "unused.db", "--demo", folder=tmp_path) as address:
        assert address.startswith("http://127.0.0.1:")
        assert len(list(tmp_path.glob("backstay-demo-*/demo.db"))) == 1
    assert list(tmp_path.iterdir()) == []
