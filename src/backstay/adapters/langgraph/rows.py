"""The rows of a thread: a thread is a session, a namespace of it a branch, a fork of that another branch.

| row of the session | id | its state |
|---|---|---|
| a checkpoint | the checkpoint's own | the channels, and what LangGraph keeps beside them |
| writes of its tasks | `<checkpoint>+<number>` | the same, and all writes of the checkpoint so far |
| writes that are late | `<checkpoint>!<random>` | the state before it, and these writes |

Writes are usually made while their checkpoint is what its line ends with; then they lie on top of it, so that one read
gives both. Writes that come after the line has moved on go on top of what is there and carry the name of their
checkpoint. Those that come before it wait for it, and are in its row.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple

from backstay.bookkeeping import PART, checkpoint_of
from backstay.codec import decode
from backstay.model import MAX_NAME_CHARS
from backstay.port import CheckpointRow
from backstay.store.fields import read_fields

MINE = PART  # the key of LangGraph's own part in a state and in a checkpoint's metadata
LONG_NS = 200
_ROOT = "main"
_NAMES = re.compile(r"(?P<root>main)(?:/(?P<fork>\d+))?|(?P<line>\d*)/(?P<ns>.+)", re.DOTALL)
_WRITES = re.compile(r".*\+(\d+)", re.DOTALL)
Entries = list[list[Any]]  # writes: path, task, index, channel, value
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def branch_of(ns: str, line: int = 0) -> str:
    """The branch of a namespace: `main` for the root, `/child:1` for others; forks of it are `main/1`, `1/child:1`."""
    if not ns:
        return f"{_ROOT}/{line}" if line else _ROOT
    if len(ns) > LONG_NS:
        ns = f"{ns[:LONG_NS]}…{sha256(ns.encode()).hexdigest()[: MAX_NAME_CHARS - LONG_NS - 30]}"
    return f"{line or ''}/{ns}"


def line_of(branch: str) -> tuple[str, int] | None:
    """The namespace and the number of a line (of a long namespace: as it is shortened); None if it is not one."""
    found = _NAMES.fullmatch(branch)
    if found is None:
        return None
    if found["root"]:
        return "", int(found["fork"] or 0)
    return found["ns"], int(found["line"] or 0)


class Held(NamedTuple):
    """A row, and what it says about the checkpoint whose state it holds.

    `of` is that checkpoint's id ("" if there was none yet), `born` the sequence it was put at. Where the row's writes
    belong to another, `of` is not what its id names. Metadata, parent and time are with the checkpoint's own row.
    `beside`: its line is that of an invocation that another one, of the same moment, had overtaken when it began.
    """

    id: str
    sequence: int
    of: str
    born: int
    branch: str
    number: int
    metadata: dict[str, Any]
    parent: str | None
    ts: str
    long_ns: str | None
    beside: bool = False

    @property
    def ns(self) -> str | None:
        """The namespace; None on a branch that LangGraph has not made."""
        line = line_of(self.branch)
        return None if line is None else self.long_ns or line[0]

    @property
    def is_stray(self) -> bool:
        """True if its writes belong to another checkpoint than its state."""
        return checkpoint_of(self.id) != self.of


def held(row: CheckpointRow) -> Held | None:
    """A row as one of ours; None if it is somebody else's."""
    fields = read_fields(row)
    metadata: dict[str, Any] = decode(fields.metadata) if fields.metadata else {}
    mine = metadata.pop(MINE, None)
    before = None if row.parent_id is None else checkpoint_of(row.parent_id)
    if mine is None:
        if fields.restored_from is None:
            return None
        # Somebody took the branch back with Backstay's own means: LangGraph goes on from there.
        mine = {}
    given: dict[str, Any] = {"source": fields.trigger, "step": fields.step, "parents": {}}
    metadata = {key: value for key, value in given.items() if key not in mine.get("not", ())} | metadata
    if "own" in mine:
        metadata[MINE] = mine["own"]
    return Held(
        id=row.id,
        sequence=row.sequence,
        of=mine.get("of", checkpoint_of(row.id)),
        born=mine.get("born", row.sequence),
        branch=fields.branch,
        number=mine.get("number", number_of(row.id)),
        metadata=metadata,
        parent=mine.get("parent", before) or None,
        ts=_long_ts(mine.get("ts", fields.at_us)),
        long_ns=mine.get("ns"),
        beside="beside" in mine,
    )


def number_of(row_id: str) -> int:
    """The number of a row of writes on top of its checkpoint; 0 for other rows."""
    found = _WRITES.fullmatch(row_id)
    return 0 if found is None else int(found[1])


def write_id(checkpoint: str, number: int) -> str:
    """An id for a row of writes on top of their checkpoint."""
    return f"{checkpoint}+{number}"


def stray_id(checkpoint: str) -> str:
    """An id for a row of writes that lies elsewhere."""
    return f"{checkpoint}!{secrets.token_hex(8)}"


def in_order(entries: Entries) -> Entries:
    """Writes as LangGraph replays them: by path, task and place."""
    return sorted(entries, key=lambda entry: (entry[0], entry[1], entry[2]))


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _long_ts(ts: str | int) -> str:
    return (_EPOCH + timedelta(microseconds=ts)).isoformat() if isinstance(ts, int) else ts


def short_ts(ts: str) -> str | int:
    """A time as few bytes that give the very same text again; the text where there are none."""
    try:
        micros = _micros(datetime.fromisoformat(ts))
        return micros if (_EPOCH + timedelta(microseconds=micros)).isoformat() == ts else ts
    except (ValueError, TypeError):
        return ts
