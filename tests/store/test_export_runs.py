"""Runs on a journey: no call that was made is made again where it comes to, and none in doubt is taken for done."""

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backstay
from backstay import CorruptionError, FormatError, InDoubtError, Store
from backstay.codec import encode_stored
from backstay.model import MAX_DEPTH
from backstay.upkeep import bundle
from tests.store.test_import import is_empty, nested
from tests.store.test_verify import behind_its_back
from tests.store.travel import (
    KINDS,
    LONG_ANSWER,
    blocks_of,
    crashing,
    journal_of,
    live,
    open_kind,
    raw_blocks,
    run_for_long,
    write_forged,
)

PAIRS = [(here, there) for here in KINDS for there in KINDS]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sessions.backstay"


@pytest.fixture
def there() -> Store:
    return backstay.open("memory://")


def stores(kinds: tuple[str, ...], folder: Path) -> list[Store]:
    found = []
    for number, kind in enumerate(kinds):
        (folder / str(number)).mkdir()
        found.append(open_kind(kind, folder / str(number)))
    return found


def never() -> None:
    raise AssertionError("this call was made before")


def content_of(path: Path) -> list[tuple[bytes, bytes]]:
    """What a file holds, without when it was made."""
    return [block for block in blocks_of(path) if block[0] != bundle.OPEN]


# nothing is lost


@pytest.mark.parametrize(("here_kind", "there_kind"), PAIRS)
def test_every_call_arrives_where_it_was_and_a_second_export_says_the_same(
    here_kind: str, there_kind: str, tmp_path: Path, file: Path
) -> None:
    here, there = stores((here_kind, there_kind), tmp_path)
    run_for_long(here)
    here.export(file)
    there.import_(file)
    assert there.verify().ok, str(there.verify())
    assert journal_of(there) == journal_of(here)
    again = tmp_path / "again.backstay"
    there.export(again)
    assert content_of(again) == content_of(file)
    old, new = here.session("ticket-42"), there.session("ticket-42")
    for point in old.log():
        assert new.calls(point.id) == old.calls(point.id)
    assert [call.result for call in new.calls("main~2") if call.kind == "llm"] == [
        {"role": "assistant", "content": f"{LONG_ANSWER}3"}
    ]
    for store in (here, there):
        store.close()


@pytest.mark.parametrize(("here_kind", "there_kind"), PAIRS)
def test_a_run_goes_on_in_another_store_and_makes_no_finished_call_again(
    here_kind: str, there_kind: str, tmp_path: Path, file: Path
) -> None:
    here, there = stores((here_kind, there_kind), tmp_path)
    run_for_long(here)
    here.export(file)
    there.import_(file)
    assert not there.crashed()
    session = there.session("ticket-42")
    (doubtful,) = [call for call in session.calls(pending=True) if call.status == "in_doubt"]
    assert (doubtful.name, doubtful.args) == ("transfer", {"amount": 9})
    with pytest.raises(InDoubtError):
        session.commit({"not": "recorded"})
    run = session.run()
    with run:
        assert run.resumed
        assert run.input == ["the last", 1]
        assert [call.name for call in run.in_doubt] == ["transfer"]
        assert run.call("finished", never, args={"order": 7}) == {"refund": 7}
        with pytest.raises(InDoubtError):
            run.call("transfer", never, args={"amount": 9})
        session.resolve(doubtful.id, result="it had gone out")
        assert run.call("transfer", never, args={"amount": 9}) == "it had gone out"
        assert run.call("outside", never) == 1
    assert {call.name for call in session.calls()} == {"given up", "finished", "transfer", "outside", "inside"}
    assert [call.status for call in session.calls() if call.name == "given up"] == ["abandoned"]
    # What was parked is taken up by the undo, here as there.
    session.undo(branch="what if")
    with session.run(branch="what if") as other:
        assert other.input == "parked"
        assert other.call("parked", never) == "kept for the undo"
    for store in (here, there):
        assert store.verify().ok
        store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_never_came_to_a_checkpoint_arrives_with_its_calls(kind: str, tmp_path: Path, file: Path) -> None:
    here, there = stores((kind, kind), tmp_path)
    for name in ("one", "two", "three"):
        with crashing(here.session(name).run(input=name)) as run:
            run.call("pay", lambda: 7)
    here.export(file)
    there.import_(file)
    assert {info.id for info in there.sessions()} == {info.id for info in here.sessions()}
    with there.session("two").run() as run:
        assert (run.input, run.call("pay", never)) == ("two", 7)
    assert there.session("two").head() is not None
    for store in (here, there):
        assert store.verify().ok
        store.close()


