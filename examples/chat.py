"""A chat behind FastAPI: every acknowledged turn is kept; the last answer can be made again, or a turn taken back.

    pip install fastapi uvicorn
    uvicorn examples.chat:app --workers 2
    curl -d '{"text": "refund order 7"}' -H 'content-type: application/json' localhost:8000/chats/ticket-42
    curl -X POST localhost:8000/chats/ticket-42/regenerate
    curl -X POST localhost:8000/chats/ticket-42/undo
    curl localhost:8000/chats/ticket-42

All workers share one store (BACKSTAY_URL, else the `.backstay/` here). A turn is one edit: load, add, commit. Edits of
one chat take turns, whichever worker they reach; other chats do not wait for them. A turn is acknowledged when it is on
disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import backstay
from backstay import aio

Message = dict[str, str]
STATUS = {backstay.NotFoundError: 404, backstay.InvalidInputError: 400, backstay.ConflictError: 409}


@contextlib.asynccontextmanager
async def life(application: FastAPI) -> AsyncIterator[None]:
    """The store is opened when the worker starts, and closed with it."""
    async with aio.open() as store:
        application.state.store = store
        yield


app = FastAPI(lifespan=life)


class Turn(BaseModel):
    """What the user types."""

    text: str


@app.post("/chats/{chat:path}/regenerate")
async def regenerate(chat: str, request: Request) -> dict[str, Any]:
    """Another answer to the last question. The old one stays in the history, and `undo` brings it back."""
    session = store_of(request).session(chat)
    reply = await ask((await session.load())["messages"][-2]["content"], again=True)
    async with session.edit() as state:
        state["messages"][-1] = {"role": "assistant", "content": reply}
    return {"reply": reply}


@app.post("/chats/{chat:path}/undo")
async def undo(chat: str, request: Request) -> list[Message]:
    """The chat as it was before its last change."""
    session = store_of(request).session(chat)
    await session.restore("main^")
    return messages_of(await session.load())


@app.post("/chats/{chat:path}")
async def post(chat: str, turn: Turn, request: Request) -> dict[str, Any]:
    """One turn. The model is asked before the edit, so that the chat is held for a moment only."""
    reply = await ask(turn.text)
    session = store_of(request).session(chat, agent="chat", title=turn.text[:80] or "empty")
    async with session.edit() as state:
        messages: list[Message] = state.setdefault("messages", [])
        messages += [{"role": "user", "content": turn.text}, {"role": "assistant", "content": reply}]
    return {"turn": len(messages) // 2, "reply": reply}


@app.get("/chats/{chat:path}")
async def read(chat: str, request: Request) -> list[Message]:
    """The chat so far."""
    return messages_of(await store_of(request).session(chat).load())


@app.get("/chats")
async def chats(request: Request) -> list[dict[str, str | None]]:
    """The newest hundred."""
    return [{"id": info.id, "title": info.title} async for info in store_of(request).sessions(limit=100)]


@app.exception_handler(backstay.BackstayError)
async def refused(_request: Request, error: Exception) -> JSONResponse:
    """Backstay's errors say what to do; the status says whose turn it is."""
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 503)
    return JSONResponse({"error": str(error)}, status)


def store_of(request: Request) -> aio.AsyncStore:
    """The worker's store."""
    store = getattr(request.app.state, "store", None)
    if not isinstance(store, aio.AsyncStore):
        raise HTTPException(503, "no store yet")
    return store


def messages_of(state: dict[str, Any]) -> list[Message]:
    """The conversation in a state."""
    return list(state["messages"])


async def ask(text: str, *, again: bool = False) -> str:
    """Your model."""
    return f"Once more: {text}" if again else f"You said: {text}"
