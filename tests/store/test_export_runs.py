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
from backstay.backends.sqlite.connections import connect
from backstay.codec import encode_stored
from backstay.model import MAX_DEPTH
from backstay.port import CallRow, CheckpointRow
from backstay.port.rows import ABANDONED, Took
from backstay.sealing import pack_blob
from tests.store.test_import import is_empty
from tests.store.test_import_hostile import nested
from tests.store.travel import KINDS, LONG_ANSWER, Parts, about, crashing, journal_of, kept, open_kind, run_for_long

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
    assert about(there) == about(here)
    again = tmp_path / "again.backstay"
    there.export(again)
    with backstay.open(again) as export:
        assert (about(export), journal_of(export)) == (about(here), journal_of(here))
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
    report = there.import_(file)
    assert report.in_doubt == {"ticket-42": 1}
    assert [info.id for info in there.crashed()] == ["ticket-42"]
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
        with contextlib.closing(connect(path, durability="full")) as connection:
            connection.execute(
                "UPDATE calls SET body = CAST(body || x'00' AS BLOB) WHERE rowid = (SELECT min(rowid) FROM calls)"
            )
        with pytest.raises(CorruptionError):
            store.export(file, session="ticket-42")
        assert not file.exists()
        with pytest.raises(CorruptionError, match="'ticket-42' is damaged and was left out"):
            store.export(file)
        with backstay.open(file) as export:
            assert [info.id for info in export.sessions()] == ["other"]
        store.export(file, session="other", overwrite=True)


# files that nobody has exported


def taken(parts: Parts) -> int:
    """A call that a checkpoint took in."""
    return 1


def waiting(parts: Parts) -> int:
    """A call that is pending."""
    return next(at for at, call in enumerate(parts.calls) if call.name == "outside")


def placed(parts: Parts) -> int:
    """A call whose result stands in the state."""
    return next(at for at, call in enumerate(parts.calls) if call.place)


def put(which: Callable[[Parts], int], **changed: Any) -> Callable[[Parts], None]:
    """Change a call."""

    def change(parts: Parts) -> None:
        values = {name: value(parts) if callable(value) else value for name, value in changed.items()}
        parts.set_call(which(parts), **values)

    return change


def lane(**changed: Any) -> Callable[[Parts], None]:
    """Change the branch with the pending calls."""
    return lambda parts: parts.set_name(parts.lane(), **changed)


def took(**changed: Any) -> Callable[[Parts], None]:
    """Change what a checkpoint took in."""

    def change(parts: Parts) -> None:
        part = next(part for part in parts.rows if part.row.took)
        part.change(took=msgspec.structs.replace(part.row.took, **changed))  # type: ignore[type-var]

    return change


def place(*steps: str | int) -> bytes:
    return msgspec.msgpack.encode(steps)


def packed(data: bytes) -> bytes:
    return b"\0" + data


def again(parts: Parts, **changed: Any) -> CallRow:
    """The last of the pending calls a second time."""
    last = [call for call in parts.calls if call.at[:2] == parts.calls[waiting(parts)].at[:2]][-1]
    copy: CallRow = msgspec.structs.replace(last, n=last.n + 1, **changed)
    return copy


def entangle(parts: Parts) -> None:
    one = waiting(parts)
    parts.set_call(one, parent=parts.calls[one + 1].id)
    parts.set_call(one + 1, parent=parts.calls[one].id)


HOSTILE: dict[str, Callable[[Parts], Any]] = {
    "a status nobody knows": put(taken, status="happened"),
    "a kind nobody knows": put(waiting, kind="oracle"),
    "an id twice": lambda parts: parts.calls.append(again(parts, name="other")),
    "an empty id": put(waiting, id=""),
    "an endless id": put(waiting, id="x" * 10_000),
    "an endless name": put(waiting, name="x" * 10_000),
    "a name that is a number": put(waiting, name=7),
    "a name with a NUL": put(taken, name="a\0b"),
    "a count below nothing": put(waiting, nth=-1),
    "a count beyond all": put(waiting, nth=2**63 - 1),
    "a call of a run that is yet to come": put(waiting, token=77),
    "a call that is missing": lambda parts: parts.calls.pop(waiting(parts)),
    "a call that a checkpoint misses": lambda parts: parts.calls.pop(0),
    "a call more than were taken in": lambda parts: parts.calls.append(
        msgspec.structs.replace(parts.calls[0], n=40, id="more", name="more")
    ),
    "a call inside itself": put(waiting, parent=lambda parts: parts.calls[waiting(parts)].id),
    "two calls inside one another": entangle,
    "two calls that are the same": lambda parts: parts.calls.append(again(parts, id="another")),
    "args that do not decode": put(waiting, args=packed(b"\xc1")),
    "args of no kind": put(waiting, args=b"\x07\x01"),
    "args with more behind them": put(waiting, args=packed(b"\x01\x02")),
    "args too deep": put(waiting, args=packed(nested(MAX_DEPTH + 1))),
    "args too deep for anybody": put(waiting, args=packed(nested(200_000))),
    "args that need a blob": put(waiting, args=packed(b"\xc7\x21\x01\x00" + bytes(32))),
    "args too long": put(waiting, args=pack_blob(encode_stored("x" * (17 * 1024 * 1024)))),
    "args that are text": put(waiting, args="{}"),
    "no digest": put(waiting, args_digest=b""),
    "an endless digest": put(waiting, args_digest=bytes(100)),
    "a result that does not decode": put(taken, result=packed(b"\xd9")),
    "a result too deep": put(taken, result=packed(nested(MAX_DEPTH + 1))),
    "two results": put(placed, result=packed(b"\x01")),
    "a place that leads nowhere": put(placed, place=place("messages", 99)),
    "a place in nobody's part": put(placed, place=place("nothing")),
    "a place inside a text": put(placed, place=place("messages", 0, "content", 0)),
    "a place from behind": put(placed, place=place("messages", -1)),
    "a place that is none": put(placed, place=b"\xc1"),
    "a place that nobody took in": put(waiting, place=place("messages"), result=None),
    "a time before all time": put(waiting, started_us=-(2**62)),
    "a time after all time": put(taken, ended_us=2**62),
    "an error that is no pair": put(taken, error=["only one"]),
    "an endless error": put(waiting, error=["x", "y" * (17 * 1024 * 1024)]),
    "a branch with the run of another": lambda parts: lane(run=parts.names[parts.lane("what if")].run)(parts),
    "a branch that has lost its calls": lane(run=999),
    "calls of nobody": lambda parts: parts.calls.append(msgspec.structs.replace(parts.calls[0], run=77)),
    "a checkpoint that has lost its calls": lambda parts: parts.rows[0].change(took=None),
    "a run below all": lane(run=-1),
    "a run that is perhaps unfinished": lane(unfinished=7),
    "an input that does not decode": lane(input=packed(b"\xc1")),
    "an input too deep": lane(input=packed(nested(MAX_DEPTH + 1))),
    "an input too long": lane(input=pack_blob(encode_stored("x" * (17 * 1024 * 1024)))),
    "calls taken in before they were made": took(journal=40),
    "calls taken in that do not come": took(journal=0, run=33),
    "more calls taken in than there are": took(count=33),
    "no calls taken in": took(count=0),
    "calls left behind by a checkpoint to come": took(left=77),
    "pending calls that a checkpoint took in": lambda parts: lane(journal=parts.rows[0].row.took.journal)(parts),  # type: ignore[union-attr]
    "parked calls that are not there": lambda parts: parts.set_name(parts.lane("what if"), undo_calls=2),
}


