"""Flipped bits: damage is an error that says so, and never a wrong value, a missing checkpoint or a missing session."""

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import BackstayError, CorruptionError, NotFoundError, Session, Store

Expected = dict[str, dict[str, tuple[dict[str, Any], str]]]  # session -> checkpoint id -> state, digest; oldest first


def fill(store: Store, count: int) -> Expected:
    """Two sessions with branches, tags, blobs, deltas and whole copies."""
    expected: Expected = {"a": {}, "b": {}}
    for name, points in expected.items():
        session = store.session(name, agent="x")
        messages: list[Any] = []
        for number in range(count):
            messages.append({"role": "user", "content": f"{name} {number} " * 30})
            state = {"messages": list(messages), "n": number, "blob": bytes([number // 8]) * 5000 + name.encode()}
            point = session.commit(state, label=f"l{number}", metadata={"n": number})
            points[point.id] = (state, point.digest)
        session.fork("main~5", "br")
        session.tag("main~7", "tg")
    return expected


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Expected]:
    path = tmp_path_factory.mktemp("sample") / "store.db"
    with backstay.open(path) as store:
        expected = fill(store, 25)
    return path.read_bytes(), expected


def flipped(path: Path, content: bytes, positions: list[int], rng: random.Random) -> Iterator[int]:
    """The file with one bit flipped, at each of these positions in turn."""
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 1 << rng.randrange(8)
        for leftover in path.parent.glob(f"{path.name}-*"):
            leftover.unlink()
        path.write_bytes(damaged)
        yield position


def check_session(session: Session, points: dict[str, tuple[dict[str, Any], str]]) -> int:
    """Every read gives the right value or an error of ours that is not absence; gives how many were right."""
    right = 0
    for id_, (state, digest) in points.items():
        try:
            assert session.load(id_) == state
            assert session.checkpoint(id_).digest == digest
            right += 1
        except NotFoundError as error:
            message = f"a damaged checkpoint seems not to exist: {error}"
            raise AssertionError(message) from error
        except BackstayError:
            pass
    with suppress(CorruptionError):
        assert session.head() is not None
        assert session.load() == list(points.values())[-1][0]
    with suppress(CorruptionError):
        assert set(session.branches()) == {"main", "br"}
    with suppress(CorruptionError):
        assert set(session.tags()) == {"tg"}
    with suppress(CorruptionError):
        assert [point.id for point in session.log()] == list(points)[::-1]
    return right


def check_way_out(session: Session, points: dict[str, tuple[dict[str, Any], str]], right: int) -> None:
    """What newest_intact gives is intact; what salvage gives is the state, or marked where it is not."""
    with suppress(CorruptionError):
        newest = session.newest_intact()
        if newest is not None:
            assert newest.state == points[newest.id][0]
        if right == len(points):
            assert newest is not None
            assert newest.id == list(points)[-1]
    with suppress(CorruptionError):
        state = session.load(salvage=True)
        whole = list(points.values())[-1][0]
        for kept, message in zip(state.get("messages", []), whole["messages"], strict=False):
            assert kept == message or isinstance(kept, backstay.Damaged) or len(state["messages"]) < 25


def check_damaged(path: Path, expected: Expected, position: int) -> str:
    try:
        store = backstay.open(path)
    except BackstayError:
        return "refused"
    with store:
        report = store.verify()
        with suppress(CorruptionError):
            assert {info.id for info in store.sessions()} == set(expected)
        total = 0
        for name, points in expected.items():
            session = store.session(name)
            right = check_session(session, points)
            check_way_out(session, points, right)
            total += right
        if total < sum(map(len, expected.values())):
            assert not report.ok, f"byte {position}: verify saw nothing"
        return "damaged" if not report.ok else "harmless"


def flip_many(path: Path, sample: tuple[bytes, Expected], count: int, seed: int) -> None:
    content, expected = sample
    rng = random.Random(seed)
    positions = [*range(0, 100, 3), *(rng.randrange(100, len(content)) for _ in range(count))]
    outcomes = [check_damaged(path, expected, at) for at in flipped(path, content, positions, rng)]
    assert outcomes.count("damaged") > len(positions) // 3
    assert outcomes.count("harmless") < len(positions) // 10


def test_a_flipped_bit_is_never_a_wrong_value_nor_a_session_that_seems_not_to_exist(
    path: Path, sample: tuple[bytes, Expected]
) -> None:
    flip_many(path, sample, 120, seed=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_thousands_of_flipped_bits_are_never_a_wrong_value(
    path: Path, sample: tuple[bytes, Expected], seed: int
) -> None:
    flip_many(path, sample, 1000, seed=seed + 100)


def test_pages_exchanged_zeroed_or_written_twice_are_noticed(path: Path, sample: tuple[bytes, Expected]) -> None:
    content, expected = sample
    pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
    rng = random.Random(5)
    for _ in range(30):
        damaged = list(pages)
        one, other = rng.sample(range(1, len(pages)), 2)
        damaged[one] = rng.choice([pages[other], bytes(4096), rng.randbytes(4096)])
        path.write_bytes(b"".join(damaged))
        check_damaged(path, expected, one * 4096)


def test_damage_to_one_session_leaves_the_other_readable(path: Path) -> None:
    with backstay.open(path) as store:
        for name in ("first", "second"):
            session = store.session(name)
            for number in range(30):
                session.commit({"messages": [random.Random(f"{name}{number}").randbytes(3000)] * 2, "n": number})
    content = bytearray(path.read_bytes())
    needle = random.Random("first7").randbytes(3000)[100:200]
    at = content.index(needle)
    content[at + 50] ^= 1
    path.write_bytes(content)
    with backstay.open(path) as store:
        assert store.session("second").load()["n"] == 29
        assert len(list(store.session("second").log())) == 30
        assert store.verify("second").ok
        report = store.verify()
        assert {problem.session_id for problem in report.problems} <= {"first", None}
        newest = store.session("first").newest_intact()
        assert newest is not None
        again = store.session("first").restore(newest)
        assert store.session("first").load() == again.state


def test_a_flipped_bit_in_the_log_never_gives_a_wrong_value(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with backstay.open(path) as store:
        expected = fill(store, 25)
        content, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    end = len(log.rstrip(b"\0"))
    rng = random.Random(9)
    for position in [*range(0, 60, 5), *(rng.randrange(end) for _ in range(40))]:
        damaged = bytearray(log)
        damaged[position] ^= 1 << rng.randrange(8)
        copy.write_bytes(content)
        Path(f"{copy}-wal").write_bytes(damaged)
        Path(f"{copy}-shm").unlink(missing_ok=True)
        # A log is read up to the first frame that does not verify: the newest checkpoints may be taken back, whole.
        with suppress(CorruptionError), backstay.open(copy) as store:
            for name, points in expected.items():
                for info in store.sessions():
                    if info.id == name:
                        found = [point.id for point in store.session(name).log()]
                        assert found == list(points)[: len(found)][::-1]
                        for id_ in found:
                            assert store.session(name).load(id_) == points[id_][0]
            assert store.verify().ok


def test_damage_that_happens_while_the_store_is_open_is_noticed(path: Path) -> None:
    with backstay.open(path) as store:
        expected = fill(store, 25)
    with backstay.open(path) as store, path.open("r+b") as file:
        store.session("a").load()
        size = path.stat().st_size
        rng = random.Random(4)
        for _ in range(60):
            file.seek(rng.randrange(4096, size))
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0x10]))
        file.flush()
        for name, points in expected.items():
            session = store.session(name)
            for id_, (state, _) in points.items():
                with suppress(CorruptionError):
                    assert session.load(id_) == state
        assert not store.verify().ok
