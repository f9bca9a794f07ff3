"""What stands in a journal and in the note beside it: JSON lines, each sealed by the sum of its bytes. Pure.

    {"backstay":"journal","format":2,"born":"…","generation":1,"lines":0,"sum":"…"}
    {"n":1,"first":1,"prev":"…","rows":[{"kind":"checkpoint","key":1,"body":"…","id":"…"}, …],"sum":"…"}

One line is one batch. `n` counts the lines, `prev` is the sum of the line before, so that a missing line shows. `first`
is the number of the first line that may not have been synced when this one was written: a gap that begins there or
later may be what a power cut left of one write, any other gap is damage. `body` is a row's sealed body in base64, `to`
the name of the file from which on a line counts that renames its session.
"""

from __future__ import annotations

from binascii import b2a_base64
from hashlib import sha256

import msgspec

from backstay.port import CheckpointRow, KeyframeRow, Kind, Row
from backstay.port.lease import Claim
from backstay.port.row_codec import is_foreign, pack
from backstay.port.rows import CallKey, key_of, kind_of

FORMAT = 2
TAIL_BYTES = 19  # 16 hex digits of the sum, and what closes the line
BLANKS = b" \0"
_SUM = b',"sum":"'

KIND_NAMES = {kind: kind.name.lower() for kind in Kind}
KINDS = {name: kind for kind, name in KIND_NAMES.items()}


class Put(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A row as it stands in a line. `id`, `foreign` and `parent` repeat what a checkpoint's body says."""

    kind: str
    key: str | int | CallKey
    body: msgspec.Raw
    id: str | None = None
    parent: int | None = None
    foreign: bool = False
    refs: tuple[str, ...] = ()


class JournalLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One batch."""

    n: int
    first: int
    prev: str
    to: str | None = None
    rows: tuple[Put, ...] = ()
    drops: tuple[tuple[str, str | int | tuple[int, ...]], ...] = ()


class Header(msgspec.Struct, frozen=True, gc=False):
    """The first line of a journal: which one it is, how often it was rewritten, how many lines it began with."""

    backstay: str
    format: int
    born: str
    generation: int
    lines: int


class Note(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What lies beside a journal and is never synced: how far it was acknowledged, its summary, and renewed leases.

    `boot` is set where nothing is synced: then the note is worth something until the machine goes down, no longer.
    `claims` are by branch: where its row stands that was renewed, and how.
    """

    born: str
    generation: int
    lines: int
    end: int
    last: str
    id: str
    body: msgspec.Raw
    boot: str = ""
    marks: int = 0
    foreign: bool = False
    claims: dict[str, tuple[int, Claim]] = {}


_encode = msgspec.json.Encoder().encode
_line = msgspec.json.Decoder(JournalLine).decode
_header = msgspec.json.Decoder(Header).decode
_note = msgspec.json.Decoder(Note).decode
_bytes = msgspec.json.Decoder(bytes).decode


def to_put(row: Row, uid: bytes, refs: tuple[str, ...]) -> Put:
    """A row of the session with this uid; `refs` are those of the row that it replaces."""
    kind = KIND_NAMES[kind_of(row)]
    body = msgspec.Raw(b'"%b"' % b2a_base64(pack(row, uid), newline=False))
    if not isinstance(row, CheckpointRow | KeyframeRow):
        return Put(kind, key_of(row), body)  # type: ignore[arg-type]  # a row has no JournalKey
    refs = refs if row.refs is None else tuple([ref.hex() for ref in row.refs])
    if isinstance(row, KeyframeRow):
        return Put(kind, row.sequence, body, refs=refs)
    return Put(kind, row.sequence, body, row.id, row.parent, is_foreign(row, uid), refs)


def body_of(raw: msgspec.Raw) -> bytes:
    """The sealed body of a row, or of a session in a note."""
    return _bytes(raw)


def seal(value: JournalLine | Header | Note) -> bytes:
    """A line with its sum."""
    text = _encode(value)[:-1]
    return b'%b%b%b"}\n' % (text, _SUM, sha256(text).hexdigest()[:16].encode())


def sum_of(raw: bytes) -> str:
    """The sum at the end of a line."""
    return raw[-TAIL_BYTES:-3].decode("ascii", "replace")


def _unsealed(raw: bytes) -> bytes | None:
    at = len(raw) - TAIL_BYTES - len(_SUM)
    text = raw[: max(at, 0)]
    whole = at > 0 and raw[at:] == b'%b%b"}\n' % (_SUM, sha256(text).hexdigest()[:16].encode())
    return text + b"}" if whole else None


def open_line(raw: bytes) -> JournalLine | None:
    """The batch in these bytes, if they are whole."""
    text = _unsealed(raw)
    try:
        return None if text is None else _line(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def open_header(raw: bytes) -> Header | None:
    """The first line, if it is whole."""
    text = _unsealed(raw)
    try:
        return None if text is None else _header(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def open_note(raw: bytes) -> Note | None:
    """The note in these bytes, if it is whole; what stands behind its end is left from a longer one."""
    text = _unsealed(raw[: raw.find(b"\n") + 1])
    try:
        return None if text is None else _note(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
