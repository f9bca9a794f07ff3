"""Journals whose checkpoints are packed on a rewrite: short, whole, and damaged no further than a line."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import backstay
from backstay.backends.files import FilesBackend, rewrite
from backstay.backends.files.lines import PACKED_BYTES, PACKED_ROWS, JournalLine, open_line
from backstay.errors import CorruptionError
from backstay.face import Store
from backstay.port import Features
from backstay.testing import machine_for
from backstay.testing.author import SESSION, Author, read_back


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Journals are written anew after a few commits already."""
    with monkeypatch.context() as patched:
        patched.setattr(rewrite, "TAIL_BYTES", 2_000)
        yield


def opened(folder: Path) -> Store:
    return backstay.open(f"file:{folder}", durability="relaxed")


def journal(folder: Path) -> Path:
    (found,) = (folder / "sessions").glob("*.jsonl")
    return found


def lines(folder: Path) -> list[JournalLine]:
    found = [open_line(raw + b"\n") for raw in journal(folder).read_bytes().split(b"\n")[1:] if raw.strip(b" \0")]
    assert None not in found
    return [line for line in found if line is not None]


def state_of(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    return {"n": number, "messages": [f"message {at} of the agent" for at in range(number)], "noise": chance.random()}


def test_a_journal_takes_less_than_the_json_of_its_last_state(folder: Path) -> None:
    states = [state_of(number) for number in range(300)]
    with opened(folder) as store:
        session = store.session("s")
        for state in states:
            session.commit(state)
        points = list(session.log())[::-1]
    size = journal(folder).stat().st_size
    with opened(folder) as store:
        session = store.session("s")
        assert [session.load(point.id) for point in points[::9]] == states[::9]
        assert store.verify().ok
        assert store.backend.tend() is not None
        assert store.verify().ok
    assert size < 6 * len(json.dumps(states[-1])) + rewrite.TAIL_BYTES + 128 * 1024
    assert max([len(line.rows) for line in lines(folder)]) == PACKED_ROWS


@pytest.mark.usefixtures("eager")
def test_packed_checkpoints_keep_their_ids_blobs_branches_and_deletions(folder: Path) -> None:
    with opened(folder) as store:
        session, points = store.session("s"), []
        for number in range(90):
            state = {**state_of(number), "blob": str(number % 3) * 9_000, "secret": f"secret {number}"}
            points.append((session.commit(state, id=f"theirs {number}" if number % 4 == 0 else None), state))
        assert any([line.packed for line in lines(folder)])
        session.fork(points[40][0], "side")
        session.commit({"n": "side"}, branch="side")
        gone = [point for point, _ in points[10:20]]
        assert sum([session.delete(point) for point in gone]) == len(gone)
        store.backend.tend()
    kept = journal(folder).read_bytes() + b"".join([bytes(put.body) for line in lines(folder) for put in line.rows])
    with opened(folder) as store:
        session = store.session("s")
        for point, state in [*points[:10], *points[20:]]:
            assert session.load(point.id) == state
        assert session.checkpoint("theirs 44").sequence == 45
        assert [point.sequence for point in session.log("side")][:2] == [91, 41]
        assert store.verify().ok
        assert not list(store.backend.check())
    assert b"secret 25" in kept
    assert b"secret 15" not in kept


@pytest.mark.usefixtures("eager")
def test_a_damaged_packed_line_costs_its_checkpoints_and_those_on_them_up_to_a_keyframe(folder: Path) -> None:
    with closing(FilesBackend(folder)) as backend:
        author = Author(backend, keyframe_every=10)
        author.grow(150)
        backend.tend()
    data = bytearray(journal(folder).read_bytes())
    damaged = next(line for line in lines(folder) if line.packed)
    data[data.index(b'"packed"') + 400] ^= 1
    journal(folder).write_bytes(data)
    inside = {put.key for put in damaged.rows}
    last = max([int(str(key)) for key in inside])
    with closing(FilesBackend(folder)) as backend:
        for sequence, state in author.states.items():
            try:
                assert read_back(backend, SESSION, sequence) == state
            except CorruptionError:
                assert sequence <= last + 10
            else:
                assert sequence not in inside
        assert not Store(backend).verify().ok
        backend.tend(repair=True)
        assert read_back(backend, SESSION, "main") == author.state


def test_a_checkpoint_that_is_too_long_to_be_packed_has_a_line_of_its_own(folder: Path) -> None:
    noise = random.Random(1).randbytes(2 * PACKED_BYTES).hex()
    texts = [noise[at : at + 7_000] for at in range(0, len(noise), 7_000)]  # each below what would be a blob
    with opened(folder) as store:
        session = store.session("s")
        session.commit({"texts": []})
        session.commit({"texts": texts})
        for number in range(90):
            session.commit({"texts": texts, "n": number})
        store.backend.tend()
        assert session.load("main~5") == {"texts": texts, "n": 84}
        assert session.load("main~90") == {"texts": texts}
    with opened(folder) as store:
        assert store.session("s").load("main~91") == {"texts": []}
        assert store.verify().ok


@pytest.mark.usefixtures("eager")
def test_a_store_says_that_it_is_packed(folder: Path) -> None:
    def features() -> Features:
        said = json.loads((folder / "backstay.json").read_bytes())
        return Features(said["features"]["read"], said["features"]["write"])

    with opened(folder) as store:
        session = store.session("s")
        session.commit(state_of(1))
        assert features() == Features()
        for number in range(40):
            session.commit(state_of(number))
        assert features() == Features(1, 1)
        session.commit(state_of(99))
    with opened(folder) as store:
        assert store.session("s").load() == state_of(99)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("examples", [2, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_random_histories_in_packed_journals_are_those_of_a_plain_dict(examples: int) -> None:
    machine: Any = machine_for(lambda folder: opened(folder / "store"))
    case = machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None)
    case("runTest").runTest()
