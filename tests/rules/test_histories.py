"""Whole histories against a simple model: whatever happens in whatever order, no call is lost, doubled or done twice.

The model keeps calls in lists that belong to a branch (pending, or parked by a restore) or to a checkpoint (taken in,
or left behind); it knows no numbers of journals. The rules are applied to dicts, see `shelf`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backstay.codec import encode_stored
from backstay.errors import (
    AlreadyExistsError,
    BackstayError,
    ConflictError,
    FencedError,
    InDoubtError,
    InvalidInputError,
    LeaseHeldError,
    NotFoundError,
)
from backstay.port import CallRow, CheckpointRow, LaneRow, TagRow
from backstay.port.rows import ABANDONED, DONE, FAILED, IN_DOUBT, RETRY, SKIPPED, STARTED
from backstay.rules import branches, runs
from backstay.rules.deletion import Deletion, Rewrite, delete_checkpoints
from backstay.rules.refusals import Lease, StopAsked
from backstay.sealing import pack_value
from tests.rules.shelf import LEASE_US, SESSION, UID, Shelf

NAMES = st.sampled_from(["main", "b", "c"])
TAGS = st.sampled_from(["release", "main", "c"])
PICKS = st.integers(0, 1000)
OPEN = (STARTED, IN_DOUBT)
ONE, TWO = (pack_value(encode_stored(text)) for text in ("one", "two"))


@dataclass(eq=False)
class Line:
    """Calls in order, and the head that the first of them was made on."""

    origin: int
    calls: dict[str, str] = field(default_factory=dict)

    def in_doubt(self) -> bool:
        return any(status in OPEN for status in self.calls.values())


@dataclass(eq=False)
class Branch:
    head: int | None
    pending: Line
    undo: tuple[int, Line] | None = None
    run: int = 0
    token: int = 0
    until_us: int | None = None  # of the lease, None if nobody has it
    purpose: str | None = None
    entered: bool = False
    unfinished: bool = False
    input: bytes | None = None
    crashes: int = 0
    spot: object = b""
    stop: str | None = None

    def where(self) -> object:
        return self.head, [pair for pair in self.pending.calls.items() if pair[1] != ABANDONED]

    def take_lease(self, now_us: int) -> None:
        if self.entered and self.until_us is not None and self.purpose is None:
            self.crashes = self.crashes + 1 if self.spot == self.where() else 1
            self.spot = self.where()
        self.token += 1
        self.until_us = now_us + LEASE_US

    def give_up(self) -> None:
        open_ = [id_ for id_, status in self.pending.calls.items() if status != ABANDONED]
        self.pending.calls.update(dict.fromkeys(open_, ABANDONED))
        self.end(completed=True)

    def end(self, *, completed: bool) -> None:
        self.until_us = self.purpose = None
        self.entered, self.crashes, self.spot, self.stop = False, 0, b"", None
        if completed:
            self.unfinished, self.input = False, None


@dataclass(eq=False)
class ModelPoint:
    parent: int | None
    size: int
    calls: Line | None = None
    branch: Branch | None = None
    left: int | None = None  # at this head, if it did not take them in


class Histories(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.branches: dict[str, Branch] = {}
        self.tags: dict[str, int] = {}
        self.points: dict[int, ModelPoint] = {}
        self.sequence = 0
        self.leases: list[Lease] = []
        self.calls = 0
        self.taken: set[str] = set()
        self.tokens: dict[int, int] = {}

    @initialize(begins=st.sampled_from(["commit", "run"]))
    def begin(self, begins: str) -> None:
        if begins == "commit":
            self.commit("main", "plain")
        else:
            self.enter("main", ONE, restart=False)

    # how the model is asked

    def live(self, branch: Branch) -> bool:
        return branch.until_us is not None and branch.until_us > self.shelf.now_us

    def holds(self, lease: Lease) -> Branch | None:
        branch = self.branches.get(lease.branch)
        if branch is None or branch.until_us is None or (branch.run, branch.token) != (lease.run, lease.token):
            return None
        return branch

    def attempt(self, expected: type[Exception] | None, act: Callable[[], Any]) -> Any:
        """Do it; the model knows whether it is refused, and how. Nothing changes where it is."""
        if expected is None:
            return act()
        before = list(self.shelf.tables.rows()) if self.shelf.sessions else []
        with pytest.raises(expected):
            act()
        assert (list(self.shelf.tables.rows()) if self.shelf.sessions else []) == before
        return None

    def made(self, branch: Branch, row: CheckpointRow) -> ModelPoint:
        self.sequence += 1
        assert row.sequence == self.sequence
        point = self.points[row.sequence] = ModelPoint(branch.head, row.size_bytes)
        branch.head = row.sequence
        return point

    # commits

    @rule(name=NAMES, how=st.sampled_from(["plain", "restore", "undo"]))
    def commit(self, name: str, how: str) -> None:
        branch = self.branches.get(name)
        expected: type[BackstayError] | None = None
        if name in self.tags:
            expected = AlreadyExistsError
        elif branch is not None and self.live(branch):
            expected = LeaseHeldError
        elif branch is not None and branch.pending.in_doubt():
            expected = InDoubtError
        if how != "plain" and (branch is None or branch.head is None or (how == "undo" and branch.undo is None)):
            return  # the hall has nothing to go back to
        row = self.attempt(expected, lambda: self.shelf.commit(name, undoable=how != "plain", takes_up=how == "undo"))
        if row is None:
            return
        if branch is None:
            branch = self.branches[name] = Branch(None, Line(0))
        if branch.entered or branch.until_us is not None:
            branch.token += 1
        self.went_on(branch, row, how)

    def went_on(self, branch: Branch, row: CheckpointRow, how: str) -> None:
        """What a commit that is no boundary does to the calls."""
        stood, pending, undo = branch.head, branch.pending, branch.undo
        point = self.made(branch, row)
        branch.pending = Line(row.sequence)
        if how == "plain":
            point.calls, point.branch, point.left = pending, branch, stood or 0
        else:
            assert stood is not None
            branch.undo = stood, pending
            if how == "undo":
                assert undo is not None
                branch.pending = undo[1]
            elif undo is not None:
                point.left, point.calls, point.branch = undo[0], undo[1], branch

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS, ends=st.booleans())
    def boundary(self, pick: int, ends: bool) -> None:
        lease = self.leases[pick % len(self.leases)]
        branch = self.holds(lease)
        expected: type[Exception] | None = None
        if lease.branch in self.tags:
            expected = AlreadyExistsError
        elif branch is None:
            expected = FencedError
        elif ends and lease.purpose is None and branch.stop is not None and not branch.pending.in_doubt():
            expected = StopAsked
        elif lease.purpose is not None and branch.pending.in_doubt():
            expected = InDoubtError
        elif lease.purpose is None and branch.pending.in_doubt():
            return  # the hall refuses a boundary with calls in flight
        row = self.attempt(expected, lambda: self.shelf.commit(lease.branch, lease=lease, ends_run=ends))
        if row is None or branch is None:
            return
        if lease.purpose is not None:
            self.went_on(branch, row, "plain")
        else:
            point = self.made(branch, row)
            point.calls, point.branch = branch.pending, branch
            self.taken |= branch.pending.calls.keys()
            branch.pending = Line(row.sequence)
        if not ends:
            self.renewed(branch)
        elif lease.purpose is None:
            branch.end(completed=True)
        else:
            branch.until_us = branch.purpose = None

    def renewed(self, branch: Branch) -> None:
        """A lease that has aged is written again."""
        assert branch.until_us is not None
        if branch.until_us - self.shelf.now_us < LEASE_US - LEASE_US // 20:
            branch.until_us = self.shelf.now_us + LEASE_US

    # runs

    @rule(name=NAMES, given=st.sampled_from([None, ONE, TWO]), restart=st.booleans())
    def enter(self, name: str, given: bytes | None, restart: bool) -> None:
        branch = self.branches.get(name)
        expected: type[BackstayError] | None = None
        if name in self.tags:
            expected = AlreadyExistsError
        elif branch is None and self.points:
            expected = NotFoundError
        elif branch is not None and self.live(branch):
            expected = LeaseHeldError
        elif branch is not None and branch.stop is None:
            if restart and branch.pending.in_doubt():
                expected = InDoubtError
            elif not restart and branch.unfinished and given not in (None, branch.input):
                expected = ConflictError
        entered = self.attempt(expected, lambda: self.shelf.enter(name, input=given, restart=restart))
        if entered is None:
            return
        if branch is not None and (restart or branch.stop is not None):
            branch.give_up()
        if branch is None:
            branch = self.branches[name] = Branch(None, Line(0))
        offered = {id_: status for id_, status in branch.pending.calls.items() if status != ABANDONED}
        assert {row.id: row.status for row in entered.calls} == offered
        branch.take_lease(self.shelf.now_us)
        branch.run = branch.run or entered.lease.run
        if not branch.unfinished:
            branch.input = given
        branch.entered = branch.unfinished = True
        branch.purpose = None
        self.leases.append(entered.lease)

    @rule(name=NAMES)
    def hold(self, name: str) -> None:
        branch = self.branches.get(name)
        expected: type[BackstayError] | None = NotFoundError if branch is None else None
        if branch is not None and self.live(branch):
            expected = LeaseHeldError
        lease = self.attempt(expected, lambda: self.shelf.hold(name))
        if lease is not None and branch is not None:
            branch.take_lease(self.shelf.now_us)
            branch.run, branch.purpose = branch.run or lease.run, "files"
            self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS, status=st.sampled_from([None, "completed", "failed", "cancelled"]))
    def leave(self, pick: int, status: str | None) -> None:
        lease = self.leases[pick % len(self.leases)]
        branch = self.holds(lease)
        self.attempt(None if branch else FencedError, lambda: self.shelf.leave(lease, status, "because"))
        if branch is None:
            return
        if branch.purpose is None and (branch.stop is not None or status == "cancelled"):
            branch.give_up()
        elif status is None or branch.purpose is not None:
            branch.until_us = branch.purpose = None
        else:
            branch.end(completed=status == "completed")

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        branch = self.branches.get(name)
        self.calls += 1
        rule = runs.cancel(SESSION, name, reason="stop", at_us=self.shelf.now_us, nonce=f"cancel {self.calls}")
        expected = NotFoundError if branch is None else None
        stopped = self.attempt(expected, lambda: self.shelf.write(runs.abandon_ask(SESSION, name), rule))
        if branch is None:
            return
        pending = any(status != ABANDONED for status in branch.pending.calls.values())
        assert stopped is (branch.unfinished or pending or (self.live(branch) and branch.entered))
        if self.live(branch) and (branch.entered or branch.unfinished):
            branch.stop = "stop"
        elif stopped:
            branch.give_up()
            branch.token += 1

    @rule(part=st.sampled_from([LEASE_US // 30, LEASE_US // 2, LEASE_US + 1]))
    def time_passes(self, part: int) -> None:
        self.shelf.pass_time(part)

    # calls

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS)
    def call_begins(self, pick: int) -> None:
        lease = self.leases[pick % len(self.leases)]
        branch = self.holds(lease)
        self.calls += 1
        id_ = f"call {self.calls}"
        expected = FencedError if branch is None else None if branch.stop is None else StopAsked
        self.attempt(expected, lambda: self.shelf.begin(lease, id_))
        if branch is not None and expected is None:
            branch.pending.calls[id_] = STARTED
            self.renewed(branch)

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS, which=PICKS, status=st.sampled_from([DONE, DONE, FAILED, IN_DOUBT]))
    def call_ends(self, pick: int, which: int, status: str) -> None:
        lease = self.leases[pick % len(self.leases)]
        branch = self.branches.get(lease.branch)
        row = None if branch is None else self.pick(lease.branch, (*OPEN, RETRY), which)
        if row is None or branch is None:
            return
        ours = self.holds(lease)
        self.attempt(None if ours else FencedError, lambda: self.shelf.finish(lease, row, status))
        if ours is not None:
            branch.pending.calls[row.id] = status
            self.renewed(branch)

    def pick(self, name: str, statuses: tuple[str, ...], which: int) -> CallRow | None:
        found = [row for row in self.shelf.pending(name) if isinstance(row, CallRow) and row.status in statuses]
        return found[which % len(found)] if found else None

    @rule(name=NAMES, which=PICKS, status=st.sampled_from([DONE, SKIPPED, RETRY, FAILED]))
    def call_is_decided(self, name: str, which: int, status: str) -> None:
        branch = self.branches.get(name)
        before = None if branch is None else self.pick(name, OPEN, which)
        if before is None or branch is None:
            return
        self.calls += 1
        after = msgspec.structs.replace(before, status=status, nonce=f"decision {self.calls}".encode())
        settle = runs.settle(SESSION, name, before=before, after=after)
        self.shelf.write(runs.settle_ask(SESSION, name, before.at), settle)
        branch.pending.calls[before.id] = status
        branch.token += not self.live(branch)

    @rule(name=NAMES)
    def give_up(self, name: str) -> None:
        branch = self.branches.get(name)
        expected: type[BackstayError] | None = NotFoundError if branch is None else None
        if branch is not None and self.live(branch):
            expected = LeaseHeldError
        self.calls += 1
        given_up = self.attempt(expected, lambda: self.shelf.abandon(name, nonce=f"abandon {self.calls}"))
        if branch is None or expected is not None:
            return
        open_ = [id_ for id_, status in branch.pending.calls.items() if status != ABANDONED]
        assert given_up == len(open_)
        if open_ or branch.unfinished:
            branch.pending.calls.update(dict.fromkeys(open_, ABANDONED))
            branch.end(completed=True)
            branch.token += 1

    # names

    @rule(name=NAMES, pick=PICKS)
    def fork(self, name: str, pick: int) -> None:
        if not self.points:
            return
        at = sorted(self.points)[pick % len(self.points)]
        row = self.shelf.tables.checkpoints[at]
        assert isinstance(row, CheckpointRow)
        fork = branches.fork(SESSION, name, sequence=at, id_=row.id)
        taken = name in self.branches or name in self.tags
        ask = branches.naming_ask(SESSION, name, at)
        self.attempt(AlreadyExistsError if taken else None, lambda: self.shelf.write(ask, fork))
        if not taken:
            self.branches[name] = Branch(at, Line(at))

    @rule(name=NAMES)
    def delete_branch(self, name: str) -> None:
        branch = self.branches.get(name)
        expected: type[BackstayError] | None = NotFoundError if branch is None else None
        if branch is not None and self.live(branch):
            expected = LeaseHeldError
        ask = branches.name_ask(SESSION, name)
        self.attempt(expected, lambda: self.shelf.write(ask, branches.delete_branch(SESSION, name)))
        if expected is None:
            del self.branches[name]

    @rule(name=TAGS, pick=PICKS)
    def tag(self, name: str, pick: int) -> None:
        if not self.points:
            return
        at = sorted(self.points)[pick % len(self.points)]
        row = self.shelf.tables.checkpoints[at]
        assert isinstance(row, CheckpointRow)
        taken = name in self.branches or name in self.tags
        tag = branches.tag(SESSION, name, sequence=at, id_=row.id)
        ask = branches.naming_ask(SESSION, name, at)
        self.attempt(AlreadyExistsError if taken else None, lambda: self.shelf.write(ask, tag))
        if not taken:
            self.tags[name] = at

    @rule(name=TAGS)
    def untag(self, name: str) -> None:
        ask = branches.name_ask(SESSION, name)
        expected = None if name in self.tags else NotFoundError
        self.attempt(expected, lambda: self.shelf.write(ask, branches.untag(SESSION, name)))
        self.tags.pop(name, None)

    # deletion

    @rule(first=PICKS, count=st.integers(1, 4))
    def delete(self, first: int, count: int) -> None:
        """Some checkpoints that were made one after the other, the newest as often as not."""
        at = sorted(self.points)
        if not at:
            return
        start = max(0, len(at) - count) if first % 2 else first % len(at)
        self.remove(set(at[start : start + count]))

    def anchor(self, at: int | None, gone: set[int]) -> int | None:
        while at is not None and at in gone:
            at = self.points[at].parent
        return at

    def remove(self, gone: set[int]) -> None:
        moving = {name: branch for name, branch in self.branches.items() if branch.head in gone}
        anchors = {name: self.anchor(branch.head, gone) for name, branch in moving.items()}
        expected: type[BackstayError] | None = None
        if any(self.live(branch) for branch in moving.values()):
            expected = LeaseHeldError
        elif any(branch.pending.in_doubt() for branch in moving.values()):
            expected = InDoubtError
        elif gone & set(self.tags.values()) or None in anchors.values():
            expected = InvalidInputError
        staying = [at for at, point in self.points.items() if at not in gone and point.parent in gone]
        plan = Deletion(
            SESSION,
            UID,
            tuple(gone),
            tuple([Rewrite(at, self.anchor(self.points[at].parent, gone), keyframe=b"keyframe") for at in staying]),
            tuple([at for at in anchors.values() if at is not None]),
        )
        self.attempt(expected, lambda: self.shelf.write(plan.ask, delete_checkpoints(plan)))
        if expected is not None:
            return
        for name, branch in moving.items():
            at = anchors[name]
            assert at is not None
            self.move_back(branch, at, gone)
        for branch in self.branches.values():
            if branch.undo is not None and branch.undo[0] in gone:
                branch.undo = None
        for at in staying:
            self.points[at].parent = self.anchor(self.points[at].parent, gone)
        for sequence in gone:
            del self.points[sequence]

    def move_back(self, branch: Branch, at: int, gone: set[int]) -> None:
        """The calls that wait at the head a branch goes back to are pending again; all others at heads that go, go."""
        left = [
            (point.left, point.calls)
            for sequence, point in self.points.items()
            if sequence in gone and point.branch is branch and point.left is not None and point.calls is not None
        ]
        lines = [branch.pending, *[line for _, line in left], *([branch.undo[1]] if branch.undo is not None else [])]
        waiting = [line for stood, line in left if stood == at and line.calls]
        made_there = [line for line in lines if line.origin == at and line.calls]
        branch.head, branch.token = at, branch.token + 1
        if branch.undo is not None and branch.undo[0] == at:
            branch.pending, branch.undo = branch.undo[1], None
        else:
            branch.pending = (waiting or made_there or [Line(at)])[0]

    # what must hold

    @invariant()
    def names_and_counts_are_what_is_there(self) -> None:
        if not self.shelf.sessions:
            return
        tables, line = self.shelf.tables, self.shelf.tables.session
        lanes = {name: row for name, row in tables.names.items() if isinstance(row, LaneRow)}
        tags = {name: row.sequence for name, row in tables.names.items() if isinstance(row, TagRow)}
        assert (set(lanes), tags) == (set(self.branches), self.tags)
        assert (line.lanes, line.tags, line.checkpoints) == (len(lanes), len(tags), len(tables.checkpoints))
        assert (line.sequence, set(tables.checkpoints)) == (self.sequence, set(self.points))
        assert line.logical_bytes == sum(point.size for point in self.points.values())
        for at, row in tables.checkpoints.items():
            assert row.parent == self.points[at].parent
            assert row.parent is None or row.parent in tables.checkpoints

    @invariant()
    def every_branch_is_as_the_model_says(self) -> None:
        for name, branch in self.branches.items():
            lane = self.shelf.lane(name)
            assert (None if lane.head is None else lane.head.sequence) == branch.head
            assert lane.undo == (None if branch.undo is None else branch.undo[0])
            assert (lane.run, lane.token, lane.purpose) == (branch.run, branch.token, branch.purpose)
            assert (None if lane.claim is None else lane.claim.until_us) == branch.until_us
            assert (lane.entered, lane.unfinished, lane.input) == (branch.entered, branch.unfinished, branch.input)
            assert (lane.crashes, lane.stop) == (branch.crashes, branch.stop)

    @invariant()
    def no_token_ever_goes_back(self) -> None:
        for name in self.branches:
            lane = self.shelf.lane(name)
            if lane.run:
                assert lane.token >= self.tokens.get(lane.run, 0)
                self.tokens[lane.run] = lane.token

    @invariant()
    def every_call_is_where_it_belongs_and_only_there(self) -> None:
        if not self.shelf.sessions:
            return
        tables = self.shelf.tables
        owners: list[tuple[tuple[int, int], dict[str, str]]] = []
        for name, branch in self.branches.items():
            lane = self.shelf.lane(name)
            owners.append(((lane.run, lane.journal), branch.pending.calls))
            if branch.undo is not None:
                assert lane.undo_journal is not None
                owners.append(((lane.run, lane.undo_journal), branch.undo[1].calls))
                assert lane.undo_calls == len(branch.undo[1].calls)
            assert not self.taken & branch.pending.calls.keys(), "what was taken in is offered again"
        for at, row in tables.checkpoints.items():
            assert isinstance(row, CheckpointRow)
            point = self.points[at]
            expected = point.calls.calls if point.calls is not None else {}
            assert (row.took is not None) == bool(expected)
            if row.took is not None:
                assert (row.took.count, row.took.left) == (len(expected), point.left)
                owners.append(((row.took.run, row.took.journal), expected))
        kept = {at: calls for at, calls in tables.calls.items() if calls}
        for journal, calls in owners:
            found = tables.journal(journal)
            assert [(row.id, row.status) for row in found if isinstance(row, CallRow)] == list(calls.items())
        owned = [journal for journal, calls in owners if calls]
        assert sorted(owned) == sorted(kept), "a call that belongs to nobody, or to two"


Histories.TestCase.settings = settings(stateful_step_count=60)
TestHistories = Histories.TestCase
