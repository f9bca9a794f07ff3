"""A session that was imported before, and to which the other system has added since: the new checkpoints, one by one.

Only where no commit was made here since: each new checkpoint must come right behind the head of a branch, or leave a
line of the other system's own (a rewind there is a branch here). Each is a commit of its own, so that a kill leaves a
shorter history and never a wrong one; the next import adds the rest.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from backstay.formats.importer import PointWriter, rows_by_id
from backstay.formats.model import FoundPoint, FoundSession, free_name
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
            same_time = not point.timed or fields.at_us // 10**6 == point.at_us // 10**6
            changed += not same_time or fields.step != point.step
    return missing, changed


def _newer(backend: Backend, found: FoundSession, name: str) -> list[FoundPoint]:
    """The points behind the last one that is here, each on the branch it gets; none if they do not fit.

    A point before that which is not here was pruned here, and stays so.
    """
    here = rows_by_id(backend, name, [point.id for point in found.points])
    last = max([at for at, point in enumerate(found.points) if point.id in here], default=-1)
    new = found.points[last + 1 :]
    return new if new and _fits(backend, found, name, new) else []


def extend(backend: Backend, found: FoundSession, name: str, tell: Callable[[], None], *, dry_run: bool = False) -> int:
    """How many checkpoints were added, or in a dry run would be; 0 if they do not fit behind what is here."""
    new = _newer(backend, found, name)
    if dry_run:
        for point in new:
            point.load()
            tell()
    if dry_run or not new:
        return len(new)
    writer = PointWriter(backend, found, name)
    for point in new:
        _make_way(backend, name, point.branch)
        writer.write(point)
        tell()
    writer.leave_doubts()
    return len(new)


def _fits(backend: Backend, found: FoundSession, name: str, new: list[FoundPoint]) -> bool:
    """True if each new point continues a branch, or begins one where the other system left a line of its own."""
    view = backend.read(Ask(name, names=EVERY))
    heads = {lane.name: lane.head.id for lane in view.lanes.values() if lane.head is not None}
    theirs = {point.id for point in found.points}
    for point in new:
        if point.parent is None or view.live:
            return False
        if heads.get(point.branch, point.parent) != point.parent:
            behind = [branch for branch, head in heads.items() if head == point.parent]
            if not behind and heads[point.branch] not in theirs:
                return False  # a commit was made here
            point.branch = behind[0] if behind else free_name("continued", heads)
        heads[point.branch] = point.id
    return True


def _make_way(backend: Backend, name: str, branch: str) -> None:
    """What was in doubt on a branch no longer is: the other system has gone on."""
    ask = runs.abandon_ask(name, branch)
    pending = backend.read(ask).pending.get(branch, ())
    if any(isinstance(call, CallRow) and in_doubt(call, None) for call in pending):
        reason, at_us = "it was decided where the session comes from", time.time_ns() // 1000
        rule = runs.abandon(name, branch, reason=reason, at_us=at_us, nonce=secrets.token_hex(_NONCE_BYTES))
        backend.write(ask, rule)
