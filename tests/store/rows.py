"""The rows of a store: looked at, and changed behind its back."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

import backstay
from backstay.backends.sqlite.connections import connect
from backstay.port import EVERY, Ask, Batch, CallRow, CheckpointRow, Key, KeyframeRow, Kind, LaneRow, Row, SegmentRow
from backstay.port.segment_packing import pack_segment
from backstay.port.segments import open_segment
from backstay.upkeep.pages import pages
from tests.backends.test_sqlite import place_of


def rows_of(store: backstay.Store, kind: Kind, session: str = "s") -> list[Any]:
    return [row for page in pages(store.backend, session, kind) for row in page]


def ids_of(store: backstay.Store, session: str = "s") -> list[str]:
    return [row.id for row in rows_of(store, Kind.CHECKPOINT, session)]


def lane_of(store: backstay.Store, session: str = "s", branch: str = "main") -> LaneRow:
    return store.backend.read(Ask(session, names=(branch,))).lanes[branch]


def row_of(store: backstay.Store, checkpoint: backstay.Checkpoint) -> CheckpointRow:
    (row,) = [row for row in rows_of(store, Kind.CHECKPOINT, checkpoint.session_id) if row.id == checkpoint.id]
    assert isinstance(row, CheckpointRow)
    return row


def journal_of(store: backstay.Store, session: str = "ticket-42") -> Any:
    """All that a store knows of a session's runs and calls."""
    lanes = store.backend.read(Ask(session, names=EVERY)).lanes
    return dict(lanes), rows_of(store, Kind.CALL, session)


# through the port: rows that no rule would write


def put(store: backstay.Store, session: str, *rows: Row) -> None:
    """Rows as a bug would leave them: each sealed well."""
    store.backend.write(Ask(session), lambda _: Batch(rows))


def take_away(store: backstay.Store, session: str, kind: Kind, key: Key) -> None:
    """A row is gone, and nothing else knows."""
    store.backend.write(Ask(session), lambda _: Batch(drops=((kind, key),)))


def spoil(store: backstay.Store, part: str, checkpoint: backstay.Checkpoint) -> None:
    """One bit of a delta or of a keyframe, or another label in the fields."""
    row = row_of(store, checkpoint)
    if part == "keyframe":
        (keyframe,) = [
            row for row in rows_of(store, Kind.KEYFRAME, checkpoint.session_id) if row.sequence == checkpoint.sequence
        ]
        put(store, checkpoint.session_id, KeyframeRow(keyframe.sequence, flipped(keyframe.data)))
        return
    change = {"delta": flipped(row.delta)} if part == "delta" else {"fields": flipped(row.fields)}
    spoilt = msgspec.structs.replace(row, refs=None, **change)
    view = store.backend.read(Ask(checkpoint.session_id, segments=(row.sequence,)))
    assert view.session is not None
    for kept in view.segments.values():
        assert isinstance(kept, SegmentRow)
        rows = open_segment(kept, uid=view.session.uid).rows(delta=True, refs=True)
        sound = [row for row in rows if isinstance(row, CheckpointRow)]
        harmed = [msgspec.structs.replace(row, **change) if row.id == checkpoint.id else row for row in sound]
        put(store, checkpoint.session_id, pack_segment(harmed, uid=view.session.uid))
        return
    put(store, checkpoint.session_id, spoilt)


def change_call(store: backstay.Store, session: str, call: CallRow, **changed: Any) -> None:
    put(store, session, msgspec.structs.replace(call, **changed))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


# behind the back of SQLite


def harm(file: Path, session: str, kind: Kind, key: Key, change: Callable[[bytes], bytes | None] = flipped) -> None:
    """Change the body of a row, or remove the row, with page checksums that fit afterwards."""
    with closing(connect(file, durability="full")) as connection:
        sid: Any = connection.execute("SELECT sid FROM rows WHERE kind = 0 AND name = ?", (session,)).fetchall()
        where, bindings = place_of(kind, sid[0][0], key)
        body: Any = connection.execute(f"SELECT body FROM {where}", bindings).fetchall()[0][0]
        harmed = change(body)
        if harmed is None:
            connection.execute(f"DELETE FROM {where}", bindings)
        else:
            table, _, condition = where.partition(" ")
            connection.execute(f"UPDATE {table} SET body = ? {condition}", (harmed, *bindings))


def execute(file: Path, sql: str, bindings: tuple[Any, ...] = ()) -> None:
    with closing(connect(file, durability="full")) as connection:
        connection.execute(sql, bindings)
