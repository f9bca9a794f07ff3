"""One session as one HTML file, to mail to a colleague: the same templates, no script, nothing to fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay import __version__
from backstay.errors import BackstayError
from backstay.shapes.points import told_as
from backstay.shapes.text import now
from backstay.store.fields import to_info
from backstay.store.overview import session_row
from backstay.web.history import history_page, steps_of
from backstay.web.needs import needs_of_session
from backstay.web.pages.files import call_names, files_in_file
from backstay.web.pages.session import history_data
from backstay.web.paths import FileLinks
from backstay.web.reader import Room, turns_of
from backstay.web.view import environment, static_file
from backstay.web.words import key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backstay.face import Session, Store
    from backstay.model import Checkpoint

MAX_TALKS = 12
_MESSAGES = 400
_FILE_CHARS = 4_000_000


def html_file(store: Store, session: Session) -> str:
    """The file: the newest page of the history, and the conversation and the files at the head of each branch."""
    row = session_row(store.backend, session.id)
    info = to_info(row) if row is not None else None
    page = history_page(store, session)
    needs = needs_of_session(store, session, info.agent if info else None, ())
    history = history_data(store, session, page, needs, newest=True)
    heads = [branch for branch in history["branches"] if branch["head"]]
    talks = _talks(store, session, heads, call_names(page))
    link = FileLinks(frozenset(key(talk["point"].id) for talk in talks))
    style = (static_file("style.css") or b"").decode()
    template = environment().get_template("file.html")
    return template.render(
        history,
        info=info,
        session_id=session.id,
        needs=needs,
        talks=talks,
        link=link,
        style=style,
        made_at=now(),
        version=__version__,
        more=bool(page.older),
        in_framework=bool(page.between),
    )


def _talks(
    store: Store, session: Session, branches: list[dict[str, Any]], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for branch in branches[:MAX_TALKS]:
        point = told_as(session, session.checkpoint(branch["head"]))
        if point.id in found:
            found[point.id]["names"].append(branch["name"])
            continue
        found[point.id] = {
            "point": point,
            "names": [branch["name"]],
            "tint": branch["tint"],
            **_turns(store, session, point),
            **files_in_file(store, session, point, names),
        }
    return list(found.values())


def _turns(store: Store, session: Session, point: Checkpoint) -> dict[str, Any]:
    try:
        messages = point.state.get("messages")
    except BackstayError as error:
        return {"turns": [], "left_out": 0, "damage": error.message}
    messages = messages if isinstance(messages, list) else []
    window = range(max(0, len(messages) - _MESSAGES), len(messages))
    rows = store.backend.ancestors(session.id, point.sequence, limit=1)
    calls = steps_of(store, session.id, rows)[0].calls if rows else []
    room = Room(_FILE_CHARS, folded_chars=_FILE_CHARS)  # a file has no page that would show the rest
    turns = turns_of(messages, window, new_from=len(messages), calls=calls, room=room)
    return {"turns": turns, "left_out": window.start, "damage": ""}
