"""What somebody else does to a branch with calls pending: commit beside them, decide them, give them up, delete."""

from __future__ import annotations

import contextlib

import pytest
from msgspec.structs import replace

from backstay.backend import ABANDONED, DONE, IN_DOUBT, SKIPPED, Backend, Deletion, Journaled, Row
from backstay.errors import ConflictError, FencedError, InDoubtError, LeaseHeldError, NotFoundError
from backstay.testing.author import Author, check_states, delete
from backstay.testing.contract.hooks import Hooks
from backstay.testing.runner import SESSION, SHORT_US, Runner, expire, new_call, pending, took


class SettlingContract(Hooks):
    """What commits without a lease, `settle`, `abandon` and the deletions owe to a run."""

    def left(self, backend: Backend, *calls: str, begun: bool = False) -> tuple[Runner, list[Journaled]]:
        """A run with one boundary that was left, and the calls it made since."""
        run = Runner(backend)
        run.boundary()
        made = [run.call(name) for name in calls]
        made += [run.start("in flight")] if begun else []
        run.leave()
        return run, made

    def test_nobody_else_writes_where_a_run_is_alive(self, backend: Backend) -> None:
        run = Runner(backend)
        with pytest.raises(LeaseHeldError):
            Author(backend).commit({"by": "another"})
        row = run.boundary()
        draft = Author(backend).stand_on(row.id).draft({"by": "another"})
        with pytest.raises(LeaseHeldError):
            backend.commit(draft)
        assert list(backend.ids(SESSION)) == [row.id]
        backend.fork(SESSION, id_=row.id, branch="other")
        Author(backend, branch="other").stand_on_head().commit({"by": "another"})
        run.leave("completed")
        backend.commit(draft)

    def test_nobody_else_writes_over_a_call_in_doubt(self, backend: Backend) -> None:
        run, made = self.left(backend, "done", begun=True)
        author = Author(backend).stand_on_head()
        with pytest.raises(InDoubtError, match="in flight"):
            author.grow(1)
        assert pending(backend) == made
        for status in (IN_DOUBT, DONE):
            before = pending(backend)[-1]
            backend.settle(SESSION, "main", before=before, after=replace(before.call, status=status))
            if status == IN_DOUBT:
                with pytest.raises(InDoubtError):
                    author.grow(1)
        author.grow(1)
        assert len(backend.ids(SESSION)) == len(run.author.rows) + 1

    def test_calls_that_are_done_stay_with_the_head_they_were_made_on(self, backend: Backend) -> None:
        _, made = self.left(backend, "one", "two")
        author = Author(backend).stand_on_head()
        left_at = author.head_id
        (row,) = author.grow(1)
        assert pending(backend) == []
        assert not backend.calls(SESSION, row.id)
        assert took(backend, row.id) is None
        assert list(backend.entries(SESSION)) == made
        # What is made on the new head does not mix with them.
        run = Runner(backend)
        assert run.entered.calls == ()
        fresh = run.call("fresh")
        run.boundary()
        run.leave("completed")
        author.stand_on_head().commit({"back": 1}, take_up=left_at)
        head = backend.find_row(SESSION, author.head_id or "")
        assert head is not None
        taken_up = [replace(call, after=head.sequence) for call in made]
        assert pending(backend) == taken_up
        with contextlib.closing(self.reopen(backend)) as again:
            assert list(again.entries(SESSION)) == [*taken_up, fresh]
            run = Runner(again)
            assert list(run.entered.calls) == taken_up
            assert list(again.calls(SESSION, run.boundary().id)) == taken_up
            assert not list(again.check())

    def test_calls_that_a_checkpoint_took_in_are_not_taken_up(self, backend: Backend) -> None:
        run = Runner(backend)
        first = run.boundary()
        call = run.call()
        second = run.boundary()
        run.leave("completed")
        author = Author(backend).stand_on_head()
        author.commit({"back": 1}, take_up=first.id)
        assert pending(backend) == []
        assert list(backend.calls(SESSION, second.id)) == [call]

    def test_what_is_taken_up_must_be_there(self, backend: Backend) -> None:
        self.left(backend, "one")
        author = Author(backend).stand_on_head()
        with pytest.raises(NotFoundError):
            author.commit({"n": 1}, take_up="f" * 24)
        assert len(backend.ids(SESSION)) == 1
        other = Author(backend, "never ran")
        (row,) = other.grow(1)
        other.commit({"n": 1}, take_up=row.id)
        assert pending(backend, session="never ran") == []

    def test_a_call_is_decided_once(self, backend: Backend) -> None:
        run, (done, begun) = self.left(backend, "done", begun=True)
        other = self.beside(backend)
        decided = replace(begun.call, status=SKIPPED, ended_us=5, result=b"\xc0")
        other.settle(SESSION, "main", before=begun, after=decided)
        assert pending(backend) == [done, replace(begun, call=decided)]
        if other is not backend:
            other.close()
        for stale in (begun, replace(done, slot=begun.slot), replace(done, after=0)):
            with pytest.raises(ConflictError):
                backend.settle(SESSION, "main", before=stale, after=decided)
        with pytest.raises(ConflictError):
            backend.settle(SESSION, "nowhere", before=done, after=decided)
        with pytest.raises(NotFoundError):
            backend.settle("nobody", "main", before=done, after=decided)
        again = Runner(backend)
        assert again.entered.calls == (done, replace(begun, call=decided))
        again.boundary()
        with pytest.raises(ConflictError):  # it was taken in
            backend.settle(SESSION, "main", before=done, after=decided)
        assert run.lease.token < again.lease.token

    def test_what_is_given_up_stays_in_the_history_as_abandoned(self, backend: Backend) -> None:
        run = Runner(backend, input_=b"\xa2go")
        run.boundary()
        calls = [run.call("done"), run.start("begun")]
        with pytest.raises(LeaseHeldError):
            backend.abandon(SESSION, "main", reason="no use")
        run.leave()
        assert backend.abandon(SESSION, "main", reason="no use") == 2
        given_up = [
            replace(each, call=replace(each.call, status=ABANDONED, error=("abandoned", "no use"))) for each in calls
        ]
        assert pending(backend) == []
        assert list(backend.entries(SESSION)) == given_up
        (row,) = backend.runs(SESSION)
        assert (row.entered, row.unfinished, row.input, row.crashes) == (False, False, None, 0)
        line = backend.find_session(SESSION)
        assert line is not None
        assert (line.totals.status, line.totals.reason, line.crashed) == ("halted", "no use", False)
        assert not backend.crashed()
        assert backend.abandon(SESSION, "main", reason="again") == 0
        assert backend.find_session(SESSION) == line
        again = Runner(backend, input_=b"\xa4next")
        assert again.entered.calls == ()
        assert again.entered.run.input == b"\xa4next"
        fresh = again.call("fresh")
        boundary = again.boundary()
        assert list(backend.calls(SESSION, boundary.id)) == [*given_up, fresh]
        with pytest.raises(NotFoundError):
            backend.abandon("nobody", "main", reason="no use")

    def test_giving_up_where_nothing_ever_ran_changes_nothing(self, backend: Backend) -> None:
        Author(backend).grow(1)
        line = backend.find_session(SESSION)
        assert backend.abandon(SESSION, "main", reason="no use") == 0
        assert backend.find_session(SESSION) == line
        assert not backend.runs(SESSION)

    def test_a_failed_run_can_be_given_up_without_any_call(self, backend: Backend) -> None:
        run = Runner(backend, input_=b"\xa2go")
        run.leave("failed", "no")
        assert backend.abandon(SESSION, "main", reason="no use") == 0
        assert Runner(backend, input_=b"\xa4next").entered.run.input == b"\xa4next"

    def test_a_branch_that_is_deleted_takes_along_what_is_pending_and_no_more(self, backend: Backend) -> None:
        author = Author(backend)
        (root,) = author.grow(1)
        backend.fork(SESSION, id_=root.id, branch="other")
        main, other = Runner(backend), Runner(backend, branch="other")
        ours = main.call("ours")
        taken = other.call("taken in")
        row = other.boundary()
        other.call("very-private pending")
        other.leave()
        backend.delete_branch(SESSION, branch="other")
        with contextlib.closing(self.reopen(backend)) as again:
            assert list(again.entries(SESSION)) == [ours, taken]
            assert list(again.calls(SESSION, row.id)) == [taken]
            assert pending(again, "other") == []
            assert [run.branch for run in again.runs(SESSION)] == ["main"]
            assert pending(again) == [ours]
            assert not list(again.check())

    def test_calls_go_with_the_checkpoint_that_took_them_in(self, backend: Backend) -> None:
        run, rows, calls = self.lived_in(backend)
        last = run.call("pending")
        states = dict(run.author.states)
        for number in (1, 3):
            delete(backend, SESSION, rows[number].id)
            del states[rows[number].id]
        assert list(backend.entries(SESSION)) == [calls[0], calls[2], calls[4], last]
        with contextlib.closing(self.reopen(backend)) as again:
            for number in (0, 2, 4):
                # Made while the branch stood at one that is gone; the one that took it in is here.
                assert list(again.calls(SESSION, rows[number].id)) == [calls[number]]
                assert took(again, rows[number].id) == (calls[number].run, calls[number].after)
            assert pending(again) == [last]
            again.renew(run.lease)
            done = replace(last.call, result=b"\x07")
            assert again.journal(run.lease, done, after=last.after, slot=last.slot) == last.slot
            assert pending(again) == [replace(last, call=done)]
            check_states(again, SESSION, states)
            assert not list(again.check())
            self._check_numbers_go_on(again, [*calls, last])

    def _check_numbers_go_on(self, again: Backend, known: list[Journaled]) -> None:
        row = next(iter(again.ids(SESSION)))
        again.fork(SESSION, id_=row, branch="another")
        other = Runner(again, branch="another")
        assert other.lease.run not in {each.run for each in known}
        assert other.start().slot not in {each.slot for each in known}

    def lived_in(self, backend: Backend) -> tuple[Runner, list[Row], list[Journaled]]:
        """Five boundaries, each of which took in one call."""
        run = Runner(backend)
        rows, calls = [], []
        for number in range(5):
            calls.append(run.call(f"call {number}"))
            rows.append(run.boundary())
        return run, rows, calls

    def test_the_head_of_a_live_run_is_not_deleted(self, backend: Backend) -> None:
        run, rows, calls = self.lived_in(backend)
        with pytest.raises(LeaseHeldError):
            delete(backend, SESSION, rows[-1].id)
        assert list(backend.calls(SESSION, rows[-1].id)) == calls[-1:]
        begun = run.start()
        run.leave()
        with pytest.raises(InDoubtError):
            delete(backend, SESSION, rows[-1].id)
        assert pending(backend) == [begun]
        check_states(backend, SESSION, run.author.states)

    def test_a_head_that_is_deleted_takes_along_what_is_pending_on_it(self, backend: Backend) -> None:
        run, rows, calls = self.lived_in(backend)
        run.call("pending")
        run.leave()
        backend.fork(SESSION, id_=rows[-1].id, branch="other")
        other = Runner(backend, branch="other")
        other.call("pending there")
        other.leave()
        delete(backend, SESSION, rows[-1].id)
        with contextlib.closing(self.reopen(backend)) as again:
            assert list(again.entries(SESSION)) == calls[:4]
            for branch in ("main", "other"):
                found = again.find_branch(SESSION, branch)
                assert found is not None
                assert found.head_id == rows[3].id
                assert pending(again, branch) == []
            run = Runner(again)
            assert run.entered.head_id == rows[3].id
            assert run.entered.calls == ()
            assert not list(again.check())

    def test_a_deletion_that_spares_names_spares_heads(self, backend: Backend) -> None:
        run, rows, _ = self.lived_in(backend)
        run.leave()
        with pytest.raises(ConflictError):
            backend.delete_checkpoints(Deletion(SESSION, (rows[-1].id,), (), spare_names=True))
        assert len(backend.ids(SESSION)) == 5

    def test_a_session_that_is_deleted_leaves_nothing_of_its_calls(self, backend: Backend) -> None:
        run = Runner(backend, "very-private session", input_=b"\xb2very-private input")
        run.call("very-private name", b"\xb3very-private result", key="very-private key", args=b"\xb1very-private args")
        run.boundary()
        run.call("very-private pending")
        run.leave("failed", "a very-private reason")
        Runner(backend, "kept").call("kept")
        text = self.raw_text(backend)
        if text is None:
            pytest.skip("the bytes of this backend cannot be had")
        assert b"very-private" in text
        backend.delete_session("very-private session")
        text = self.raw_text(backend)
        assert text is not None
        assert b"very-private" not in text
        assert [each.call.name for each in pending(backend, session="kept")] == ["kept"]
        assert not list(backend.check())

    def test_a_session_with_a_live_run_is_not_deleted_nor_is_its_branch(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(2)
        backend.fork(SESSION, id_=author.rows[0].id, branch="other")
        run = Runner(backend)
        with pytest.raises(LeaseHeldError):
            backend.delete_branch(SESSION, branch="main")
        with pytest.raises(LeaseHeldError):
            backend.delete_session(SESSION)
        backend.delete_branch(SESSION, branch="other")
        check_states(backend, SESSION, author.states)
        run.leave()
        backend.delete_session(SESSION)
        assert backend.find_session(SESSION) is None
        assert not backend.runs(SESSION)
        for act in (lambda: backend.renew(run.lease), lambda: run.leave("completed"), run.start):
            with pytest.raises(FencedError):
                act()
        assert backend.find_session(SESSION) is None
        assert Runner(backend).entered.before is None

    @pytest.mark.parametrize("session", [SESSION, "another session"])
    def test_a_run_of_a_deleted_session_is_not_taken_for_one_of_a_later(self, backend: Backend, session: str) -> None:
        old = Runner(backend, lease_us=SHORT_US)
        begun = old.start()
        expire()
        backend.delete_session(SESSION)
        new = Runner(backend, session)
        kept = new.call()
        for act in (
            lambda: backend.renew(old.lease),
            old.start,
            lambda: old.finish(begun),
            old.boundary,
            old.leave,
        ):
            with pytest.raises(FencedError):
                act()
        assert backend.entries(session) == [kept]
        new.boundary()

    def test_a_session_that_was_touched_since_somebody_looked_is_not_deleted(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(2)
        seen = backend.find_session(SESSION)
        assert seen is not None
        author.grow(1)
        with pytest.raises(ConflictError):
            backend.delete_session(SESSION, touched=seen.touched)
        check_states(backend, SESSION, author.states)
        seen = backend.find_session(SESSION)
        assert seen is not None
        backend.delete_session(SESSION, touched=seen.touched)
        assert backend.find_session(SESSION) is None

    def test_a_branch_made_anew_has_never_run(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(1)
        old: Runner | None = None
        for _ in range(3):
            backend.fork(SESSION, id_=author.rows[0].id, branch="other")
            assert backend.pending(SESSION, "other").run is None
            run = Runner(backend, branch="other")
            assert run.entered.before is None
            assert run.entered.calls == ()
            assert old is None or old.lease.run != run.lease.run
            if old is not None:
                for lease in (old.lease, replace(old.lease, token=run.lease.token)):
                    with pytest.raises(FencedError):
                        backend.journal(lease, new_call("late"), after=1)
            run.call()
            run.leave()
            backend.delete_branch(SESSION, branch="other")
            with pytest.raises(FencedError):
                backend.renew(run.lease)
            old = run
        assert not backend.runs(SESSION)
        assert not backend.entries(SESSION)
        assert not pending(backend, "other")
