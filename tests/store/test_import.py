"""Import: everything there as it was, on every backend; verified before it can be seen; all of a file or nothing."""

import contextlib
import os
import random
import signal
import sys
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backstay
from backstay import AlreadyExistsError, CorruptionError, FormatError, InvalidInputError, NotFoundError, Session, Store
from backstay.codec import encode_stored
from backstay.delta import whole
from backstay.digest import checkpoint_digest
from backstay.model import MAX_DEPTH, StateDict
from backstay.testing.author2 import next_turn
from backstay.testing.exact import exactly_equal
from backstay.testing.growth import CHANGES, Change, apply
from backstay.upkeep import bundle
from tests.store.children import start
from tests.store.travel import KINDS, about, blocks_of, header_bytes, kept, live, open_kind, raw_blocks, write_forged

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sessions.backstay"


@pytest.fixture
def there() -> Store:
    return backstay.open("memory://")


def is_empty(store: Store) -> bool:
    return not list(store.sessions()) and not store.stats().checkpoints and store.verify().ok


# nothing is lost


@pytest.mark.parametrize("journey", [("memory", "sqlite", "files", "memory"), ("files", "sqlite", "sqlite", "files")])
def test_a_session_comes_through_every_kind_of_store_as_it_was(journey: tuple[str, ...], tmp_path: Path) -> None:
    stores = []
    for number, kind in enumerate(journey):
        folder = tmp_path / str(number)
        folder.mkdir()
        stores.append(open_kind(kind, folder))
    session = live(stores[0], turns=90)
    first, states = about(stores[0]), {id_: session.load(id_) for id_ in stores[0].backend.ids("ticket-42")}
    for number, (here, there) in enumerate(pairwise(stores)):
        path = tmp_path / f"{number}.backstay"
        here.export(path)
        report = there.import_(path)
        assert (report.sessions, report.checkpoints) == (("ticket-42",), len(states))
        assert about(there) == first
        assert there.verify().ok
        for id_, state in states.items():
            assert exactly_equal(there.session("ticket-42").load(id_), state)
    ends = [store.session("ticket-42") for store in (stores[0], stores[-1])]
    undone = [end.undo().state for end in ends]
    assert exactly_equal(*undone)
    for end in ends:
        end.restore("good")
        assert end.commit({"goes": "on"}).sequence == first[0][-1].row.sequence + 3
        end.delete("main~40")
    for store in stores:
        assert store.verify().ok
        store.close()


ACTS = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 3), st.lists(CHANGES, min_size=1, max_size=2)),
    st.tuples(st.just("fork"), st.integers(0, 30), st.none()),
    st.tuples(st.just("restore"), st.integers(0, 3), st.integers(0, 30)),
    st.tuples(st.just("undo"), st.integers(0, 3), st.none()),
    st.tuples(st.just("delete"), st.integers(0, 30), st.none()),
    st.tuples(st.just("tag"), st.integers(0, 30), st.none()),
    st.tuples(st.just("forget"), st.integers(0, 3), st.none()),
)


def act(session: Session, what: str, first: int, second: Any) -> None:
    branches = sorted(session.branches())
    ids = list(session._backend.ids(session.id))
    if what == "fork" and len(branches) < 12:
        session.fork(ids[first % len(ids)], f"branch {len(ids)} {first}")
    elif what == "tag":
        session.tag(ids[first % len(ids)], f"tag {len(session.tags())}")
    elif what == "delete":
        session.delete(ids[first % len(ids)])
    elif branches:
        branch = branches[first % len(branches)]
        if what == "commit":
            state = session.load(branch)
            change: Change
            for change in second:
                apply(change, state)
            session.commit(state, branch=branch)
        elif what == "restore":
            session.restore(ids[second % len(ids)], branch=branch)
        elif what == "undo":
            session.undo(branch=branch)
        elif what == "forget" and len(branches) > 1:
            session.delete_branch(branch)


