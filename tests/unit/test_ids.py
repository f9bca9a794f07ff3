"""Checkpoint ids: each says where its row is, none is taken for another session's, and a few characters find it."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.ids import (
    MAX_SEQUENCE,
    TAIL_BYTES,
    UID_BYTES,
    is_ours,
    make_id,
    sequence_of,
    sequences_starting,
    uid_start,
)

uids = st.binary(min_size=UID_BYTES, max_size=UID_BYTES)
tails = st.binary(min_size=TAIL_BYTES, max_size=TAIL_BYTES)
sequences = st.integers(1, MAX_SEQUENCE)
UID, TAIL = bytes(range(16)), b"\xaa" * TAIL_BYTES


def uid_of(number: int) -> bytes:
    return sha256(number.to_bytes(4, "big")).digest()[:UID_BYTES]


@given(sequences, uids, tails)
def test_an_id_says_where_its_row_is(sequence: int, uid: bytes, tail: bytes) -> None:
    id_ = make_id(sequence, uid, tail)
    assert is_ours(id_)
    assert sequence_of(id_, uid) == sequence
    assert uid_start(id_) == uid[:4]
    assert bytes.fromhex(id_)[-TAIL_BYTES:] == tail


@pytest.mark.parametrize("sequence", [1, 255, 256, 65_535, 65_536, 2**24, MAX_SEQUENCE])
def test_ids_at_the_edges_come_back(sequence: int) -> None:
    assert sequence_of(make_id(sequence, UID, TAIL), UID) == sequence


@given(sequences, uids, uids, tails)
def test_an_id_of_another_session_names_no_row_here(sequence: int, uid: bytes, other: bytes, tail: bytes) -> None:
    if uid[:4] != other[:4]:
        assert sequence_of(make_id(sequence, uid, tail), other) is None


def test_of_two_sessions_whose_uids_begin_alike_an_id_of_one_is_all_but_never_a_near_row_of_the_other() -> None:
    others = [UID[:4] + uid_of(number)[4:] for number in range(2000)]
    found = [sequence_of(make_id(7, UID, TAIL), other) for other in others]
    assert 7 not in found
    assert sum(at is not None and at < 100_000 for at in found) <= 1


@given(st.text(max_size=40) | st.from_regex(r"[0-9a-f]{30,34}", fullmatch=True) | st.uuids().map(str))
def test_an_id_that_is_not_of_our_making_names_no_row_unless_it_looks_just_like_one(id_: str) -> None:
    found = sequence_of(id_, UID)
    assert found is None or (is_ours(id_) and uid_start(id_) == UID[:4] and 0 < found <= MAX_SEQUENCE)
    if not is_ours(id_):
        assert uid_start(id_) is None


@pytest.mark.parametrize(
    "id_", ["", "main", "A" * 32, "0" * 31, "0" * 33, "0" * 31 + "g", "0" * 32 + "\n", "٠" * 32, "0x" + "0" * 30]
)
def test_these_are_foreign(id_: str) -> None:
    assert not is_ours(id_)
    assert sequence_of(id_, UID) is None
    assert sequences_starting(id_, UID, last=1000) == []


@pytest.mark.parametrize("sequence", [0, MAX_SEQUENCE + 1, 2**40 - 1])
def test_a_number_that_no_checkpoint_can_have_is_nobodys(sequence: int) -> None:
    assert sequence_of(make_id(sequence, UID, TAIL), UID) is None


def test_neighbours_differ_in_their_first_byte() -> None:
    for start in (1, 1000, 2**31):
        firsts = {make_id(sequence, UID, TAIL)[:2] for sequence in range(start, start + 256)}
        assert len(firsts) == 256


def test_four_characters_are_enough_for_sixty_thousand_checkpoints() -> None:
    starts = Counter(make_id(sequence, UID, TAIL)[:4] for sequence in range(1, 65_536))
    assert max(starts.values()) == 1


def test_starts_differ_between_sessions_too() -> None:
    firsts = Counter(make_id(1, uid_of(number), TAIL)[:8] for number in range(2000))
    assert max(firsts.values()) == 1
    # As often as chance has it, and no more: 2000 among 65,536 meet about 30 times.
    seconds = Counter(make_id(1, uid_of(number), TAIL)[:4] for number in range(2000))
    assert sum(count - 1 for count in seconds.values()) < 70


@given(sequences, uids, tails, st.integers(2, 32), st.integers(0, 5000))
def test_a_start_always_finds_its_checkpoint(sequence: int, uid: bytes, tail: bytes, length: int, more: int) -> None:
    start = make_id(sequence, uid, tail)[:length]
    last = min(MAX_SEQUENCE, sequence + more)
    if length < 6 and last > 10_000_000:
        return  # a short start in a session that long gives many candidates, and this test is about finding them all
    assert sequence in sequences_starting(start, uid, last=last)


@given(st.integers(1, 3000), uids, st.integers(2, 12))
def test_the_candidates_for_a_start_are_all_there_are(sequence: int, uid: bytes, length: int) -> None:
    start = make_id(sequence, uid, TAIL)[:length]
    every = [at for at in range(1, 3001) if make_id(at, uid, TAIL).startswith(start)]
    assert sequences_starting(start, uid, last=3000) == every


@given(st.from_regex(r"[0-9a-f]{2,32}", fullmatch=True), uids)
def test_any_start_gives_the_candidates_that_may_begin_like_it_and_no_others(start: str, uid: bytes) -> None:
    shown = start[:18]
    every = [at for at in range(1, 2001) if make_id(at, uid, b"").startswith(shown)]
    assert sequences_starting(start, uid, last=2000) == every


@pytest.mark.parametrize("start", ["", "a", "G0", "0 ", "ab\n", "main", "0" * 33])
def test_what_cannot_begin_an_id_has_no_candidates(start: str) -> None:
    assert sequences_starting(start, UID, last=10_000) == []


def test_there_are_few_candidates_in_a_long_session() -> None:
    assert len(sequences_starting(make_id(500_000, UID, TAIL)[:4], UID, last=1_000_000)) <= 16
    assert sequences_starting(make_id(500_000, UID, TAIL)[:10], UID, last=1_000_000) == [500_000]
    assert sequences_starting(make_id(500_000, UID, TAIL), UID, last=499_999) == []
