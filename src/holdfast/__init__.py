"""Holdfast keeps the sessions of AI agents: every step a checkpoint, verified, deduplicated, branchable.

    import holdfast

    with holdfast.open() as store:
        session = store.session("ticket-42", agent="support")
        first = session.commit({"messages": [{"role": "user", "content": "refund order 7"}]})

Everything users type is here; `holdfast.aio` is the same, awaited.
"""

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
    Outcome,
    Problem,
    SessionInfo,
    Status,
    StoreStats,
    Usage,
    VerifyReport,
)
from holdfast.opening import open
from holdfast.store import Session, Store

__version__ = "0.1.0"

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
    "InDoubtError",
    "InvalidInputError",
    "LeaseHeldError",
    "MismatchError",
    "NotFoundError",
    "Outcome",
    "Problem",
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
