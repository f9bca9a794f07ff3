"""The rules about runs: entered, cut off at any place, gone on with, decided, given up; among the rules of histories.

Each call has a key of its own, so the model can say of every one whether it may be made. A function that is called
although the model has its outcome is the worst that can happen, and fails the machine.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from msgspec.structs import replace

from backstay.codec import encode_stored
from backstay.errors import CallFailedError, ConflictError, InDoubtError
from backstay.face import Session
from backstay.model import Call, Checkpoint, StateDict
from backstay.port import CallRow
from backstay.port.lease import here
from backstay.port.rows import DONE, STARTED
from backstay.retention import Retention
from backstay.rules import runs
from backstay.run import Run
from backstay.run.options import digest_of
from backstay.sealing import pack_value
from backstay.testing.machine.histories import SESSIONS, Histories, Made, ModelHistory, Unfinished

_NAME, _COPY = "tool", "a copy"
_NOW_US = 1_700_000_000_000_000
_LONG = "an answer that is long enough to stand in the state only; " * 8

_picks = st.integers(0, 30)
_outcomes = st.sampled_from(["done", "long", "failed", "doubt"])
_ends = st.sampled_from(["crash", "fail", "step", "complete", "complete"])

OnDoubt = Literal["ask", "skip", "retry"]


def _never() -> None:
    pytest.fail("a call was made again whose outcome is recorded")


def _interrupted() -> None:
    raise KeyboardInterrupt


def _failing() -> None:
    message = "no money"
    raise ValueError(message)


def _note(run: Run, answer: Any) -> None:
    """Put an answer into the state, as a loop does; whatever stood there may have been grown by others."""
    if type(run.state.get("answers")) is not list:
        run.state["answers"] = []
    run.append(answer, part="answers")


class Runs(Histories):
    """Histories with runs in them. No run stays alive from one rule to the next: that is what others are refused by."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def _ours(self) -> Session:
        return self._session(SESSIONS[0])

    def _key(self) -> str:
        self.made += 1
        return str(self.made)

    # one run

    @precondition(lambda self: self._branches())
    @rule(
        on=_picks,
        on_doubt=st.sampled_from(["ask", "skip", "retry"]),
        plan=st.lists(_outcomes, max_size=3),
        end=_ends,
        given=st.booleans(),
    )
    def run(self, on: int, on_doubt: OnDoubt, plan: list[str], end: str, given: bool) -> None:  # noqa: FBT001
        """A run goes on with what is pending, makes some calls more, and ends in one way or another."""
        history, branch = self._history, self._history.branch(on)
        before, known = history.branches[branch], history.runs.get(branch)
        said = {"asked": self.made} if given else None
        expected = said if known is None else known.input
        run = self._ours().run(branch=branch, input=said, on_doubt=on_doubt)
        completed = False
        if said not in (None, expected):
            with pytest.raises(ConflictError), run:
                pass
            run = self._ours().run(branch=branch, on_doubt=on_doubt)
        with contextlib.suppress(KeyboardInterrupt), run:
            history.runs[branch] = Unfinished(expected)
            assert run.input == expected
            assert run.resumed == (known is not None or bool(history.pending(branch)))
            assert [call.key for call in run.in_doubt] == [made.key for made in history.in_doubt(branch)]
            known_all = self._replay(run, branch, on_doubt)
            for outcome in plan:
                known_all = self._call(run, branch, outcome) and known_all
            if end == "fail":
                run.fail("no network")
            if end == "crash" or not known_all:
                raise KeyboardInterrupt
            if end == "step":
                self._take_in(branch, run.step(), run.state)
                raise KeyboardInterrupt
            completed = True
        if completed:
            self._completed(branch, before, run.state)

    def _completed(self, branch: str, before: str, state: StateDict) -> None:
        history, head = self._history, self._ours().head(branch)
        assert head is not None
        assert head.id != before or not history.pending(branch)
        if head.id != before:
            self._take_in(branch, head, state)
        del history.runs[branch]

    def _replay(self, run: Run, branch: str, on_doubt: OnDoubt) -> bool:
        """Ask for every call that is recorded; False if the outcome of one is not known."""
        known = True
        for made in self._history.pending(branch):
            if made.status == "in_doubt" and on_doubt == "ask":
                with pytest.raises(InDoubtError):
                    run.call(_NAME, _never, key=made.key, args=made.key)
                known = False
            elif made.status == "retry" or (made.status == "in_doubt" and on_doubt == "retry"):
                made.status, made.result = "done", f"again {made.key}"
                _note(run, run.call(_NAME, partial(str, made.result), key=made.key, args=made.key))
            elif made.status == "failed":
                with pytest.raises(CallFailedError):
                    run.call(_NAME, _never, key=made.key, args=made.key)
            else:
                made.status = "skipped" if made.status == "in_doubt" else made.status
                result = run.call(_NAME, _never, key=made.key, args=made.key)
                assert result == made.result
                _note(run, result)
        return known

    def _call(self, run: Run, branch: str, outcome: str) -> bool:
        """A call that was never made; False if its outcome is not known."""
        made = Made(self._key(), outcome)
        self._pending(branch).append(made)
        act: Callable[[], Any]
        if outcome in ("done", "long"):
            made.status, made.result = "done", f"{_LONG if outcome == 'long' else ''}{made.key}"
            _note(run, run.call(_NAME, partial(str, made.result), key=made.key, args=made.key))
            return True
        act, error = (_failing, CallFailedError) if outcome == "failed" else (_interrupted, KeyboardInterrupt)
        made.status = "failed" if outcome == "failed" else "in_doubt"
        with pytest.raises(error):
            run.call(_NAME, act, key=made.key, args=made.key)
        return outcome == "failed"

    def _pending(self, branch: str) -> list[Made]:
        history = self._history
        return history.calls.setdefault((branch, history.branches[branch]), [])

    def _take_in(self, branch: str, point: Checkpoint | None, state: StateDict) -> None:
        assert point is not None
        history = self._history
        history.taken[point.id] = history.calls.pop((branch, history.branches[branch]), [])
        history.add(branch, point, state)

    @precondition(lambda self: self._branches())
    @rule(on=_picks, done=st.booleans())
    def die(self, on: int, done: bool) -> None:  # noqa: FBT001 - Hypothesis passes by name
        """A process is killed in a call, or right behind it: its lease runs out, nothing is given back."""
        history, branch, backend = self._history, self._history.branch(on), self.store.backend
        uid, nonce = secrets.token_bytes(16), secrets.token_bytes(8)
        intent = runs.Enter(SESSIONS[0], branch, uid, nonce, here(), None, 1, _NOW_US, None)
        lease = backend.write(intent.ask, runs.enter(intent)).answer.lease
        key = self._key()
        args = pack_value(encode_stored(key)), digest_of(key)
        call = CallRow(0, 0, 0, secrets.token_hex(8), None, _NAME, key, 0, "tool", *args, STARTED, lease.token, _NOW_US)
        call = backend.write(runs.journal_ask(lease, None), runs.journal(lease, call, at=None)).answer
        made = Made(key, "in_doubt")
        if done:
            made = Made(key, "done", f"just {key}")
            ended = replace(call, status=DONE, result=pack_value(encode_stored(made.result)))
            backend.write(runs.journal_ask(lease, call.at), runs.journal(lease, ended, at=call.at))
        self._pending(branch).append(made)
        history.runs.setdefault(branch, Unfinished())
        assert SESSIONS[0] in [info.id for info in self.store.crashed()]

    # from outside

    @precondition(lambda self: any(self._history.in_doubt(branch) for branch in self._branches()))
    @rule(which=_picks, how=st.sampled_from(["retry", "skip", "result", "failed"]))
    def resolve(self, which: int, how: str) -> None:
        """Somebody decides a call in doubt."""
        history, session = self._history, self._ours()
        doubtful = [(branch, made) for branch in self._branches() for made in history.in_doubt(branch)]
        branch, made = doubtful[which % len(doubtful)]
        (found,) = [call for call in session.calls(branch, pending=True) if call.key == made.key]
        if how == "result":
            session.resolve(found.id, result=f"found out {made.key}")
            made.status, made.result = "done", f"found out {made.key}"
        elif how == "failed":
            session.resolve(found.id, failed="it did not arrive")
            made.status = "failed"
        else:
            session.resolve(found.id, "retry" if how == "retry" else "skip")
            made.status = "retry" if how == "retry" else "skipped"

    @precondition(lambda self: self._history.runs)
    @rule(on=_picks)
    def abandon(self, on: int) -> None:
        """Somebody gives up what is pending on a branch."""
        history, branch = self._history, self._history.branch(on)
        self._ours().abandon(branch, reason="enough")
        for made in history.pending(branch):
            made.status = "abandoned"
        history.runs.pop(branch, None)

    @precondition(lambda self: self._branches())
    @rule(on=_picks, which=_picks)
    def back_and_forth(self, on: int, which: int) -> None:
        """What is pending is parked by a restore, and taken up again by its undo."""
        history, branch = self._history, self._history.branch(on)
        if history.in_doubt(branch):
            return
        self.die(on, done=True)
        before = _known(history.pending(branch))
        self.restore(on, which)
        assert not self._ours().calls(branch, pending=True)
        self.undo(on)
        assert _told(self._ours().calls(branch, pending=True)) == before

    @precondition(lambda self: any(branch != "main" for branch in self._history.runs))
    @rule()
    def make_anew(self) -> None:
        """A branch that is made anew, where the old one stood, knows nothing of its calls."""
        history, session = self._history, self._ours()
        branch = next(branch for branch in history.runs if branch != "main")
        head = history.branches[branch]
        session.delete_branch(branch)
        history.forget(branch)
        session.fork(head, branch)
        history.branches[branch] = head

    # upkeep

    @precondition(lambda self: self._points() > 6)
    @rule(keep=st.integers(1, 4))
    def prune(self, keep: int) -> None:
        """Old checkpoints go, and the calls that they took in."""
        rule_ = Retention(keep_last=keep, keep_days=0)
        plan = self._ours().prune(rule_, dry_run=True)
        done = self._ours().prune(rule_)
        assert plan.checkpoints == done.checkpoints
        for ids in done.checkpoints.values():
            for id_ in ids:
                self._history.remove(id_)

    @precondition(lambda self: self._history.taken or self._history.calls)
    @rule()
    def travel(self) -> None:
        """Out into a file and in again: the copy knows the same calls, and nobody has crashed there."""
        path = Path(self.folder.name) / "file"
        self.store.export(path, session=SESSIONS[0], overwrite=True)
        self.store.import_(path, rename=_COPY)
        try:
            self._check_calls(self.store.session(_COPY), self._history, list(self._history.taken))
            doubtful = any(self._history.in_doubt(branch) for branch in self._history.branches)
            assert (_COPY in [info.id for info in self.store.crashed()]) is doubtful
            assert self.store.verify(_COPY).ok
        finally:
            self.store.delete(_COPY)

    # what always holds

    def _check_calls(self, session: Session, history: ModelHistory, ids: list[str]) -> None:
        for branch in history.branches:
            assert _told(session.calls(branch, pending=True)) == _known(history.pending(branch))
        for id_ in ids:
            assert _told(session.calls(id_)) == _known(history.taken[id_])

    @invariant()
    def calls_are_as_they_should_be(self) -> None:
        """What is pending on each branch, and what the newest checkpoints took in."""
        self._check_calls(self._ours(), self._history, list(self._history.taken)[-2:])

    def teardown(self) -> None:
        """Every call that should be there is, in a store opened anew."""
        self.reopen()
        self._check_calls(self._ours(), self._history, list(self._history.taken))
        super().teardown()


def _told(calls: list[Call]) -> list[tuple[str | None, str, Any]]:
    return [(call.key, call.status, call.result) for call in calls]


def _known(calls: list[Made]) -> list[tuple[str | None, str, Any]]:
    return [(made.key, made.status, made.result) for made in calls]
