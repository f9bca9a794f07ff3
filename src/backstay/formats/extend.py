"""A session that was imported before, and to which the other system has added since: the new checkpoints, one by one.

Only where nobody has gone on here: each new checkpoint must come right behind the head of its branch. Each is a commit
of its own, so that a kill leaves a shorter history and never a wrong one; the next import adds the rest.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from backstay.formats.importer import PointWriter, rows_by_id
from backstay.formats.model import FoundPoint, FoundSession
from backstay.port import EVERY, Ask, Backend, CallRow
from backstay.rules import runs
from backstay.rules.refusals import in_doubt
from backstay.store.fields import read_fields

_NONCE_BYTES = 8


def compare(backend: Backend, found: FoundSession, name: str) -> tuple[int, int]:
    """How many of the points are not here, and how many are here as something else.

    Ids like `run-0` come back when a session is begun anew: the time and the step must be the same, too. (To the
    second: smooth's database knows no more of what its files know to the nanosecond.)
    """
    here = rows_by_id(backend, name, [point.id for point in found.points])
    missing = changed = 0
    for point in found.points:
        row = here.get(point.id)
        if row is None:
            missing += 1
        else:
            fields = read_fields(row)
            changed += (fields.at_us // 10**6, fields.step) != (point.at_us // 10**6, point.step)
    return missing, changed


def extend(backend: Backend, found: FoundSession, name: str, tell: Callable[[], None], *, dry_run: bool = False) -> int:
    """How many checkpoints were added, or in a dry run would be; 0 if they do not fit behind what is here."""
    here = rows_by_id(backend, name, [point.id for point in found.points])
    new = [point for point in found.points if point.id not in here]
    if not _fits(backend, found, name, new):
        return 0
    if dry_run:
        for point in new:
            point.load()
            tell()
        return len(new)
    writer = PointWriter(backend, found, name)
    for point in new:
        _make_way(backend, name, point.branch)
        writer.write(point)
        tell()
    writer.leave_doubts()
    return len(new)


def _fits(backend: Backend, found: FoundSession, name: str, new: list[FoundPoint]) -> bool:
    """True if the new points are the last ones, and each continues the branch that it is on."""
    if found.points[len(found.points) - len(new) :] != new:
        return False
    view = backend.read(Ask(name, names=EVERY))
    heads = {lane.name: lane.head.id for lane in view.lanes.values() if lane.head is not None}
    for point in new:
        if point.parent is None or heads.get(point.branch, point.parent) != point.parent:
            return False
        heads[point.branch] = point.id
    return not view.live


def _make_way(backend: Backend, name: str, branch: str) -> None:
    """What was in doubt on a branch no longer is: the other system has gone on."""
    ask = runs.abandon_ask(name, branch)
    pending = backend.read(ask).pending.get(branch, ())
    if any(isinstance(call, CallRow) and in_doubt(call, None) for call in pending):
        reason, at_us = "it was decided where the session comes from", time.time_ns() // 1000
        rule = runs.abandon(name, branch, reason=reason, at_us=at_us, nonce=secrets.token_hex(_NONCE_BYTES))
        backend.write(ask, rule)
