"""Calls: written down before and after, in their order, taken in by a boundary, and read back as they were."""

from __future__ import annotations

import contextlib
import time

import msgspec
import pytest
from msgspec.structs import replace

from backstay.backend import (
    DONE,
    FAILED,
    IN_DOUBT,
    STARTED,
    Backend,
    CallRow,
    Journaled,
    Kept,
    Moved,
    SessionRow,
    in_doubt,
)
from backstay.errors import ConflictError, CorruptionError, FencedError, InDoubtError, NotFoundError
from backstay.testing.author import Author, check_states, read_back
from backstay.testing.contract.hooks import Hooks
from backstay.testing.contract.moving import packed_up
from backstay.testing.contract.naming import HOSTILE
from backstay.testing.contract.racing import THREADS, together
from backstay.testing.runner import SESSION, Runner, new_call, pending, took
from backstay.upkeep.verifying import verify

pack = msgspec.msgpack.encode
ANY_BYTES = [
    b"",
    b"\0",
    bytes(range(256)),
    b"\xff" * 70_000,
    b"x" * 1_000_000,
    b"\n\r \0 " * 300,
    b" " * 5_000,
    pack("a text"),
    pack({"a": [1, 2.5, None, True, "\n\0\u2028\U0001f980", -1, 2**64 - 1], "$bytes": "no"}),
    pack([b"bytes", float("inf"), {1: "not a name"}]),
    pack("x" * 100_000),
]


