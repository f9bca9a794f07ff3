"""Holdfast keeps the sessions of AI agents: every step a checkpoint, verified, deduplicated, branchable.

    import holdfast

    with holdfast.open() as store:
        session = store.session("ticket-42", agent="support")
        first = session.commit({"messages": [{"role": "user", "content": "refund order 7"}]})

Everything users type is here, loaded when it is first used; `holdfast.aio` is the same, awaited.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.difference import Diff
    from holdfast.errors import (
        AlreadyExistsError,
        CallFailedError,
        ClosedError,
        ConflictError,
        CorruptionError,
        FencedError,
        FormatError,
        HoldfastError,
        InDoubtError,
        InvalidInputError,
        LeaseHeldError,
        MismatchError,
        NotFoundError,
        UnavailableError,
        UnsupportedError,
    )
    from holdfast.model import (
        Branch,
        Checkpoint,
        Damaged,
        ImportReport,
        Outcome,
        Problem,
        PruneReport,
        SessionInfo,
        Status,
        StoreStats,
        Usage,
        VerifyReport,
    )
    from holdfast.opening import open
    from holdfast.retention import Retention
    from holdfast.store import Session, Store

__version__ = "0.1.0"

_ROOMS = {
    "difference": ("Diff",),
    "errors": (
        "AlreadyExistsError",
        "CallFailedError",
        "ClosedError",
        "ConflictError",
        "CorruptionError",
        "FencedError",
        "FormatError",
        "HoldfastError",
        "InDoubtError",
        "InvalidInputError",
        "LeaseHeldError",
        "MismatchError",
        "NotFoundError",
        "UnavailableError",
        "UnsupportedError",
    ),
    "model": (
        "Branch",
        "Checkpoint",
        "Damaged",
        "ImportReport",
        "Outcome",
        "Problem",
        "PruneReport",
        "SessionInfo",
        "Status",
        "StoreStats",
        "Usage",
        "VerifyReport",
    ),
    "opening": ("open",),
    "retention": ("Retention",),
    "store": ("Session", "Store"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    # `import holdfast` costs a few milliseconds this way; a command line that only prints its help never pays more.
    room = _ROOM_OF.get(name)
    if room is None:
        message = f"module 'holdfast' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"holdfast.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM_OF})


__all__ = [
    "AlreadyExistsError",
    "Branch",
    "CallFailedError",
    "Checkpoint",
    "ClosedError",
    "ConflictError",
    "CorruptionError",
    "Damaged",
    "Diff",
    "FencedError",
    "FormatError",
    "HoldfastError",
    "ImportReport",
    "InDoubtError",
    "InvalidInputError",
    "LeaseHeldError",
    "MismatchError",
    "NotFoundError",
    "Outcome",
    "Problem",
    "PruneReport",
    "Retention",
    "Session",
    "SessionInfo",
    "Status",
    "Store",
    "StoreStats",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
    "VerifyReport",
    "open",
]