@given(st.lists(ACTS, min_size=1, max_size=40))
def test_any_history_arrives_as_it_was(tmp_path_factory: pytest.TempPathFactory, acts: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("any")
    with backstay.open("memory://") as here, backstay.open("memory://") as there:
        session = here.session("ticket-42")
        session.commit({"messages": []})
        for what, first, second in acts:
            with contextlib.suppress(InvalidInputError, NotFoundError, AlreadyExistsError):
                act(session, what, first, second)
        here.export(folder / "file")
        there.import_(folder / "file")
        assert str(about(there)) == str(about(here))  # as text, because a NaN is not itself
        assert there.verify().ok
        assert not list(there.backend.check())


def test_a_file_of_now_is_read_by_whoever_reads_zstd(store: Store, file: Path) -> None:
    live(store)
    store.export(file)
    packed = file.read_bytes().split(b"\n", 1)[1]
    content = zstd.decompress(packed)
    assert b"turn 7" in content
    assert content == b"".join(bundle.unpack(header, block) for header, block in raw_blocks(file.read_bytes()))


# names that are taken


def test_a_session_that_is_here_is_refused_and_stays_as_it_is(store: Store, file: Path) -> None:
    session = live(store)
    store.export(file)
    session.commit({"more": "since"})
    before = about(store)
    with pytest.raises(AlreadyExistsError, match="ticket-42"):
        store.import_(file)
    assert about(store) == before


def test_a_session_that_is_here_can_be_skipped_or_get_another_name(store: Store, file: Path) -> None:
    live(store, "a")
    live(store, "b")
    store.export(file)
    store.delete("b")
    before = about(store, "a")
    report = store.import_(file, on_exists="skip")
    assert (report.sessions, report.skipped, dict(report.renamed)) == (("b",), ("a",), {})
    report = store.import_(file, on_exists="rename")
    assert dict(report.renamed) == {"a": "a (2)", "b": "b (2)"}
    report = store.import_(file, on_exists="rename")
    assert report.sessions == ("a (3)", "b (3)")
    assert "'a' is now 'a (3)'" in str(report)
    assert about(store, "a") == about(store, "a (3)") == before
    assert store.verify().ok


def test_a_name_of_the_longest_length_can_be_renamed(there: Store, file: Path) -> None:
    name = "x" * 256
    there.session(name).commit({"n": 1})
    there.export(file)
    (new,) = there.import_(file, on_exists="rename").sessions
    assert new == "x" * 252 + " (2)"


def test_a_new_name_does_not_take_that_of_another_in_the_file(there: Store, file: Path) -> None:
    for name in ("a", "a (2)"):
        there.session(name).commit({"is": name})
    there.export(file)
    there.delete("a (2)")
    report = there.import_(file, on_exists="rename")
    assert dict(report.renamed) == {"a": "a (3)"}
    assert there.session("a (2)").load() == {"is": "a (2)"}


def test_a_session_gets_the_name_that_is_asked_for(store: Store, there: Store, file: Path) -> None:
    live(store, "a")
    live(store, "b")
    store.export(file, session="a")
    assert there.import_(file, rename="mine").sessions == ("mine",)
    store.export(file, overwrite=True)
    assert there.import_(file, rename={"a": "b", "b": "a"}).sessions == ("b", "a")
    assert about(there, "b") == about(store, "a")
    assert about(there, "mine") == about(store, "a")


@pytest.mark.parametrize(
    "options",
    [
        {"rename": "one for two"},
        {"rename": {"nobody": "x"}},
        {"rename": {"a": "x", "b": "x"}},
        {"rename": {"a": "b"}},
        {"rename": {"a": ""}},
        {"rename": "a\0b"},
        {"on_exists": "overwrite"},
    ],
)
def test_a_wish_that_cannot_be_met_changes_nothing(there: Store, store: Store, file: Path, options: Any) -> None:
    live(store, "a")
    live(store, "b")
    store.export(file)
    with pytest.raises(InvalidInputError):
        there.import_(file, **options)
    assert is_empty(there)


def test_of_a_file_with_one_session_that_is_here_none_is_taken_in(store: Store, there: Store, file: Path) -> None:
    for name in ("a", "b", "c"):
        live(store, name)
    store.export(file)
    there.session("b").commit({"mine": True})
    with pytest.raises(AlreadyExistsError):
        there.import_(file)
    assert [info.id for info in there.sessions()] == ["b"]


def in_second_pass(fn: Callable[[], object]) -> Callable[[int, int | None], None]:
    """Something that happens once, while the sessions are being taken in."""
    done: list[bool] = []

    def tell(now: int, total: int | None) -> None:
        if total is not None and now > total / 2 and not done:
            done.append(True)
            fn()

    return tell


def test_a_name_taken_meanwhile_takes_back_what_had_come(store: Store, there: Store, file: Path) -> None:
    for name in ("a", "b"):
        live(store, name)
    store.export(file)
    # A store in memory reads the history without its lock, so that the test can be the other writer.
    quicker = in_second_pass(lambda: there.session("b").commit({"quicker": True}))
    with pytest.raises(AlreadyExistsError):
        there.import_(file, progress=quicker)
    assert [info.id for info in there.sessions()] == ["b"]
    assert there.stats().checkpoints == 1
    assert there.import_(file, on_exists="skip").sessions == ("a",)


def test_what_somebody_has_gone_on_with_is_not_taken_back(store: Store, there: Store, file: Path) -> None:
    for name in ("a", "b", "c"):
        live(store, name)
    store.export(file)
    length = [header.packed + bundle.HEADER_BYTES for header, _ in raw_blocks(file.read_bytes())]
    assert length

    def interfere(now: int, total: int | None) -> None:
        if {info.id for info in there.sessions()} == {"a"}:
            there.session("a").commit({"gone": "on"})
        elif there.backend.find_session("b") is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        there.import_(file, progress=interfere)
    assert [info.id for info in there.sessions()] == ["a"]
    assert there.session("a").load() == {"gone": "on"}


# damage


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "file"
    with backstay.open("memory://") as store:
        session = store.session("s", agent="a")
        for turn in range(6):
            session.commit({"messages": [f"message {n}" for n in range(turn)], "image": b"i" * 5000}, step=turn)
        session.fork("main~4", "b")
        session.commit({**session.load("b"), "other": 1}, branch="b")
        store.session("t").commit({"n": 1})
        store.export(path)
    return path.read_bytes()


def sampled(length: int) -> list[int]:
    """Every place near both ends, and some of those between."""
    return [at for at in range(length) if at < 300 or at > length - 200 or at % 5 == 0]


def test_no_flipped_bit_gets_in(small: bytes, file: Path, there: Store) -> None:
    chance = random.Random(7)
    for at in sampled(len(small)):
        damaged = bytearray(small)
        damaged[at] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises((CorruptionError, FormatError)):
            there.import_(file)
    assert is_empty(there)
    file.write_bytes(small)
    there.import_(file)


def test_no_file_that_was_cut_gets_in(small: bytes, file: Path, there: Store) -> None:
    for length in sampled(len(small)):
        file.write_bytes(small[:length])
        with pytest.raises((CorruptionError, FormatError)):
            there.import_(file)
    file.write_bytes(small + b"\0")
    with pytest.raises(CorruptionError):
        there.import_(file)
    assert is_empty(there)


def test_blocks_that_are_missing_twice_or_in_another_order_do_not_get_in(
    small: bytes, file: Path, there: Store
) -> None:
    start_ = small.index(b"\n") + 1
    blocks, at = [], start_
    for header, _ in raw_blocks(small):
        blocks.append(small[at : at + bundle.HEADER_BYTES + header.packed])
        at += len(blocks[-1])
    for number in range(len(blocks)):
        for wrong in (
            [*blocks[:number], *blocks[number + 1 :]],
            [*blocks[: number + 1], *blocks[number:]],
            [*blocks[:number], *blocks[number + 1 : number + 2], blocks[number], *blocks[number + 2 :]],
        ):
            if wrong != blocks:
                file.write_bytes(small[:start_] + b"".join(wrong))
                with pytest.raises(CorruptionError):
                    there.import_(file)
    assert is_empty(there)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changes_while_it_is_read_does_not_get_in(
    kind: str, store: Store, file: Path, tmp_path: Path
) -> None:
    live(store, turns=400)
    store.export(file)

    def change() -> None:
        data = bytearray(file.read_bytes())
        data[-400] ^= 1
        with file.open("r+b") as changed:
            changed.write(data)

    other = tmp_path / "other"
    other.mkdir()
    with open_kind(kind, other) as there:
        with pytest.raises(CorruptionError):
            there.import_(file, progress=in_second_pass(change))
        assert is_empty(there)
        assert not list(there.backend.check())


# files that nobody exported


def test_what_is_no_export_or_a_newer_one_is_said_to_be_that(file: Path, there: Store) -> None:
    for content in (
        b"",
        b"{}",
        b"SQLite format 3\0" + bytes(100),
        b"backstay-export\n",
        b"backstay-export 2\n" + bytes(99),
    ):
        file.write_bytes(content)
        with pytest.raises(FormatError):
            there.import_(file)
    file.write_bytes(b"backstay-export 12345678901234567890\n")
    with pytest.raises(FormatError):
        there.import_(file)


def test_a_name_that_is_no_text_does_not_get_in(small: bytes, file: Path, there: Store) -> None:
    file.write_bytes(small)
    blocks = [(kind, content.replace(b"\xa4main", b"\xa4m\xe9in")) for kind, content in blocks_of(file)]
    assert blocks != blocks_of(file)
    write_forged(file, blocks)
    with pytest.raises(CorruptionError):
        there.import_(file)
    assert is_empty(there)


def test_a_file_that_is_not_there_or_is_no_file_is_said_to_be_that(tmp_path: Path, there: Store) -> None:
    with pytest.raises(NotFoundError):
        there.import_(tmp_path / "nothing")
    with pytest.raises(InvalidInputError):
        there.import_(tmp_path)
    with pytest.raises(InvalidInputError):
        there.import_("a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInputError):
        there.import_(tmp_path / "pipe")


@pytest.mark.parametrize("kind", [bundle.OPEN, bundle.ROWS, b"note"])
@pytest.mark.parametrize(("packed", "unpacked"), [(2**32 - 1, 2**32 - 1), (10, 2**32 - 1), (0, 2**31), (2**31, 1)])
def test_a_short_file_that_announces_gigabytes_costs_nothing(
    file: Path, there: Store, kind: bytes, packed: int, unpacked: int
) -> None:
    file.write_bytes(bundle.MAGIC + header_bytes(kind, packed, unpacked) + bytes(10))
    tracemalloc.start()
    with pytest.raises(CorruptionError):
        there.import_(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000


def test_a_kind_of_block_that_may_be_skipped_is_and_another_is_not(small: bytes, file: Path, there: Store) -> None:
    file.write_bytes(small)
    blocks = blocks_of(file)
    write_forged(file, [*blocks, (b"note", b"for a later version")])
    assert there.import_(file).checkpoints == 8
    write_forged(file, [*blocks, (b"CALL", b"for a later version")])
    with pytest.raises(FormatError):
        there.import_(file, on_exists="rename")


def rows_in(blocks: list[tuple[bytes, bytes]]) -> list[Any]:
    return [row for kind, content in blocks if kind == bundle.ROWS for row in msgspec.msgpack.decode(content)]


ID, SEQUENCE, LINK, LOST, STATE, DIGEST, FIELDS, SIZE, DELTA, WHOLE, BASE = range(11)


def seal_rows(rows: list[Any]) -> None:
    """Make the digests of these rows right again, whatever was done to them."""
    digests: dict[Any, bytes] = {}
    for row in rows:
        parent = row[LOST][1] if row[LOST] else digests.get(row[LINK])
        with contextlib.suppress(Exception):
            row[DIGEST] = checkpoint_digest(
                id_=row[ID], parent=parent, state=row[STATE], sequence=row[SEQUENCE], fields=row[FIELDS]
            )
        digests[row[ID]] = row[DIGEST]


def fields_with(row: Any, **changed: Any) -> None:
    row[FIELDS] = msgspec.msgpack.encode({**msgspec.msgpack.decode(row[FIELDS]), **changed})


def base_of(state: StateDict) -> tuple[bytes, bytes]:
    record, _ = whole(state)
    return record.ops, record.body


def nested(depth: int) -> bytes:
    return b"\x81\xa1k" * depth + b"\xa1x"


HOSTILE_ROWS: dict[str, Callable[[list[Any]], Any]] = {
    "another state": lambda rows: rows[2].__setitem__(STATE, bytes(32)),
    "a digest cut short": lambda rows: rows[2].__setitem__(STATE, bytes(31)),
    "another delta": lambda rows: rows[2].__setitem__(DELTA, rows[3][DELTA]),
    "a delta that cannot be": lambda rows: rows[2].__setitem__(DELTA, [b"\x91\x93\x02\x90\x07", b"", b""]),
    "no delta": lambda rows: rows[2].__setitem__(DELTA, None),
    "a delta without a link": lambda rows: rows[0].__setitem__(DELTA, rows[1][DELTA]),
    "another whole copy": lambda rows: rows[2].__setitem__(WHOLE, rows[0][WHOLE]),
    "a blob that is not there": lambda rows: rows[2][DELTA].__setitem__(2, bytes(32)),
    "half a name of a blob": lambda rows: rows[2][DELTA].__setitem__(2, bytes(33)),
    "a link to nobody": lambda rows: rows[2].__setitem__(LINK, "nobody"),
    "a link to itself": lambda rows: rows[2].__setitem__(LINK, rows[2][ID]),
    "a parent that is here": lambda rows: rows[3].__setitem__(LOST, [rows[1][ID], rows[1][DIGEST]]),
    "a parent without a digest": lambda rows: rows[3].__setitem__(LOST, ["x", b""]),
    "an id twice": lambda rows: rows[5].__setitem__(ID, rows[4][ID]),
    "an empty id": lambda rows: rows[2].__setitem__(ID, ""),
    "an id with a NUL": lambda rows: rows[2].__setitem__(ID, "a\0b"),
    "an endless id": lambda rows: rows[2].__setitem__(ID, "x" * 10_000),
    "a sequence that falls": lambda rows: rows[2].__setitem__(SEQUENCE, 1),
    "a negative sequence": lambda rows: rows[0].__setitem__(SEQUENCE, -1),
    "a sequence beyond the last": lambda rows: rows[5].__setitem__(SEQUENCE, 2**40),
    "a negative size": lambda rows: rows[2].__setitem__(SIZE, -1),
    "an enormous size": lambda rows: rows[2].__setitem__(SIZE, 2**62),
    "fields that are none": lambda rows: rows[2].__setitem__(FIELDS, b"fields"),
    "a status that is none": lambda rows: fields_with(rows[2], s="bogus"),
    "a time that cannot be": lambda rows: fields_with(rows[2], c=2**62),
    "metadata that is none": lambda rows: fields_with(rows[2], m=encode_stored([1])),
    "metadata that does not decode": lambda rows: fields_with(rows[2], m=b"\xc1"),
    "metadata too deep": lambda rows: fields_with(rows[2], m=nested(MAX_DEPTH + 5)),
    "a usage of text": lambda rows: fields_with(rows[2], u=encode_stored(["a", "b", "c", "d", {}])),
    "a total with too much": lambda rows: fields_with(rows[2], v=encode_stored([1, 2, 3, 4, {}, 6])),
    "a step beyond 63 bits": lambda rows: fields_with(rows[2], n=2**63),
    "the base of another": lambda rows: rows[-1].__setitem__(BASE, [*base_of({"x": 1}), []]),
    "no base": lambda rows: rows[-1].__setitem__(BASE, None),
    "one checkpoint less": lambda rows: rows.pop(),
}
HOSTILE_LINES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a session without a name": lambda line: line.update(id=""),
    "a session with a NUL": lambda line: line.update(id="a\0b"),
    "an endless name": lambda line: line.update(id="x" * 257),
    "a branch without a name": lambda line: line["branches"][0].__setitem__(0, ""),
    "an endless tag": lambda line: line.update(tags=[["x" * 257, line["branches"][0][1]]]),
    "a tag named as a branch": lambda line: line.update(tags=[["main", line["branches"][0][1]]]),
    "a tag on nothing": lambda line: line.update(tags=[["t", "nobody"]]),
    "a head that is not there": lambda line: line["branches"][0].__setitem__(1, "nobody"),
    "an undo to nobody": lambda line: line["branches"][0].__setitem__(2, "nobody"),
    "a status that is none": lambda line: line.update(status="bogus"),
    "a time that cannot be": lambda line: line.update(created_us=2**62),
    "a usage that is none": lambda line: line.update(usage=b"\xc1"),
    "a usage of text": lambda line: line.update(usage=encode_stored(["a"])),
    "an agent with a NUL": lambda line: line.update(agent="a\0"),
    "a step beyond 63 bits": lambda line: line.update(last_step=2**63),
    "fewer checkpoints": lambda line: line.update(checkpoints=3),
    "more checkpoints": lambda line: line.update(checkpoints=300),
    "less than none": lambda line: line.update(checkpoints=-1),
    "a number that is too small": lambda line: line.update(sequence=3),
    "a number that is too large": lambda line: line.update(sequence=2**63),
    "text for a number": lambda line: line.update(sequence="7"),
    "no names at all": lambda line: line.pop("branches"),
}


def forged(path: Path, rows: list[Any], line: dict[str, Any], blobs: list[bytes]) -> None:
    seal_rows(rows)
    write_forged(
        path,
        [
            (bundle.OPEN, msgspec.msgpack.encode({})),
            (bundle.SESSION, msgspec.msgpack.encode(line)),
            (bundle.BLOBS, bundle.write_blobs(blobs)),
            (bundle.ROWS, msgspec.msgpack.encode(rows)),
        ],
    )


@pytest.fixture
def parts(small: bytes, file: Path) -> tuple[list[Any], dict[str, Any], list[bytes]]:
    """The first session of a small export, to be taken apart."""
    file.write_bytes(small)
    blocks = blocks_of(file)
    line = next(msgspec.msgpack.decode(content) for kind, content in blocks if kind == bundle.SESSION)
    blobs = next(bundle.read_blobs(content) for kind, content in blocks if kind == bundle.BLOBS)
    return rows_in(blocks)[:7], line, blobs


def test_a_file_put_together_by_hand_gets_in_if_all_of_it_is_right(parts: Any, file: Path, there: Store) -> None:
    forged(file, *parts)
    assert there.import_(file).checkpoints == 7
    assert there.verify().ok


@pytest.mark.parametrize("how", HOSTILE_ROWS)
def test_a_checkpoint_that_no_commit_could_have_made_does_not_get_in(
    how: str, parts: Any, file: Path, there: Store
) -> None:
    rows, line, blobs = parts
    HOSTILE_ROWS[how](rows)
    forged(file, rows, line, blobs)
    with pytest.raises(CorruptionError):
        there.import_(file)
    assert is_empty(there)


@pytest.mark.parametrize("how", HOSTILE_LINES)
def test_a_session_that_no_store_could_have_does_not_get_in(how: str, parts: Any, file: Path, there: Store) -> None:
    rows, line, blobs = parts
    HOSTILE_LINES[how](line)
    forged(file, rows, line, blobs)
    with pytest.raises(CorruptionError):
        there.import_(file)
    assert is_empty(there)


def test_a_state_deeper_than_may_be_committed_does_not_get_in(parts: Any, file: Path, there: Store) -> None:
    rows, line, blobs = parts
    rows[0][WHOLE] = [msgspec.msgpack.encode([[0, [], "a"]]), nested(MAX_DEPTH + 1), b""]
    forged(file, rows, line, blobs)
    with pytest.raises(CorruptionError, match="deeper"):
        there.import_(file)


def test_a_file_whose_end_tells_otherwise_does_not_get_in(parts: Any, file: Path, there: Store) -> None:
    forged(file, *parts)
    blocks = blocks_of(file)
    for told in ({"sessions": 2}, {"checkpoints": 3}, {"blobs": 9}, {"blocks": 3}, {"digest": bytes(32)}):
        write_forged(file, blocks, told)
        with pytest.raises(CorruptionError):
            there.import_(file)
    write_forged(file, blocks * 2)
    with pytest.raises(CorruptionError):
        there.import_(file)
    write_forged(file, blocks[:1] + blocks[3:])
    with pytest.raises(CorruptionError):
        there.import_(file)
    assert is_empty(there)


def test_a_session_that_comes_twice_in_a_file_does_not_get_in(parts: Any, file: Path, there: Store) -> None:
    forged(file, *parts)
    blocks = blocks_of(file)
    write_forged(file, [*blocks, blocks[1], blocks[3]])
    with pytest.raises(CorruptionError, match="twice"):
        there.import_(file)
    assert is_empty(there)


# kill, and how far


IMPORT = """
import sys, time, backstay
def tell(done, total):
    if done > 0.75 * total:
        print(done, flush=True)
        time.sleep(60)
backstay.open(sys.argv[1]).import_(sys.argv[2], progress=tell)
"""


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_kill_while_importing_leaves_nothing_to_be_seen(kind: str, tmp_path: Path, file: Path) -> None:
    url = f"sqlite:///{tmp_path}/there.db" if kind == "sqlite" else f"file://{tmp_path}/there"
    with backstay.open("memory://") as here:
        live(here, turns=600)
        here.export(file)
        backstay.open(url).close()
        child = start(IMPORT, url, file)
        assert child.stdout is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.communicate()
        with backstay.open(url) as there:
            assert not list(there.sessions())
            assert there.verify(repair=True).ok
            there.import_(file)
            assert about(there) == about(here)
            assert there.verify().ok


def test_progress_goes_to_the_end_of_the_file_twice(store: Store, there: Store, file: Path) -> None:
    live(store, turns=200)
    store.export(file)
    steps: list[tuple[int, int | None]] = []
    there.import_(file, progress=lambda done, total: steps.append((done, total)))
    total = 2 * file.stat().st_size
    assert steps[-1] == (total, total)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_the_session_neither_on_the_way_out_nor_in(path: Path, file: Path, tmp_path: Path) -> None:
    out, into = [], []
    with backstay.open(path, durability="relaxed") as store:
        for turns in (50, 500, 5_000):
            session = store.session(f"{turns}")
            state: StateDict = {}
            for turn in range(turns):
                state = next_turn(state, turn)
                session.commit(state)
            out.append(peak(lambda: store.export(file, session=f"{turns}", overwrite=True)))  # noqa: B023
            with backstay.open(tmp_path / f"{turns}.db") as there:
                into.append(peak(lambda: there.import_(file)))
    # What grows: a list of ids on the way out; ids and digests, to compare later checkpoints with, on the way in.
    assert out[2] < out[1] + 5_000 * 250
    assert into[2] < into[1] + 5_000 * 600
    assert max(out[2], into[2]) < 12_000_000


def test_a_closed_store_takes_nothing_in(small: bytes, file: Path, there: Store) -> None:
    file.write_bytes(small)
    there.close()
    with pytest.raises(backstay.ClosedError):
        there.import_(file)


async def _through_aio(url: str, file: Path) -> tuple[backstay.ImportReport, list[int]]:
    from backstay import aio

    done: list[int] = []
    async with aio.open(url) as store:
        report = await store.import_(file, progress=lambda now, _total: done.append(now))
        await store.export(file.with_suffix(".again"), progress=lambda now, _total: done.append(now))
    return report, done


def test_whoever_awaits_can_move_sessions_too(small: bytes, file: Path, there: Store) -> None:
    import asyncio

    file.write_bytes(small)
    report, done = asyncio.run(_through_aio("memory://", file))
    assert report.checkpoints == 8
    assert done[-1] == 8
    assert there.import_(file.with_suffix(".again")).checkpoints == 8


def test_a_report_says_what_came(small: bytes, file: Path, there: Store) -> None:
    file.write_bytes(small)
    assert str(there.import_(file)) == "2 sessions with 8 checkpoints imported"
    assert "'s' was here already" in str(there.import_(file, on_exists="skip"))
    assert len(kept(there, "s")) == 7
