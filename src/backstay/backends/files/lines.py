"""Journal lines: what each kind says, how it is sealed, and how a damaged stretch is told from a torn one.

A line is one JSON object whose last member, `sum`, is the beginning of the sha256 over all bytes before it. `n` counts
the lines of a journal, so that a missing one is noticed; `part` is [which, of how many] in its transaction. Whatever
says how the history is shaped stands in two lines of its transaction (`about`, or a line written twice): one damaged
line costs the fields or the values it held, never the shape around it. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from backstay.backend import Row, Totals
from backstay.backends.files.values import read_ops, read_values, write_ops, write_values
from backstay.delta import LOST, Record
from backstay.errors import CorruptionError

SECTOR_BYTES = 512
TAIL_BYTES = 19  # 16 hex digits of the sum, and what closes the line
FIRST_BYTES = 512  # the first line is shorter than this, in one sector: it is rewritten where it stands

_SUM = b',"sum":"'
_SHAPE = b',"shape":"'
_OPS = b',"ops":'
_PARENT = b',"parent":'
_BLANK = b" "
_BLANKS = b" \0"
# A complete line never holds a blank sector, so that one in the last line shows that it was never all there.
_MANY_BLANKS, _SOME_BLANKS, _ESCAPED = _BLANK * 256, _BLANK * 64, b"\\u0020" * 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = {"c": "created", "t": "trigger", "l": "label", "n": "step", "y": "summary", "h": "resume_hint"}

_to_json = msgspec.json.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class About(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What every line of a checkpoint's transaction says about it; `number` rises with every commit to the store.

    `records` are the kinds of the lines before the checkpoint's own. The counts are the session's after this commit.
    """

    id: str
    branch: str
    sequence: int
    number: int
    digest: str
    records: tuple[str, ...]
    size_bytes: int
    checkpoints: int
    branches: int
    logical_bytes: int
    at_us: int
    status: str
    link: str | None = None
    undo: str | None = None
    agent: str | None = None
    reason: str | None = None
    last_step: int | None = None
    usage: bytes = b""
    # Of a boundary: its run and token, whether it ended that run, and what it took in: [run, sequence, how many calls].
    run: tuple[int, int] | None = None
    ends_run: bool = False
    took: tuple[int, int, int] | None = None
    # Of a commit that took up calls: [run, the sequence they were left at, how many].
    took_up: tuple[int, int, int] | None = None

    @property
    def totals(self) -> Totals:
        """What the session's line says after it."""
        return Totals(self.agent, self.status, self.reason, self.last_step, self.usage, self.at_us)


