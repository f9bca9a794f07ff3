"""Many at once: nobody's write is lost (W2, W8), nobody sees half of a batch (W5)."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from backstay.errors import AlreadyExistsError, ConflictError, CorruptionError, LeaseHeldError, NotFoundError
from backstay.port import (
    EVERY,
    Ask,
    Backend,
    Batch,
    BlobsAbsentError,
    CallRow,
    CheckpointRow,
    Kind,
    LaneQuery,
    LaneRow,
    Row,
    TagRow,
    View,
)
from backstay.port.rows import ENTERED
from backstay.testing.author import SESSION, Author, Runner, call_row, check_states, delete, fork, open_records
from backstay.testing.contract.handmade import PATIENCE_S, UID, blob, checkpoint, line, put, together
from backstay.testing.contract.hooks import Hooks

THREADS = 6
ROUNDS = 8
MANY = 16
CALL = (7, 1, 0)

MAIN = Ask(SESSION, names=("main",))
FOREIGN = "foreign-"


def up(row: Any, **by: int) -> Any:
    """A row with some of its numbers raised."""
    return msgspec.structs.replace(row, **{name: getattr(row, name) + more for name, more in by.items()})


def line_up(view: View, **by: int) -> Row:
    """The session's line, touched, with some of its numbers raised."""
    assert view.session is not None
    row: Row = up(msgspec.structs.replace(view.session, touched=view.fresh), **by)
    return row


def new_call(view: View, n: int) -> tuple[Row, ...]:
    """The nth call under the branch's journal, and the branch, as a run writes them."""
    return call_row(f"call {n}", at=(7, 1, n)), view.lanes["main"]


def new_checkpoint(view: View, sequence: int, **fields: Any) -> tuple[Row, ...]:
    """A child of the first checkpoint."""
    return line_up(view, sequence=1, checkpoints=1), checkpoint(sequence, 1, **fields)


def also(ask: Ask, **more: Any) -> Ask:
    """A wider ask."""
    return msgspec.structs.replace(ask, **more)


# What a rule looks at, how it counts one up, and where the sum is read. A write that was decided on another view than
# the one that held leaves the sum too small.
COUNTERS: dict[str, tuple[Ask, Callable[[Any], tuple[Row, ...]], Callable[[Any], int]]] = {
    "a branch": (MAIN, lambda v: (up(v.lanes["main"], token=1),), lambda v: v.lanes["main"].token),
    "the session": (Ask(SESSION), lambda v: (line_up(v, logical_bytes=1),), lambda v: v.session.logical_bytes),
    "a tag": (
        Ask(SESSION, names=("tag",)),
        lambda v: (up(v.tags["tag"], sequence=1),),
        lambda v: v.tags["tag"].sequence,
    ),
    "a call": (also(MAIN, calls=(CALL,)), lambda v: (up(v.calls[CALL], nth=1),), lambda v: v.calls[CALL].nth),
    "a checkpoint": (
        Ask(SESSION, sequences=(1,)),
        lambda v: (up(v.checkpoints[1], size_bytes=1),),
        lambda v: v.checkpoints[1].size_bytes,
    ),
    "how many names": (
        Ask(SESSION, names=EVERY),
        lambda v: (line_up(v, lanes=1), LaneRow(f"lane {len(v.lanes)}")),
        lambda v: len(v.lanes) - 1,
    ),
    "how many calls are counted": (
        also(MAIN, counted=("main",)),
        lambda v: new_call(v, v.counts["main"]),
        lambda v: v.counts["main"] - 1,
    ),
    "how many calls are pending": (
        also(MAIN, pending=("main",)),
        lambda v: new_call(v, len(v.pending["main"])),
        lambda v: len(v.pending["main"]) - 1,
    ),
    "how many calls a journal has": (
        also(MAIN, journals=((7, 1),)),
        lambda v: new_call(v, len(v.journals[7, 1])),
        lambda v: len(v.journals[7, 1]) - 1,
    ),
    "how many children": (
        Ask(SESSION, children_of=(1,)),
        lambda v: new_checkpoint(v, 2 + len(v.children[1])),
        lambda v: len(v.children[1]),
    ),
    "how many foreign ids": (
        Ask(SESSION, prefix=FOREIGN),
        lambda v: new_checkpoint(v, 2 + len(v.foreign), id_=f"{FOREIGN}{len(v.foreign)}"),
        lambda v: len(v.foreign),
    ),
}

