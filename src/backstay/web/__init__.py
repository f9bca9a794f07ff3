"""The page: `backstay web` serves a store to a browser on this computer. Here it is started and stopped.

Needs the extra `backstay[web]`. Pages are drawn on the server, work without JavaScript, and ask nothing of the network.
`door` decides who may come in, `site` leads a request to its page or action, `pages` has one module for each view.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from backstay.errors import InvalidInputError, UnavailableError
from backstay.hints import Hint
from backstay.web.demo import make as make_demo
from backstay.web.door import TOKEN_BYTES, Door
from backstay.web.html_file import html_file
from backstay.web.site import Site
from backstay.web.view import AboutStore

if TYPE_CHECKING:
    from pathlib import Path

    from backstay.face import Store

__all__ = ["html_file", "make_demo", "serve"]

LOOPBACK = "127.0.0.1"
_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MIN_TOKEN_CHARS = 16
_BACKENDS = {"sqlite": "SQLite", "postgres": "PostgreSQL", "files": "Files", "memory": "Memory"}
_STOP_S = 1


def serve(
    store: Store,
    name: str,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    token: str | None = None,
    read_only: bool = False,
    is_demo: bool = False,
    place: Path | None = None,
    on_ready: Callable[[str], object] = print,
    stop: threading.Event | None = None,
) -> None:
    """Serve a store until the process is interrupted, or `stop` is set.

    `place` is where its file or folder is, if it has one. `on_ready` is given the address that lets a browser in.
    """
    if token is not None and len(token) < _MIN_TOKEN_CHARS:
        message = f"a token has at least {_MIN_TOKEN_CHARS} characters, and this one has {len(token)}"
        raise InvalidInputError(message, hint="`openssl rand -hex 24` makes one")
    if not is_loopback(host) and token is None:
        hint = Hint("give token=", "give --token-file FILE, and put a proxy with TLS before it")
        raise InvalidInputError(f"{host} can be reached from other computers: that needs a token of yours", hint=hint)
    token = token or secrets.token_urlsafe(TOKEN_BYTES)
    sockets = _listen(host, port)
    port = sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    door = Door(token, port, _OWN_NAMES if is_loopback(host) else {*_OWN_NAMES, shown.lower()})
    about = AboutStore(
        name,
        _BACKENDS.get(store.backend.name, store.backend.name),
        read_only,
        store.backend.name == "postgres",
        is_demo,
        place,
    )
    site = Site(store, about, door)
    config = uvicorn.Config(
        site,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        http="h11",
        ws="none",
        timeout_graceful_shutdown=_STOP_S,
    )
    server = _Server(config, site, lambda: on_ready(f"http://{shown}:{port}/enter?token={token}"), stop)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve(sockets=sockets))


def is_loopback(host: str) -> bool:
    """True for a name that only this computer can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> list[socket.socket]:
    """A socket on the host; for 127.0.0.1 one on ::1 too, where there is one, so that `localhost` finds this."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        first = socket.create_server((host.strip("[]"), port), family=family, backlog=128)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        hint = Hint("port=0 takes a free one", "without --port it takes a free one")
        raise UnavailableError(f"port {port} of {host} is in use by another program", hint=hint) from error
    found = [first]
    if host == LOOPBACK and socket.has_ipv6:
        with contextlib.suppress(OSError):
            found.append(socket.create_server(("::1", first.getsockname()[1]), family=socket.AF_INET6))
    return found


class _Server(uvicorn.Server):
    """Says when it can be asked, and ends open streams when it stops."""

    def __init__(
        self, config: uvicorn.Config, site: Site, on_ready: Callable[[], object], stop: threading.Event | None
    ) -> None:
        super().__init__(config)
        self._site, self._on_ready, self._stop = site, on_ready, stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets=sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to stop."""
        return await super().on_tick(counter) or (self._stop is not None and self._stop.is_set())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the pages go, then stop."""
        self._site.close()
        await super().shutdown(sockets=sockets)
