"""What all views of a session share: its head line, its tabs, its branches with their colours."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from backstay.bookkeeping import PART
from backstay.errors import CorruptionError, NotFoundError
from backstay.hints import LIST_SESSIONS
from backstay.port import CheckpointRow
from backstay.store.fields import is_captured, to_info
from backstay.store.overview import session_row, troubled_sessions, undo_target
from backstay.web.needs import doubts_in

if TYPE_CHECKING:
    from backstay.face import Session, Store
    from backstay.model import Checkpoint, SessionInfo
    from backstay.web.needs import Need
    from backstay.web.view import Visit

_LOOKED_AT = 30


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
    if doubts_in(needs):
        status = "in_doubt"
    elif info.crashed:
        status = "crashed"
    head, can_undo = None, False
    with contextlib.suppress(CorruptionError):
        head = session.head("main")
        if head is not None and not visit.about.read_only:
            target = undo_target(visit.store.backend, session.id, "main")
            can_undo = target is not None and not session.undo_moves_files()  # a page has no folder to put them into
    return {
        "info": info,
        "session_id": session.id,
        "status": status,
        "tab": tab,
        "can_undo": can_undo,
        "reason": "" if any(need.kind != "crash" for need in needs) else info.reason or "",
        "main_head": head,
        "parent_session": session.id.rpartition("/")[0] if "/" in session.id else "",
        "in_framework": head is not None and PART in head.metadata,
        "has_files": head is not None and _has_files(visit.store, head),
    }


def _has_files(store: Store, head: Checkpoint) -> bool:
    """True if files were captured lately: their list is part of a state, and no state is loaded to know this."""
    rows = store.backend.ancestors(head.session_id, head.sequence, limit=_LOOKED_AT)
    return any([isinstance(row, CheckpointRow) and is_captured(row) for row in rows])


def crumbs_of(visit: Visit, session: Session, *rest: tuple[str, str | None]) -> list[tuple[str, str | None]]:
    """The way from the store to here."""
    from backstay.web.paths import Links  # noqa: PLC0415

    here = None if not rest else Links().session(session.id)
    return [(visit.about.name, "/"), (session.id, here), *rest]