# What a rule must find absent, and what it then puts.
FIRSTS: dict[str, tuple[Ask, Callable[[Any], object], Callable[[Any, int], tuple[Row, ...]]]] = {
    "a session": (
        Ask("fresh"),
        lambda v: v.session is None,
        lambda v, me: (line("fresh", touched=v.fresh, last_step=me),),
    ),
    "a name": (
        Ask(SESSION, names=("fresh",)),
        lambda v: not v.lanes and not v.tags,
        lambda v, me: (line_up(v, lanes=1), LaneRow("fresh")) if me % 2 else (line_up(v, tags=1), TagRow("fresh", 1)),
    ),
    "a checkpoint": (Ask(SESSION, sequences=(9,)), lambda v: not v.checkpoints, lambda v, _: new_checkpoint(v, 9)),
    "a foreign id": (
        Ask(SESSION, ids=("fresh",)),
        lambda v: not v.foreign and not v.checkpoints,
        lambda v, me: new_checkpoint(v, 20 + me, id_="fresh"),
    ),
    "a call": (also(MAIN, calls=((7, 1, 1),)), lambda v: not v.calls, lambda v, _: new_call(v, 1)),
    "a child": (Ask(SESSION, children_of=(1,)), lambda v: not v.children[1], lambda v, me: new_checkpoint(v, 20 + me)),
}


