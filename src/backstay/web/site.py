"""The site: every request comes through the door, is led to its page or action, and is answered here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from backstay.errors import (
    BackstayError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    LeaseHeldError,
    NotFoundError,
)
from backstay.hints import in_shell
from backstay.web import actions, routes
from backstay.web.door import HEADERS, Door
from backstay.web.jobs import Jobs
from backstay.web.news import News
from backstay.web.paths import segments_of
from backstay.web.view import AboutStore, Notice, Notices, Shown, Visit, environment, html_of, json_of, static_file

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

    from backstay.face import Store

_log = logging.getLogger("backstay.web")
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_MAX_FORM_BYTES, _DRAINED_BYTES = 8 << 20, 64 << 10
_PIECES = 16  # of a page that is sent as it is made, at a time
_STATUSES: list[tuple[type[BackstayError], int]] = [
    (NotFoundError, 404),
    (InvalidInputError, 400),
    (ConflictError, 409),
    (LeaseHeldError, 409),
    (CorruptionError, 500),
]


class Site:
    """An ASGI application over one store."""

    def __init__(self, store: Store, about: AboutStore, door: Door) -> None:
        self.store, self.about, self.door = store, about, door
        self.jobs = Jobs()
        self._file = identity(about.place)
        self.news = News(store, self.jobs)
        self._notices = Notices()
        self._templates = environment()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception:  # noqa: BLE001 - the last door: what comes here is a mistake of ours, and is told like one
            _log.exception("a bug in Backstay: %s %s", request.method, request.url.path)
            response = PlainTextResponse("A bug in Backstay: the terminal says where.\n", 500)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            parts = segments_of(request.scope["raw_path"])
        except ValueError:  # bytes that are no text
            parts = ["\0"]
        entering = parts == ["enter"]
        refused = self.door.refusal(request.method, request.headers.raw, entering=entering)
        if refused is not None:
            await _drain(request)
            return PlainTextResponse(refused.why + "\n", refused.status)
        if entering:
            return self._enter(request)
        if parts[:1] == ["static"]:
            return self._static(parts)
        if parts == ["live"]:
            return StreamingResponse(self.news.stream(), media_type="text/event-stream")
        if request.method == "POST":
            return await self._act(request, parts)
        return await run_in_threadpool(self._page, parts, request.query_params, _address(request))

    def _enter(self, request: Request) -> Response:
        if not self.door.opens_with(request.query_params.get("token", "")):
            return PlainTextResponse("This token is not the one that `backstay web` printed last.\n", 403)
        response = RedirectResponse("/", 303)
        response.headers["set-cookie"] = self.door.set_cookie
        response.headers["referrer-policy"] = "no-referrer"  # the token is in this address
        return response

    def _static(self, parts: list[str]) -> Response:
        data = static_file(parts[-1]) if len(parts) == 2 else None  # noqa: PLR2004 - a name below static/
        kind = _TYPES.get(parts[-1].rpartition(".")[2])
        return (
            PlainTextResponse("There is no such file.\n", 404)
            if data is None or kind is None
            else Response(data, media_type=kind)
        )

    def _page(self, parts: list[str], query: QueryParams, address: str) -> Response:
        visit = self._visit(parts, query)
        if self._is_replaced():
            visit = visit._replace(about=self.about._replace(is_replaced=True))
        try:
            shown = routes.find(parts)(visit)
            if isinstance(shown, Response):
                return shown
            if query.get("format") == "json":
                return Response(json_of(shown), shown.status, media_type="application/json")
        except BackstayError as error:
            shown = _failure(error)
            if query.get("format") == "json":
                return Response(json_of(shown), shown.status, media_type="application/json")
        pieces = html_of(self._templates, shown, visit, address)
        if shown.streams:
            pieces.enable_buffering(_PIECES)
            return StreamingResponse(pieces, shown.status, media_type="text/html")
        return Response("".join(pieces), shown.status, media_type="text/html")

    def _visit(self, parts: list[str], query: QueryParams) -> Visit:
        return Visit(self.store, self.about, parts, query, query.getlist, self.jobs, self._notices)

    async def _act(self, request: Request, parts: list[str]) -> Response:
        if self.about.read_only:
            return PlainTextResponse("This page is read-only: it was started with --read-only.\n", 403)
        if int(request.headers.get("content-length", _MAX_FORM_BYTES + 1) or 0) > _MAX_FORM_BYTES:
            return PlainTextResponse("This form is too large.\n", 413)
        try:
            form = await request.form(max_files=0, max_part_size=_MAX_FORM_BYTES)
        except MultiPartException:
            return PlainTextResponse("This form cannot be read.\n", 400)
        given = {key: value for key, value in form.items() if isinstance(value, str)}
        return await run_in_threadpool(self._do, parts, given)

    def _is_replaced(self) -> bool:
        """True if the file that is open here is not the one that has its name: what is written would be lost to it."""
        return self._file is not None and identity(self.about.place) != self._file

    def _do(self, parts: list[str], form: dict[str, str]) -> Response:
        back = form.get("back", "/")
        back = back if back.startswith("/") and not back.startswith(("//", "/\\")) else "/"
        act = actions.find_action(parts)
        if act is None:
            return PlainTextResponse("There is no such action.\n", 404)
        try:
            if self._is_replaced():
                raise ConflictError("the file of this store was moved or replaced", hint="start `backstay web` again")
            notice, goto = act(self._visit(parts, QueryParams()), form)
        except BackstayError as error:
            notice, goto = _refused(error), None
        return RedirectResponse(_with_note(goto or back, self._notices.keep(notice)), 303)

    def close(self) -> None:
        """End what is still open."""
        self.news.close()


def identity(place: Path | None) -> tuple[int, int] | None:
    """By which a file or folder is told from another of the same name; None if there is none."""
    try:
        found = None if place is None else place.stat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


async def _drain(request: Request) -> None:
    """Read a small form that is not wanted: a connection that is closed on it might lose the answer."""
    left = _DRAINED_BYTES
    async for chunk in request.stream():
        left -= len(chunk)
        if left < 0:
            return


def _refused(error: BackstayError) -> Notice:
    if isinstance(error, ConflictError | LeaseHeldError):
        return Notice("wait", "Nothing was done.", f"{error.message[:1].upper()}{error.message[1:]}.")
    return Notice(
        "bad", "Nothing was done.", f"{error.message} ({in_shell(error.hint)})" if error.hint else error.message
    )


def _failure(error: BackstayError) -> Shown:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    data = {"message": error.message, "hint": in_shell(error.hint), "code": error.code}
    title = "There is no such thing" if status == 404 else "This cannot be shown"  # noqa: PLR2004 - not found
    return Shown("error.html", title, [], data, lambda: {"error": error.code, "message": error.message}, status)


def _address(request: Request) -> str:
    """The address of a page as forms and links name it: path and query, without the note it came with."""
    path = request.scope["raw_path"].decode("ascii", "replace")
    query = [(key, value) for key, value in parse_qsl(request.url.query) if key not in ("note", "format")]
    return f"{path}?{urlencode(query)}" if query else path


def _with_note(address: str, key: str) -> str:
    address, _, anchor = address.partition("#")
    path, _, query = address.partition("?")
    pairs = [(name, value) for name, value in parse_qsl(query) if name != "note"]
    return f"{path}?{urlencode([*pairs, ('note', key)])}" + (f"#{anchor}" if anchor else "")
