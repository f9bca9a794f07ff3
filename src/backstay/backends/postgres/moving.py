"""Sessions that come and go as a whole: a history read page by page, and one written in a single transaction."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from backstay import packing
from backstay.backend import GROUP_DELTAS, Kept, Moved, next_prefix
from backstay.backends.postgres import running
from backstay.backends.postgres.chains import Rows, prefix_behind
from backstay.backends.postgres.reads import PARENT, ROW, row_of, sid_of
from backstay.backends.postgres.texts import pack, pack_id, pack_or_none
from backstay.backends.postgres.wire import Wire
from backstay.backends.postgres.writes import NEW_NAME, cut, put_blobs
from backstay.chains import join
from backstay.errors import AlreadyExistsError, CorruptionError, InvalidInputError

_PAGE = (
    f"SELECT {ROW}, c.place, c.size, c.delta, c.whole, p.state_digest, c.took_run, c.took_stood "
    f"FROM {{schema}}.checkpoints c {PARENT} WHERE c.sid = %s AND c.sequence > %s ORDER BY c.sequence LIMIT %s"
)
_ROW_COLUMNS = 10
_NEW_SESSION = (
    "INSERT INTO {schema}.sessions(touched, created_us, updated_us, logical, sequence, last_step, checkpoints, "
    "branches, epoch, id, agent, status, reason, usage) VALUES (0, %s, %s, 0, %s, %s, 0, %s, 0, %s, %s, %s, %s, %s) "
    "ON CONFLICT (id) DO NOTHING RETURNING sid"
)
_IS_THERE = "SELECT 1 FROM {schema}.sessions WHERE sid = ANY(%s::bigint[])"
_NEW_CHECKPOINT = (
    "INSERT INTO {schema}.checkpoints(touched, sid, sequence, size, link, took_run, took_stood, took_calls, place, "
    "id, state_digest, digest, lost_parent_id, lost_parent_digest, fields, delta, whole) "
    "VALUES (nextval('{schema_text}.touches'), %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_FINISH = (
    "UPDATE {schema}.sessions SET (checkpoints, logical, touched) = (SELECT count(*), coalesce(sum(size), 0)::bigint, "
    "coalesce(max(touched), -%s) FROM {schema}.checkpoints WHERE sid = %s) WHERE sid = %s"
)

_SPOOL_BYTES = 32 * 1024 * 1024  # of a history on its way in, before it goes to a file
_ROWS_AT_ONCE = 64
_TIPS = 64  # lines whose prefixes are kept at hand while a history is read or written

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Kept, dict[bytes, bytes]]).decode


class _Prefixes:
    """The prefix for the next delta behind recent checkpoints; for others it is read."""

    def __init__(self, wire: Wire, sid: int) -> None:
        self._wire = wire
        self._sid = sid
        self._known: dict[int, bytes] = {}  # the oldest first

    def behind(self, sequence: int) -> bytes:
        found = self._known.get(sequence)
        return prefix_behind(self._wire, self._sid, sequence) if found is None else found

    def knows(self, sequence: int) -> bool:
        return sequence in self._known

    def note(self, sequence: int, prefix: bytes) -> None:
        self._known[sequence] = prefix
        if len(self._known) > _TIPS:
            del self._known[next(iter(self._known))]


def history(wire: Wire, session: str, after: int, limit: int) -> list[Kept]:
    """A page of a session's checkpoints with their records, oldest first."""
    with wire.reading():
        sid = sid_of(wire, session)
        prefixes = _Prefixes(wire, sid)
        return [_kept(wire, row, prefixes) for row in wire.rows(_PAGE, sid, after, limit)]


def _kept(wire: Wire, found: Any, prefixes: _Prefixes) -> Kept:
    row = row_of(found[:_ROW_COLUMNS])
    link = found[0]
    place, size, delta, whole, base, took_run, took_stood = found[_ROW_COLUMNS:]
    record, prefix = None, b""
    if delta is not None and link is not None:
        prefix = b"" if (place - 1) % GROUP_DELTAS == 0 else prefixes.behind(link)
        record = packing.open_delta(join(Rows(wire), delta), prefix=prefix, base=base, state=row.state_digest)
        prefix = next_prefix(place, prefix, record.body)
    complete = None if whole is None else packing.open_whole(join(Rows(wire), whole), state=row.state_digest)
    prefixes.note(row.sequence, b"" if complete is not None else prefix)
    return Kept(row, size, record, complete, None if took_run is None else (took_run, took_stood))


