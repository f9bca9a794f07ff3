"""Commits as the hall prepares them, for tests that drive a backend through the rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from backstay.delta import know, whole
from backstay.port import Ask, Backend, CallRow, CheckpointRow, Records, View
from backstay.port.lease import here
from backstay.port.rows import STARTED
from backstay.rules import commit as commits
from backstay.rules import runs
from backstay.rules.refusals import Lease
from backstay.sealing import open_keyframe, pack_blob, seal_keyframe, spill, unspill

LEASE_US = 30_000_000


def uid_of(session: str) -> bytes:
    """The same in every process, so that several may be the first to write."""
    return session.encode().ljust(16, b"-")[:16]


def prepared(session: str, state: Mapping[str, Any], expect: str | None, *, branch: str = "main", **more: Any) -> Any:
    uid, tail = uid_of(session), os.urandom(7)
    known = know(dict(state))
    record, contents = whole(dict(state))
    keyframe, spilled = spill(seal_keyframe(record, uid=uid, tail=tail, state=known.digest))
    blobs = {digest: pack_blob(content) for digest, content in contents.items()} | spilled
    totals = commits.Totals("agent", "in_progress", None, None, b"", 1)
    return commits.Commit(
        session,
        branch,
        uid,
        tail,
        expect,
        b"",
        known.digest,
        10,
        totals,
        keyframe=keyframe,
        keyframe_refs=record.refs,
        blobs=blobs,
        **more,
    )


def commit(
    backend: Backend, session: str, state: Mapping[str, Any], expect: str | None, *, branch: str = "main", **more: Any
) -> CheckpointRow:
    new = prepared(session, state, expect, branch=branch, **more)
    row = backend.write(new.ask, commits.commit(new)).answer
    assert isinstance(row, CheckpointRow)
    return row


def chain(backend: Backend, session: str, count: int, *, size: int = 40) -> list[CheckpointRow]:
    """So many commits, each on the one before."""
    found: list[CheckpointRow] = []
    for number in range(count):
        expect = found[-1].id if found else None
        found.append(commit(backend, session, {"n": number, "text": "x" * size}, expect))
    return found


def is_whole(backend: Backend, session: str, sequence: int) -> bool:
    """True if the state of a checkpoint is there, verified as the hall does; a CorruptionError if it is damaged."""
    records: Records = backend.state(session, sequence)
    if records.session is None or not records.rows:
        return False
    row = records.rows[-1]
    assert isinstance(row, CheckpointRow)
    assert records.keyframe is not None
    data = unspill(records.keyframe, records.blobs)
    open_keyframe(data, uid=records.session.uid, tail=row.tail, state=row.state_digest)
    return True


def head_of(view: View, branch: str = "main") -> str | None:
    lane = view.lanes.get(branch)
    return None if lane is None or lane.head is None else lane.head.id


def enter(backend: Backend, session: str, branch: str = "main", *, lease_us: int = LEASE_US) -> Lease:
    new = runs.Enter(session, branch, uid_of(session), os.urandom(8), here(), None, lease_us, 1, None)
    lease = backend.write(new.ask, runs.enter(new)).answer.lease
    assert isinstance(lease, Lease)
    return lease


def call(backend: Backend, lease: Lease, name: str) -> CallRow:
    row = CallRow(0, 0, 0, os.urandom(4).hex(), None, name, None, 0, "tool", None, bytes(16), STARTED, lease.token, 1)
    answer = backend.write(runs.journal_ask(lease, None), runs.journal(lease, row, at=None)).answer
    assert isinstance(answer, CallRow)
    return answer


def names(session: str) -> Ask:
    return Ask(session, names=None)
