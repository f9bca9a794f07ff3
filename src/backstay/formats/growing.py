"""A session that was imported before, and to which the other system has added since: the new checkpoints, one by one.

Only where nobody has gone on here: each new checkpoint must come right behind the head of its branch. Each is a commit
of its own, so that a kill leaves a shorter history and never a wrong one; the next import adds the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from backstay.backend import Backend, Entry, in_doubt
from backstay.delta import rebuild
from backstay.formats.arriving import fields_of, journal_of, plan_of
from backstay.formats.found import MAIN, FoundSession, Point
from backstay.store.fields import read_fields
from backstay.store.reading import read_chain
from backstay.store.tip import Tip, tip_of

_LEASE_US = 30_000_000


def compare(backend: Backend, found: FoundSession, name: str) -> tuple[int, int]:
    """How many of the points are not here, and how many are here as something else.

    Ids like `run-0` come back when a session is begun anew: the time and the step must be the same, too. (To the
    second: smooth's database knows no more of what its files know to the nanosecond.)
    """
    here = set(backend.ids(name))
    missing = changed = 0
    for point in found.points:
        row = backend.find_row(name, point.id) if point.id in here else None
        if row is None:
            missing += 1
        else:
            fields = read_fields(row)
            changed += (fields.at_us // 10**6, fields.step) != (point.at_us // 10**6, point.step)
    return missing, changed


def extend(backend: Backend, found: FoundSession, name: str, tell: Callable[[], None]) -> int:
    """How many checkpoints were added; 0 if they do not fit behind what is here."""
    here = set(backend.ids(name))
    new = [point for point in found.points if point.id not in here]
    if not _fits(backend, found, name, new):
        return 0
    fields = fields_of(found)
    tips: dict[str, Tip] = {}
    for point in new:
        parent, branch = point.parent or "", point.branch
        _make_way(backend, name, branch, parent)
        tip = tips.pop(parent, None)
        if tip is None:
            chain, pieces = read_chain(backend, name, parent)
            tip = tip_of(chain, rebuild(chain.records, pieces))
        plan = plan_of(name, point, fields[point.id], point.load(), tip)
        tips[point.id] = plan.tip(backend.commit(plan.commit))
        tell()
    _leave_doubts(backend, found, name)
    return len(new)


def _fits(backend: Backend, found: FoundSession, name: str, new: list[Point]) -> bool:
    """True if the new points are the last ones, and each continues the branch that it is on."""
    if found.points[len(found.points) - len(new) :] != new:
        return False
    heads = {branch.name: branch.head_id for branch in backend.names(name).branches}
    for point in new:
        if point.parent is None or heads.get(point.branch, point.parent) != point.parent:
            return False
        heads[point.branch] = point.id
    return not any(run.live for run in backend.runs(name))


def _make_way(backend: Backend, name: str, branch: str, parent: str) -> None:
    """The branch is there, and what was in doubt on it no longer is: the other system has gone on."""
    if backend.find_branch(name, branch) is None:
        backend.fork(name, id_=parent, branch=branch)
    elif any(in_doubt(one.call, None) for one in backend.pending(name, branch).calls):
        backend.abandon(name, branch, reason="it was decided where the session comes from")


def _leave_doubts(backend: Backend, found: FoundSession, name: str) -> None:
    """The calls without an outcome at the new head, as a run that was cut off would have left them."""
    head = backend.find_row(name, found.heads[MAIN])
    stands = backend.find_branch(name, MAIN)
    if not found.pending or head is None or stands is None or stands.head_id != head.id:
        return
    point = next(point for point in found.points if point.id == head.id)
    entered = backend.enter(Entry(name, MAIN, point.agent, _LEASE_US, time.time_ns() // 1000, None))
    for one in journal_of(found, name, head.sequence, point.at_us)[1]:
        backend.journal(entered.lease, one.call, after=head.sequence)
    backend.leave(entered.lease, status=point.status, reason=point.reason)
