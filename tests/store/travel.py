"""Sessions to send on a journey, stores to send them to, and files that nobody has exported."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import backstay
from backstay.backends.sqlite import SqliteBackend
from backstay.delta import Record
from backstay.ids import checkpoint_digest
from backstay.model import SessionId, StateDict
from backstay.port import EVERY, Ask, CallRow, CheckpointRow, KeyframeRow, Kind, LaneRow, Row, SessionRow
from backstay.port.row_codec import known_lines, known_names
from backstay.rules.deletion import add_rows, arrive, show, show_ask
from backstay.sealing import open_delta, open_keyframe, seal_delta, seal_keyframe, spill, unspill
from backstay.testing.author import next_turn

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
    other: StateDict = session.load("what if")
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
    session.commit({"nobody": "points here"}, branch="gone", id="an id of its own")
    session.delete_branch("gone")
    return session


def scanned(store: backstay.Store, name: str, kind: Kind) -> list[Any]:
    """All rows of a kind."""
    return list(store.backend.scan(name, kind, limit=1_000_000))


def kept(store: backstay.Store, name: str = "ticket-42") -> list[Any]:
    """Every checkpoint of a session, byte by byte."""
    return [msgspec.structs.replace(row, refs=None) for row in scanned(store, name, Kind.CHECKPOINT)]


def ids_of(store: backstay.Store, name: str = "ticket-42") -> list[str]:
    """The ids of all checkpoints, oldest first."""
    return [row.id for row in kept(store, name)]


def about(store: backstay.Store, name: str = "ticket-42") -> Any:
    """All that can be told of a session without reading its states."""
    session = store.session(name)
    info = next(info for info in store.sessions() if info.id == name)
    logs = {branch: [point.digest for point in session.log(branch)] for branch in session.branches()}
    keyframes = [msgspec.structs.replace(row, refs=None) for row in scanned(store, name, Kind.KEYFRAME)]
    info = msgspec.structs.replace(info, id=SessionId(""), crashed=False, cursor=0)
    return kept(store, name), keyframes, names_of(store, name), info, logs


def names_of(store: backstay.Store, name: str = "ticket-42") -> list[Any]:
    """Its branches and tags, as they arrive somewhere else."""
    view = store.backend.read(Ask(name, names=EVERY))
    rest = {"claim": None, "entered": False, "crashes": 0, "spot": b"", "nonce": b"", "purpose": None, "doubts": 0}
    lanes = [
        msgspec.structs.replace(lane, unfinished=lane.unfinished or lane.entered, **rest)
        for lane in view.lanes.values()
    ]
    return sorted([*lanes, *view.tags.values()], key=lambda row: row.name)


# files put together by hand


class Part:
    """A checkpoint taken apart: what is in its records can be changed before it is sealed again."""

    def __init__(self, row: CheckpointRow, delta: Record | None, keyframe: Record | None) -> None:
        self.row, self.delta, self.keyframe = row, delta, keyframe
        self.base: bytes | None = None  # of its delta, if another than its parent's state

    def change(self, **changed: Any) -> None:
        """Give the row other values."""
        self.row = msgspec.structs.replace(self.row, **changed)


class Parts:
    """A session taken apart, to be written to a file with right seals and digests, whatever was done to it."""

    def __init__(self, store: backstay.Store, name: str) -> None:
        line = store.backend.read(Ask(name)).session
        assert line is not None
        self.line: SessionRow = line
        self.names: list[Any] = names_of(store, name)
        self.calls: list[Any] = scanned(store, name, Kind.CALL)
        self.rows: list[Part] = []
        states: dict[int, bytes] = {}
        keyframes = {row.sequence: row for row in scanned(store, name, Kind.KEYFRAME)}
        for row in kept(store, name):
            delta = keyframe = None
            if row.delta:
                data = unspill(row.delta, {})
                base = states[row.parent]
                delta = open_delta(data, uid=line.uid, tail=row.tail, base=base, state=row.state_digest)
            if row.keyframe:
                data = unspill(keyframes[row.sequence].data, {})
                keyframe = open_keyframe(data, uid=line.uid, tail=row.tail, state=row.state_digest)
            states[row.sequence] = row.state_digest
            self.rows.append(Part(row, delta, keyframe))
        refs = {ref for part in self.rows for record in (part.delta, part.keyframe) if record for ref in record.refs}
        self.blobs = dict(store.backend.blobs(refs))
        self.extra: list[Row] = []
        self.reseal = True

    def lane(self, name: str = "main") -> int:
        """Where in `names` a branch is."""
        return next(at for at, row in enumerate(self.names) if row.name == name)

    def set_name(self, at: int, **changed: Any) -> None:
        """Change a branch or tag."""
        self.names[at] = msgspec.structs.replace(self.names[at], **changed)

    def set_line(self, **changed: Any) -> None:
        """Change the session's line."""
        self.line = msgspec.structs.replace(self.line, **changed)

    def set_call(self, at: int, **changed: Any) -> None:
        """Change a call."""
        self.calls[at] = msgspec.structs.replace(self.calls[at], **changed)

    def sealed(self) -> list[Row]:
        """The rows."""
        digests: dict[Any, bytes] = {}
        states: dict[Any, bytes] = {}
        rows: list[Row] = []
        heads: dict[Any, Any] = {}
        for part in self.rows:
            row = part.row
            before = (row.sequence, row.id, row.digest, row.state_digest)
            if self.reseal:
                if row.parent in digests and row.parent_digest is not None and row.parent_id in digests:
                    row = msgspec.structs.replace(row, parent_digest=digests[row.parent_id])
                with contextlib.suppress(Exception):
                    digest = checkpoint_digest(
                        id_=row.id,
                        parent=row.parent_digest,
                        state=row.state_digest,
                        sequence=row.sequence,
                        fields=row.fields,
                    )
                    row = msgspec.structs.replace(row, digest=digest)
            data = b""
            if part.delta is not None:
                base = part.base or states.get(row.parent, b"")
                sealed = seal_delta(part.delta, uid=self.line.uid, tail=row.tail, base=base, state=row.state_digest)
                data = spill(sealed)[0]
            row = msgspec.structs.replace(row, delta=data, keyframe=part.keyframe is not None, refs=())
            rows.append(row)
            if part.keyframe is not None:
                sealed = seal_keyframe(part.keyframe, uid=self.line.uid, tail=row.tail, state=row.state_digest)
                rows.append(KeyframeRow(row.sequence, spill(sealed)[0], tuple(self.blobs)))
            digests[row.sequence] = digests[row.id] = row.digest
            states[row.sequence] = row.state_digest
            heads[before] = row.head
        for name in self.names:
            if isinstance(name, LaneRow) and name.head is not None:
                head = name.head
                wanted = (head.sequence, head.id, head.digest, head.state_digest)
                rows.append(msgspec.structs.replace(name, head=heads.get(wanted, head)))
            else:
                rows.append(name)
        return [*rows, *self.calls, *self.extra]

    def write(self, path: Path) -> None:
        """An export of this."""
        path.unlink(missing_ok=True)
        file = SqliteBackend.make_export(path)
        try:
            put(file, self.line, self.sealed(), self.blobs)
            file.finish_export()
        finally:
            file.close()
            known_lines.clear()  # rows made in this process are not unsealed again, and these are forged
            known_names.clear()


def put(file: SqliteBackend, line: SessionRow, rows: list[Row], blobs: dict[bytes, bytes]) -> None:
    """A session into a file, as no rule would let it come."""
    hidden = msgspec.structs.replace(line, id="hidden", hidden=True)
    ask = show_ask(hidden, hidden="hidden")
    file.write(ask, arrive(hidden))
    file.write(ask, add_rows(line.id, rows, blobs))
    shown = msgspec.structs.replace(line, hidden=False)
    file.write(show_ask(shown, hidden="hidden"), show(shown, last_run=0))


# runs

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
    with session.run(on_doubt="skip") as run:
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
    """All that a store knows of a session's runs and calls."""
    view = store.backend.read(Ask(name, names=EVERY, pending=EVERY))
    runs = [
        (lane.name, lane.run, lane.unfinished or lane.entered, lane.input, list(view.pending[lane.name]))
        for lane in sorted(view.lanes.values(), key=lambda lane: lane.name)
    ]
    taken = {row.id: row.took for row in kept(store, name)}
    calls: list[CallRow] = scanned(store, name, Kind.CALL)
    return runs, taken, sorted(calls, key=lambda call: call.at)
