"""One write: all of a batch or nothing (W1), decided on what holds (W2, W3), durable (W4), numbers that rise (W6)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from backstay.errors import ClosedError, ConflictError
from backstay.port import (
    EVERY,
    Ask,
    Backend,
    Batch,
    BlobsAbsentError,
    CallRow,
    KeyframeRow,
    Kind,
    LaneQuery,
    LaneRow,
    More,
    SessionQuery,
    TagRow,
    View,
)
from backstay.testing.author import SESSION, Author, call_row, check_states
from backstay.testing.contract.handmade import UID, bare, blob, checkpoint, claim_until, drop, line, nothing, put
from backstay.testing.contract.hooks import Hooks

WHOLE = Ask(SESSION, names=EVERY, sequences=(1, 2, 3), pending=EVERY, journals=((7, 1),))


class WritingContract(Hooks):
    """What `write` owes to one caller."""

    # W1

    @pytest.mark.parametrize("error", [ConflictError("no"), ValueError("a mistake"), KeyboardInterrupt()])
    def test_w1_an_error_of_the_rule_reaches_the_caller_and_writes_nothing(
        self, backend: Backend, error: BaseException
    ) -> None:
        fill(backend)
        before, changes = snapshot(backend), backend.changes()

        def decide(_view: View) -> Batch:
            raise error

        with pytest.raises(type(error)) as caught:
            backend.write(WHOLE, decide)
        assert caught.value is error
        assert snapshot(backend) == before
        assert not self.alone or backend.changes() == changes
        put(backend, LaneRow("later"))
        assert "later" in backend.read(WHOLE).lanes

    def test_w1_a_batch_whose_blob_is_absent_writes_nothing_and_says_which(self, backend: Backend) -> None:
        fill(backend)
        here, gone, also_gone = blob(1), blob(2), blob(3)
        before = snapshot(backend)
        rows = (
            LaneRow("new"),
            checkpoint(3, 2, refs=(here[0], gone[0])),
            KeyframeRow(3, b"data", (also_gone[0],)),
            call_row("x", at=(7, 1, 2)),
        )
        with pytest.raises(BlobsAbsentError) as caught:
            put(backend, *rows, blobs=dict([here]))
        assert caught.value.digests == {gone[0], also_gone[0]}
        assert snapshot(backend) == before
        backend.tend()
        assert not backend.blobs([here[0]])
        put(backend, *rows, blobs=dict([here, gone, also_gone]))
        assert backend.blobs([here[0], gone[0], also_gone[0]]) == dict([here, gone, also_gone])

    def test_w1_a_session_that_begins_with_an_absent_blob_does_not_begin(self, backend: Backend) -> None:
        with pytest.raises(BlobsAbsentError):
            put(backend, LaneRow("main"), checkpoint(1, refs=(blob(1)[0],)))
        assert backend.read(Ask(SESSION, names=EVERY)).session is None
        assert not backend.sessions(SessionQuery())
        assert backend.sizes().sessions == 0

    def test_w1_rows_of_every_kind_come_back_as_they_were_put(self, backend: Backend) -> None:
        fill(backend)
        view = backend.read(WHOLE)
        assert view.session is not None
        assert view.session == line(
            touched=view.session.touched, sequence=2, checkpoints=2, lanes=1, tags=1, usage=b"\0\xff", reason="why"
        )
        assert view.lanes == {"main": LANE}
        assert view.tags == {"first": TagRow("first", 1)}
        assert {at: bare(row) for at, row in view.checkpoints.items()} == {
            row.sequence: bare(row) for row in CHECKPOINTS
        }
        assert view.pending == {"main": list(CALLS)}
        assert view.journals == {(7, 1): list(CALLS)}
        assert [bare(row) for row in backend.scan(SESSION, Kind.KEYFRAME, limit=9)] == [KeyframeRow(1, b"\0keyframe")]

    def test_w1_puts_come_before_drops_and_a_put_replaces(self, backend: Backend) -> None:
        fill(backend)

        def decide(view: View) -> Batch:
            assert view.session is not None
            after = msgspec.structs.replace(view.session, touched=view.fresh, tags=0)
            return Batch((after, TagRow("first", 2), LaneRow("main", token=9)), ((Kind.NAME, "first"),))

        backend.write(Ask(SESSION), decide)
        view = backend.read(WHOLE)
        assert not view.tags
        assert view.lanes["main"] == LaneRow("main", token=9)

    def test_w1_a_journal_is_dropped_whole_and_no_other(self, backend: Backend) -> None:
        fill(backend)
        others = [call_row("a", at=(7, 2, 0)), call_row("b", at=(71, 1, 0)), call_row("c", at=(8, 1, 0))]
        put(backend, *others)
        drop(backend, (Kind.CALL, (7, 1)))
        assert [row for row in backend.scan(SESSION, Kind.CALL, limit=9) if row not in others] == []
        drop(backend, (Kind.CALL, (8, 1, 0)), (Kind.CALL, (7, 9)), (Kind.CALL, (7, 2, 5)))
        assert list(backend.scan(SESSION, Kind.CALL, limit=9)) == [others[0], others[1]]

    def test_w1_dropping_what_is_not_there_is_harmless(self, backend: Backend) -> None:
        fill(backend)
        before = snapshot(backend)
        drop(backend, (Kind.NAME, "x"), (Kind.CHECKPOINT, 9), (Kind.KEYFRAME, 9), (Kind.CALL, (9, 9)))
        assert snapshot(backend) == before
        backend.write(Ask("nobody"), lambda _view: Batch(drops=((Kind.SESSION, "nobody"),)))
        assert backend.read(Ask("nobody")).session is None

    # W2, W3

    def test_w2_a_rule_is_given_what_holds_and_its_answer_comes_back(self, backend: Backend) -> None:
        fill(backend)
        seen: list[View] = []

        def decide(view: View) -> Batch:
            seen.append(view)
            return Batch(answer="the answer")

        assert backend.write(WHOLE, decide).answer == "the answer"
        expected = backend.read(WHOLE)
        for name in ("session", "fresh", "lanes", "tags", "checkpoints", "pending", "journals"):
            assert getattr(seen[-1], name) == getattr(expected, name), name

    def test_w2_a_view_holds_what_was_asked_for_and_nothing_is_asked_twice_in_vain(self, backend: Backend) -> None:
        fill(backend)
        put(backend, LaneRow("other", run=8, journal=3), call_row("o", at=(8, 3, 0)))
        asks: list[Ask] = []

        def decide(view: View) -> Batch | More:
            if not asks:
                assert set(view.lanes) == {"main"}
                assert not view.pending
                asks.append(Ask(SESSION, names=("other", "first"), pending=("other",), sequences=(2,)))
                return More(asks[0])
            assert set(view.lanes) == {"other"}
            assert set(view.tags) == {"first"}
            assert [row.id for row in view.pending["other"] if isinstance(row, CallRow)] == ["o"]
            assert set(view.checkpoints) == {2}
            assert view.session is not None
            return Batch((view.session, LaneRow("other", token=5)), answer="looked again")

        assert backend.write(Ask(SESSION, names=("main",)), decide).answer == "looked again"
        assert backend.read(Ask(SESSION, names=("other",))).lanes["other"].token == 5

    def test_w2_where_there_is_no_session_a_view_is_empty(self, backend: Backend) -> None:
        fill(backend)
        for ask in (msgspec.structs.replace(WHOLE, session="another"), msgspec.structs.replace(WHOLE, hidden=True)):
            view = backend.read(ask)
            assert view.session is None
            assert not any([view.lanes, view.tags, view.checkpoints, view.live, view.foreign])
            assert not any([view.pending.get("main"), view.journals.get((7, 1)), view.counts.get("main")])

    def test_w3_a_rule_never_refuses_because_of_a_view_that_is_over(self, backend: Backend) -> None:
        other = self.another(backend)
        put(backend, LaneRow("main", token=1))
        ask = Ask(SESSION, names=("main",))
        for token in range(1, 6):  # each write of one opening is behind a write of the other

            def decide(view: View, token: int = token) -> Batch:
                if view.lanes["main"].token != token:
                    raise ConflictError("another token")
                return Batch((msgspec.structs.replace(view.lanes["main"], token=token + 1),))

            (backend if token % 2 else other).write(ask, decide)
        assert backend.read(ask).lanes["main"].token == 6

    # W4

    def test_w4_what_was_written_is_there_after_closing_and_opening_again(self, backend: Backend) -> None:
        fill(backend)
        author = Author(backend, "a history", keyframe_every=5)
        author.grow(12)
        before = snapshot(backend)
        again = self.again(backend)
        assert snapshot(again) == before
        check_states(again, "a history", author.states)
        Author(again, "a history").stand_on_head().grow(2)
        assert not list(again.check())

    def test_w4_what_was_written_is_seen_by_every_other_opening_at_once(self, backend: Backend) -> None:
        other = self.another(backend)
        writer, reader = backend, other
        for number in range(10):
            put(writer, TagRow("counter", number), LaneRow(f"lane {number}"))
            view = reader.read(Ask(SESSION, names=EVERY))
            assert view.tags["counter"].sequence == number
            assert len(view.lanes) == number + 1
            writer, reader = reader, writer

    def test_w4_what_a_killed_process_was_told_is_written_is_there(self, backend: Backend) -> None:
        code = self.opening_code(backend)
        if code is None:
            pytest.skip("no other process can open this backend")
        code += (
            "\nimport os, signal\nfrom backstay.testing.author import Author, Runner"
            "\nAuthor(backend, 'killed').grow(5)\nrun = Runner(backend, 'killed', lease_s=600)\nrun.call()"
            "\nos.kill(os.getpid(), signal.SIGKILL)"
        )
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=60)  # noqa: S603
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        view = backend.read(Ask("killed", names=EVERY, pending=EVERY))
        assert view.session is not None
        assert view.session.checkpoints == 5
        assert len(view.pending["main"]) == 1
        assert view.lanes["main"].entered
        assert not view.live, "its process is dead: the lease does not count"
        (found,) = backend.lanes(LaneQuery(1))
        assert not found.live

    def test_w4_a_write_is_synced_before_it_returns_and_an_empty_one_is_not(self, backend: Backend) -> None:
        put(backend, LaneRow("main"))
        before = self.syncs(backend)
        if before is None:
            pytest.skip("this backend's syncs cannot be counted")
        put(backend, LaneRow("main", token=1))
        after = self.syncs(backend)
        assert after is not None
        assert after > before
        backend.write(Ask(SESSION, names=EVERY), nothing)
        backend.read(WHOLE)
        assert self.syncs(backend) == after

    def test_a_lazy_batch_is_seen_and_an_empty_one_changes_nothing(self, backend: Backend) -> None:
        put(backend, LaneRow("main"))
        ask = Ask(SESSION, names=("main",))
        changes, touched = backend.changes(), backend.read(ask).session
        backend.write(ask, nothing)
        assert not self.alone or backend.changes() == changes

        def renew(view: View) -> Batch:
            return Batch((msgspec.structs.replace(view.lanes["main"], claim=claim_until(view, 30)),), lazy=True)

        for _ in range(3):
            backend.write(ask, renew)
            view = backend.read(ask)
            assert view.lanes["main"].claim is not None
            assert view.live == {"main"}
            assert view.session == touched
        assert self.other(backend).read(ask).live == {"main"}

    # W6

    def test_w6_the_next_number_is_beyond_every_one_that_was_ever_given(self, backend: Backend) -> None:
        highest = 0
        for number in range(12):
            session = f"session {number % 3}"
            view = put(backend, LaneRow("main", token=number), session=session)
            assert view.fresh > highest
            highest = view.fresh
            if number % 4 == 3:
                drop_session(backend, session)
            for ask in (Ask(session), Ask("nobody"), Ask(session, hidden=True)):
                assert backend.read(ask).fresh > highest
                assert self.other(backend).read(ask).fresh > highest
            if number % 5 == 4:
                backend = self.again(backend)
                assert backend.read(Ask("nobody")).fresh > highest

    def test_w6_a_number_is_not_given_again_when_the_whole_store_is_empty(self, backend: Backend) -> None:
        put(backend, LaneRow("main"), touched=10**12)
        drop_session(backend, SESSION)
        assert backend.read(Ask(SESSION)).fresh > 10**12
        assert self.again(backend).read(Ask(SESSION)).fresh > 10**12

    # closing

    def test_a_closed_backend_refuses_every_verb(self) -> None:
        backend = self.make()
        fill(backend)
        backend.close()
        backend.close()  # a second time is harmless
        for call in every_verb(backend):
            with pytest.raises(ClosedError):
                call()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
    def test_a_forked_child_is_refused_and_leaves_the_parent_unharmed(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(3)
        child = os.fork()
        if not child:
            signal.alarm(30)  # one that waits for a lock of its parent's would wait for ever
            refused = 0
            with contextlib.suppress(BaseException):
                for call in every_verb(backend):
                    with contextlib.suppress(ClosedError):
                        call()
                        os._exit(2)
                    refused += 1
                backend.close()
            os._exit(0 if refused == len(every_verb(backend)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        author.grow(3)
        check_states(backend, SESSION, author.states)


LANE = LaneRow("main", run=7, journal=1, token=3, status="halted", reason="why", input=b"\0\xff", spot=b"s", crashes=2)
CHECKPOINTS = (checkpoint(1, keyframe=True), checkpoint(2, 1, id_="a foreign id", fields=b"\0\xff" * 50, delta=b""))
CALLS = (
    call_row("one", at=(7, 1, 0), result=b"\0result", status="done", ended_us=9, key="k", parent="p", nonce=b"n"),
    call_row("two", at=(7, 1, 1), args=None, error=("Type", "text\n\u2028"), status="failed", place=b"place"),
)


def fill(backend: Backend) -> None:
    """A session with a row of every kind."""
    rows = (LANE, TagRow("first", 1), *CHECKPOINTS, KeyframeRow(1, b"\0keyframe", ()), *CALLS)
    put(backend, *rows, usage=b"\0\xff", reason="why")


def snapshot(backend: Backend) -> list[object]:
    """All rows of the session, but for when it was touched."""
    view = backend.read(WHOLE)
    assert view.session is not None
    found: list[object] = [msgspec.structs.replace(view.session, touched=0), view.pending, view.foreign]
    for kind in (Kind.NAME, Kind.CHECKPOINT, Kind.KEYFRAME, Kind.CALL):
        found += [bare(row) for row in backend.scan(SESSION, kind, limit=999)]
    return found


def drop_session(backend: Backend, session: str) -> None:
    """A session goes at once, with all that hangs on it."""
    backend.write(Ask(session), lambda _view: Batch(drops=((Kind.SESSION, session),)))


def every_verb(backend: Backend) -> list[Callable[[], object]]:
    """A call of each verb but `close`."""
    return [
        lambda: backend.read(Ask(SESSION)),
        lambda: backend.write(Ask(SESSION), nothing),
        lambda: backend.state(SESSION, 1),
        lambda: backend.ancestors(SESSION, 1, limit=1),
        lambda: backend.scan(SESSION, Kind.NAME, limit=1),
        lambda: backend.sessions(SessionQuery()),
        lambda: backend.lanes(LaneQuery(1)),
        lambda: backend.absent([UID * 2]),
        lambda: backend.put_blobs({UID * 2: b"x"}),
        lambda: backend.blobs([UID * 2]),
        backend.changes,
        lambda: backend.wait(0.01, since=-1),
        backend.sizes,
        lambda: list(backend.check()),
        backend.tend,
    ]
