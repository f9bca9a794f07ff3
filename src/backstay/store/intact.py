"""Looking for what damage has left: the newest checkpoint of a branch whose state can still be read."""

from __future__ import annotations

import contextlib

from backstay.digest import state_digest
from backstay.errors import CorruptionError
from backstay.hints import SALVAGE
from backstay.port import Ask, CheckpointRow, Kind, Unreadable
from backstay.store.fields import read_fields
from backstay.store.files import join
from backstay.store.history import History

_PAGE_ROWS = 100


def newest_intact(history: History, branch: str) -> CheckpointRow | None:
    """The newest on a branch; None if there is no branch, CorruptionError if nothing of it is intact."""
    backend, session = history.backend, history.id
    at: int | None = None
    with contextlib.suppress(CorruptionError):  # of a damaged branch its checkpoints say where they belong
        lane = backend.read(Ask(session, names=(branch,))).lanes.get(branch)
        if lane is None or lane.head is None:
            return None
        at = lane.head.sequence
    while at is not None:
        line = backend.ancestors(session, at, limit=1)
        if not line:
            break  # the way back is cut
        row = line[0]
        if isinstance(row, CheckpointRow) and _is_intact(history, row):
            return row
        at = row.parent
    before = 2**40
    while page := backend.scan(session, Kind.CHECKPOINT, before=before, limit=_PAGE_ROWS):
        for each in page:
            if isinstance(each, CheckpointRow) and _is_intact(history, each) and read_fields(each).branch == branch:
                return each
        last = page[-1]
        key = last.sequence if isinstance(last, CheckpointRow) else last.key if isinstance(last, Unreadable) else 0
        assert isinstance(key, int)  # noqa: S101 - that of a checkpoint
        before = key
    message = f"session {session!r}: no checkpoint of branch {branch!r} is intact"
    raise CorruptionError(message, hint=SALVAGE)


def _is_intact(history: History, row: CheckpointRow) -> bool:
    try:
        read_fields(row)
        found = history.loaded(row)
        return state_digest(join(found.state, found.files)) == row.state_digest
    except CorruptionError:
        return False
