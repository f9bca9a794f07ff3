"""The rules about checkpoints and names, and what the model knows of a session."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backstay.errors import AlreadyExistsError, ConflictError, InDoubtError, InvalidInputError, NotFoundError
from backstay.face import Session, Store
from backstay.model import Checkpoint, StateDict
from backstay.testing.exact import exactly_equal
from backstay.testing.growth import CHANGES, Change, apply

OpenStore = Callable[[Path], Store]

SESSIONS = ("a", "a_b")
NAMES = ("main", "b", "c", "t")
LONG = 24

_names = st.sampled_from(NAMES)
_picks = st.integers(0, 30)
_changes = st.lists(CHANGES, min_size=1, max_size=3)


@dataclass
class ModelPoint:
    """A checkpoint as the model knows it."""

    state: StateDict
    parent: str | None
    link: str | None


@dataclass
class Made:
    """A call as the model knows it."""

    key: str
    status: str
    result: Any = None


@dataclass
class Unfinished:
    """A run that the next one on its branch goes on with."""

    input: Any = None


@dataclass
class ModelHistory:
    """A session as the model knows it.

    `calls` is those that no checkpoint took in, by the branch and the checkpoint that they were made on: pending where
    the branch stands there now, parked elsewhere. `taken` is the others, by who took them in. `origins` is where those
    were made that an undo has moved: a branch that falls back there has them again.
    """

    points: dict[str, ModelPoint] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    undos: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    written: int = 0
    calls: dict[tuple[str, str], list[Made]] = field(default_factory=dict)
    taken: dict[str, list[Made]] = field(default_factory=dict)
    runs: dict[str, Unfinished] = field(default_factory=dict)
    origins: dict[tuple[str, str], str] = field(default_factory=dict)

    def pending(self, branch: str) -> list[Made]:
        """The calls on a branch since its head that were not given up."""
        made = self.calls.get((branch, self.branches[branch]), [])
        return [call for call in made if call.status != "abandoned"]

    def in_doubt(self, branch: str) -> list[Made]:
        """Those of which nobody knows whether they happened."""
        return [call for call in self.pending(branch) if call.status == "in_doubt"]

    def pick(self, number: int) -> str:
        """One of the checkpoints, the newest for 0."""
        ids = list(self.points)
        return ids[-1 - number % len(ids)]

    def branch(self, number: int) -> str:
        """One of the branches."""
        return list(self.branches)[number % len(self.branches)]

    def line(self, id_: str | None) -> list[str]:
        """A checkpoint and its ancestors."""
        found = []
        while id_ is not None:
            found.append(id_)
            id_ = self.points[id_].link
        return found

    def add(self, branch: str, made: Checkpoint, state: StateDict) -> None:
        """A checkpoint was committed."""
        parent = self.branches.get(branch)
        self.written += 1
        assert made.parent_id == parent
        assert made.sequence == self.written
        self.points[made.id] = ModelPoint(copy.deepcopy(dict(state)), parent, parent)
        self.branches[branch] = made.id

    def remove(self, id_: str) -> None:
        """A checkpoint was deleted."""
        gone = self.points.pop(id_)
        for point in self.points.values():
            point.link = gone.link if point.link == id_ else point.link
        for name, head in self.branches.items():
            if head == id_ and gone.link is not None:
                self.branches[name] = gone.link
                if self.origins.get((name, id_)) == gone.link and (name, id_) in self.calls:
                    self.calls[name, gone.link] = self.calls.pop((name, id_))
                if self.undos.get(name) == gone.link:  # the restore itself is gone: there is nothing left to undo
                    del self.undos[name]
        self.undos = {name: target for name, target in self.undos.items() if target != id_}
        self.calls = {place: made for place, made in self.calls.items() if place[1] != id_}
        self.taken.pop(id_, None)

    def forget(self, branch: str) -> None:
        """A branch was deleted."""
        del self.branches[branch]
        self.undos.pop(branch, None)
        self.runs.pop(branch, None)
        self.calls = {place: made for place, made in self.calls.items() if place[0] != branch}


class Histories(RuleBasedStateMachine):
    """The rules. `machine_for` says how a store is opened."""

    open_store: OpenStore
    lasting: bool

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="backstay-machine-")
        self.store = self._open()
        self.model: dict[str, ModelHistory] = {}
        self.sessions: dict[str, Session] = {}

    def _open(self) -> Store:
        return type(self).open_store(Path(self.folder.name))

    def teardown(self) -> None:
        """Everything that should be there is, in a store opened anew; then it goes."""
        self.reopen()
        for name, history in self.model.items():
            for id_ in history.points:
                self._check(self._session(name), id_, name, id_)
        self.store.close()
        self.folder.cleanup()

    def _session(self, name: str) -> Session:
        if name not in self.sessions:
            self.sessions[name] = self.store.session(name)
        return self.sessions[name]

    def _check(self, session: Session, ref: str, name: str, id_: str) -> None:
        loaded, true = session.load(ref), self.model[name].points[id_].state
        assert exactly_equal(dict(loaded), dict(true)), f"{ref} gives {loaded!r} instead of {true!r}"

    @property
    def _history(self) -> ModelHistory:
        return self.model.get(SESSIONS[0]) or ModelHistory()

    def _points(self) -> int:
        return len(self._history.points)

    def _branches(self) -> list[str]:
        return list(self._history.branches)

    # writing

    @initialize(changes=_changes)
    def begin(self, changes: list[Change]) -> None:
        """So that every other rule has something to work on."""
        self._commit(SESSIONS[0], "main", changes, 0)

    def _commit(self, name: str, branch: str, changes: list[Change], base: int) -> None:
        history = self.model.setdefault(name, ModelHistory())
        state = copy.deepcopy(history.points[history.pick(base)].state) if history.points else {}
        for change in changes:
            apply(change, state)
        if self._refuses(name, branch, lambda: self._session(name).commit(state, branch=branch)):
            return
        made = self._session(name).commit(state, branch=branch)
        history.add(branch, made, state)

    def _refuses(self, name: str, branch: str, act: Callable[[], object]) -> bool:
        """True if others may not write to a branch because a call there is in doubt; then they cannot."""
        history = self.model[name]
        if branch not in history.branches or not history.in_doubt(branch):
            return False
        with pytest.raises(InDoubtError):
            act()
        return True

    @precondition(lambda self: self._branches())
    @rule(on=_picks, changes=_changes, base=_picks)
    def commit(self, on: int, changes: list[Change], base: int) -> None:
        """A state grown out of any earlier one, on any branch."""
        self._commit(SESSIONS[0], self._history.branch(on), changes, base)

    @rule(changes=_changes)
    def commit_to_neighbour(self, changes: list[Change]) -> None:
        """Another session, with large values that both may hold."""
        self._commit(SESSIONS[1], "main", changes, 0)

    @precondition(lambda self: self._branches() and len(self._history.points) < LONG)
    @rule(on=_picks, count=st.sampled_from([4, 17, 35]))
    def commit_often(self, on: int, count: int) -> None:
        """A stretch long enough that whole copies and segments come up."""
        history, branch = self._history, self._history.branch(on)
        if history.in_doubt(branch):
            return
        state = copy.deepcopy(history.points[history.branches[branch]].state)
        for at in range(count):
            apply(("append", [{"role": "user", "content": f"message {at} of a long conversation, " * 2}], None), state)
            made = self._session(SESSIONS[0]).commit(state, branch=branch)
            history.add(branch, made, state)

    @precondition(lambda self: self._branches())
    @rule(on=_picks, changes=_changes)
    def commit_unseen(self, on: int, changes: list[Change]) -> None:
        """A second Session that has not seen the newest checkpoint is refused, and nothing is lost."""
        name, history, branch = SESSIONS[0], self._history, self._history.branch(on)
        late = self.store.session(name)
        state = late.load(branch)
        if self._refuses(name, branch, lambda: late.commit(state, branch=branch)):
            return
        for change in changes:
            apply(change, state)
        made = self._session(name).commit(state, branch=branch)
        history.add(branch, made, state)
        with pytest.raises(ConflictError):
            late.commit({"not": "recorded"}, branch=branch)
        self._check(late, branch, name, made.id)
        again = late.commit(state, branch=branch)
        history.add(branch, again, state)
        with pytest.raises(ConflictError):
            self._session(name).commit({"not": "recorded"}, branch=branch)
        self._check(self._session(name), branch, name, again.id)

    @precondition(lambda self: self._branches())
    @rule(on=_picks, which=_picks)
    def restore(self, on: int, which: int) -> None:
        """A branch goes back to any checkpoint of its session, as a new one."""
        history, branch = self._history, self._history.branch(on)
        id_, before = history.pick(which), history.branches[branch]
        if self._refuses(SESSIONS[0], branch, lambda: self._session(SESSIONS[0]).restore(id_, branch=branch)):
            return
        made = self._session(SESSIONS[0]).restore(id_, branch=branch)
        assert made.restored_from == id_
        history.add(branch, made, history.points[id_].state)
        history.undos[branch] = before

    @precondition(lambda self: self._branches())
    @rule(on=_picks)
    def undo(self, on: int) -> None:
        """The branch as it stood before its last restore or undo."""
        history, branch = self._history, self._history.branch(on)
        target, before = history.undos.get(branch), history.branches[branch]
        if target is None:
            with pytest.raises(NotFoundError):
                self._session(SESSIONS[0]).undo(branch=branch)
            return
        if self._refuses(SESSIONS[0], branch, lambda: self._session(SESSIONS[0]).undo(branch=branch)):
            return
        made = self._session(SESSIONS[0]).undo(branch=branch)
        history.add(branch, made, history.points[target].state)
        history.undos[branch] = before
        if (branch, target) in history.calls:
            history.calls[branch, made.id] = history.calls.pop((branch, target))
            history.origins[branch, made.id] = history.origins.get((branch, target), target)

    # names

    @precondition(lambda self: self._points())
    @rule(which=_picks, branch=_names)
    def fork(self, which: int, branch: str) -> None:
        """A new branch, unless the name is taken."""
        session, history = self._session(SESSIONS[0]), self._history
        id_ = history.pick(which)
        if branch in history.branches or branch in history.tags:
            with pytest.raises(AlreadyExistsError):
                session.fork(id_, branch)
            return
        assert session.fork(id_, branch).head.id == id_
        history.branches[branch] = id_

    @precondition(lambda self: self._points())
    @rule(which=_picks, tag=_names)
    def tag(self, which: int, tag: str) -> None:
        """A new tag, unless the name is taken."""
        session, history = self._session(SESSIONS[0]), self._history
        id_ = history.pick(which)
        if tag in history.branches or tag in history.tags:
            with pytest.raises(AlreadyExistsError):
                session.tag(id_, tag)
            return
        session.tag(id_, tag)
        history.tags[tag] = id_

    @precondition(lambda self: len(self._branches()) > 1 or self._points() > 5)
    @rule(gone=_names)
    def give_up_name(self, gone: str) -> None:
        """A tag or a branch is forgotten; its checkpoints stay. What is not there is said not to be there."""
        session, history = self._session(SESSIONS[0]), self._history
        if gone in history.tags:
            session.untag(gone)
            del history.tags[gone]
        elif gone in history.branches:
            session.delete_branch(gone)
            history.forget(gone)
        if gone not in history.branches:
            for call in (
                lambda: session.untag(gone),
                lambda: session.delete_branch(gone),
                lambda: session.commit({"not": "recorded"}, branch=gone),
                lambda: session.restore(history.pick(0), branch=gone),
                lambda: session.undo(branch=gone),
                lambda: session.load(gone),
            ):
                with pytest.raises(NotFoundError):
                    call()

    # deleting

    @precondition(lambda self: self._points())
    @rule(which=_picks, by_other=st.booleans())
    def delete_checkpoint(self, which: int, by_other: bool) -> None:  # noqa: FBT001 - Hypothesis passes by name
        """Any checkpoint, unless it is tagged or the only one of a branch; by this Session or by another."""
        history, ours = self._history, self._session(SESSIONS[0])
        session = self.store.session(SESSIONS[0]) if by_other else ours
        id_ = history.pick(which)
        heads = [branch for branch, head in history.branches.items() if head == id_]
        pinned = id_ in history.tags.values() or (heads and history.points[id_].link is None)
        if pinned or any(history.in_doubt(branch) for branch in heads):
            with pytest.raises((InvalidInputError, InDoubtError)):
                session.delete(id_)
            return
        for branch in heads:
            ours.load(branch)
        session.delete(id_)
        history.remove(id_)
        for branch in heads if by_other else ():
            # It stands on what another has deleted, and must look again before it may write.
            with pytest.raises(ConflictError):
                ours.commit({"not": "recorded"}, branch=branch)
            self._check(ours, branch, SESSIONS[0], history.branches[branch])

    @precondition(lambda self: self._points() > 12)
    @rule()
    def delete_session(self) -> None:
        """A whole session. A Session that had seen it writes nothing into one that is not there any more."""
        ours, history = self._session(SESSIONS[0]), self.model.pop(SESSIONS[0])
        for branch in history.branches:
            ours.load(branch)
        self.store.delete(SESSIONS[0])
        for branch in history.branches:
            with pytest.raises(ConflictError):
                ours.commit({"not": "recorded"}, branch=branch)
        with pytest.raises(NotFoundError):
            self.store.delete(SESSIONS[0])
        del self.sessions[SESSIONS[0]]
        self._commit(SESSIONS[0], "main", [], 0)

    @rule()
    def reopen(self) -> None:
        """Close and open again: nothing was only in memory."""
        if self.lasting:
            self.store.close()
            self.store = self._open()
        self.sessions.clear()

    # reading

    @precondition(lambda self: self._points())
    @rule(which=_picks, cut=st.integers(8, 24), seen=st.booleans())
    def load(self, which: int, cut: int, seen: bool) -> None:  # noqa: FBT001 - Hypothesis passes by name
        """Any state by its id, a prefix of it, its branch, its tag, or steps from a branch."""
        name, history = SESSIONS[0], self._history
        session = self._session(name) if seen else self.store.session(name)
        id_ = history.pick(which)
        self._check(session, id_, name, id_)
        self._check(session, id_[:cut], name, id_)
        for branch, head in history.branches.items():
            self._check(session, branch, name, head)
            line = history.line(head)
            steps = which % len(line)
            self._check(session, f"{branch}~{steps}", name, line[steps])
            with pytest.raises(NotFoundError):
                session.load(f"{branch}~{len(line)}")
        for tag, held in history.tags.items():
            self._check(session, tag, name, held)

    # what always holds

    @invariant()
    def nothing_is_damaged(self) -> None:
        """Every checkpoint verifies, and there are as many as there should be."""
        report = self.store.verify()
        assert report.ok, str(report)
        assert report.checked == sum(len(history.points) for history in self.model.values())

    @invariant()
    def names_and_lines_are_as_they_should_be(self) -> None:
        """Branches, tags, parents, counts and listings agree with the model."""
        for name, history in self.model.items():
            session = self._session(name)
            assert {branch: head.id for branch, head in session.branches().items()} == history.branches
            assert {tag: held.id for tag, held in session.tags().items()} == history.tags
            for branch, head in history.branches.items():
                line = list(session.log(branch))
                assert [point.id for point in line] == history.line(head)
                assert [point.parent_id for point in line] == [history.points[point.id].parent for point in line]
        lines: dict[str, Any] = {info.id: (info.branches, info.checkpoints) for info in self.store.sessions()}
        assert lines == {name: (len(history.branches), len(history.points)) for name, history in self.model.items()}
