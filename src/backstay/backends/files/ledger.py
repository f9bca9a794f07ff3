"""What the lines of a journal say about runs and calls: how each branch's run stands, and where each call is written.

Part of the index, kept up with it line by line. It knows which calls there are and what became of them; their words are
read from their lines when they are asked for. Pure: no file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from backstay.backend import ABANDONED
from backstay.backends.files.lines import About, Brief, GaveUp, Line, RunState, Snapshot
from backstay.backends.files.runlines import input_sum, read_input
from backstay.errors import CorruptionError

Group = tuple[int, int]  # a run, and the sequence at which its branch stood


class Span(NamedTuple):
    """Where a line stands in its file, its newline included; nowhere if that is not known."""

    at: int
    size: int


@dataclass(slots=True)
class Called:
    """A call: in short, and where its line stands; `args` is that of the line which holds them."""

    brief: Brief
    after: int
    status: str
    span: Span
    args: Span
    gave_up: str | None = None

    @property
    def group(self) -> Group:
        """Where it belongs."""
        return self.brief.run, self.after


@dataclass(slots=True)
class Ledger:
    """See the module's text."""

    states: dict[str, RunState] = field(default_factory=dict)
    calls: dict[int, Called] = field(default_factory=dict)
    taken: dict[Group, str] = field(default_factory=dict)
    broken: set[Group] = field(default_factory=set)  # calls were taken up that are lost
    last_run: int = 0
    last_slot: int = 0
    said_at: dict[str, int] = field(default_factory=dict)  # the last line that says all of a branch's run
    _inputs: dict[str, bytes] = field(default_factory=dict)
    _groups: dict[Group, list[int]] = field(default_factory=dict)

    # what lines say

    def say(self, line: Line, n: int) -> None:
        """A line about a run."""
        state, branch = line.run, line.name
        if state is None:
            return
        self.states[branch] = state
        self.said_at[branch] = n
        self.last_run = max(self.last_run, state.run)
        if bytes(line.input):
            self._keep_input(branch, line.input)
        elif not state.input_sum:
            self._inputs.pop(branch, None)
        if line.gave_up is not None:
            self._give_up(state.run, line.gave_up)

    def _keep_input(self, branch: str, raw: msgspec.Raw) -> None:
        found = read_input(raw)
        if found is not None:
            self._inputs[branch] = found

    def _give_up(self, run: int, gave_up: GaveUp) -> None:
        group = run, gave_up.after
        self.broken.discard(group)
        for called in self.at(group):
            if called.status != ABANDONED:
                called.status, called.gave_up = ABANDONED, gave_up.reason

    def call(self, brief: Brief, span: Span, *, with_args: bool) -> None:
        """A call was begun, or something became of it."""
        known = self.calls.get(brief.slot)
        args = span if with_args or known is None else known.args
        if known is not None:
            self._groups[known.group].remove(brief.slot)
        self.calls[brief.slot] = Called(brief, brief.after, brief.status, span, args)
        self._groups.setdefault((brief.run, brief.after), []).append(brief.slot)
        self.last_run, self.last_slot = max(self.last_run, brief.run), max(self.last_slot, brief.slot)

    def commit(self, about: About, n: int) -> None:
        """What a commit did to runs and calls."""
        if about.run is not None:
            run, token = about.run
            state = self.states.get(about.branch)
            if state is None or state.run != run or state.token < token:
                # The line that said so is lost. `said_at` knows that this is not all there is to say.
                state = RunState(run, token, entered=True, unfinished=True)
            self.last_run = max(self.last_run, run)
            if about.ends_run:
                state, self.said_at[about.branch] = ended(state, completed=True), n
                self._inputs.pop(about.branch, None)
            self.states[about.branch] = state
        if about.took is not None:
            self.taken[about.took[:2]] = about.id
            self.last_run = max(self.last_run, about.took[0])
        if about.took_up is not None:
            run, left_at, count = about.took_up
            found, group = self._groups.pop((run, left_at), []), (run, about.sequence)
            self._groups.setdefault(group, []).extend(found)
            for slot in found:
                self.calls[slot].after = about.sequence
            if len(found) != count:
                self.broken.add(group)

    def fork(self, branch: str, n: int) -> None:
        """A new branch has never run."""
        self.said_at[branch] = n

    def forget(self, branch: str, n: int) -> None:
        """A branch is gone, and with it the calls that no checkpoint took in."""
        state = self.states.pop(branch, None)
        self._inputs.pop(branch, None)
        self.said_at[branch] = n
        if state is not None:
            for group in [group for group in self._groups if group[0] == state.run and group not in self.taken]:
                for slot in self._groups.pop(group):
                    del self.calls[slot]

    def settle(self, names: Snapshot) -> None:
        """All that is known, in a journal written anew."""
        self.states, self._inputs = dict(names.runs), {}
        for branch, raw in names.inputs.items():
            self._keep_input(branch, raw)
        self.last_run, self.last_slot = max(self.last_run, names.last_run), max(self.last_slot, names.last_slot)

    # answers

    def at(self, group: Group) -> list[Called]:
        """The calls of a run while its branch stood at one sequence, in the order they were begun."""
        return [self.calls[slot] for slot in sorted(self._groups.get(group, []))]

    def pending(self, branch: str, after: int) -> list[Called]:
        """The calls on a branch that stands at this sequence that no one gave up."""
        state = self.states.get(branch)
        found = [] if state is None else self.at((state.run, after))
        return [called for called in found if called.status != ABANDONED]

    def input_of(self, branch: str) -> bytes | None:
        """What the run on a branch was given; a CorruptionError if that is lost."""
        state, found = self.states.get(branch), self._inputs.get(branch)
        wanted = "" if state is None else state.input_sum
        if not wanted:
            return None
        if input_sum(found) != wanted:
            message = f"the input of the run on branch {branch!r} is lost"
            raise CorruptionError(message, hint="session.abandon(branch, reason=…) gives that run up")
        return found

    def inputs(self) -> dict[str, bytes]:
        """All that are whole."""
        return {
            branch: self._inputs[branch]
            for branch, state in self.states.items()
            if state.input_sum and branch in self._inputs and input_sum(self._inputs[branch]) == state.input_sum
        }

    def staying(self, gone: Collection[str], sequences: Collection[int]) -> Iterator[Called]:
        """The calls that stay when some checkpoints and their sequences go: not taken in by one, nor pending there."""
        for _, called in sorted(self.calls.items()):
            taken_by = self.taken.get(called.group)
            if taken_by not in gone and (taken_by is not None or called.after not in sequences):
                yield called


def ended(state: RunState, *, completed: bool) -> RunState:
    """A run that is over; unless it completed, the next one goes on with its input."""
    if completed:
        return RunState(state.run, state.token)
    return RunState(state.run, state.token, unfinished=state.unfinished, input_sum=state.input_sum)