class RacingContract(Hooks):
    """What every verb owes while others are at it."""

    @pytest.mark.parametrize("what", COUNTERS)
    def test_w2_a_rule_that_counts_loses_nothing(self, backend: Backend, what: str) -> None:
        ask, bump, total = COUNTERS[what]
        fill(backend)
        openings = [backend, self.other(backend)]

        def write(me: int) -> None:
            for _ in range(ROUNDS):
                openings[me % 2].write(ask, lambda view: Batch(bump(view)))

        together(write, THREADS)
        for opening in openings:
            assert total(opening.read(ask)) == THREADS * ROUNDS

    @pytest.mark.parametrize("what", FIRSTS)
    def test_w2_of_those_that_find_something_absent_one_puts_it(self, backend: Backend, what: str) -> None:
        ask, absent, rows = FIRSTS[what]
        fill(backend)
        openings = [backend, self.other(backend)]
        won: list[int] = []

        def write(me: int) -> None:
            def decide(view: View) -> Batch:
                if not absent(view):
                    raise AlreadyExistsError("another was first")
                return Batch(rows(view, me))

            with contextlib.suppress(AlreadyExistsError):
                openings[me % 2].write(ask, decide)
                won.append(me)

        together(write, THREADS)
        assert len(won) == 1
        assert not list(backend.check())

    def test_w2_of_those_that_rename_a_session_to_one_name_one_does(self, backend: Backend) -> None:
        openings = [backend, self.other(backend)]
        won: list[int] = []
        for me in range(THREADS):
            hidden = line(f"hidden {me}", uid=bytes([me]) * 16, hidden=True)
            backend.write(Ask(hidden.id, hidden=True), lambda _view, hidden=hidden: Batch((hidden,)))  # type: ignore[misc]

        def show(me: int) -> None:
            def decide(view: View) -> Batch:
                if view.beside is not None:
                    raise AlreadyExistsError("another was first")
                assert view.session is not None
                return Batch((msgspec.structs.replace(view.session, touched=view.fresh, id="shown", hidden=False),))

            with contextlib.suppress(AlreadyExistsError):
                openings[me % 2].write(Ask(f"hidden {me}", hidden=True, beside="shown"), decide)
                won.append(me)

        together(show, THREADS)
        (winner,) = won
        shown = openings[1].read(Ask("shown")).session
        assert shown is not None
        assert shown.uid == bytes([winner]) * 16

    def test_w2_processes_that_count_lose_nothing(self, backend: Backend) -> None:
        code = self.opening_code(backend)
        if code is None:
            pytest.skip("no other process can open this backend")
        code += (
            "\nfrom backstay.port import Batch\nfrom backstay.testing.contract.racing import COUNTERS"
            "\nask, bump, _ = COUNTERS['a branch']"
            "\nfor _ in range(25):\n    backend.write(ask, lambda view: Batch(bump(view)))"
        )
        fill(backend)
        running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]  # noqa: S603 - our own code
        ask, bump, total = COUNTERS["a branch"]
        for _ in range(25):
            backend.write(ask, lambda view: Batch(bump(view)))
        assert [child.wait(PATIENCE_S) for child in running] == [0, 0]
        assert total(backend.read(ask)) == 75

    def test_w2_deleting_checkpoints_while_others_commit_loses_no_state(self, backend: Backend) -> None:
        author = Author(backend, keyframe_every=30)
        author.grow(12)
        other = self.other(backend)
        gone: list[int] = []

        def act(me: int) -> None:
            if me == 0:
                author.grow(12)
                return
            for sequence in range(1 + me, 12, 2):
                for left in reversed(range(1_000)):  # another may have deleted a neighbour since this was planned
                    with contextlib.suppress(*[ConflictError, CorruptionError, NotFoundError] if left else []):
                        delete(other if me % 2 else backend, SESSION, sequence)
                        gone.append(sequence)
                        break

        together(act, 3)
        check_states(backend, SESSION, {at: state for at, state in author.states.items() if at not in gone})

    # W8

    def test_w8_calls_journaled_at_once_in_one_run_are_all_there(self, backend: Backend) -> None:
        run = Runner(backend)
        mine: list[list[CallRow]] = [[] for _ in range(MANY)]

        def journal(me: int) -> None:
            mine[me] = [run.call(f"{me} {number}", result=bytes([me, number])) for number in range(4)]

        together(journal, MANY)
        pending = backend.read(Ask(SESSION, names=("main",), pending=("main",))).pending["main"]
        assert [row.n for row in pending if isinstance(row, CallRow)] == list(range(MANY * 4))
        assert {row.id: row for row in pending if isinstance(row, CallRow)} == {
            row.id: row for rows in mine for row in rows
        }
        assert run.boundary().took is not None

    def test_w8_branches_of_one_session_are_written_at_once(self, backend: Backend) -> None:
        root = Author(backend)
        (first,) = root.grow(1)
        states = [dict(root.states) for _ in range(MANY)]

        def write(me: int) -> None:
            fork(backend, SESSION, first, f"branch {me}")
            author = Author(backend, branch=f"branch {me}").stand_on_head()
            author.grow(3)
            states[me].update(author.states)

        together(write, MANY)
        check_states(backend, SESSION, {at: state for mine in states for at, state in mine.items()})
        session = backend.read(Ask(SESSION, names=EVERY)).session
        assert session is not None
        assert (session.lanes, session.checkpoints, session.sequence) == (MANY + 1, MANY * 3 + 1, MANY * 3 + 1)

    def test_w8_a_write_that_fails_fails_alone(self, backend: Backend) -> None:
        fill(backend)

        def write(me: int) -> None:
            for number in range(ROUNDS):
                if me % 4 == 1:
                    with pytest.raises(ZeroDivisionError):
                        backend.write(MAIN, lambda _view: Batch(answer=1 // 0))
                elif me % 4 == 2:
                    with pytest.raises(BlobsAbsentError) as caught:
                        put(backend, checkpoint(100 + me, 1, refs=(blob(me)[0],)))
                    assert caught.value.digests == {blob(me)[0]}
                else:
                    put(backend, TagRow(f"{me} {number}", 1))

        together(write, 8)
        view = backend.read(Ask(SESSION, names=EVERY, sequences=(102, 106)))
        assert len(view.tags) == 4 * ROUNDS + 1
        assert not view.checkpoints

    def test_w8_sessions_that_share_a_blob_come_and_go_at_once(self, backend: Backend) -> None:
        openings = [backend, self.other(backend)]

        def write(me: int) -> None:
            opening, session = openings[me % 2], f"session {me}"
            for number in range(ROUNDS):
                if me == 0:
                    opening.tend()
                digest, data = blob(number)
                put(opening, checkpoint(1, refs=(digest,)), session=session, blobs={digest: data})
                if number < ROUNDS - 1:
                    opening.write(Ask(session), lambda _view: Batch(drops=((Kind.SESSION, session),)))

        together(write, THREADS)
        backend.tend()
        kept = backend.blobs([blob(number)[0] for number in range(ROUNDS)])
        assert kept == dict([blob(ROUNDS - 1)])
        assert not list(backend.check())

    # W5

    def test_w5_a_reader_never_sees_half_of_a_batch(self, backend: Backend) -> None:
        fill(backend)
        done = threading.Event()
        looks: list[int] = []
        openings = [backend, self.other(backend)]

        def act(me: int) -> None:
            if me == 0:
                try:
                    for number in range(1, 60):
                        put(backend, *_same(number), last_step=number)
                finally:
                    done.set()
                return
            while not done.is_set() or not looks:
                looks.append(_one_moment(openings[me % 2]))

        put(backend, *_same(0), last_step=0)
        together(act, 4)
        assert looks

    def test_w5_a_state_is_never_half_of_a_checkpoint(self, backend: Backend) -> None:
        author = Author(backend, keyframe_every=4)
        author.grow(1)
        openings = [backend, self.other(backend)]
        done = threading.Event()
        seen: list[int] = []

        def act(me: int) -> None:
            if me == 0:
                try:
                    author.grow(40)
                finally:
                    done.set()
                return
            while not done.is_set() or not seen:  # on a busy machine the writer may be done before anybody looked
                records = openings[me % 2].state(SESSION, "main")
                turn = open_records(records)["turn"]
                assert records.lane is not None
                assert records.session is not None
                assert records.lane.head == intact(records.rows)[-1].head
                assert records.session.sequence == records.rows[-1].sequence == turn + 1  # type: ignore[union-attr]
                rows = openings[me % 2].ancestors(SESSION, turn + 1, limit=999)
                assert [row.sequence for row in intact(rows)] == list(range(turn + 1, 0, -1))
                seen.append(turn)

        together(act, 4)
        check_states(openings[1], SESSION, author.states)

    def test_of_those_that_enter_at_once_one_does(self, backend: Backend) -> None:
        openings = [backend, self.other(backend)]
        tokens: list[int] = []

        def enter(me: int) -> None:
            with contextlib.suppress(LeaseHeldError):
                tokens.append(Runner(openings[me % 2]).lease.token)

        Author(backend).grow(1)
        together(enter, 16)
        assert len(tokens) == 1

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers of that kind")
    # Python drops an interrupt that strikes while it collects garbage, and pytest would take that for a fault.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_w1_an_interrupt_anywhere_leaves_all_of_a_batch_or_nothing(self, backend: Backend) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        fill(backend)
        put(backend, *_same(0), last_step=0)
        before = signal.signal(signal.SIGALRM, interrupt)
        told = 0
        try:
            for number in range(1, 120):
                with contextlib.suppress(KeyboardInterrupt):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 0.000_02 * 1.05**number)  # from 21 microseconds to 6.6 ms
                        put(backend, *_same(number), last_step=number)
                        told = number
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert told <= _one_moment(backend) <= number
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        together(lambda me: put(backend, TagRow(f"after {me}", 1)), 2)
        assert len(backend.read(Ask(SESSION, names=EVERY)).tags) == 4


def fill(backend: Backend) -> None:
    """A session with one row of each kind that is counted in."""
    lane = LaneRow("main", run=7, journal=1)
    put(backend, lane, TagRow("tag", 0), checkpoint(1, size_bytes=0), call_row("call 0", at=(7, 1, 0)))


def intact(rows: Any) -> list[CheckpointRow]:
    """The rows, which must all be readable."""
    assert all(isinstance(row, CheckpointRow) for row in rows)
    return list(rows)


def _same(number: int) -> tuple[Row, ...]:
    """Rows that say the same number, wherever they are."""
    names = (LaneRow("a", token=number, entered=True), LaneRow("z", token=number), TagRow("m", number))
    calls = tuple([call_row(f"c{n}", at=(7, 1, n), nth=number) for n in range(3)])
    return *names, *calls, checkpoint(1, size_bytes=number), checkpoint(5, 1, size_bytes=number)


def _one_moment(backend: Backend) -> int:
    """Look by every verb that gives more than one row: each says one number. UID is that of the session's."""
    ask = Ask(SESSION, names=EVERY, sequences=(1, 5), journals=((7, 1),), calls=((7, 1, 2),))
    view = backend.read(ask)
    assert view.session is not None
    assert view.session.uid == UID
    seen = {view.session.last_step, view.lanes["a"].token, view.lanes["z"].token, view.tags["m"].sequence}
    seen |= {row.size_bytes for row in intact(view.checkpoints.values())}
    seen |= {row.nth for row in [*view.journals[7, 1], *view.calls.values()] if isinstance(row, CallRow)}
    (number,) = seen
    rows = backend.scan(SESSION, Kind.CHECKPOINT, limit=9)
    assert len({row.size_bytes for row in intact(rows)}) == 1
    assert len({row.size_bytes for row in intact(backend.ancestors(SESSION, 5, limit=9))}) == 1
    calls = backend.scan(SESSION, Kind.CALL, limit=9)
    assert len({row.nth for row in calls if isinstance(row, CallRow)}) == 1
    for found in backend.lanes(LaneQuery(ENTERED)):
        assert found.session.last_step == found.lane.token
    assert number is not None
    return number