def test_a_call_in_flight_is_in_doubt_in_the_copy_whatever_number_the_next_run_gets(there: Store, file: Path) -> None:
    with backstay.open("memory://") as here, here.session("s").run() as run:
        run.call("pay", lambda: here.export(file))
        assert here.session("s").calls(pending=True)[0].status == "done"
    there.import_(file)
    for _ in range(4):  # tokens 1, 2, 3, …: none of them is that of the run which began it
        assert [call.status for call in there.session("s").calls(pending=True)] == ["in_doubt"]
        with pytest.raises(InDoubtError), there.session("s").run() as other:
            other.call("pay", never)


def test_a_session_that_never_ran_makes_the_file_it_always_made(there: Store, file: Path) -> None:
    live(there)
    there.export(file)
    assert {kind for kind, _ in blocks_of(file)} == {b"OPEN", b"SESS", b"BLOB", b"ROWS"}


def test_a_reader_from_before_runs_refuses_rather_than_make_calls_again(there: Store, file: Path) -> None:
    run_for_long(there)
    there.export(file)
    kinds = [header.kind for header, _ in raw_blocks(file.read_bytes())]
    assert bundle.RUNS in kinds
    assert all(kind[:1].isupper() for kind in kinds)


def test_what_somebody_has_begun_to_run_meanwhile_is_not_taken_back(there: Store, file: Path) -> None:
    with backstay.open("memory://") as here:
        for name in ("a", "b", "c"):
            here.session(name).commit({"n": 1})
            with crashing(here.session(name).run()) as run:
                run.call("pay", lambda: 7)
        here.export(file)

    def interfere(now: int, total: int | None) -> None:
        if {info.id for info in there.sessions()} == {"a"}:
            with crashing(there.session("a").run()) as run:
                assert run.call("pay", never) == 7
                run.call("ship", lambda: 8)
        elif there.backend.find_session("b") is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        there.import_(file, progress=interfere)
    assert [info.id for info in there.sessions()] == ["a"]
    assert [call.name for call in there.session("a").calls(pending=True)] == ["pay", "ship"]


