"""Which address leads to which view. A new view is a module of `pages` and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from backstay.errors import NotFoundError
from backstay.web.pages import calls, checkpoint, compare, diff, export, files, session, sessions, store, timeline

if TYPE_CHECKING:
    from starlette.responses import Response

    from backstay.web.view import Shown, Visit

    View = Callable[[Visit], "Shown | Response"]

_OF_SESSION: dict[str, View] = {
    "timeline": timeline.show,
    "calls": calls.show,
    "compare": compare.show,
    "files": files.show,
    "d": diff.choose,
    "export": export.show,
}


def find(parts: list[str]) -> View:
    """The view at an address; NotFoundError if there is none."""
    match parts:
        case []:
            return sessions.show
        case ["store"]:
            return store.show
        case ["s", _]:
            return session.show
        case ["s", _, view] if view in _OF_SESSION:
            return _OF_SESSION[view]
        case ["s", _, "c", _]:
            return checkpoint.show
        case ["s", _, "d", _, _]:
            return diff.show
    raise NotFoundError("there is no page at this address", hint="the list of sessions leads to all of them")
