"""All calls of a session, newest first: a page of the history, call by call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay import shapes
from backstay.store.fields import to_call
from backstay.web.about_session import crumbs_of, head_of
from backstay.web.history import MadeCall, arg_words, args_of, calls_page, seconds_of, sort_of_call, when
from backstay.web.needs import doubts_in, needs_of_session
from backstay.web.view import Shown

if TYPE_CHECKING:
    from backstay.web.view import Visit

_CALLS = 200


def show(visit: Visit) -> Shown:
    """The page."""
    session = visit.session()
    before = visit.query.get("before") or None
    needs = needs_of_session(visit.store, session, None, ())
    page, made = calls_page(visit.store, session, before=before, most=_CALLS)
    data = {
        **head_of(visit, session, "calls", needs),
        "calls": [_line(call, doubts_in(needs)) for call in made],
        "older": page.older,
        "before": before or "",
    }
    crumbs = crumbs_of(visit, session, ("calls", None))
    return Shown(
        "calls.html",
        f"Calls of {session.id}",
        crumbs,
        data,
        lambda: [shapes.call(to_call(call.row)) for call in made],
    )


def _line(made: MadeCall, doubted: set[str]) -> dict[str, Any]:
    call = made.row
    return {
        "id": call.id,
        "name": call.name,
        "kind": sort_of_call(call),
        "status": "in_doubt" if call.id in doubted else call.status,
        "words": arg_words(args_of(call)),
        "error": None if call.error is None else ": ".join(call.error),
        "seconds": None if call.ended_us is None else seconds_of(call),
        "at": when(call),
        "nested": call.parent is not None,
        "point": made.point,
        "branch": made.branch,
    }