class Spool:
    """A history that has been read to its end: it can be written more than once, and nothing waits for its source."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - closed by `close`

    def fill(self, arriving: Iterable[tuple[Kept, Mapping[bytes, bytes]]]) -> None:
        """Read a history to its end."""
        for kept, blobs in arriving:
            data = _encode((kept, dict(blobs)))
            self._file.write(len(data).to_bytes(8, "big") + data)

    def __iter__(self) -> Iterator[tuple[Kept, dict[bytes, bytes]]]:
        self._file.seek(0)
        while size := self._file.read(8):
            yield _decode(self._file.read(int.from_bytes(size, "big")))

    def close(self) -> None:
        """Give back what it took."""
        self._file.close()


class _Known(NamedTuple):
    """What is remembered of a checkpoint that came, for those linked to it."""

    sequence: int
    place: int
    complete: bool
    state_digest: bytes


class Adopting:
    """One session on its way in, which may take several tries."""

    def __init__(self, moved: Moved, spool: Spool) -> None:
        self._moved = moved
        self._spool = spool
        self._counts = Counter([(journaled.run, journaled.after) for journaled in moved.calls])
        self._tried: list[int] = []

    def __call__(self, wire: Wire, again: bool) -> None:  # noqa: FBT001 - called by the pool
        # The number given to a try that was not recorded is never given again.
        if again and wire.find(_IS_THERE, self._tried) is not None:
            return
        with wire.writing():
            sid = self._begin(wire)
            self._tried.append(sid)
            arrival = _Arrival(wire, sid, running.arrive(wire, sid, self._moved), self._counts)
            for kept, blobs in self._spool:
                arrival.write(kept, blobs)
            arrival.flush()
            arrival.name(self._moved)
            wire.do(_FINISH, sid, sid, sid)

    def _begin(self, wire: Wire) -> int:
        moved, line, totals = self._moved, self._moved.line, self._moved.line.totals
        found = wire.find(
            _NEW_SESSION,
            *(line.created_us, totals.at_us, moved.sequence, totals.last_step, len(moved.names.branches)),
            *(pack(line.id), pack_or_none(totals.agent), pack(totals.status), pack_or_none(totals.reason)),
            totals.usage,
        )
        if found is None:
            raise already_here(line.id)
        return int(found[0])


class _Arrival:
    """The checkpoints of one try, written some at a time."""

    def __init__(self, wire: Wire, sid: int, runs: Mapping[int, int], counts: Mapping[tuple[int, int], int]) -> None:
        self._wire = wire
        self._sid = sid
        self._runs = runs
        self._counts = counts
        self._known: dict[str, _Known] = {}
        self._rows: list[Any] = []
        self._prefixes = _Prefixes(wire, sid)

    def write(self, kept: Kept, blobs: Mapping[bytes, bytes]) -> None:
        row = kept.row
        link, place, delta, prefix = None, 0, None, b""
        if row.link_id is not None:
            before = self._find(row.link_id)
            link, place = before.sequence, 1 if before.complete else before.place + 1
            if kept.delta is not None:
                prefix = b"" if (place - 1) % GROUP_DELTAS == 0 else self._behind(link)
                delta = packing.seal_delta(kept.delta, prefix=prefix, base=before.state_digest, state=row.state_digest)
                prefix = next_prefix(place, prefix, kept.delta.body)
        if delta is None and kept.whole is None:
            message = f"checkpoint {row.id[:12]} comes without a record"
            raise InvalidInputError(message, hint="the history is not complete")
        whole = None if kept.whole is None else packing.seal_whole(kept.whole, state=row.state_digest)
        self._prefixes.note(row.sequence, b"" if whole is not None else prefix)
        refs = {ref for record in (kept.delta, kept.whole) if record is not None for ref in record.refs}
        halves: list[bytes | None] = []
        contents = dict(blobs)
        for data in (delta, whole):
            half, parts = (None, {}) if data is None else cut(data)
            halves.append(half)
            contents |= parts
            refs |= parts.keys()
        put_blobs(self._wire, self._sid, row.sequence, refs, contents)
        lost: tuple[bytes | None, bytes | None] = (None, None)
        if row.parent_id is not None and row.parent_id != row.link_id:
            lost = pack_id(row.parent_id), row.parent_digest
        where = self._sid, row.sequence, kept.size_bytes, link, *self._taken_by(kept), place, pack_id(row.id)
        self._rows.append((*where, row.state_digest, row.digest, *lost, row.fields, *halves))
        self._known[row.id] = _Known(row.sequence, place, whole is not None, row.state_digest)
        if len(self._rows) >= _ROWS_AT_ONCE or sum([len(half or b"") for half in halves]) > _SPOOL_BYTES:
            self.flush()

    def flush(self) -> None:
        rows, self._rows = self._rows, []
        self._wire.each(_NEW_CHECKPOINT, rows)

    def name(self, moved: Moved) -> None:
        for branch in moved.names.branches:
            undo = None if branch.undo_id is None else self._find(branch.undo_id).sequence
            head = self._find(branch.head_id).sequence
            self._wire.do(NEW_NAME, self._sid, head, undo, False, pack(branch.name))
        for tag in moved.names.tags:
            self._wire.do(NEW_NAME, self._sid, self._find(tag.id).sequence, None, True, pack(tag.name))

    def _behind(self, sequence: int) -> bytes:
        if not self._prefixes.knows(sequence):
            self.flush()
        return self._prefixes.behind(sequence)

    def _taken_by(self, kept: Kept) -> tuple[int | None, ...]:
        count = 0 if kept.took is None else self._counts[kept.took]
        if not count or kept.took is None:
            return None, None, None
        return self._runs[kept.took[0]], kept.took[1], count

    def _find(self, id_: str) -> _Known:
        found = self._known.get(id_)
        if found is None:
            message = f"checkpoint {id_[:12]} is referred to before it comes, or never comes"
            raise CorruptionError(message, hint="the history is not complete")
        return found


def already_here(session: str) -> AlreadyExistsError:
    """The error for a session that cannot come, because one of its id is there."""
    message = f"there is already a session {session!r}"
    return AlreadyExistsError(message, hint="import it under another name, or delete the old one first")
