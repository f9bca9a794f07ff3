"""What a store gives to those who read it, as JSON that says every type: the measure that a golden store is held to."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID

import backstay

_SHOWN_CHARS = 600

_WRITTEN: dict[type, Callable[[Any], Any]] = {
    int: str,
    float: repr,
    bytes: bytes.hex,
    datetime: lambda value: [value.isoformat(), value.fold],
    date: date.isoformat,
    time: lambda value: [value.isoformat(), value.fold],
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    Decimal: lambda value: [value.as_tuple().sign, list(value.as_tuple().digits), value.as_tuple().exponent],
    UUID: str,
    list: lambda value: [typed(item) for item in value],
    tuple: lambda value: [typed(item) for item in value],
    set: lambda value: sorted([typed(item) for item in value], key=json.dumps),
    frozenset: lambda value: sorted([typed(item) for item in value], key=json.dumps),
    dict: lambda value: [[typed(key), typed(item)] for key, item in value.items()],
}


def typed(value: object) -> Any:
    """A value with its type beside it; what JSON itself can tell stays as it is."""
    if value is None or type(value) is bool or type(value) is str:
        return value
    return {type(value).__name__: _WRITTEN[type(value)](value)}


def portrait(store: backstay.Store) -> dict[str, Any]:
    """All sessions, all checkpoints of each, everything that can be read of them."""
    return {info.id: _session(store, info) for info in store.sessions()}


def _session(store: backstay.Store, info: backstay.SessionInfo) -> dict[str, Any]:
    session = store.session(info.id)
    heads = session.branches()
    return {
        "line": [info.agent, info.status, info.reason, info.branches, info.checkpoints, info.last_step],
        "times": [info.created_at.isoformat(), info.updated_at.isoformat()],
        "usage": _usage(info.usage),
        "branches": {name: head.id for name, head in heads.items()},
        "tags": {name: point.id for name, point in session.tags().items()},
        "logs": {name: [point.id for point in session.log(name)] for name in heads},
        "checkpoints": [_checkpoint(store, session, id_) for id_ in store.backend.ids(info.id)],
    }


def _checkpoint(store: backstay.Store, session: backstay.Session, id_: str) -> dict[str, Any]:
    point = session.checkpoint(id_)
    row = store.backend.find_row(session.id, id_)
    assert row is not None
    return {
        "id": point.id,
        "place": [point.branch, point.sequence, point.parent_id, point.restored_from, row.link_id],
        "digests": [point.digest, point.parent_digest, row.state_digest.hex()],
        "told": [point.step, point.label, point.trigger, point.status, point.reason, point.agent, point.resume_hint],
        "created_at": point.created_at.isoformat(),
        "usage": [_usage(point.usage), _usage(point.total_usage)],
        "metadata": typed(dict(point.metadata)),
        "summary": point.summary,
        "state": _shortened(typed(session.load(id_))),
    }


def _usage(usage: backstay.Usage) -> Any:
    return [
        usage.tokens_in,
        usage.tokens_out,
        repr(usage.cost),
        usage.tasks_completed,
        typed(dict(usage.extra)),
    ]


def _shortened(state: Any) -> Any:
    """A long state by the hash of what would stand here."""
    text = json.dumps(state)
    return state if len(text) <= _SHOWN_CHARS else {"sha256": sha256(text.encode()).hexdigest(), "chars": len(text)}
