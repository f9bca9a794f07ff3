"""All calls of a session, newest first: a page of the history, call by call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay import shapes
from backstay.store.fields import to_call
from backstay.web.about_session import crumbs_of, head_of
from backstay.web.history import (
    arg_words,
    args_of,
    history_page,
    kind_of_call,
    pending_calls,
    seconds_of,
    trimmed,
    when,
)
from backstay.web.needs import needs_of_session
from backstay.web.view import Shown

if TYPE_CHECKING:
    from backstay.model import Checkpoint
    from backstay.port import CallRow
    from backstay.web.view import Visit

_CALLS = 200


def show(visit: Visit) -> Shown:
    """The page."""
    session = visit.session()
    before = visit.query.get("before") or None
    page = trimmed(history_page(visit.store, session, before=before), _CALLS)
    made: list[tuple[CallRow, Checkpoint | None, str]] = []
    if before is None:
        for branch, calls in pending_calls(visit.store, session.id).items():
            made += [(call, None, branch) for call in reversed(calls)]
    for step in page.steps:
        if step.point is not None:
            made += [(call, step.point, step.point.branch) for call in reversed(step.calls)]
    made = [each for each in made if kind_of_call(each[0]) is not None]
    data = {
        **head_of(visit, session, "calls", needs_of_session(visit.store, session, None, ())),
        "calls": [_line(*each) for each in made],
        "older": page.older,
        "before": before or "",
    }
    crumbs = crumbs_of(visit, session, ("calls", None))
    return Shown(
        "calls.html",
        f"Calls of {session.id}",
        crumbs,
        data,
        lambda: [shapes.call(to_call(call)) for call, _, _ in made],
    )


def _line(call: CallRow, point: Checkpoint | None, branch: str) -> dict[str, Any]:
    return {
        "id": call.id,
        "name": call.name,
        "kind": kind_of_call(call),
        "status": call.status,
        "words": arg_words(args_of(call)),
        "error": None if call.error is None else ": ".join(call.error),
        "seconds": None if call.ended_us is None else seconds_of(call),
        "at": when(call),
        "nested": call.parent is not None,
        "point": point,
        "branch": branch,
    }
