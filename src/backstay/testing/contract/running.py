"""Runs through the rules: leases and fences, calls that are journaled, taken in, decided and given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from backstay.errors import CorruptionError, FencedError
from backstay.port import Ask, Backend, CallRow, Kind, LaneQuery
from backstay.port.rows import ABANDONED, ENTERED
from backstay.rules import branches, runs
from backstay.testing.author import NOW_US, SESSION, Author, Runner, check_states, delete, read_back, tag
from backstay.testing.contract.handmade import drop
from backstay.testing.contract.hooks import Hooks

T = TypeVar("T")
PENDING = Ask(SESSION, names=("main",), pending=("main",), counted=("main",))


class RunningContract(Hooks):
    """A run from its beginning to its end, on rows that a backend keeps."""

    def test_a_run_begins_a_session_and_its_calls_are_taken_in_by_a_boundary(self, backend: Backend) -> None:
        run = Runner(backend, input_=b"an input")
        view = backend.read(PENDING)
        assert view.lanes["main"].head is None
        assert view.lanes["main"].input == b"an input"
        assert view.live == {"main"}
        calls = [run.call("one", result=b"\0\xff"), run.start("two")]
        backend = self.again(backend)
        assert backend.read(PENDING).pending["main"] == calls
        assert backend.read(PENDING).counts == {"main": 2}
        run.backend = run.author.backend = backend
        run.finish(calls[1], status="failed", error=("Boom", "text"), result=None)
        row = run.boundary({"turn": 1}, places={calls[0].at: b"a place"})
        assert row.took is not None
        assert row.took.count == 2
        assert not backend.read(PENDING).pending["main"]
        taken = backend.read(Ask(SESSION, journals=((row.took.run, row.took.journal),)))
        first, second = taken.journals[row.took.run, row.took.journal]
        assert isinstance(first, CallRow)
        assert isinstance(second, CallRow)
        assert (first.result, first.place) == (None, b"a place")
        assert (second.status, second.error) == ("failed", ("Boom", "text"))
        run.boundary({"turn": 2}, ends_run=True)
        lane = backend.read(PENDING).lanes["main"]
        assert (lane.claim, lane.entered, lane.unfinished, lane.input) == (None, False, False, None)
        check_states(backend, SESSION, run.author.states)

    def test_a_run_that_lost_its_lease_writes_nothing_more(self, backend: Backend) -> None:
        Author(backend).grow(2)
        first = Runner(backend, lease_s=0.05)
        call = first.start()
        time.sleep(0.1)
        second = Runner(self.other(backend))
        assert second.entered.calls == (call,)
        before = backend.read(PENDING)
        for write in (first.start, lambda: first.finish(call), first.boundary, first.renew, first.leave):
            with pytest.raises(FencedError):
                write()
        after = backend.read(PENDING)
        assert (after.session, after.lanes, after.pending) == (before.session, before.lanes, before.pending)
        second.finish(call)
        second.boundary()

    def test_what_is_given_up_is_kept_and_the_run_is_over(self, backend: Backend) -> None:
        run = Runner(backend, input_=b"an input")
        run.boundary({"turn": 0})
        run.call()
        run.start()
        run.call()
        drop(backend, (Kind.CALL, (run.lease.run, 1, 0)))  # a call that is lost is given up like the others
        run.leave()
        assert len(backend.lanes(LaneQuery(ENTERED))) == 1
        with pytest.raises(CorruptionError):
            Runner(backend)
        rule = runs.abandon(SESSION, "main", reason="enough", at_us=NOW_US, nonce="n")
        assert backend.write(runs.abandon_ask(SESSION, "main"), rule).answer == 3
        view = backend.read(PENDING)
        assert [row.status for row in view.pending["main"] if isinstance(row, CallRow)] == [ABANDONED] * 3
        assert not view.lanes["main"].entered
        assert not backend.lanes(LaneQuery(ENTERED))
        Runner(backend).boundary()

    def test_calls_go_with_the_branch_and_with_the_checkpoint_that_took_them_in(self, backend: Backend) -> None:
        run = Runner(backend)
        run.boundary({"turn": 0})
        run.call()
        run.boundary({"turn": 1})
        run.boundary({"turn": 2})
        other = run.author.fork(run.author.rows[0], "other")
        side = Runner(backend, branch="other")
        side.call()
        side.leave()
        assert len(backend.scan(SESSION, Kind.CALL, limit=9)) == 2
        delete(backend, SESSION, 2)
        assert len(backend.scan(SESSION, Kind.CALL, limit=9)) == 1
        backend.write(branches.name_ask(SESSION, "other"), branches.delete_branch(SESSION, "other"))
        assert not backend.scan(SESSION, Kind.CALL, limit=9)
        assert read_back(backend, SESSION, 1) == other.states[1]

    def test_a_run_of_a_branch_that_is_gone_is_not_taken_for_one_of_a_later(self, backend: Backend) -> None:
        author = Author(backend)
        (row,) = author.grow(1)
        author.fork(row, "other")
        run = Runner(backend, branch="other", lease_s=0.05)
        run.start()
        time.sleep(0.1)
        backend.write(branches.name_ask(SESSION, "other"), branches.delete_branch(SESSION, "other"))
        author.fork(row, "other")
        again = Runner(backend, branch="other")
        assert again.lease.run > run.lease.run
        assert not again.entered.calls
        with pytest.raises(FencedError):
            run.start()

    def test_a_write_whose_answer_was_lost_counts_once(self, backend: Backend) -> None:
        author = Author(backend)

        def lost(act: Callable[[], T]) -> T:
            if not self.lose_answer(backend):
                pytest.skip("no answer of this backend can be lost")
            return act()

        first = lost(lambda: author.commit({"turn": 0}))
        second = lost(lambda: author.commit({"turn": 1}))
        lost(lambda: tag(backend, SESSION, first, "a tag"))
        lost(lambda: author.fork(first, "other"))
        run = lost(lambda: Runner(backend))
        calls = [lost(run.start), lost(run.start)]
        lost(lambda: run.finish(calls[0]))
        lost(run.renew)
        assert lost(run.boundary).sequence == 3
        lost(lambda: run.leave(status="failed"))
        assert lost(lambda: delete(backend, SESSION, second.sequence)) == 1
        lost(lambda: backend.write(branches.name_ask(SESSION, "a tag"), branches.untag(SESSION, "a tag")))
        lost(lambda: backend.write(branches.name_ask(SESSION, "other"), branches.delete_branch(SESSION, "other")))
        view = backend.read(Ask(SESSION, names=None))
        assert view.session is not None
        assert (view.session.sequence, view.session.checkpoints, set(view.lanes)) == (3, 2, {"main"})
        assert (view.session.lanes, view.session.tags, run.lease.token) == (1, 0, 1)
        assert [call.n for call in calls] == [0, 1]
        check_states(backend, SESSION, {1: {"turn": 0}, 3: run.author.states[3]})