class RunState(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What is known of the runs on a branch; each line about them says all of it, and the last one counts.

    `left`: the lease was given back and the run has not ended. `input_sum` says which input goes with it, "" is none.
    `doubt`: calls that were pending are lost, and nobody has yet said that they are given up.
    """

    run: int
    token: int
    entered: bool = False
    left: bool = False
    unfinished: bool = False
    crashes: int = 0
    spot: str = ""
    input_sum: str = ""
    doubt: bool = False


class Brief(msgspec.Struct, frozen=True, gc=False):
    """What both lines of a call say: which it is, where it belongs, and what has become of it."""

    id: str
    run: int
    after: int
    slot: int
    status: str
    token: int


class GaveUp(msgspec.Struct, frozen=True, gc=False):
    """The calls pending at a sequence were given up."""

    after: int
    reason: str


class Snapshot(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """All names of a session, its runs and its counts, written when a journal is written anew."""

    branches: dict[str, tuple[str, str | None]]
    tags: dict[str, str]
    sequence: int
    epoch: int
    checkpoints: int
    logical_bytes: int
    at_us: int
    status: str
    agent: str | None = None
    reason: str | None = None
    last_step: int | None = None
    usage: bytes = b""
    runs: dict[str, RunState] = {}
    inputs: dict[str, msgspec.Raw] = {}
    last_run: int = 0
    last_slot: int = 0

    @property
    def totals(self) -> Totals:
        """What the session's line says."""
        return Totals(self.agent, self.status, self.reason, self.last_step, self.usage, self.at_us)


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line as it is read; `what` says which of these members it has."""

    n: int
    part: tuple[int, int]
    what: str
    about: About | None = None
    # session
    id: str = ""
    created_us: int = 0
    born: int = 0
    # delta, whole
    ops: msgspec.Raw = msgspec.Raw()
    refs: tuple[str, ...] = ()
    values: msgspec.Raw = msgspec.Raw()
    tagged: msgspec.Raw = msgspec.Raw()
    base64: msgspec.Raw = msgspec.Raw()
    # checkpoint
    parent: str | None = None
    parent_digest: str | None = None
    state: str = ""
    fields: bytes = b""
    places: dict[str, bytes] = {}
    # fork, forget, tag, untag, names, run
    name: str = ""
    names: Snapshot | None = None
    # run
    run: RunState | None = None
    input: msgspec.Raw = msgspec.Raw()
    gave_up: GaveUp | None = None
    status: str = ""
    agent: str | None = None
    reason: str | None = None
    # call, called
    call: Brief | None = None
    args: msgspec.Raw = msgspec.Raw()


class First(msgspec.Struct, frozen=True, gc=False):
    """The first line: which format, and how many lines were surely there when the journal was last tidied."""

    backstay: str
    format: int
    lines: str


_decode_line = msgspec.json.Decoder(Line).decode
_decode_first = msgspec.json.Decoder(First).decode


# writing


def seal(text: bytes) -> bytes:
    """A line from all but its end."""
    if _MANY_BLANKS in text:
        text = text.replace(_SOME_BLANKS, _ESCAPED)
    return b'%b,"sum":"%b"}\n' % (text, sha256(text).hexdigest()[:16].encode())


def first_line(lines: int, format_version: int) -> bytes:
    """The first line. Its length does not depend on the count."""
    return seal(b'{"backstay":"journal","format":%d,"lines":"%012d"' % (format_version, lines))


def session_lines(n: int, id_: str, *, created_us: int, born: int) -> list[bytes]:
    """Whose journal it is, twice."""
    held = _to_json({"id": id_, "created_us": created_us, "born": born})[1:-1]
    return twice(n, "session", held)


def name_lines(n: int, what: str, name: str, id_: str | None = None) -> list[bytes]:
    """A name given or given up, twice."""
    return twice(n, what, _to_json({"name": name} if id_ is None else {"name": name, "id": id_})[1:-1])


def snapshot_lines(n: int, names: Snapshot) -> list[bytes]:
    """All names, twice."""
    return twice(n, "names", b'"names":' + _to_json(names))


def twice(n: int, what: str, held: bytes) -> list[bytes]:
    """A transaction of one line and its copy."""
    return [seal(b'{"n":%d,"part":[%d,2],"what":"%b",%b' % (n + at, at + 1, what.encode(), held)) for at in range(2)]


def checkpoint_lines(
    n: int,
    about: About,
    records: Sequence[Record],
    row: Row,
    *,
    ours: bool = True,
    places: Mapping[str, bytes] | None = None,
) -> list[bytes]:
    """The lines of one checkpoint: its records (`ours`, or from elsewhere), then itself."""
    own = row_rest(row) + (b',"places":' + _to_json(places) if places else b"")
    return joined(n, about, [record_rest(record, ours=ours) for record in records], own)


def joined(n: int, about: About, rests: Sequence[Rest], own: bytes) -> list[bytes]:
    """The lines of one checkpoint, from what each holds beside `about`."""
    shared, count = _to_json(about), len(rests) + 1
    lines: list[bytes] = []
    for at, (what, rest) in enumerate(zip(about.records, rests, strict=True)):
        head = b'{"n":%d,"part":[%d,%d],"what":"%b","about":%b' % (n + at, at + 1, count, what.encode(), shared)
        text = head + rest[0]
        lines.append(seal(b'%b%b%08x"%b' % (text, _SHAPE, zlib.crc32(text), rest[1])))
    head = b'{"n":%d,"part":[%d,%d],"what":"checkpoint","about":' % (n + count - 1, count, count)
    lines.append(seal(head + shared + own))
    return lines


# What a record's line holds beside `about`: its shape, and its values. Between them comes a check of all before.
Rest = tuple[bytes, bytes]


def record_rest(record: Record, *, ours: bool = True) -> Rest:
    """A record as its line holds it."""
    ops, count = write_ops(record.ops, ours=ours)
    refs = _to_json([ref.hex() for ref in record.refs]) if record.refs else b"[]"
    return b'%b%b,"refs":%b' % (_OPS, ops, refs), b"," + write_values(record.body, count, ours=ours)


def row_rest(row: Row) -> bytes:
    """What a checkpoint's own line holds beside `about`: parent, state, fields, and a copy of those for the eye."""
    digest = None if row.parent_digest is None else row.parent_digest.hex()
    own = _Own(row.parent_id, digest, row.state_digest.hex(), row.fields, _shown(row.fields))
    return b"," + _to_json(own)[1:-1]


class _Own(msgspec.Struct, frozen=True, gc=False):
    """The members of a checkpoint's own line, in their order; `parent` comes first, see `row_rest_of`."""

    parent: str | None
    parent_digest: str | None
    state: str
    fields: bytes
    shown: dict[str, Any]


def _shown(fields: bytes) -> dict[str, Any]:
    """A copy of the fields for the eye; what is read again is the bytes."""
    try:
        found = _unpack(fields)
        shown = {_SHOWN[letter]: value for letter, value in found.items() if letter in _SHOWN}
        if "created" in shown:
            shown["created"] = (_EPOCH + timedelta(microseconds=shown["created"])).isoformat()
        if not all([value is None or type(value) in (str, int) for value in shown.values()]):
            return {}
        return shown
    except (msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, AttributeError):
        return {}


# reading


def open_line(raw: bytes) -> Line | None:
    """The line in these bytes (with its newline), if it is whole."""
    text = unsealed(raw)
    try:
        return None if text is None else _decode_line(text + b"}")
    except msgspec.MsgspecError:
        return None


def open_first(raw: bytes) -> First | None:
    """The first line, if it is whole."""
    text = unsealed(raw)
    try:
        return None if text is None else _decode_first(text + b"}")
    except msgspec.MsgspecError:
        return None


def unsealed(raw: bytes) -> bytes | None:
    """All but the end of a line, if its sum is right."""
    at = len(raw) - TAIL_BYTES - len(_SUM)
    text = raw[: max(at, 0)]
    whole = raw[at:] == b'%b%b"}\n' % (_SUM, sha256(text).hexdigest()[:16].encode()) if at > 0 else False
    return text if whole else None


def record_rest_of(raw: bytes) -> Rest:
    """What the whole line of a record holds beside `about`, as it was written."""
    # A quote inside a text is escaped, so neither mark can be found inside one.
    shape, _, values = _rest(raw, _OPS).partition(_SHAPE)
    return shape, values[9:]


def row_rest_of(raw: bytes) -> bytes:
    """What the whole line of a checkpoint holds beside `about`, as it was written."""
    return _rest(raw, _PARENT)


def _rest(raw: bytes, mark: bytes) -> bytes:
    text = raw[: len(raw) - TAIL_BYTES - len(_SUM)]
    return text[text.index(mark) :]


def to_record(line: Line) -> Record:
    """The record in a line."""
    body = read_values(bytes(line.values), bytes(line.tagged), bytes(line.base64))
    return Record(read_ops(bytes(line.ops)), body, _refs(line))


def salvage(raw: bytes) -> Record | None:
    """The shape of a record whose line is damaged further on, if that much can be trusted; its values are lost."""
    at = raw.find(_SHAPE)
    check = raw[at + len(_SHAPE) :][:8]
    if at < 0 or check != b"%08x" % zlib.crc32(raw[:at]):
        return None
    try:
        line = _decode_line(raw[:at] + b"}")
        return Record(read_ops(bytes(line.ops)), LOST, _refs(line))
    except (msgspec.MsgspecError, CorruptionError):
        return None


def _refs(line: Line) -> tuple[bytes, ...]:
    return tuple([bytes.fromhex(ref) for ref in line.refs]) if line.refs else ()


def to_row(line: Line, link_id: str | None) -> Row:
    """The checkpoint in its own line."""
    about = line.about
    if about is None:
        message = "a line of the journal is whole, but says of no checkpoint what it says"
        raise CorruptionError(message)
    parent_digest = None if line.parent_digest is None else bytes.fromhex(line.parent_digest)
    digests = bytes.fromhex(line.state), bytes.fromhex(about.digest)
    return Row(about.id, about.sequence, line.parent, parent_digest, link_id, *digests, line.fields)


def is_torn(region: bytes, at: int) -> bool:
    """True for what a write leaves that never ended: no newline at its end, or a sector of it is still blank."""
    if not region.endswith(b"\n"):
        return True
    start = 0
    while start < len(region):
        stop = start + SECTOR_BYTES - (at + start) % SECTOR_BYTES
        if not region[start:stop].strip(_BLANKS):
            return True
        start = stop
    return False


def without_blanks(data: bytes) -> bytes:
    """The bytes up to the room kept for the next lines."""
    return data.rstrip(_BLANKS)
