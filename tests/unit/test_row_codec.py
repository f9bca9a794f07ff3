"""Rows as bytes: every kind comes back as it was; changed, cut or in the place of another, none opens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.errors import CorruptionError
from backstay.ids import MAX_SEQUENCE, TAIL_BYTES, make_id
from backstay.port import CallRow, CheckpointRow, KeyframeRow, Kind, LaneRow, Row, SessionRow, TagRow, Unreadable
from backstay.port.lease import Claim, Holder
from backstay.port.row_codec import is_foreign, open_call, open_checkpoint, open_name, open_session, pack, seal
from backstay.port.rows import Head, Took, key_of, kind_of
from backstay.sealing import SEAL_BYTES

UID, OTHER_UID = bytes(range(16)), bytes(range(1, 17))

# rows with anything in them

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
blobs = st.binary(max_size=40)
numbers = st.integers(0, 2**62)
sequences = st.integers(2, MAX_SEQUENCE)
digests = st.binary(min_size=32, max_size=32)
maybe_text = st.none() | texts
claims = st.builds(
    Claim, st.builds(Holder, texts, texts, numbers, numbers, numbers), numbers, numbers, st.integers(-(2**62), 2**62)
)
sessions = st.builds(
    SessionRow,
    texts,
    st.just(UID),
    *([numbers] * 8),
    maybe_text,
    texts,
    maybe_text,
    st.none() | numbers,
    blobs,
    st.booleans(),
    st.none() | claims,
)
heads = st.builds(Head, numbers, texts, digests, digests)
lanes = st.builds(
    LaneRow,
    texts,
    st.none() | heads,
    numbers,
    st.none() | numbers,
    st.none() | numbers,
    texts,
    maybe_text,
    numbers,
    numbers,
    st.booleans(),
    st.booleans(),
    st.none() | claims,
    st.none() | blobs,
    numbers,
    blobs,
    blobs,
    maybe_text,
    numbers,
    st.booleans(),
    st.booleans(),
)
tags = st.builds(TagRow, texts, numbers)
tooks = st.builds(Took, numbers, numbers, numbers, st.none() | numbers)
calls = st.builds(
    CallRow,
    *([numbers] * 3),
    texts,
    maybe_text,
    texts,
    maybe_text,
    numbers,
    texts,
    st.none() | blobs,
    blobs,
    texts,
    numbers,
    numbers,
    st.none() | numbers,
    st.none() | blobs,
    st.none() | blobs,
    st.none() | st.tuples(texts, texts),
    blobs,
)


@st.composite
def checkpoints(draw: st.DrawFn) -> CheckpointRow:
    sequence, tail = draw(sequences), draw(st.binary(min_size=TAIL_BYTES, max_size=TAIL_BYTES))
    ours = make_id(sequence, UID, tail)
    foreign = texts.filter(bool) | st.just(make_id(sequence, OTHER_UID, tail))
    parent = draw(st.none() | st.integers(1, sequence - 1))
    parent_id = st.none() | texts | st.just(make_id(1, UID, tail)) | st.just("AB" * 16)
    return CheckpointRow(
        sequence,
        draw(st.just(ours) | foreign),
        tail,
        parent,
        draw(parent_id),
        draw(st.none() | digests),
        draw(digests),
        draw(digests),
        draw(numbers),
        draw(st.booleans()),
        draw(st.none() | tooks),
        draw(blobs),
        draw(blobs),
    )


def opened(row: Row, body: bytes, *, uid: bytes = UID, **at: Any) -> Row | Unreadable:
    """A body as the row at this place, or at another that `at` says."""
    if isinstance(row, SessionRow):
        place: dict[str, Any] = {"id_": row.id, "hidden": row.hidden}
        return open_session(body, **(place | at))
    if isinstance(row, LaneRow | TagRow):
        return open_name(body, uid=uid, **({"name": row.name} | at))
    if isinstance(row, CallRow):
        return open_call(body, uid=uid, **({"at": row.at} | at))
    assert isinstance(row, CheckpointRow)
    return open_checkpoint(body, uid=uid, **({"sequence": row.sequence, "parent": row.parent} | at))


def opens(row: Row, body: bytes, **at: Any) -> bool:
    try:
        return not isinstance(opened(row, body, **at), Unreadable)
    except CorruptionError:
        return False


# one of each, with all that a row can have

CLAIM = Claim(Holder("host", "boot", 1, 2, 3), 4, 5, 6)
HEAD = Head(7, make_id(7, UID, b"7777777"), b"d" * 32, b"s" * 32)
DELTA = b"a delta with a seal of its own"
EXAMPLES: dict[str, Row] = {
    "session": SessionRow("a session", UID, 1, 2, 3, 4, 5, 6, 7, 8, "agent", "waiting", "ana", 9, b"u", True, CLAIM),
    "branch": LaneRow("main", HEAD, 7, 6, 5, "failed", "x", 4, 3, True, True, CLAIM, b"in", 2, b"spot", b"n", "files"),
    "tag": TagRow("release", 7),
    "call": CallRow(
        *(5, 7, 2, "id", "parent", "pay", "key", 1, "tool", b"args", bytes(16), "failed", 3, 4, 5, b"r", b"p"),
        ("Error", "text"),
        b"nonce",
    ),
    "checkpoint": CheckpointRow(
        *(7, HEAD.id, b"7777777", 6, make_id(6, UID, b"6666666"), b"p" * 32, b"s" * 32, b"d" * 32, 100, True),
        Took(5, 6, 3),
        b"fields",
        DELTA,
    ),
}
each_kind = pytest.mark.parametrize("kind", EXAMPLES)


@given(sessions | lanes | tags | calls | checkpoints())
def test_a_row_comes_back_as_it_was(row: Row) -> None:
    assert opened(row, pack(row, UID)) == row


@each_kind
def test_these_come_back_too(kind: str) -> None:
    assert opened(EXAMPLES[kind], pack(EXAMPLES[kind], UID)) == EXAMPLES[kind]


def sealed_bytes(row: Row, body: bytes) -> int:
    """As far as the row's own seal goes: a delta has its own."""
    return len(body) - (len(row.delta) if isinstance(row, CheckpointRow) else 0)


