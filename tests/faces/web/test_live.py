"""News: a page hears of every write, by any process, however many other pages came and went meanwhile."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

import backstay
from backstay.web import news
from tests.faces.web.serving import Visitor, served


@contextmanager
def listening(visitor: Visitor) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=30)
    with closing(connection):
        connection.request("GET", "/live", headers={"cookie": visitor.cookie})
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert heard(answer) == "0"
        yield answer


def heard(answer: http.client.HTTPResponse) -> str:
    """The next event."""
    while True:
        line = answer.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("data: "):
            return line.removeprefix("data: ").strip()


def test_a_page_hears_of_a_write_after_others_have_gone(visitor: Visitor, store: backstay.Store) -> None:
    session = store.session("new")
    with listening(visitor) as answer:
        for number in range(5):
            with listening(visitor):
                pass  # a page that is closed at once
            with listening(visitor) as other:
                session.commit({"n": number}, expect=backstay.ANY)
                heard(other)
            heard(answer)


def test_a_stream_ends_by_itself_and_the_server_does_not_wait_for_those_that_listen(
    store: backstay.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(store) as port, listening(Visitor(port)):
        pass
    with served(store) as port:
        open_ = listening(Visitor(port))
        open_.__enter__()  # and never left: `served` fails if the server is not gone soon
    monkeypatch.setattr(news, "LONGEST_S", 0.3)
    with served(store) as port, listening(Visitor(port)) as answer:
        assert answer.read().replace(b": still here", b"").strip() == b""