@pytest.fixture(scope="module")
def ran() -> Store:
    store = backstay.open("memory://")
    run_for_long(store)
    return store


@pytest.fixture
def parts(ran: Store) -> Parts:
    return Parts(ran, "ticket-42")


def test_a_journal_put_together_by_hand_gets_in_if_all_of_it_is_right(
    parts: Parts, file: Path, there: Store, ran: Store
) -> None:
    parts.write(file)
    there.import_(file)
    assert there.verify().ok
    assert journal_of(there) == journal_of(ran)


@pytest.mark.parametrize("how", HOSTILE)
def test_a_journal_that_no_run_could_have_written_does_not_get_in(
    how: str, parts: Parts, file: Path, there: Store
) -> None:
    HOSTILE[how](parts)
    parts.write(file)
    with pytest.raises((CorruptionError, FormatError)):
        there.import_(file)
    assert is_empty(there)


ODD = st.one_of(
    st.none(), st.integers(-5, 9), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40), st.text(max_size=5)
)


@given(where=st.integers(0, 2), row=st.integers(0, 40), at=st.integers(0, 20), odd=ODD)
def test_whatever_is_in_a_journal_an_import_takes_it_whole_or_refuses_it(
    ran: Store, tmp_path_factory: pytest.TempPathFactory, where: int, row: int, at: int, odd: Any
) -> None:
    path = tmp_path_factory.mktemp("odd") / "file"
    found = Parts(ran, "ticket-42")
    if where == 0:
        fields = [name for name in CallRow.__struct_fields__ if name not in ("run", "journal", "n")]
        found.set_call(row % len(found.calls), **{fields[at % len(fields)]: odd})
    elif where == 1:
        chosen = found.names[row % len(found.names)]
        fields = [name for name in chosen.__struct_fields__ if name not in ("name", "head", "claim")]
        found.set_name(row % len(found.names), **{fields[at % len(fields)]: odd})
    else:
        part = [part for part in found.rows if part.row.took][row % 3]
        part.change(took=msgspec.structs.replace(part.row.took, **{("run", "journal", "count", "left")[at % 4]: odd}))  # type: ignore[type-var]
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


def test_a_very_long_journal_goes_in_portions_that_can_be_held(there: Store, file: Path) -> None:
    with backstay.open("memory://") as here:
        with crashing(here.session("s").run()) as run:
            for number in range(12):
                run.call("fetch", lambda: bytes(1_000_000), key=f"a{number}")
            run.checkpoint()
            for number in range(12):
                run.call("fetch", lambda: bytes(1_000_000), key=f"b{number}")
        here.export(file)
        there.import_(file)
        assert journal_of(there, "s") == journal_of(here, "s")


def test_calls_that_were_left_behind_and_given_up_arrive_with_their_checkpoints(there: Store, file: Path) -> None:
    with backstay.open("memory://") as here:
        session = here.session("s")
        session.commit({"n": 1})
        with crashing(session.run()) as run:
            run.call("left", lambda: 7)
        session.commit({"n": 2}, expect=backstay.ANY)
        with crashing(session.run()) as run:
            run.call("given up", lambda: 8)
        session.abandon(reason="no")
        here.export(file)
        there.import_(file)
        rows = [row for row in kept(here, "s") if isinstance(row, CheckpointRow)]
        assert [row.took for row in rows if row.took] == [Took(rows[1].took.run, 1, 1, 1)]  # type: ignore[union-attr]
        assert {call.status for call in journal_of(there, "s")[2]} == {"done", ABANDONED}
        assert journal_of(there, "s") == journal_of(here, "s")