@each_kind
def test_a_row_with_any_byte_changed_does_not_open(kind: str) -> None:
    row = EXAMPLES[kind]
    body = pack(row, UID)
    for at in range(sealed_bytes(row, body)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(body)
            damaged[at] ^= flip
            assert not opens(row, bytes(damaged)), f"byte {at}"


@each_kind
def test_a_row_cut_off_anywhere_does_not_open(kind: str) -> None:
    row = EXAMPLES[kind]
    body = pack(row, UID)
    for length in range(sealed_bytes(row, body)):
        assert not opens(row, body[:length]), f"{length} bytes"
    if not isinstance(row, CheckpointRow):
        assert not opens(row, body + b"\0")


@given(sessions | lanes | tags | calls | checkpoints(), st.data())
def test_any_row_with_any_bit_flipped_does_not_open(row: Row, data: st.DataObject) -> None:
    body = bytearray(pack(row, UID))
    body[data.draw(st.integers(0, sealed_bytes(row, bytes(body)) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not opens(row, bytes(body))


@each_kind
def test_a_row_of_another_session_does_not_open(kind: str) -> None:
    row = EXAMPLES[kind]
    if isinstance(row, SessionRow):
        assert not opens(row, pack(row, UID), id_="another")
        assert not opens(row, pack(row, UID), hidden=False)
    else:
        assert not opens(row, pack(row, OTHER_UID))


@pytest.mark.parametrize(
    ("kind", "elsewhere"),
    [
        ("branch", {"name": "other"}),
        ("branch", {"name": ""}),
        ("tag", {"name": "main"}),
        ("call", {"at": (5, 7, 3)}),
        ("call", {"at": (5, 2, 7)}),
        ("call", {"at": (7, 5, 2)}),
        ("checkpoint", {"sequence": 8}),
        ("checkpoint", {"parent": 5}),
        ("checkpoint", {"parent": None}),
    ],
)
def test_a_row_in_the_place_of_another_does_not_open(kind: str, elsewhere: dict[str, Any]) -> None:
    assert not opens(EXAMPLES[kind], pack(EXAMPLES[kind], UID), **elsewhere)


@each_kind
@pytest.mark.parametrize("other", EXAMPLES)
def test_a_row_of_another_kind_does_not_open(kind: str, other: str) -> None:
    if kind != other:
        assert not opens(EXAMPLES[kind], pack(EXAMPLES[other], UID))


def test_branches_and_tags_share_their_names_and_a_body_says_which_it_is() -> None:
    for row in (EXAMPLES["branch"], EXAMPLES["tag"]):
        named = msgspec.structs.replace(row, name="same")
        assert open_name(pack(named, UID), uid=UID, name="same") == named


def test_a_branch_cannot_be_read_as_a_tag_of_its_name() -> None:
    body = bytearray(pack(EXAMPLES["branch"], UID))
    assert body[SEAL_BYTES : SEAL_BYTES + 1] == b"L"
    body[SEAL_BYTES : SEAL_BYTES + 1] = b"T"
    assert not opens(EXAMPLES["branch"], bytes(body))


def test_what_is_damaged_is_named() -> None:
    lane, call, point = EXAMPLES["branch"], EXAMPLES["call"], EXAMPLES["checkpoint"]
    with pytest.raises(CorruptionError, match="the row of 'main' is damaged, or stands in the place of another"):
        opened(lane, b"")
    with pytest.raises(CorruptionError, match="line of session"):
        opened(EXAMPLES["session"], b"")
    assert opened(call, b"") == Unreadable((5, 7, 2), "a journaled call is damaged, or stands in the place of another")
    damaged = opened(point, b"")
    assert damaged == Unreadable(7, "checkpoint #7 is damaged, or stands in the place of another", 6)
    assert opened(point, pack(point, UID), parent=5) == Unreadable(7, "checkpoint #7 does not agree with its index", 5)


def sealed(data: bytes, *names: Any) -> bytes:
    return seal(data, *names) + data


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(["x"]), msgspec.msgpack.encode({"a": 1})])
def test_what_is_sealed_and_is_no_row_is_damage_all_the_same(data: bytes) -> None:
    size = len(data).to_bytes(4, "big")
    forged: dict[str, bytes] = {
        "session": sealed(data, "session", "a session"),
        "branch": sealed(b"L" + data, "name", UID, "main"),
        "tag": sealed(b"T" + data, "name", UID, "release"),
        "call": sealed(data, "call", UID, 5, 7, 2),
        "checkpoint": sealed(data, "checkpoint", UID, 7)[:SEAL_BYTES] + size + data,
    }
    for kind, body in forged.items():
        assert not opens(EXAMPLES[kind], body), kind


def test_a_sealed_row_that_says_it_is_another_is_not_believed() -> None:
    row = EXAMPLES["tag"]
    other = b"T" + msgspec.msgpack.encode(TagRow("another", 1))
    assert not opens(row, sealed(other, "name", UID, "release"))
    call = EXAMPLES["call"]
    moved = msgspec.msgpack.encode(msgspec.structs.replace(call, n=3))
    found = opened(call, sealed(moved, "call", UID, 5, 7, 2))
    assert isinstance(found, Unreadable)
    session = EXAMPLES["session"]
    renamed = msgspec.msgpack.encode(msgspec.structs.replace(session, id="another"))
    assert not opens(session, sealed(renamed, "session", "a session"))


@pytest.mark.parametrize("parent", [7, 8, 2**40])
def test_a_parent_that_does_not_lead_back_is_not_followed(parent: int) -> None:
    found = opened(EXAMPLES["checkpoint"], pack(EXAMPLES["checkpoint"], UID), parent=parent)
    assert found == Unreadable(7, "checkpoint #7 does not agree with its index")


def test_a_checkpoint_whose_tail_could_not_seal_its_bodies_is_not_believed() -> None:
    row = msgspec.structs.replace(EXAMPLES["checkpoint"], tail=b"short", id="foreign")
    assert not opens(row, pack(row, UID))


def test_a_parents_id_that_is_no_text_is_damage() -> None:
    header = msgspec.msgpack.decode(pack(EXAMPLES["checkpoint"], UID)[SEAL_BYTES + 4 :][: -len(DELTA)])
    header[4] = b"T\xff\xfe"
    data = msgspec.msgpack.encode(header)
    body = sealed(data, "checkpoint", UID, 7)[:SEAL_BYTES] + len(data).to_bytes(4, "big") + data
    assert not opens(EXAMPLES["checkpoint"], body)


def test_the_delta_is_not_the_rows_to_judge() -> None:
    row = EXAMPLES["checkpoint"]
    assert isinstance(row, CheckpointRow)
    body = pack(row, UID)
    assert body.endswith(row.delta)
    assert opened(row, body[:-1] + b"?") == msgspec.structs.replace(row, delta=row.delta[:-1] + b"?")
    assert opened(row, body[: -len(row.delta)]) == msgspec.structs.replace(row, delta=b"")


def test_an_id_of_our_making_takes_no_room_and_a_foreign_one_is_kept() -> None:
    row = EXAMPLES["checkpoint"]
    assert isinstance(row, CheckpointRow)
    foreign = msgspec.structs.replace(row, id="f" * 32)
    assert not is_foreign(row, UID)
    assert is_foreign(foreign, UID)
    assert is_foreign(row, OTHER_UID)
    assert len(pack(foreign, UID)) == len(pack(row, UID)) + 33


def test_a_keyframe_is_sealed_by_whoever_made_it() -> None:
    assert pack(KeyframeRow(7, b"sealed bytes"), UID) == b"sealed bytes"


KEYS: list[tuple[Row, Kind, object]] = [
    (EXAMPLES["session"], Kind.SESSION, "a session"),
    (EXAMPLES["branch"], Kind.NAME, "main"),
    (EXAMPLES["tag"], Kind.NAME, "release"),
    (EXAMPLES["checkpoint"], Kind.CHECKPOINT, 7),
    (KeyframeRow(7, b""), Kind.KEYFRAME, 7),
    (EXAMPLES["call"], Kind.CALL, (5, 7, 2)),
]


@pytest.mark.parametrize(("row", "kind", "key"), KEYS, ids=lambda value: getattr(value, "name", ""))
def test_every_row_has_a_kind_and_a_key(row: Row, kind: Kind, key: object) -> None:
    assert (kind_of(row), key_of(row)) == (kind, key)


@given(st.binary(max_size=120))
def test_noise_is_no_row(data: bytes) -> None:
    for row in EXAMPLES.values():
        assert not opens(row, data)
