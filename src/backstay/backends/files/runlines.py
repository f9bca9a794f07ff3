"""The lines about runs and calls: how they are written and read again. Pure.

A line about a run says all that is known of the runs on its branch, twice. A call is two lines: all of it, and in short
which one it is and what became of it, so that a damaged line costs one call's words, never the knowledge that it was
made. What became of a call is written as another two lines; args that have not changed are not written again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

import msgspec

from backstay.backend import CallRow
from backstay.backends.files.lines import Brief, GaveUp, RunState, seal, twice, unsealed
from backstay.backends.files.values import read_value, write_value
from backstay.errors import CorruptionError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_to_json = msgspec.json.Encoder().encode


class _RunLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The members of a line about a run, in their order; `at` is for the eye."""

    name: str
    event: str
    at: str | None
    run: RunState
    status: str = ""
    agent: str | None = None
    reason: str | None = None
    gave_up: GaveUp | None = None
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _CallLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The members of a call's line, in their order. `started`, `ended` are for the eye; `args` left out: as before."""

    call: Brief
    name: str
    started_us: int
    args_digest: str
    key: str | None = None
    parent: str | None = None
    nth: int = 0
    kind: str = "tool"
    started: str | None = None
    ended: str | None = None
    ended_us: int | None = None
    args: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    place: bytes | None = None
    error: tuple[str, str] | None = None


_decode_call = msgspec.json.Decoder(_CallLine).decode


def input_sum(data: bytes | None) -> str:
    """Which input it is."""
    return "" if data is None else sha256(data).hexdigest()[:16]


def write_input(data: bytes) -> msgspec.Raw:
    """An input as lines hold it."""
    return msgspec.Raw(write_value(data))


def read_input(raw: msgspec.Raw) -> bytes | None:
    """The input again."""
    return read_value(bytes(raw))


def run_lines(
    n: int,
    branch: str,
    event: str,
    state: RunState,
    *,
    at_us: int,
    input_: bytes | None = None,
    status: str = "",
    agent: str | None = None,
    reason: str | None = None,
    gave_up: GaveUp | None = None,
) -> list[bytes]:
    """How the runs on a branch stand now, twice; `input_` if it is another than before."""
    raw = msgspec.UNSET if input_ is None else write_input(input_)
    line = _RunLine(branch, event, _iso(at_us), state, status, agent, reason, gave_up, raw)
    return twice(n, "run", _to_json(line)[1:-1])


def brief_of(call: CallRow, *, run: int, after: int, slot: int) -> Brief:
    """A call in short."""
    return Brief(call.id, run, after, slot, call.status, call.token)


def call_lines(n: int, brief: Brief, call: CallRow, *, same_args: bool) -> list[bytes]:
    """A call, and the call in short."""
    line = _CallLine(
        brief,
        call.name,
        call.started_us,
        call.args_digest.hex(),
        call.key,
        call.parent,
        call.nth,
        call.kind,
        _iso(call.started_us),
        None if call.ended_us is None else _iso(call.ended_us),
        call.ended_us,
        msgspec.UNSET if same_args else msgspec.Raw(write_value(call.args)),
        msgspec.UNSET if call.result is None else msgspec.Raw(write_value(call.result)),
        call.place,
        call.error,
    )
    whole = seal(b'{"n":%d,"part":[1,2],"what":"call",%b' % (n, _to_json(line)[1:-1]))
    return [whole, called_line(n + 1, brief)]


def called_line(n: int, brief: Brief) -> bytes:
    """The second line of a call."""
    return seal(b'{"n":%d,"part":[2,2],"what":"called","call":%b' % (n, _to_json(brief)))


def read_call(raw: bytes, slot: int, args_raw: bytes | None = None) -> CallRow | None:
    """The call in a whole line, its args from another if it says that they are as before; None if it is not whole."""
    line, first = _open(raw, slot), None if args_raw is None else _open(args_raw, slot)
    if line is None:
        return None
    args = line.args if line.args is not msgspec.UNSET or first is None else first.args
    if args is msgspec.UNSET:
        return None
    try:
        return CallRow(
            id=line.call.id,
            parent=line.parent,
            name=line.name,
            key=line.key,
            nth=line.nth,
            kind=line.kind,
            args=read_value(bytes(args)),
            args_digest=bytes.fromhex(line.args_digest),
            status=line.call.status,
            token=line.call.token,
            started_us=line.started_us,
            ended_us=line.ended_us,
            result=None if line.result is msgspec.UNSET else read_value(bytes(line.result)),
            place=line.place,
            error=line.error,
        )
    except CorruptionError:
        return None


def _open(raw: bytes, slot: int) -> _CallLine | None:
    text = unsealed(raw)
    try:
        found = None if text is None else _decode_call(text + b"}")
    except msgspec.MsgspecError:
        return None
    return None if found is None or found.call.slot != slot else found


def _iso(at_us: int) -> str | None:
    try:
        return (_EPOCH + timedelta(microseconds=at_us)).isoformat()
    except OverflowError:
        return None
