"""Runs: who may have a branch and for how long, what is left of one that died, and that nobody writes who lost it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from backstay import whereabouts
from backstay.backend import DONE, LOOK_S, Backend, Deletion, Entry
from backstay.errors import ConflictError, FencedError, LeaseHeldError, NotFoundError
from backstay.testing.author import NOW_US, Author
from backstay.testing.contract.hooks import Hooks
from backstay.testing.contract.racing import ROUNDS, attempts
from backstay.testing.runner import SESSION, SHORT_US, Runner, expire

HOUR_US = 3_600_000_000
LONG_AGO_PID = 2**22 + 1  # beyond what a process can have
# Enters "a session", says so, and waits to be killed.
CHILD = """
{opening}
from backstay.testing.runner import Runner, expire
run = Runner(backend, input_=b"\\xa2go")
run.start("in flight")
print("entered", flush=True)
import time; time.sleep(600)
"""


class LeasingContract(Hooks):
    """What `enter`, `renew`, `leave`, `runs` and `crashed` owe."""

    def test_entering_makes_a_session_without_checkpoints_that_is_listed(self, backend: Backend) -> None:
        Author(backend, "beside").grow(1)
        entered = Runner(backend, agent="an agent", input_=b"\xa2go").entered
        assert (entered.head_id, entered.before, entered.calls) == (None, None, ())
        run = entered.run
        assert (run.branch, run.entered, run.live, run.unfinished, run.input) == ("main", True, True, True, b"\xa2go")
        assert (entered.lease.session, entered.lease.branch) == (SESSION, "main")
        assert (entered.lease.run, entered.lease.token) == (run.run, run.token)
        assert list(backend.runs(SESSION)) == [run]
        for again in (backend, self.beside(backend)):
            line = again.find_session(SESSION)
            assert line is not None
            assert (line.totals.agent, line.totals.status, line.crashed) == ("an agent", "in_progress", False)
            assert (line.branches, line.checkpoints, line.created_us) == (0, 0, NOW_US)
            for wanted in ({"status": "in_progress", "agent": "an agent"}, {"status": None, "agent": "an agent"}):
                assert list(again.sessions(before=None, limit=9, **wanted)) == [line]
            assert not again.ids(SESSION)
            assert not again.names(SESSION).branches
            assert again.find_branch(SESSION, "main") is None
            assert not again.entries(SESSION)
            if again is not backend:
                again.close()
        assert backend.sizes().sessions == 2
        assert not list(backend.check())

    def test_what_never_ran_has_nothing_pending(self, backend: Backend) -> None:
        author = Author(backend)
        for _ in range(2):
            found = backend.pending(SESSION, "main")
            assert (found.run, found.calls) == (None, ())
            assert not backend.runs(SESSION)
            author.grow(1)
        assert not backend.crashed()
        with pytest.raises(NotFoundError):
            backend.entries("nobody")

    def test_a_branch_that_is_being_run_is_not_entered_again(self, backend: Backend) -> None:
        Author(backend).grow(1)
        first = Runner(backend)
        other = self.beside(backend)
        before = backend.runs(SESSION)
        for again in (backend, other):
            with pytest.raises(LeaseHeldError) as refused:
                Runner(again)
            text = str(refused.value)
            assert str(os.getpid()) in text
            assert socket.gethostname() in text
            assert "UTC" in text
        assert backend.runs(SESSION) == before
        first.boundary()
        if other is not backend:
            other.close()

    def test_a_branch_that_is_not_there_is_not_entered(self, backend: Backend) -> None:
        Author(backend).grow(1)
        with pytest.raises(NotFoundError):
            Runner(backend, branch="nowhere")
        assert not backend.runs(SESSION)

    def test_branches_are_run_side_by_side(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(2)
        backend.fork(SESSION, id_=author.rows[0].id, branch="other")
        main, other = Runner(backend), Runner(backend, branch="other")
        elsewhere = Runner(backend, "another session")
        assert main.lease.run != other.lease.run
        for run in (main, other, elsewhere, main):
            run.call()
            run.boundary()
        assert [row.branch for row in backend.runs(SESSION)] == ["main", "other"]

    def test_a_run_that_lost_its_lease_writes_nothing_more(self, backend: Backend) -> None:
        old = Runner(backend, lease_us=SHORT_US)
        begun = old.start()
        old.boundary()
        draft, _ = old.draft({"picture": b"p" * 6_000})
        expire()
        new = Runner(backend)
        assert new.lease.run == old.lease.run
        assert new.lease.token > old.lease.token
        before = backend.runs(SESSION), backend.ids(SESSION), backend.entries(SESSION), backend.find_session(SESSION)
        for act in (
            lambda: backend.renew(old.lease),
            old.start,
            lambda: old.finish(replace(begun, after=1)),
            lambda: backend.commit(draft),
            lambda: backend.commit(replace(draft, ends_run=True)),
            lambda: old.leave("completed"),
            old.leave,
        ):
            with pytest.raises(FencedError):
                act()
        after = backend.runs(SESSION), backend.ids(SESSION), backend.entries(SESSION), backend.find_session(SESSION)
        assert after == before
        assert not backend.blobs(list(draft.blobs), salvage=True)
        new.call()
        new.boundary()

    @pytest.mark.parametrize("how", ["commit", "delete", "settle", "abandon", "delete the session"])
    def test_a_run_that_slept_while_somebody_else_wrote_on_its_branch_writes_nothing_more(
        self, backend: Backend, how: str
    ) -> None:
        Author(backend).grow(2)
        run = Runner(backend, lease_us=SHORT_US)
        begun = run.start() if how == "settle" else run.call()
        expire()
        if how == "commit":
            Author(backend).stand_on(str(run.entered.head_id)).grow(1)
        elif how == "delete":
            backend.delete_checkpoints(Deletion(SESSION, (str(run.entered.head_id),), ()))
        elif how == "settle":
            backend.settle(SESSION, "main", before=begun, after=replace(begun.call, status=DONE, result=b"\xc0"))
        elif how == "abandon":
            backend.abandon(SESSION, "main", reason="it hangs")
        else:
            # Numbers may be given anew, to a session of the same name or of another; leases never are.
            backend.delete_session(SESSION)
            for session in (SESSION, "another session"):
                Author(backend, session).grow(2)
                Runner(backend, session)
        for act in (lambda: backend.renew(run.lease), run.start, lambda: run.finish(begun), run.leave):
            with pytest.raises(FencedError):
                act()

    def test_a_lease_that_expired_and_was_not_taken_is_still_held_on_to(self, backend: Backend) -> None:
        run = Runner(backend, lease_us=SHORT_US)
        expire()
        assert [row.branch for _, row in backend.crashed()] == ["main"]
        backend.renew(replace(run.lease, lease_us=HOUR_US))
        assert not backend.crashed()
        with pytest.raises(LeaseHeldError):
            Runner(backend)
        run.call()
        run.boundary()

    @pytest.mark.parametrize("how", ["renew", "journal", "commit"])
    def test_every_write_of_a_run_holds_on_to_its_lease(self, backend: Backend, how: str) -> None:
        run = Runner(backend, lease_us=SHORT_US)
        run.lease = replace(run.lease, lease_us=HOUR_US)
        if how == "renew":
            backend.renew(run.lease)
        elif how == "journal":
            run.start()
        else:
            run.boundary()
        expire()
        with pytest.raises(LeaseHeldError):
            Runner(backend)

    def test_who_wants_to_continue_just_one_run_is_told_if_another_came_first(self, backend: Backend) -> None:
        run = Runner(backend)
        run.leave()
        token = run.lease.token
        for wrong in (token + 1, token - 1):
            with pytest.raises(ConflictError):
                Runner(backend, expect_token=wrong)
        with pytest.raises(ConflictError):
            Runner(backend, "a session that never ran", expect_token=token)
        assert backend.find_session("a session that never ran") is None
        again = Runner(backend, expect_token=token)
        assert again.entered.before is not None
        assert again.entered.before.token == token
        again.leave("failed", "no")
        with pytest.raises(ConflictError):
            Runner(backend, expect_token=again.lease.token)

    def test_a_run_whose_process_was_killed_is_taken_over_at_once(self, backend: Backend) -> None:
        opening = self.opening_code(backend)
        if opening is None:
            pytest.skip("no other process can open this backend")
        child = subprocess.Popen(  # noqa: S603 - this very interpreter, with what the test class gave
            [sys.executable, "-c", CHILD.format(opening=opening)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "entered\n"
            with pytest.raises(LeaseHeldError, match=f"process {child.pid} "):
                Runner(backend)
            assert not backend.crashed()
        finally:
            child.send_signal(signal.SIGKILL)
            # Not waited for yet: what is left of it in the system's table must not count as alive.
            assert child.stdout.read() == ""
            while backend.pending(SESSION, "main").run.live:  # type: ignore[union-attr]
                time.sleep(0.001)  # until the system has ended it
            child.stdout.close()
            ended = child.wait()
        assert ended == -signal.SIGKILL
        assert [(line.id, run.branch) for line, run in backend.crashed()] == [(SESSION, "main")]
        run = Runner(backend, input_=b"\xa5other")
        assert run.entered.run.input == b"\xa2go"
        assert run.entered.run.crashes == 1
        assert [journaled.call.name for journaled in run.entered.calls] == ["in flight"]

    @pytest.mark.parametrize(
        ("who", "lives"),
        [
            ({"pid": LONG_AGO_PID}, False),
            ({"pid": LONG_AGO_PID, "space": 1}, True),
            ({"pid": LONG_AGO_PID, "host": "elsewhere", "boot": "another"}, True),
            ({"pid": os.getppid(), "born": 1}, False),
        ],
        ids=["dead", "in another space of numbers", "on another host", "its number was given to another"],
    )
    def test_a_process_is_looked_for_only_where_its_number_means_it(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch, who: dict[str, object], *, lives: bool
    ) -> None:
        ours = whereabouts.here()
        if "born" in who and not ours.born:
            pytest.skip("here nobody can tell when a process began")
        with monkeypatch.context() as patch:
            patch.setattr(whereabouts, "here", lambda: replace(ours, **who))
            Runner(backend)
        row = backend.pending(SESSION, "main").run
        assert row is not None
        assert row.live is lives
        with pytest.raises(LeaseHeldError, match=str(who["pid"])) if lives else contextlib.nullcontext():
            Runner(backend)

    @pytest.mark.parametrize("jump_us", [HOUR_US, -HOUR_US])
    def test_a_calendar_that_jumps_frees_no_lease_and_keeps_none(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch, jump_us: int
    ) -> None:
        Runner(backend, lease_us=60_000_000)
        Runner(backend, "short", lease_us=SHORT_US)
        now_ns, now = time.time_ns, time.time
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + jump_us * 1000)
        monkeypatch.setattr(time, "time", lambda: now() + jump_us / 1e6)
        expire()
        with pytest.raises(LeaseHeldError):
            Runner(backend)
        Runner(backend, "short")

    def test_a_run_that_completed_is_over_and_its_input_gone(self, backend: Backend) -> None:
        first = Runner(backend, input_=b"\xa2go")
        first.leave("completed")
        (row,) = backend.runs(SESSION)
        assert (row.entered, row.live, row.unfinished, row.input, row.crashes) == (False, False, False, None, 0)
        line = backend.find_session(SESSION)
        assert line is not None
        assert (line.totals.status, line.totals.reason, line.crashed) == ("completed", None, False)
        second = Runner(backend, input_=b"\xa4next")
        assert second.entered.before == row
        assert second.entered.run.input == b"\xa4next"
        assert second.lease.token > first.lease.token

    @pytest.mark.parametrize("status", ["failed", "halted"])
    def test_a_run_that_ended_otherwise_is_gone_on_with_where_it_was(self, backend: Backend, status: str) -> None:
        run = Runner(backend, agent="an agent", input_=b"\xa2go")
        done = run.call()
        run.leave(status, "a reason")
        (row,) = backend.runs(SESSION)
        assert (row.entered, row.live, row.unfinished, row.input) == (False, False, True, b"\xa2go")
        line = backend.find_session(SESSION)
        assert line is not None
        assert (line.totals.status, line.totals.reason, line.crashed) == (status, "a reason", False)
        assert not backend.crashed()
        again = Runner(backend, input_=b"\xa5other")
        assert again.entered.run.input == b"\xa2go"
        assert again.entered.run.crashes == 0
        assert again.entered.calls == (done,)
        line = backend.find_session(SESSION)
        assert line is not None
        assert (line.totals.agent, line.totals.status, line.totals.reason) == ("an agent", "in_progress", None)

    def test_an_unfinished_run_without_an_input_takes_the_next_one(self, backend: Backend) -> None:
        Runner(backend).leave()
        Runner(backend, input_=b"\xa2go").leave("failed", "no")
        assert Runner(backend, input_=b"\xa5other").entered.run.input == b"\xa2go"

    def test_a_run_that_was_interrupted_counts_as_entered_and_its_lease_is_free(self, backend: Backend) -> None:
        run = Runner(backend, input_=b"\xa2go")
        run.leave()
        (row,) = backend.runs(SESSION)
        assert (row.entered, row.live, row.unfinished, row.input) == (True, False, True, b"\xa2go")
        for act in (lambda: backend.renew(run.lease), run.start, run.leave, lambda: run.leave("completed")):
            with pytest.raises(FencedError):  # it was given back
                act()
        line = backend.find_session(SESSION)
        assert line is not None
        assert line.crashed
        assert list(backend.crashed()) == [(line, row)]
        assert Runner(backend, input_=b"\xa5other").entered.run.crashes == 0

    def test_crashes_are_counted_as_long_as_nothing_is_recorded_between_them(self, backend: Backend) -> None:
        def crashes() -> int:
            run = Runner(backend, lease_us=1)
            time.sleep(0.002)
            return run.entered.run.crashes

        assert [crashes(), crashes(), crashes()] == [0, 1, 2]
        run = Runner(backend, lease_us=1)
        assert run.entered.run.crashes == 3
        begun = run.start()
        assert [crashes(), crashes()] == [1, 2]
        run = Runner(backend, lease_us=1)
        run.finish(begun)
        assert [crashes(), crashes()] == [1, 2]
        run = Runner(backend, lease_us=1)
        run.boundary()
        assert [crashes(), crashes()] == [1, 2]
        run = Runner(backend)
        assert run.entered.run.crashes == 3
        run.leave("failed", "no")
        assert [crashes(), crashes()] == [0, 1]

    def test_crashed_lists_the_runs_that_nobody_alive_holds_the_last_touched_first(self, backend: Backend) -> None:
        for name in ("first", "left", "alive", "completed", "failed", "never ran", "lapsed"):
            Author(backend, name).grow(1)
        Runner(backend, "first").leave()
        Runner(backend, "lapsed", lease_us=SHORT_US)
        author = Author(backend, "left")
        author.stand_on_head()
        backend.fork("left", id_=author.head_id or "", branch="beside")
        for branch in ("main", "beside"):
            Runner(backend, "left", branch=branch).leave()
        Runner(backend, "alive")
        Runner(backend, "completed").leave("completed")
        Runner(backend, "failed").leave("failed", "no")
        author.grow(1)
        Runner(backend, "only entered").leave()
        expire()
        with contextlib.closing(self.reopen(backend)) as again:
            crashed = again.crashed()
            assert [(line.id, run.branch) for line, run in crashed] == [
                ("left", "beside"),
                ("left", "main"),
                ("lapsed", "main"),
                ("first", "main"),
                ("only entered", "main"),
            ]
            for line, run in crashed:
                assert line.crashed
                assert line == again.find_session(line.id)
                assert run in again.runs(line.id)
            lines = again.sessions(before=None, limit=99, status=None, agent=None)
            assert {line.id for line in lines if line.crashed} == {line.id for line, _ in crashed}

    def test_what_is_known_of_a_run_is_there_after_closing_and_opening_again(self, backend: Backend) -> None:
        run = Runner(backend, agent="an agent", input_=b"\xa2go")
        run.call()
        run.boundary()
        run.start()
        lost = Runner(backend, "lost", lease_us=1)
        time.sleep(0.002)
        Runner(backend, "lost").leave("halted", "a reason")
        known = [
            (backend.runs(name), backend.entries(name), backend.find_session(name), backend.pending(name, "main"))
            for name in (SESSION, "lost")
        ]
        with contextlib.closing(self.reopen(backend)) as again:
            assert known == [
                (again.runs(name), again.entries(name), again.find_session(name), again.pending(name, "main"))
                for name in (SESSION, "lost")
            ]
            with pytest.raises(FencedError):
                again.renew(lost.lease)
            again.renew(run.lease)
            assert not list(again.check())

    def test_of_those_that_enter_at_once_one_does(self, backend: Backend) -> None:
        other = self.beside(backend)
        openings = [backend, other]
        for number in range(ROUNDS):
            session = f"session {number}"
            if number % 3:
                Author(backend, session).grow(1)
            before = Runner(backend, session, lease_us=1).lease if number % 3 == 2 else None
            time.sleep(0.001)

            def enter(me: int, session: str = session) -> None:
                openings[me % 2].enter(Entry(session, "main", None, HOUR_US, NOW_US, bytes([0xCC, me])))

            answers = attempts(enter, LeaseHeldError)
            assert answers.count(None) == 1
            (row,) = backend.runs(session)
            assert row.live
            assert before is None or row.token == before.token + 1
            if number % 3 != 2:
                assert row.input == bytes([0xCC, answers.index(None)])
        if other is not backend:
            other.close()

    def test_who_waits_for_the_end_of_a_lease_looks_again_soon(self, backend: Backend) -> None:
        run = Runner(backend)
        for seconds, longest in ((0.0, 0.3), (60.0, LOOK_S + 1.0)):
            begun = time.monotonic()
            backend.wait(seconds)
            backend.wait(seconds)
            assert time.monotonic() - begun < 2 * longest
        run.leave()
        backend.wait(60.0)
        assert [line.id for line, _ in backend.crashed()] == [SESSION]
