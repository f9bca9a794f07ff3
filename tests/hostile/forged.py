"""Sessions that no store wrote: sealed as they should be, and made to take all the memory or time there is."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from unittest import mock

import msgspec

import backstay
from backstay.backends.sqlite import SqliteBackend
from backstay.codec import encode_stored
from backstay.delta import Record
from backstay.delta.record import PATCH, SET, SPLICE, TEXT
from backstay.model import MAX_STATE_BYTES
from backstay.port.rows import Took
from backstay.sealing import pack_blob
from tests.store.travel import Parts, put

MEGA = 1024 * 1024


def whole(value: bytes, key: str = "messages") -> Record:
    """A keyframe of one value."""
    return Record(msgspec.msgpack.encode([[SET, [], key]]), value)


def claim_much(parts: Parts) -> None:
    """Every checkpoint says that its state is as large as a state may be."""
    for part in parts.rows:
        part.change(size_bytes=MAX_STATE_BYTES)


def many_values(header: bytes, value: bytes, count: int) -> bytes:
    """A list of next to nothing, many times."""
    return header + count.to_bytes(4, "big") + value * count


def keyframe_of_text(parts: Parts) -> None:
    parts.rows[0].keyframe = whole(encode_stored("x" * 100_000_000))
    claim_much(parts)


def keyframe_of_dicts(parts: Parts) -> None:
    parts.rows[0].keyframe = whole(many_values(b"\xdd", b"\x80", 20_000_000))
    claim_much(parts)


def keyframe_of_pairs(parts: Parts) -> None:
    parts.rows[0].keyframe = whole(many_values(b"\xdd", b"\x92\x80\x90", 10_000_000))
    claim_much(parts)


def head_of_dicts(parts: Parts) -> None:
    parts.rows[-1].keyframe = whole(many_values(b"\xdd", b"\x80", 20_000_000))
    claim_much(parts)


def delta_of_ops(parts: Parts) -> None:
    parts.rows[2].delta = Record(b"\xdd\x00\x01\x86\xa0" + b"\x93\x01\x90\xa1x" * 100_000, b"")


def delta_at_the_front(parts: Parts) -> None:
    """A long list, and thirty thousand items put before all others, one by one."""
    parts.rows[0].keyframe = whole(many_values(b"\xdd", b"\xc0", 1_900_000))
    ops = [[SPLICE, ["messages"], 0, 0, 1] for _ in range(30_000)]
    parts.rows[1].delta = Record(msgspec.msgpack.encode(ops), b"\xc0" * len(ops))
    claim_much(parts)


def delta_of_patches(parts: Parts) -> None:
    """A long text, and thirty thousand letters put into its middle, one by one."""
    parts.rows[0].keyframe = whole(encode_stored("x" * 16 * MEGA))
    grow = [[PATCH, [], "messages", 8 * MEGA, 8 * MEGA] for _ in range(30_000)]
    parts.rows[1].delta = Record(msgspec.msgpack.encode(grow), b"\xa0" * len(grow))
    claim_much(parts)


def blobs_without_end(parts: Parts) -> None:
    for number in range(40):
        content = number.to_bytes(4, "big") * (4 * MEGA)
        parts.blobs[sha256(content).digest()] = pack_blob(content)
    parts.rows[2].delta = Record(b"\x90", b"", tuple(parts.blobs))
    claim_much(parts)


def one_blob_many_times(parts: Parts) -> None:
    """Thirty thousand values, each the same sixteen megabytes."""
    content = bytes(16 * MEGA)
    digest = sha256(content).digest()
    parts.blobs[digest] = pack_blob(content)
    reference = msgspec.msgpack.encode(msgspec.msgpack.Ext(_large_code(), bytes([TEXT]) + digest))
    parts.rows[-1].keyframe = Record(whole(b"").ops, many_values(b"\xdd", reference, 30_000), (digest,))
    claim_much(parts)


def _large_code() -> int:
    from backstay import codec

    return codec.LARGE


def salvage_without_end(parts: Parts) -> None:
    """Splices far behind the end of a list that is not there: a salvage would fill the gap with marks."""
    ops = [[SPLICE, ["messages"], (at + 1) * 1_000_000_000, 0, 1] for at in range(20_000)]
    parts.rows[-1].keyframe = Record(msgspec.msgpack.encode(ops), b"\xc1" * len(ops))


def a_call_far_behind(parts: Parts) -> None:
    parts.set_call(0, n=2**24 - 1)


def calls_without_number(parts: Parts) -> None:
    last = parts.rows[-1]
    took = last.row.took
    last.change(took=Took(1 if took is None else took.run, 7, 2**31))


def a_result_without_end(parts: Parts) -> None:
    parts.set_call(0, place=None, result=pack_blob(bytes(100_000_000)))


def arguments_of_dicts(parts: Parts) -> None:
    parts.set_call(0, args=pack_blob(many_values(b"\xdd", b"\x80", 16 * MEGA - 5)))


def numbers_without_end(parts: Parts) -> None:
    parts.set_line(sequence=2**32 - 1, checkpoints=2**32 - 1, lanes=2**31, tags=2**31)


def counts_without_end(parts: Parts) -> None:
    parts.set_line(checkpoints=2**62, logical_bytes=2**62, lanes=2**62, tags=2**62)


def long_names(parts: Parts) -> None:
    for at, row in enumerate(parts.names):
        parts.set_name(at, name=row.name + "n" * MEGA)


def long_ids(parts: Parts) -> None:
    for part in parts.rows:
        part.change(id=f"{part.row.sequence}" + "i" * MEGA)


def deep_metadata(parts: Parts) -> None:
    for part in parts.rows:
        fields = {**msgspec.msgpack.decode(part.row.fields), "m": b"\x81\xa1k" * 200_000 + b"\xa1x"}
        part.change(fields=msgspec.msgpack.encode(fields))


def metadata_of_dicts(parts: Parts) -> None:
    fields = {**msgspec.msgpack.decode(parts.rows[0].row.fields), "m": many_values(b"\xdd", b"\x80", 100_000)}
    parts.rows[0].change(fields=msgspec.msgpack.encode(fields))


def deep_state(parts: Parts) -> None:
    parts.rows[-1].keyframe = whole(b"\x81\xa1k" * 2_000_000 + b"\xa1x")
    claim_much(parts)


BOMBS: dict[str, Callable[[Parts], None]] = {
    bomb.__name__: bomb
    for bomb in (
        keyframe_of_text,
        keyframe_of_dicts,
        keyframe_of_pairs,
        head_of_dicts,
        delta_of_ops,
        delta_at_the_front,
        delta_of_patches,
        blobs_without_end,
        one_blob_many_times,
        salvage_without_end,
        a_call_far_behind,
        calls_without_number,
        a_result_without_end,
        arguments_of_dicts,
        numbers_without_end,
        counts_without_end,
        long_names,
        long_ids,
        deep_metadata,
        metadata_of_dicts,
        deep_state,
    )
}


def origin() -> backstay.Store:
    """A session to take apart."""
    store = backstay.open("memory://")
    session = store.session("s", agent="a")
    for turn in range(6):
        session.commit({"messages": [f"message {n}" for n in range(turn)], "image": b"i" * 9000}, step=turn)
    session.fork("main~4", "b")
    with session.run(branch="b", input="in") as running:
        running.append(running.call("tool", lambda: {"role": "tool", "content": "x" * 400}, args={"n": 1}))
    session.tag("main~2", "begin")
    return store


def write(bomb: Callable[[Parts], None], kind: str, path: Path) -> None:
    """A store, or an export, that holds a bomb: packed as tightly as it can be, as no store packs anything."""
    with mock.patch("backstay.sealing.MAX_RATIO", 1 << 40):
        parts = Parts(origin(), "s")
        bomb(parts)
        if kind == "export":
            parts.write(path)
            return
        with backstay.open(f"file:{path}" if kind == "files" else path) as store:
            backend: SqliteBackend = store.backend  # type: ignore[assignment]  # what `put` needs, all backends have
            put(backend, parts.line, parts.sealed(), parts.blobs)
