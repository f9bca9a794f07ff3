"""A small TCP proxy between a store and its server, which cuts, stalls and resets connections at chosen moments.

It reads along as far as it must: messages of the client are counted by what they ask for, so that a cut can fall before
a statement reaches the server, after the server has carried it out but before its answer is back, or in between.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Literal, Self

import psycopg.conninfo

Moment = Literal["before", "during", "after"]
_KEY_DATA = b"K\0\0\0\x0c"  # begins the message that tells number and key of the server's process
_RESET = struct.pack("ii", 1, 0)  # closing sends RST at once


class Proxy:
    """Listens on a port of its own; `url` leads through it. Use as a context manager."""

    def __init__(self, url: str) -> None:
        known = psycopg.conninfo.conninfo_to_dict(url)
        self._host, self._port = str(known.get("host") or "localhost"), int(known.get("port") or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = psycopg.conninfo.make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable")
        self._plan: tuple[bytes, Moment, int] | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.down = False
        self.cuts = 0
        self.delay_s = 0.0
        self.greets = False  # with a process number of its own, as a pooler does

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut_all()

    def cut(self, word: bytes, moment: Moment, times: int = 1) -> None:
        """Cut the connection around the next statements that hold a word."""
        with self._lock:
            self._plan = (word, moment, times)

    def cut_all(self) -> None:
        """Reset every connection there is."""
        for each in list(self._open):
            _reset(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                _reset(client)
                continue
            try:
                server = self._connect()
            except OSError:
                _reset(client)
                continue
            self._open |= {client, server}
            link = _Link(self, client, server)
            threading.Thread(target=link.up, daemon=True).start()
            threading.Thread(target=link.down, daemon=True).start()

    def _connect(self) -> socket.socket:
        if self._host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{self._host}/.s.PGSQL.{self._port}")
            return server
        return socket.create_connection((self._host, self._port))

    def due(self, data: bytes) -> Moment | None:
        """Whether, and when, the connection on which this was just sent is to be cut."""
        with self._lock:
            if self._plan is None or self._plan[0] not in data:
                return None
            word, moment, times = self._plan
            self._plan = (word, moment, times - 1) if times > 1 else None
            self.cuts += 1
            return moment

    def ended(self, *ends: socket.socket) -> None:
        """Both ends of a connection are gone."""
        for each in ends:
            self._open.discard(each)
            _reset(each)


class _Link:
    """One connection, both ways."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._deaf = threading.Event()  # the server's answers are not passed on any more
        self._answered = threading.Event()

    def up(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(1 << 20):
                moment = self._proxy.due(data)
                if moment == "before":
                    break
                if moment == "during":
                    # Half of the statement arrives; the server never sees its end.
                    self._server.sendall(data[: len(data) // 2])
                    break
                if moment == "after":
                    self._deaf.set()
                time.sleep(self._proxy.delay_s / 2)
                self._server.sendall(data)
                if moment == "after":
                    self._answered.wait(10)
                    break
        self._proxy.ended(self._client, self._server)

    def down(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(1 << 20):
                if self._deaf.is_set():
                    self._answered.set()  # it was carried out; nobody will hear of it
                    continue
                time.sleep(self._proxy.delay_s / 2)
                self._client.sendall(_greeting(data) if self._proxy.greets else data)
        self._answered.set()
        self._proxy.ended(self._client, self._server)


def _greeting(data: bytes) -> bytes:
    """The server's words with another process number, where one is told."""
    before, told, after = data.partition(_KEY_DATA)
    return before + told + bytes([after[0] ^ 1]) + after[1:] if told else data


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def eventually(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until something is so; False if it does not come."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
