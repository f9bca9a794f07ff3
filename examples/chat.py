"""A chat behind a web server, without a framework: every acknowledged turn is in its chat.

    uvicorn examples.chat:app --workers 2
    curl -d 'refund order 7' localhost:8000/chats/ticket-42
    curl localhost:8000/chats/ticket-42
    curl localhost:8000/chats

All workers share one store (BACKSTAY_URL, else the `.backstay/` here). A request is one edit: load, add, commit. Edits
of one chat take turns, whichever worker they reach; other chats do not wait for them. A turn is acknowledged when it is
on disk.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

import backstay
import backstay.aio

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Chat:
    """An ASGI application. The store is opened when the worker starts, and closed with it."""

    def __init__(self) -> None:
        self._store: backstay.aio.AsyncStore | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or live as long as the worker does."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            status, body = await self._answer(scope["method"], unquote(scope["path"]), receive)
            data = json.dumps(body).encode() + b"\n"
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": data})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._store = await backstay.aio.open()
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._store is not None:
                    await self._store.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, method: str, path: str, receive: Receive) -> tuple[int, Any]:
        if self._store is None:
            return 503, {"error": "no store yet"}
        store, (_, first, *rest) = self._store, [*path.split("/", 2), ""][:3]
        if first != "chats":
            return 404, {"error": "there is /chats, and /chats/ID"}
        chat = rest[0] if rest else ""
        try:
            if method == "POST" and chat:
                return 200, await post(store, chat, await _body(receive))
            if method == "GET" and chat:
                return 200, (await store.session(chat).load())["messages"]
            if method == "GET":
                return 200, [{"id": info.id, "title": info.title} async for info in store.sessions(limit=100)]
        except backstay.NotFoundError as error:
            return 404, {"error": str(error)}
        except backstay.InvalidInputError as error:
            return 400, {"error": str(error)}
        return 405, {"error": f"{method} is not for {path}"}


async def post(store: backstay.aio.AsyncStore, chat: str, text: str) -> dict[str, Any]:
    """One turn. The model is asked before the edit, so that the chat is held for a moment only."""
    reply = await ask(text)
    async with store.session(chat, agent="chat", title=text[:80] or "empty").edit() as state:
        messages: list[dict[str, str]] = state.setdefault("messages", [])
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": reply}]
    return {"turn": len(messages) // 2, "reply": reply}


async def ask(text: str) -> str:
    """Your model."""
    return f"You said: {text}"


async def _body(receive: Receive) -> str:
    data = bytearray()
    while True:
        message = await receive()
        data += message.get("body", b"")
        if not message.get("more_body"):
            return data.decode("utf-8", "replace")


app = Chat()
