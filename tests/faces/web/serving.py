"""A real server on a store, in a thread of this process or in one of its own; and a visitor with its cookie."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import backstay
from backstay.web import serve

TOKEN = "a-token-for-tests-only"
_PATIENCE_S = 60


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Visitor:
    """Asks a server, as a browser that was let in does."""

    def __init__(self, port: int, token: str = TOKEN) -> None:
        self.port = port
        self.origin = f"http://127.0.0.1:{port}"
        self.cookie = self.ask("GET", f"/enter?token={token}", cookie="").headers["set-cookie"].partition(";")[0]

    def ask(
        self, method: str, path: str, form: dict[str, str] | None = None, cookie: str | None = None, **headers: str
    ) -> Answer:
        """One request; headers given as `host=`, `sec_fetch_site=`; one that is empty is left out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        body = urlencode(form or {}).encode() if method == "POST" else b""
        sent = {"host": f"127.0.0.1:{self.port}", "cookie": self.cookie if cookie is None else cookie}
        if method == "POST":
            sent |= {"content-type": "application/x-www-form-urlencoded", "content-length": str(len(body))}
            sent |= {"origin": self.origin}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            found = connection.getresponse()
            text = found.read().decode("utf-8", "replace")
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, text)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, **form: str) -> Answer:
        return self.ask("POST", path, form)

    def notice(self, answer: Answer) -> str:
        """The page that a form leads to."""
        assert answer.status == 303, answer
        return self.get(answer.headers["location"].partition("#")[0]).text


@contextlib.contextmanager
def served(store: backstay.Store, **options: Any) -> Iterator[int]:
    """Serve a store in a thread; gives the port."""
    ready = threading.Event()
    address: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    def on_ready(url: str) -> None:
        loops.append(asyncio.get_running_loop())
        address.append(url)
        ready.set()

    stop = threading.Event()
    thread = threading.Thread(
        target=serve, args=(store, "agents.db"), kwargs={"token": TOKEN, "on_ready": on_ready, "stop": stop, **options}
    )
    thread.start()
    try:
        assert ready.wait(_PATIENCE_S), "the server did not start"
        yield urlsplit(address[0]).port or 0
    finally:
        stop.set()
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()


@contextlib.contextmanager
def process(store: Path, *options: str, folder: Path) -> Iterator[str]:
    """`backstay web` in a process of its own; gives the address that lets a browser in."""
    command = [sys.executable, "-m", "backstay", "web", "--store", str(store), "--no-browser", "--json", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BACKSTAY")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as running:
        try:
            assert running.stdout is not None
            yield json.loads(running.stdout.readline())["url"]
        finally:
            running.terminate()
            running.wait(_PATIENCE_S)
