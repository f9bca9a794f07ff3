"""Rows put and dropped without a rule, for tests about a backend alone; and threads that start together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from backstay.ids import TAIL_BYTES, make_id
from backstay.port import (
    Ask,
    Backend,
    Batch,
    CheckpointRow,
    Key,
    KeyframeRow,
    Kind,
    LaneRow,
    More,
    Row,
    SegmentRow,
    SessionRow,
    TagRow,
    Unreadable,
    View,
)
from backstay.port.lease import Claim, Holder, here
from backstay.testing.author import NOW_US, SESSION

UID = bytes(range(16))
PATIENCE_S = 120


def line(id_: str = SESSION, *, uid: bytes = UID, **fields: Any) -> SessionRow:
    """A session's line."""
    return SessionRow(id_, uid, NOW_US, NOW_US, **fields)


def checkpoint(
    sequence: int,
    parent: int | None = None,
    *,
    uid: bytes = UID,
    id_: str | None = None,
    tail: bytes | None = None,
    refs: tuple[bytes, ...] | None = (),
    **fields: Any,
) -> CheckpointRow:
    """A checkpoint whose contents mean nothing to anybody."""
    tail = sha256(sequence.to_bytes(8, "big")).digest()[:TAIL_BYTES] if tail is None else tail
    given: dict[str, Any] = {
        "parent_id": None if parent is None else f"the id of {parent}",
        "parent_digest": None if parent is None else bytes([1]) * 32,
        "state_digest": bytes([2]) * 32,
        "digest": bytes([3]) * 32,
        "size_bytes": 10,
        "keyframe": False,
        "took": None,
        "fields": f"fields {sequence}".encode(),
        "delta": f"delta {sequence}".encode(),
        "refs": refs,
    }
    return CheckpointRow(sequence, id_ or make_id(sequence, uid, tail), tail, parent, **(given | fields))


def bare(row: Row | Unreadable) -> Row | Unreadable:
    """A row as it may be compared: a backend may say which blobs it needs or leave that out."""
    return msgspec.structs.replace(row, refs=None) if isinstance(row, CheckpointRow | KeyframeRow | SegmentRow) else row


def blob(number: int, size: int = 300) -> tuple[bytes, bytes]:
    """A digest and some bytes; a backend does not know how they belong together."""
    digest = sha256(number.to_bytes(8, "big")).digest()
    return digest, (digest * (size // 32 + 1))[:size]


def claim_until(view: View, lease_s: float, holder: Holder | None = None) -> Claim:
    """A lease from the moment of a view on."""
    lease_us = round(lease_s * 1e6)
    return Claim(holder or here(), lease_us, view.now_us + lease_us, view.wall_us + lease_us)


def put(
    backend: Backend,
    *rows: Row,
    session: str = SESSION,
    uid: bytes = UID,
    blobs: Mapping[bytes, bytes] | None = None,
    **fields: Any,
) -> View:
    """Put rows, the session's line with them: its counts are right, and it has these further fields."""
    names = [row.name for row in rows if isinstance(row, LaneRow | TagRow)]
    sequences = [row.sequence for row in rows if isinstance(row, CheckpointRow)]

    def decide(view: View) -> Batch:
        before = line(session, uid=uid) if view.session is None else view.session
        new = [row for row in rows if isinstance(row, LaneRow | TagRow) and row.name not in {*view.lanes, *view.tags}]
        after = msgspec.structs.replace(
            before,
            touched=view.fresh,
            sequence=max([before.sequence, *sequences]),
            checkpoints=before.checkpoints + len(set(sequences) - view.checkpoints.keys()),
            lanes=before.lanes + sum([isinstance(row, LaneRow) for row in new]),
            tags=before.tags + sum([isinstance(row, TagRow) for row in new]),
        )
        return Batch((msgspec.structs.replace(after, **fields), *rows), blobs=blobs or {}, wakes=True)

    return backend.write(Ask(session, names=tuple(names), sequences=tuple(sequences)), decide)


def drop(backend: Backend, *keys: tuple[Kind, Key], session: str = SESSION) -> View:
    """Drop rows; the counts of the session's line are right afterwards."""
    names = [key for kind, key in keys if kind is Kind.NAME and isinstance(key, str)]
    sequences = [key for kind, key in keys if kind is Kind.CHECKPOINT and isinstance(key, int)]

    def decide(view: View) -> Batch:
        assert view.session is not None
        before = view.session
        after = msgspec.structs.replace(
            before,
            touched=view.fresh,
            checkpoints=before.checkpoints - len(view.checkpoints.keys() & set(sequences)),
            lanes=before.lanes - len(view.lanes),
            tags=before.tags - len(view.tags),
        )
        return Batch((after,), keys)

    return backend.write(Ask(session, names=tuple(names), sequences=tuple(sequences)), decide)


def nothing(_view: View) -> Batch | More:
    """A rule that writes nothing."""
    return Batch()


def together(act: Callable[[int], object], threads: int) -> None:
    """Run in this many threads, which start at one moment; the first error of any is raised here."""
    errors: list[BaseException] = []
    gate = threading.Barrier(threads)

    def run(me: int) -> None:
        try:
            gate.wait(PATIENCE_S)
            act(me)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that pytest watches
            errors.append(error)

    running = [threading.Thread(target=run, args=(me,), daemon=True) for me in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