class JournalingContract(Hooks):
    """What `journal`, `pending`, `calls`, `entries` and a commit with a lease owe."""

    def test_a_call_is_pending_from_its_beginning_and_its_outcome_has_its_place(self, backend: Backend) -> None:
        run = Runner(backend)
        first = run.start("first", key="k")
        assert pending(backend) == [first]
        second = run.start("second", parent=first.call.id, nth=3, kind="llm", args=None)
        third = run.call("third", b"\x03")
        assert len({first.slot, second.slot, third.slot}) == 3
        assert pending(backend) == [first, second, third]
        ended = run.finish(second, None, status=FAILED, error=("ValueError", "no: \n \0 \U0001f980"))
        assert pending(backend) == [first, ended, third]
        assert list(backend.entries(SESSION)) == [first, ended, third]
        first = run.finish(first, b"\x01")
        found = backend.pending(SESSION, "main")
        assert list(found.calls) == [first, ended, third]
        assert found.run == backend.runs(SESSION)[0]
        with contextlib.closing(self.reopen(backend)) as again:
            assert pending(again) == list(again.entries(SESSION)) == [first, ended, third]

    def test_the_next_run_is_given_what_is_pending(self, backend: Backend) -> None:
        run = Runner(backend, lease_us=1)
        done, begun = run.call("done"), run.start("begun")
        time.sleep(0.002)
        again = Runner(backend)
        assert again.entered.calls == (done, begun)
        assert in_doubt(begun.call, again.lease.token)
        retried = replace(begun.call, token=again.lease.token)
        backend.journal(again.lease, retried, after=begun.after, slot=begun.slot)
        assert [each.call for each in pending(backend)] == [done.call, retried]

    def test_a_boundary_takes_in_what_is_pending(self, backend: Backend) -> None:
        run = Runner(backend)
        boundaries = []
        for number in range(4):
            calls = [run.call(f"call {number} {at}") for at in range(number)]
            after = run.after
            assert pending(backend) == calls
            row = run.boundary()
            boundaries.append((row, calls, (run.lease.run, after) if calls else None))
            assert not pending(backend)
        last = run.call("since")
        with contextlib.closing(self.reopen(backend)) as again:
            for row, calls, taken in boundaries:
                assert list(again.calls(SESSION, row.id)) == calls
                assert took(again, row.id) == taken
            assert pending(again) == [last]
            assert list(again.entries(SESSION)) == [*[call for _, calls, _ in boundaries for call in calls], last]
            with pytest.raises(NotFoundError):
                again.calls(SESSION, "f" * 24)
            with pytest.raises(NotFoundError):
                again.calls("nobody", "f" * 24)
            check_states(again, SESSION, run.author.states)
            assert not list(again.check())

    def test_a_result_that_is_in_the_state_is_kept_there_alone(self, backend: Backend) -> None:
        run = Runner(backend)
        calls = [run.call("a", b"\xa7private"), run.call("b", b"\x02"), run.call("c", b"\x03")]
        places = {calls[0].call.id: b"\0 a place \xff", calls[2].call.id: b"another"}
        row = run.boundary(kept_in_state=places)
        kept = [
            replace(calls[0], call=replace(calls[0].call, result=None, place=b"\0 a place \xff")),
            calls[1],
            replace(calls[2], call=replace(calls[2].call, result=None, place=b"another")),
        ]
        with contextlib.closing(self.reopen(backend)) as again:
            assert list(again.calls(SESSION, row.id)) == kept
            assert list(again.entries(SESSION)) == kept

    def test_a_boundary_that_ends_its_run_completes_it(self, backend: Backend) -> None:
        run = Runner(backend, input_=b"\xa2go")
        call = run.call()
        draft, state = run.draft(ends_run=True)
        row = run.author.write(draft, state)
        (known,) = backend.runs(SESSION)
        assert (known.entered, known.live, known.unfinished, known.input) == (False, False, False, None)
        assert list(backend.calls(SESSION, row.id)) == [call]
        with pytest.raises(FencedError):
            backend.renew(run.lease)
        with pytest.raises(FencedError):
            backend.leave(run.lease, status="failed", reason="no")
        # Its answer was lost on the way: tried again, it is recognised, although its run is over.
        assert backend.commit(draft) == row
        assert list(backend.ids(SESSION)) == [row.id]
        again = Runner(backend, input_=b"\xa4next")
        assert again.entered.head_id == row.id
        assert backend.commit(draft) == row
        assert again.entered.run.input == b"\xa4next"
        assert not backend.crashed()

    def test_a_boundary_on_another_head_than_expected_is_a_conflict(self, backend: Backend) -> None:
        run = Runner(backend)
        run.boundary()
        call = run.call()
        draft, _ = run.draft()
        before = backend.runs(SESSION)
        with pytest.raises(ConflictError):
            backend.commit(replace(draft, expect=None))
        assert pending(backend) == [call]
        assert backend.runs(SESSION) == before
        backend.commit(draft)

    def test_a_boundary_that_fails_leaves_its_calls_pending(self, backend: Backend) -> None:
        run = Runner(backend)
        call = run.call()
        draft, _ = run.draft({"picture": b"p" * 6_000}, ends_run=True, kept_in_state={call.call.id: b"place"})
        with pytest.raises(CorruptionError):
            backend.commit(replace(draft, blobs={}))
        assert pending(backend) == [call]
        assert backend.runs(SESSION)[0].entered
        assert not backend.ids(SESSION)
        backend.commit(draft)
        assert not pending(backend)

    @pytest.mark.parametrize("number", range(len(ANY_BYTES)))
    def test_any_bytes_come_back_as_they_were(self, backend: Backend, number: int) -> None:
        data = ANY_BYTES[number]
        run = Runner(backend, input_=data)
        whole = run.call("a call", data, args=data)
        run.boundary(kept_in_state={whole.call.id: data})
        failed = run.finish(run.start(args=None, args_digest=data[:64]), None, status=FAILED, error=("E", "\0\n"))
        run.call("a call", data, args=data)
        with contextlib.closing(self.reopen(backend)) as again:
            taken, *rest = again.entries(SESSION)
            assert (taken.call.args, taken.call.place, taken.call.result) == (data, data, None)
            assert rest == [failed, run.seen[-1]]
            assert again.runs(SESSION)[0].input == data

    def test_names_keys_and_errors_may_be_any_text(self, backend: Backend) -> None:
        run = Runner(backend, agent="\0 \U0001f980")
        texts = [*HOSTILE, "", "\0", "a\0b", "\u2028", "\ufeff", " " * 2_000, "x" * 10_000]
        calls = [
            run.finish(run.start(text, key=text, kind=text, id=f"{number}{text}"), None, error=(text, text))
            for number, text in enumerate(texts)
        ]
        assert pending(backend) == calls
        run.leave("failed", "\0 \n \U0001f980")
        with contextlib.closing(self.reopen(backend)) as again:
            assert pending(again) == calls
            line = again.find_session(SESSION)
            assert line is not None
            assert (line.totals.agent, line.totals.reason) == ("\0 \U0001f980", "\0 \n \U0001f980")

    def test_all_that_a_call_may_say_is_kept(self, backend: Backend) -> None:
        run = Runner(backend)
        for status in (STARTED, IN_DOUBT, DONE, FAILED, "skipped", "retry", "abandoned"):
            call = CallRow(
                id=f"of {status}",
                parent="another",
                name="a name",
                key="",
                nth=2**31,
                kind="llm",
                args=None,
                args_digest=b"",
                status=status,
                token=2**40,
                started_us=-(2**40),
                ended_us=0,
                result=b"",
                place=b"",
                error=("", ""),
            )
            slot = backend.journal(run.lease, call, after=0)
            run.seen.append(Journaled(run.lease.run, 0, slot, call))
        with contextlib.closing(self.reopen(backend)) as again:
            assert list(again.entries(SESSION)) == run.seen
            assert pending(again) == run.seen[:-1]

    def test_calls_journaled_at_once_are_all_there(self, backend: Backend) -> None:
        run = Runner(backend)
        made: list[list[Journaled]] = [[] for _ in range(THREADS)]

        def journal(me: int) -> None:
            for number in range(8):
                call = new_call(f"{me}", nth=number)
                slot = backend.journal(run.lease, call, after=0)
                done = replace(call, status=DONE, result=bytes([me]) * 100)
                assert backend.journal(run.lease, done, after=0, slot=slot) == slot
                made[me].append(Journaled(run.lease.run, 0, slot, done))

        together(journal, THREADS)
        found = pending(backend)
        assert {each.slot for each in found} == {each.slot for mine in made for each in mine}
        assert len(found) == THREADS * 8
        for me in range(THREADS):
            assert [each for each in found if each.call.name == f"{me}"] == made[me]
        row = run.boundary()
        assert list(backend.calls(SESSION, row.id)) == found

    def test_a_fork_sees_no_call_of_the_branch_it_left(self, backend: Backend) -> None:
        run = Runner(backend)
        run.call("taken in")
        row = run.boundary()
        mine = run.call("pending")
        backend.fork(SESSION, id_=row.id, branch="what if")
        assert pending(backend, "what if") == []
        other = Runner(backend, branch="what if")
        assert other.entered.calls == ()
        theirs = other.call("pending")
        assert (pending(backend), pending(backend, "what if")) == ([mine], [theirs])
        there = other.boundary()
        assert (pending(backend), pending(backend, "what if")) == ([mine], [])
        here = run.boundary()
        assert list(backend.calls(SESSION, there.id)) == [theirs]
        assert list(backend.calls(SESSION, here.id)) == [mine]

    def test_a_session_that_moved_brings_its_runs_and_calls(self, backend: Backend) -> None:
        run, taken = self._lived_in(backend)
        moved, arriving = packed_up(backend)
        moved = replace(moved, runs=tuple(backend.runs(SESSION)), calls=tuple(backend.entries(SESSION)))
        # Numbers as another store might have given them.
        moved, history = renumbered(moved, [kept for kept, _ in arriving], by=70)
        with contextlib.closing(self.make()) as elsewhere:
            elsewhere.adopt(moved, [(kept, blobs) for kept, (_, blobs) in zip(history, arriving, strict=True)])
            with contextlib.closing(self.reopen(elsewhere)) as there:
                assert len({row.run for row in there.runs(SESSION)}) == 2
                for name in ("main", "other"):
                    ours, theirs = backend.pending(SESSION, name), there.pending(SESSION, name)
                    assert [each.call for each in theirs.calls] == [each.call for each in ours.calls]
                    assert ours.run is not None
                    assert theirs.run is not None
                    assert not theirs.run.entered
                    assert not theirs.run.live
                    assert theirs.run.unfinished == (ours.run.unfinished or ours.run.entered)
                    assert theirs.run.input == ours.run.input
                for id_ in backend.ids(SESSION):
                    calls = [each.call for each in there.calls(SESSION, id_)]
                    assert calls == [each.call for each in backend.calls(SESSION, id_)]
                    assert (took(there, id_) is None) == (took(backend, id_) is None)
                assert [each.call for each in there.entries(SESSION)] == [each.call for each in moved.calls]
                assert not there.crashed()
                assert not line_of(there).crashed
                with pytest.raises(FencedError):
                    there.renew(run.lease)
                self._check_moved_goes_on(there, taken)

    def _lived_in(self, backend: Backend) -> tuple[Runner, str]:
        """A live main with calls pending, another branch whose run failed, and the calls of one that is gone."""
        run = Runner(backend, input_=b"\xa2go")
        run.call("one")
        first = run.boundary()
        for branch in ("other", "gone"):
            backend.fork(SESSION, id_=first.id, branch=branch)
        gone = Runner(backend, branch="gone")
        call = gone.call("kept by its checkpoint")
        taken = gone.boundary(kept_in_state={call.call.id: b"a place"})
        gone.leave("completed")
        backend.delete_branch(SESSION, branch="gone")
        other = Runner(backend, branch="other", input_=b"\xa5other")
        other.call("three")
        other.leave("failed", "no")
        run.call("two")
        run.start("in flight")
        return run, taken.id

    def _check_moved_goes_on(self, there: Backend, taken: str) -> None:
        (known,) = [each.call for each in pending(there) if each.call.status == STARTED]
        with pytest.raises(InDoubtError):
            Author(there).stand_on_head().grow(1)
        again = Runner(there, input_=b"\xa5other")
        assert again.entered.run.input == b"\xa2go"
        assert again.entered.run.crashes == 0
        # Somewhere else it was started by a run with this number: here that was another.
        assert in_doubt(known, again.lease.token)
        fresh = again.call("fresh")
        assert pending(there)[-1] == fresh
        assert len({each.slot for each in there.entries(SESSION)}) == len(there.entries(SESSION))
        row = again.boundary()
        assert [each.call.name for each in there.calls(SESSION, row.id)] == ["two", "in flight", "fresh"]
        assert [each.call.name for each in there.calls(SESSION, taken)] == ["kept by its checkpoint"]
        there.fork(SESSION, id_=row.id, branch="gone")
        assert Runner(there, branch="gone").entered.calls == ()
        assert [each.call.name for each in there.calls(SESSION, taken)] == ["kept by its checkpoint"]
        assert not list(there.check())

    def test_a_move_that_names_a_run_it_does_not_bring_gives_no_calls(self, backend: Backend) -> None:
        Author(backend).grow(2)
        moved, arriving = packed_up(backend, name="moved")
        backend.adopt(moved, [(replace(kept, took=(9, 0)), blobs) for kept, blobs in arriving])
        for id_ in backend.ids("moved"):
            assert not backend.calls("moved", id_)
            assert took(backend, id_, "moved") is None

    @pytest.mark.parametrize("what", ["call", "call's row"])
    def test_a_damaged_call_is_never_taken_for_one_that_was_not_made(self, backend: Backend, what: str) -> None:
        for at in (0.0, 0.3, 0.6, 0.999):
            session = f"damaged at {at}"
            run = Runner(backend, session)
            run.call("taken in")
            row = run.boundary()
            done = run.call("done", args=pack({"amount": "a hundred " * 9}))
            run.start("begun")
            run.leave()
            if not self.damage(backend, session, done.call.id, what, at=at):  # type: ignore[arg-type]
                pytest.skip("this backend cannot be damaged from outside")
            with pytest.raises(CorruptionError):
                backend.pending(session, "main")
            with pytest.raises(CorruptionError):
                Runner(backend, session)
            with pytest.raises(CorruptionError):
                backend.entries(session)
            with pytest.raises((CorruptionError, InDoubtError)):
                Author(backend, session).stand_on_head().grow(1)
            assert read_back(backend, session, row.id) == run.author.states[row.id]
            assert not verify(backend).ok
            backend.delete_session(session)

    @pytest.mark.parametrize("what", ["call", "call's row"])
    def test_a_damaged_call_that_was_taken_in_costs_itself_alone(self, backend: Backend, what: str) -> None:
        run = Runner(backend)
        done = run.call("done")
        rows = [run.boundary()]
        others = [run.call("another")]
        rows += [run.boundary(), run.boundary()]
        if not self.damage(backend, SESSION, done.call.id, what):  # type: ignore[arg-type]
            pytest.skip("this backend cannot be damaged from outside")
        with pytest.raises(CorruptionError):
            backend.calls(SESSION, rows[0].id)
        assert list(backend.calls(SESSION, rows[1].id)) == others
        for row in rows:
            assert read_back(backend, SESSION, row.id) == run.author.states[row.id]
        assert not verify(backend).ok


def line_of(backend: Backend, session: str = SESSION) -> SessionRow:
    """A session's line, which must be there."""
    line = backend.find_session(session)
    assert line is not None
    return line


def renumbered(moved: Moved, history: list[Kept], *, by: int) -> tuple[Moved, list[Kept]]:
    """The same session from a store that counts otherwise."""
    runs = tuple([replace(row, run=row.run + by) for row in moved.runs])
    calls = tuple([replace(call, run=call.run + by, slot=call.slot + by) for call in moved.calls])
    kept = [replace(one, took=None if one.took is None else (one.took[0] + by, one.took[1])) for one in history]
    return replace(moved, runs=runs, calls=calls), kept
