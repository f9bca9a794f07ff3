"""What all views of a session share: its head line, its tabs, its branches with their colours."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from backstay.errors import CorruptionError, NotFoundError
from backstay.hints import LIST_SESSIONS
from backstay.store.fields import to_info
from backstay.store.overview import session_row, troubled_sessions, undo_target

if TYPE_CHECKING:
    from backstay.face import Session
    from backstay.model import SessionInfo
    from backstay.web.needs import Need
    from backstay.web.view import Visit


def info_of(visit: Visit, session: Session) -> SessionInfo:
    """A session's line; NotFoundError if there is none."""
    row = session_row(visit.store.backend, session.id)
    if row is None:
        raise NotFoundError(f"there is no session {session.id!r}", hint=LIST_SESSIONS)
    crashed, waiting = troubled_sessions(visit.store.backend)
    return to_info(row, crashed=row.id in crashed, waiting=row.id in waiting)


def head_of(visit: Visit, session: Session, tab: str, needs: list[Need]) -> dict[str, Any]:
    """The head line and the tabs."""
    info = info_of(visit, session)
    status = info.status.value
    if info.crashed:
        status = "in_doubt" if any(need.kind == "doubt" for need in needs) else "crashed"
    can_undo = False
    head = None
    if not visit.about.read_only:
        with contextlib.suppress(CorruptionError):
            target = undo_target(visit.store.backend, session.id, "main")
            head = None if target is None else session.head("main")
            can_undo = head is not None and not session.undo_moves_files()  # a page has no folder to put them into
    return {
        "info": info,
        "session_id": session.id,
        "status": status,
        "tab": tab,
        "can_undo": can_undo,
        "main_head": head,
        "parent_session": session.id.rpartition("/")[0] if "/" in session.id else "",
    }


def crumbs_of(visit: Visit, session: Session, *rest: tuple[str, str | None]) -> list[tuple[str, str | None]]:
    """The way from the store to here."""
    from backstay.web.paths import Links  # noqa: PLC0415

    here = None if not rest else Links().session(session.id)
    return [(visit.about.name, "/"), (session.id, here), *rest]