# of one moment


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_while_a_run_is_alive_has_every_call_that_was_done_and_each_once(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    store = open_kind(kind, folder)
    store.session("s").commit({"messages": []})
    made: list[int] = []
    stop = threading.Event()

    def work() -> None:
        with store.session("s").run(strategy=backstay.EveryN(3)) as run:
            while not stop.wait(0.002):
                number = len(made)
                run.append(run.call("tool", partial("{} {}".format, LONG_ANSWER, number), key=str(number), args=number))
                made.append(number)
                run.step()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for round_ in range(4):
            time.sleep(0.05)
            before = len(made)
            store.export(tmp_path / f"{round_}.backstay")
            with backstay.open("memory://") as copy:
                copy.import_(tmp_path / f"{round_}.backstay")
                session = copy.session("s")
                taken = [call for point in session.log() for call in session.calls(point.id)]
                waiting = session.calls(pending=True)
                keys = sorted([int(call.key or "") for call in [*taken, *waiting]])
                assert keys == list(range(len(keys)))
                done = [call for call in [*taken, *waiting] if call.status == "done"]
                assert len(done) >= before
                assert all(call.result == f"{LONG_ANSWER} {call.key}" for call in done)
                assert copy.verify().ok
                with session.run(strategy=backstay.EveryN(3), on_doubt="skip") as run:
                    at = len(run.state["messages"])
                    for number in range(at, at + len(waiting)):
                        run.append(run.call("tool", never, key=str(number), args=number))
    finally:
        stop.set()
        thread.join()
    store.close()


def test_damage_in_a_journal_is_told_when_exporting_and_not_when_the_copy_is_needed(path: Path, file: Path) -> None:
    with backstay.open(path) as store:
        run_for_long(store)
        run_for_long(store, "other")
    behind_its_back(path, ("UPDATE calls SET body = CAST(body || x'00' AS BLOB) WHERE call = 3", ()))
    with backstay.open(path) as store:
        for session in ("ticket-42", None):
            with pytest.raises(CorruptionError):
                store.export(file, session=session)
            assert not file.exists()
        store.export(file, session="other")


# files that nobody has exported

RUN, AFTER, CALL_ID, PARENT, NAME, KEY, NTH, KIND, ARGS, ARGS_DIGEST, STATUS, STARTED, ENDED, RESULT, PLACE, ERROR = (
    range(16)
)


class Parts:
    """The journal in a file, to be changed: all runs, what was taken, all calls; and among them some to change."""

    def __init__(self, blocks: list[tuple[bytes, bytes]]) -> None:
        self.blocks = blocks
        self.maps = [msgspec.msgpack.decode(content) for kind, content in blocks if kind == bundle.RUNS]
        self.runs = self.maps[0]["runs"]
        self.took = next(found["took"] for found in self.maps if "took" in found)
        self.calls = next(found["calls"] for found in self.maps if "calls" in found)  # taken in
        self.left = self.maps[-1]["calls"]  # pending and parked
        self.placed = next(call for call in self.calls if call[PLACE])

    def write(self, path: Path) -> None:
        rest = iter(self.maps)
        blocks = [
            (kind, msgspec.msgpack.encode(next(rest)) if kind == bundle.RUNS else content)
            for kind, content in self.blocks
        ]
        write_forged(path, blocks)


def put(row: Callable[[Parts], Any], at: int | slice, value: Any) -> Callable[[Parts], Any]:
    def change(parts: Parts) -> None:
        row(parts)[at] = value(parts) if callable(value) else value

    return change


def taken(parts: Parts) -> Any:
    return parts.calls[1]


def waiting(parts: Parts) -> Any:
    return parts.left[-1]


def place(*steps: str | int) -> bytes:
    return msgspec.msgpack.encode(steps)


HOSTILE: dict[str, Callable[[Parts], Any]] = {
    "a status nobody knows": put(taken, STATUS, "happened"),
    "a kind nobody knows": put(waiting, KIND, "oracle"),
    "an id twice": put(waiting, CALL_ID, lambda parts: parts.calls[0][CALL_ID]),
    "an empty id": put(waiting, CALL_ID, ""),
    "an endless id": put(waiting, CALL_ID, "x" * 10_000),
    "an endless name": put(waiting, NAME, "x" * 10_000),
    "a name that is a number": put(waiting, NAME, 7),
    "a name with a NUL": put(taken, NAME, "a\0b"),
    "a count below nothing": put(waiting, NTH, -1),
    "a count beyond all": put(waiting, NTH, 2**63),
    "a call of a run that is not here": put(waiting, RUN, 77),
    "a call of run 0": put(waiting, RUN, 0),
    "a call of a run below 0": put(taken, RUN, -1),
    "a call on a checkpoint that is not here": put(waiting, AFTER, 77),
    "a call after the end of all numbers": put(waiting, AFTER, 2**63),
    "a call that comes after its checkpoint": put(
        waiting, slice(RUN, AFTER + 1), lambda parts: parts.calls[0][RUN : AFTER + 1]
    ),
    "a call inside itself": put(waiting, PARENT, lambda parts: parts.left[-1][CALL_ID]),
    "two calls inside one another": lambda parts: (
        put(lambda parts: parts.left[1], PARENT, parts.left[2][CALL_ID])(parts),
        put(lambda parts: parts.left[2], PARENT, parts.left[1][CALL_ID])(parts),
    ),
    "two calls that are the same": lambda parts: parts.left.append(
        [*parts.left[-1][:CALL_ID], "another", *parts.left[-1][CALL_ID + 1 :]]
    ),
    "args that do not decode": put(waiting, ARGS, b"\xc1"),
    "args with more behind them": put(waiting, ARGS, b"\x01\x02"),
    "args too deep": put(waiting, ARGS, nested(MAX_DEPTH + 1)),
    "args too deep for anybody": put(waiting, ARGS, nested(200_000)),
    "args that need a blob": put(waiting, ARGS, b"\xc7\x21\x01\x00" + bytes(32)),
    "args too long": put(waiting, ARGS, encode_stored("x" * (17 * 1024 * 1024))),
    "args that are text": put(waiting, ARGS, "{}"),
    "no digest": put(waiting, ARGS_DIGEST, b""),
    "an endless digest": put(waiting, ARGS_DIGEST, bytes(100)),
    "a result that does not decode": put(taken, RESULT, b"\xd9"),
    "a result too deep": put(taken, RESULT, nested(MAX_DEPTH + 1)),
    "two results": put(lambda parts: parts.placed, RESULT, b"\x01"),
    "a place that leads nowhere": put(lambda parts: parts.placed, PLACE, place("messages", 99)),
    "a place in nobody's part": put(lambda parts: parts.placed, PLACE, place("nothing")),
    "a place inside a text": put(lambda parts: parts.placed, PLACE, place("messages", 0, "content", 0)),
    "a place from behind": put(lambda parts: parts.placed, PLACE, place("messages", -1)),
    "a place that is none": put(lambda parts: parts.placed, PLACE, b"\xc1"),
    "a place that nobody took in": put(waiting, PLACE, place("messages")),
    "a time before all time": put(waiting, STARTED, -(2**62)),
    "a time after all time": put(taken, ENDED, 2**62),
    "an error that is no pair": put(taken, ERROR, ["only one"]),
    "an endless error": put(waiting, ERROR, ["x", "y" * (17 * 1024 * 1024)]),
    "half a call": lambda parts: parts.left.__setitem__(-1, parts.left[-1][:5]),
    "a run twice": lambda parts: parts.runs.append(parts.runs[0]),
    "a branch with two runs": lambda parts: parts.runs.append([9, *parts.runs[0][1:]]),
    "a run without a branch": put(lambda parts: parts.runs[0], 1, None),
    "a run on a branch that cannot be": put(lambda parts: parts.runs[0], 1, "x" * 300),
    "a run without a number": put(lambda parts: parts.runs[0], 0, 0),
    "a run that is perhaps unfinished": put(lambda parts: parts.runs[0], 2, 7),
    "an input that does not decode": put(lambda parts: parts.runs[0], 3, b"\xc1"),
    "an input too deep": put(lambda parts: parts.runs[0], 3, nested(MAX_DEPTH + 1)),
    "an input too long": put(lambda parts: parts.runs[0], 3, encode_stored("x" * (17 * 1024 * 1024))),
    "no run": lambda parts: parts.runs.clear(),
    "calls taken in by nobody": put(lambda parts: parts.took[0], 0, "nobody"),
    "calls taken in twice": lambda parts: parts.took.append(["ab" * 12, *parts.took[0][1:]]),
    "calls taken in by two": lambda parts: parts.took.append([parts.took[0][0], 1, 50]),
    "calls taken in before they were made": put(lambda parts: parts.took[1], 2, 40),
    "calls taken in that do not come": put(lambda parts: parts.took[0], slice(1, 3), (1, 33)),
    "calls of another branch taken in": put(lambda parts: parts.took[0], 1, 2),
    "nothing that was taken": lambda parts: parts.took.clear(),
    "a list instead of all": lambda parts: parts.maps.__setitem__(0, []),
    "calls that are none": lambda parts: parts.maps.__setitem__(-1, {"calls": 7}),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("ran") / "file"
    with backstay.open("memory://") as store:
        run_for_long(store)
        store.export(path)
    return path.read_bytes()


@pytest.fixture
def parts(ran: bytes, file: Path) -> Parts:
    file.write_bytes(ran)
    return Parts(blocks_of(file))


def test_a_journal_put_together_by_hand_gets_in_if_all_of_it_is_right(parts: Parts, file: Path, there: Store) -> None:
    parts.write(file)
    there.import_(file)
    assert there.verify().ok


@pytest.mark.parametrize("how", HOSTILE)
def test_a_journal_that_no_run_could_have_written_does_not_get_in(
    how: str, parts: Parts, file: Path, there: Store
) -> None:
    HOSTILE[how](parts)
    parts.write(file)
    with pytest.raises((CorruptionError, FormatError)):
        there.import_(file)
    assert is_empty(there)


@given(where=st.integers(0, 3), row=st.integers(0, 40), at=st.integers(0, 15), data=st.data())
def test_whatever_is_in_a_journal_an_import_takes_it_whole_or_refuses_it(
    ran: bytes, tmp_path_factory: pytest.TempPathFactory, where: int, row: int, at: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("odd") / "file"
    path.write_bytes(ran)
    found = Parts(blocks_of(path))
    rows = [found.runs, found.took, found.calls, found.left][where]
    chosen = rows[row % len(rows)]
    odd = st.one_of(st.none(), st.integers(-5, 9), st.integers(), st.binary(max_size=40), st.text(max_size=5))
    chosen[at % len(chosen)] = data.draw(odd.filter(lambda value: type(value) is not int or -(2**63) <= value < 2**64))
    found.write(path)
    with backstay.open("memory://") as there:
        try:
            there.import_(path)
        except (CorruptionError, FormatError):
            assert is_empty(there)
        else:
            assert there.verify().ok
            session = there.session("ticket-42")
            for point in session.log():
                session.calls(point.id)
            with contextlib.suppress(backstay.BackstayError), session.run() as run:
                assert run.in_doubt is not None


def test_a_journal_before_its_session_does_not_get_in(parts: Parts, file: Path, there: Store) -> None:
    runs = next(block for block in parts.blocks if block[0] == bundle.RUNS)
    opening, *rest = parts.blocks
    write_forged(file, [opening, runs, *rest])
    with pytest.raises(CorruptionError):
        there.import_(file)
    assert is_empty(there)


def test_no_block_of_a_journal_can_be_left_out_or_come_twice(parts: Parts, file: Path, there: Store) -> None:
    for at, (kind, _) in enumerate(parts.blocks):
        if kind == bundle.RUNS:
            write_forged(file, [*parts.blocks[: at + 1], *parts.blocks[at:]])
            with pytest.raises(CorruptionError):
                there.import_(file)
            assert is_empty(there)


def test_a_very_long_journal_goes_in_blocks_that_can_be_held(there: Store, file: Path) -> None:
    with backstay.open("memory://") as here:
        with crashing(here.session("s").run()) as run:
            for number in range(12):
                run.call("fetch", lambda: bytes(1_000_000), key=f"a{number}")
            run.checkpoint()
            for number in range(12):
                run.call("fetch", lambda: bytes(1_000_000), key=f"b{number}")
        here.export(file)
        sizes = [header.unpacked for header, _ in raw_blocks(file.read_bytes()) if header.kind == bundle.RUNS]
        assert len(sizes) > 4
        assert max(sizes) < 8_000_000
        there.import_(file)
        assert journal_of(there, "s") == journal_of(here, "s")
