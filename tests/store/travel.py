"""Sessions to send on a journey, stores to send them to, and files that nobody has exported."""

import contextlib
import struct
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import backstay
from backstay.backend import CallRow, Kept
from backstay.model import SessionId, StateDict
from backstay.testing.author import next_turn
from backstay.upkeep import bundle

KINDS = ("memory", "sqlite", "files")


def open_kind(kind: str, folder: Path) -> backstay.Store:
    """A store of a kind, in a folder."""
    if kind == "memory":
        return backstay.open("memory://")
    return backstay.open(f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file://{folder}/files")


def live(store: backstay.Store, name: str = "ticket-42", turns: int = 40) -> backstay.Session:
    """A session with all that a session can have."""
    session = store.session(name, agent="support")
    state: StateDict = {}
    for turn in range(turns):
        state = next_turn(state, turn)
        session.commit(state, step=turn, label=f"turn {turn}" if turn % 7 == 0 else None, usage={"tokens_in": turn})
    session.fork(f"main~{turns // 2}", "what if")
    other = session.load("what if")
    for turn in range(turns // 2):
        other = next_turn(other, turn + 1000)
        session.commit(other, branch="what if", metadata={"turn": turn, "odd": (1, {2: b"\xff"})})
    session.restore("main~3")
    session.commit({"odd": {1, "x"}, "nan": float("nan"), "none": None}, status=backstay.Status.FAILED("no money"))
    session.undo()
    session.tag("main~4", "good")
    session.delete("main~7")
    session.delete(f"main~{turns // 2 + 3}")
    session.fork("main~2", "gone")
    session.commit({"nobody": "points here"}, branch="gone")
    session.delete_branch("gone")
    return session


def kept(store: backstay.Store, name: str = "ticket-42") -> list[Kept]:
    """Everything there is of a session, byte by byte."""
    return list(store.backend.history(name, after=0, limit=1_000_000))


def about(store: backstay.Store, name: str = "ticket-42") -> Any:
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


LONG_ANSWER = "an answer that is long enough to be kept only once, in the state; " * 8


@contextlib.contextmanager
def crashing(run: backstay.Run) -> Iterator[backstay.Run]:
    """A run that is interrupted at the end: nothing is recorded, its calls stay as they are."""
    with contextlib.suppress(KeyboardInterrupt), run:
        yield run
        raise KeyboardInterrupt


def leave_in_doubt(run: backstay.Run, name: str, **options: Any) -> None:
    """A call of which nobody will know whether it happened."""

    def cut_off() -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        run.call(name, cut_off, **options)


def fails() -> None:
    """A tool that does."""
    raise ValueError("no money")


def run_for_long(store: backstay.Store, name: str = "ticket-42") -> backstay.Session:
    """A session with every kind of call: taken in, parked, pending, in doubt; on branches here and gone."""
    session = store.session(name, agent="support")
    with session.run(input={"order": 7}) as run:
        for turn in range(4):
            reply = {"role": "assistant", "content": f"{LONG_ANSWER}{turn}"}
            run.append(run.call("model", partial(dict, reply), kind="llm"))
            run.call("pay", partial(int, turn), key=f"k{turn}", args={"amount": turn, "odd": (1, b"\xff")})
            run.call("outer", partial(run.call, "inner", partial(int, turn)))
            with contextlib.suppress(backstay.CallFailedError):
                run.call("fails", fails)
            run.step()
    with crashing(session.run()) as run:
        leave_in_doubt(run, "maybe", args=1)
    with session.run(on_doubt="skip", input="second") as run:
        run.call("maybe", fails, args=1)
        run.call("done", lambda: "yes")
        run.step()
        run.call("given up", lambda: LONG_ANSWER)
        run.fail("no network")
    session.abandon(reason="a person looked")
    for branch in ("what if", "gone"):
        session.fork("main~2", branch)
        with session.run(branch=branch) as run:
            run.call("pay", lambda: LONG_ANSWER, args=branch)
            run.append({"role": "tool", "content": "not that"})
    session.delete_branch("gone")
    with crashing(session.run(branch="what if", input="parked")) as run:
        run.call("parked", lambda: "kept for the undo")
    session.restore("what if~1", branch="what if")
    with crashing(session.run(input=["the last", 1])) as run:
        run.call("finished", lambda: {"refund": 7}, args={"order": 7})
        leave_in_doubt(run, "transfer", args={"amount": 9})
        run.call("outside", partial(run.call, "inside", partial(int, 1)))
    return session


def journal_of(store: backstay.Store, name: str = "ticket-42") -> Any:
    """All that a store knows of a session's runs and calls, without what means something only there."""
    backend = store.backend
    runs = [
        (
            row.branch,
            row.unfinished or row.entered,
            row.input,
            [bare(one.call) for one in backend.pending(name, row.branch).calls],
        )
        for row in backend.runs(name)
    ]
    taken = {id_: [bare(one.call) for one in backend.calls(name, id_)] for id_ in backend.ids(name)}
    groups: dict[tuple[int, int], list[Any]] = {}
    for one in backend.entries(name):
        groups.setdefault((one.run, one.after), []).append((one.after, bare(one.call)))
    return runs, taken, sorted(groups.values(), key=repr)


def bare(call: CallRow) -> CallRow:
    """A call without the token of its run, which stays at home."""
    return msgspec.structs.replace(call, token=0)
