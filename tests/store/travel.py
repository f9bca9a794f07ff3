"""Sessions to send on a journey, stores to send them to, and files that nobody has exported."""

import struct
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.backend import Kept
from holdfast.model import SessionId, State
from holdfast.testing.author import next_turn
from holdfast.upkeep import bundle

KINDS = ("memory", "sqlite", "files")


def open_kind(kind: str, folder: Path) -> holdfast.Store:
    """A store of a kind, in a folder."""
    if kind == "memory":
        return holdfast.open("memory://")
    return holdfast.open(f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file://{folder}/files")


def live(store: holdfast.Store, name: str = "ticket-42", turns: int = 40) -> holdfast.Session:
    """A session with all that a session can have."""
    session = store.session(name, agent="support")
    state: State = {}
    for turn in range(turns):
        state = next_turn(state, turn)
        session.commit(state, step=turn, label=f"turn {turn}" if turn % 7 == 0 else None, usage={"tokens_in": turn})
    session.fork(f"main~{turns // 2}", "what if")
    other = session.load("what if")
    for turn in range(turns // 2):
        other = next_turn(other, turn + 1000)
        session.commit(other, branch="what if", metadata={"turn": turn, "odd": (1, {2: b"\xff"})})
    session.restore("main~3")
    session.commit({"odd": {1, "x"}, "nan": float("nan"), "none": None}, status=holdfast.Status.FAILED("no money"))
    session.undo()
    session.tag("main~4", "good")
    session.delete("main~7")
    session.delete(f"main~{turns // 2 + 3}")
    session.fork("main~2", "gone")
    session.commit({"nobody": "points here"}, branch="gone")
    session.delete_branch("gone")
    return session


def kept(store: holdfast.Store, name: str = "ticket-42") -> list[Kept]:
    """Everything there is of a session, byte by byte."""
    return list(store.backend.history(name, after=0, limit=1_000_000))


def about(store: holdfast.Store, name: str = "ticket-42") -> Any:
    """All that can be told of a session without reading its states."""
    session = store.session(name)
    info = next(info for info in store.sessions() if info.id == name)
    logs = {branch: [point.digest for point in session.log(branch)] for branch in session.branches()}
    return kept(store, name), store.backend.names(name), msgspec.structs.replace(info, id=SessionId("")), logs


def blocks_of(path: Path) -> list[tuple[bytes, bytes]]:
    """The blocks of an export, kinds and contents, without its end."""
    return [(header.kind, bundle.unpack(header, packed)) for header, packed in raw_blocks(path.read_bytes())][:-1]


def raw_blocks(data: bytes) -> Iterator[tuple[bundle.Header, bytes]]:
    at = bundle.read_magic(data[: bundle.MAGIC_BYTES])
    while at < len(data):
        header = bundle.read_header(data[at : at + bundle.HEADER_BYTES], left=len(data))
        at += bundle.HEADER_BYTES
        yield header, data[at : at + header.packed]
        at += header.packed


def write_forged(path: Path, blocks: list[tuple[bytes, bytes]], told: Any = None) -> None:
    """An export with any content, whose checksums are right: what somebody with bad intentions can make."""
    digest, parts = sha256(), [bundle.MAGIC]
    counts = {"sessions": 0, "checkpoints": 0, "blobs": 0}
    for kind, content in blocks:
        data, seal = bundle.seal(kind, content)
        parts.append(data)
        digest.update(seal)
        counts["sessions"] += kind == bundle.SESSION
        counts["checkpoints"] += len(msgspec.msgpack.decode(content)) if kind == bundle.ROWS else 0
        counts["blobs"] += len(msgspec.msgpack.decode(content)) if kind == bundle.BLOBS else 0
    done = {**counts, "blocks": len(blocks), "digest": digest.digest(), **(told or {})}
    parts.append(bundle.seal(bundle.DONE, msgspec.msgpack.encode(done))[0])
    path.write_bytes(b"".join(parts))


def header_bytes(kind: bytes, packed: int, unpacked: int) -> bytes:
    """A block's header that announces anything."""
    return struct.pack("<II4sII32s", 0x184D2A5F, 44, kind, packed, unpacked, bytes(32))
