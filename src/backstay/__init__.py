"""Backstay keeps the sessions of AI agents: every step a checkpoint, verified, deduplicated, branchable.

    import backstay

    with backstay.open() as store:
        session = store.session("ticket-42", agent="support")
        first = session.commit({"messages": [{"role": "user", "content": "refund order 7"}]})

Everything users type is here, loaded when it is first used; `backstay.aio` is the same, awaited, and
`backstay.formats` reads and writes the files of other systems.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # `typing` takes longer to load than all else that a hook of a coding agent needs
if TYPE_CHECKING:
    from typing import Any

    from backstay import formats
    from backstay.difference import Diff
    from backstay.errors import (
        AlreadyExistsError,
        BackstayError,
        CallFailedError,
        ChildEndedError,
        ClosedError,
        ConflictError,
        CorruptionError,
        FencedError,
        FilesConflictError,
        FormatError,
        InDoubtError,
        InvalidInputError,
        LeaseHeldError,
        MismatchError,
        NotFoundError,
        UnavailableError,
        UnsupportedError,
    )
    from backstay.face import Session, Store
    from backstay.face.recovery import recover
    from backstay.listing import RestorePlan
    from backstay.loops import LoopGuard
    from backstay.messages import repair_messages
    from backstay.model import (
        ANY,
        NOTHING,
        Branch,
        Call,
        Checkpoint,
        Damaged,
        ForgetReport,
        Hit,
        ImportReport,
        Outcome,
        Problem,
        PruneReport,
        RecoverReport,
        RunInfo,
        SessionInfo,
        State,
        Status,
        StoreStats,
        Usage,
        VerifyReport,
        Wait,
    )
    from backstay.opening import open
    from backstay.retention import Retention
    from backstay.run import Run, RunCancelled, RunEnded, Waiting
    from backstay.run.blaming import BlamedLine
    from backstay.strategy import AfterLlmResponse, AfterToolCall, Always, Event, EveryN, EverySeconds, Never, Strategy
    from backstay.workspace.policy import Workspace

__version__ = "0.1.0"

_ROOMS = {
    "difference": ("Diff",),
    "errors": (
        "AlreadyExistsError",
        "CallFailedError",
        "ChildEndedError",
        "ClosedError",
        "ConflictError",
        "CorruptionError",
        "FencedError",
        "FilesConflictError",
        "FormatError",
        "BackstayError",
        "InDoubtError",
        "InvalidInputError",
        "LeaseHeldError",
        "MismatchError",
        "NotFoundError",
        "UnavailableError",
        "UnsupportedError",
    ),
    "listing": ("RestorePlan",),
    "loops": ("LoopGuard",),
    "messages": ("repair_messages",),
    "model": (
        "ANY",
        "NOTHING",
        "Branch",
        "Call",
        "Checkpoint",
        "Damaged",
        "Hit",
        "ImportReport",
        "Outcome",
        "Problem",
        "ForgetReport",
        "PruneReport",
        "RecoverReport",
        "RunInfo",
        "SessionInfo",
        "State",
        "Status",
        "StoreStats",
        "Usage",
        "VerifyReport",
        "Wait",
    ),
    "opening": ("open",),
    "retention": ("Retention",),
    "run": ("Run", "RunCancelled", "RunEnded", "Waiting"),
    "run.blaming": ("BlamedLine",),
    "face.recovery": ("recover",),
    "face": ("Session", "Store"),
    "workspace.policy": ("Workspace",),
    "strategy": (
        "AfterLlmResponse",
        "AfterToolCall",
        "Always",
        "Event",
        "EveryN",
        "EverySeconds",
        "Never",
        "Strategy",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    # `import backstay` costs a few milliseconds this way; a command line that only prints its help never pays more.
    if name == "formats":
        return importlib.import_module("backstay.formats")
    room = _ROOM_OF.get(name)
    if room is None:
        message = f"module 'backstay' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"backstay.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM_OF, "formats"})


__all__ = [
    "ANY",
    "NOTHING",
    "AfterLlmResponse",
    "AfterToolCall",
    "AlreadyExistsError",
    "Always",
    "BackstayError",
    "BlamedLine",
    "Branch",
    "Call",
    "CallFailedError",
    "Checkpoint",
    "ChildEndedError",
    "ClosedError",
    "ConflictError",
    "CorruptionError",
    "Damaged",
    "Diff",
    "Event",
    "EveryN",
    "EverySeconds",
    "FencedError",
    "FilesConflictError",
    "ForgetReport",
    "FormatError",
    "Hit",
    "ImportReport",
    "InDoubtError",
    "InvalidInputError",
    "LeaseHeldError",
    "LoopGuard",
    "MismatchError",
    "Never",
    "NotFoundError",
    "Outcome",
    "Problem",
    "PruneReport",
    "RecoverReport",
    "RestorePlan",
    "Retention",
    "Run",
    "RunCancelled",
    "RunEnded",
    "RunInfo",
    "Session",
    "SessionInfo",
    "State",
    "Status",
    "Store",
    "StoreStats",
    "Strategy",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
    "VerifyReport",
    "Wait",
    "Waiting",
    "Workspace",
    "formats",
    "open",
    "recover",
    "repair_messages",
]
