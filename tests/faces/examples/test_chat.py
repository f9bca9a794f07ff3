"""The chat of examples/, served by two processes of uvicorn: every turn that was acknowledged is in its chat."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
from tests.house.tree import ROOT

for needed in ("uvicorn", "fastapi"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: the chat of examples/ cannot be served")


@contextlib.contextmanager
def serving(folder: Path, workers: int) -> Iterator[list[Path]]:
    """Processes that serve one store, each on a socket of its own; ended with the test."""
    url = f"sqlite:///{folder / 'store.db'}"
    env = {**os.environ, "BACKSTAY_URL": url, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    sockets = [folder / f"{number}.sock" for number in range(workers)]
    command = [sys.executable, "-m", "uvicorn", "examples.chat:app", "--log-level", "warning", "--uds"]
    children = [subprocess.Popen([*command, str(socket)], env=env, cwd=ROOT) for socket in sockets]
    try:
        deadline = time.monotonic() + 60
        while not all(socket.exists() for socket in sockets):
            assert time.monotonic() < deadline, "uvicorn does not come up"
            assert all(child.poll() is None for child in children), "uvicorn has ended"
            time.sleep(0.02)
        yield sockets
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(60)


async def request(socket: Path, method: str, path: str, body: str = "") -> tuple[int, Any]:
    reader, writer = await asyncio.open_unix_connection(socket)
    data = json.dumps({"text": body}).encode() if body else b""
    lines = [f"{method} {path} HTTP/1.1", "host: chat", "connection: close", "content-type: application/json"]
    head = "\r\n".join([*lines, f"content-length: {len(data)}", "", ""])
    writer.write(head.encode() + data)
    await writer.drain()
    said = await reader.read()
    writer.close()
    head_, _, content = said.partition(b"\r\n\r\n")
    return int(head_.split()[1]), json.loads(content)


async def post_all(sockets: list[Path], turns: int, chats: int) -> dict[str, list[str]]:
    """Post all turns at once, in any order, to any worker; what was acknowledged, by chat."""
    acknowledged: dict[str, list[str]] = {}
    at_once = asyncio.Semaphore(100)  # a server has only so many sockets waiting

    async def turn(number: int) -> None:
        chat, text = f"chat-{number % chats}", f"turn {number}"
        async with at_once:
            status, answer = await request(random.choice(sockets), "POST", f"/chats/{chat}", text)
        if status == 200 and answer["reply"] == f"You said: {text}":
            acknowledged.setdefault(chat, []).append(text)

    await asyncio.gather(*[turn(number) for number in range(turns)])
    return acknowledged


@pytest.mark.parametrize(
    ("turns", "chats"), [(60, 6), pytest.param(500, 50, marks=pytest.mark.exhaustive)], ids=["60", "500"]
)
def test_every_acknowledged_turn_is_in_its_chat_and_none_was_refused(turns: int, chats: int, tmp_path: Path) -> None:
    with serving(tmp_path, 2) as sockets:
        acknowledged = asyncio.run(post_all(sockets, turns, chats))
        status, listed = asyncio.run(request(sockets[0], "GET", "/chats"))
        assert (status, len(listed)) == (200, chats)
        status, messages = asyncio.run(request(sockets[1], "GET", "/chats/chat-0"))
        assert (status, len(messages)) == (200, 2 * turns // chats)
        assert asyncio.run(request(sockets[1], "GET", "/chats/nope"))[0] == 404
    assert sum(len(texts) for texts in acknowledged.values()) == turns
    with backstay.open(tmp_path / "store.db") as store:
        for chat, texts in acknowledged.items():
            messages = store.session(chat).load()["messages"]
            assert sorted(message["content"] for message in messages[::2]) == sorted(texts)
        assert store.verify().ok


def test_an_answer_is_made_again_and_a_change_is_taken_back(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as (socket,):

        def ask(method: str, path: str, body: str = "") -> Any:
            status, answer = asyncio.run(request(socket, method, path, body))
            assert status == 200, answer
            return answer

        ask("POST", "/chats/a", "hello")
        assert ask("POST", "/chats/a/regenerate")["reply"] == "Once more: hello"
        assert [message["content"] for message in ask("GET", "/chats/a")] == ["hello", "Once more: hello"]
        assert [message["content"] for message in ask("POST", "/chats/a/undo")] == ["hello", "You said: hello"]
        ask("POST", "/chats/a", "bye")
        assert len(ask("GET", "/chats/a")) == 4
