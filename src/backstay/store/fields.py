"""A checkpoint's own fields: as bytes in a row, as a Checkpoint in a hand. Each change of form is one function here.

Names are one letter in the bytes and defaults are left out: a row's size is mostly this. Unknown names are ignored on
reading, so a later version can add some.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from backstay.codec import Root, decode, encode_stored
from backstay.errors import CorruptionError, InvalidInputError
from backstay.file_model import Files
from backstay.hints import NEWEST_INTACT
from backstay.ids import checkpoint_digest
from backstay.messages import summarise
from backstay.model import Call, Checkpoint, Outcome, SessionId, SessionInfo, StateDict, StateSource, Status, Usage
from backstay.port import CallRow, CheckpointRow, SessionRow
from backstay.rules.commit import Totals
from backstay.sealing import open_value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_USAGE = Usage()
_STATUSES = {status.value: status for status in Status}
_MAX_COST = 1e300  # far below where a float overflows
# What Python says of values that are sealed and still cannot be: they came in a file from outside.
_MEANINGLESS = (ValueError, TypeError, ArithmeticError)


class Fields(
    msgspec.Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    rename={
        "at_us": "c",
        "branch": "b",
        "trigger": "t",
        "status": "s",
        "step": "n",
        "label": "l",
        "reason": "r",
        "agent": "a",
        "usage": "u",
        "total": "v",
        "metadata": "m",
        "resume_hint": "h",
        "restored_from": "f",
        "summary": "y",
        "loop": "w",
    },
):
    """Everything about a checkpoint that its digest covers beside its state and its place."""

    at_us: int
    branch: str = "main"
    trigger: str = "manual"
    status: str = "in_progress"
    step: int | None = None
    label: str | None = None
    reason: str | None = None
    agent: str | None = None
    usage: bytes = b""
    total: bytes = b""
    metadata: bytes = b""
    resume_hint: str | None = None
    restored_from: str | None = None
    summary: str = ""
    loop: bytes = b""  # where a run's counters stood, for the next run


class CapturedFields(Fields, frozen=True, gc=False, omit_defaults=True, rename={"captured": "g"}):
    """Fields of a checkpoint whose list of files was made for it, and is not just its parent's.

    A type of its own: a sixteenth field would make the bytes of every checkpoint longer.
    """

    captured: bool = False


class _Capture(msgspec.Struct, frozen=True, gc=False, rename={"captured": "g"}):
    captured: bool = False


encode_fields = msgspec.msgpack.Encoder().encode
_decode_fields = msgspec.msgpack.Decoder(Fields).decode
_decode_capture = msgspec.msgpack.Decoder(_Capture).decode


def read_fields(row: CheckpointRow) -> Fields:
    """The fields of a row, verified: its digest covers them, its parent's digest and its state's."""
    expected = checkpoint_digest(
        id_=row.id, parent=row.parent_digest, state=row.state_digest, sequence=row.sequence, fields=row.fields
    )
    if expected != row.digest:
        message = f"checkpoint {row.id[:12]} is damaged: its fields do not match its digest"
        raise CorruptionError(message, hint=NEWEST_INTACT)
    try:
        return _decode_fields(row.fields)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"checkpoint {row.id[:12]} has fields that do not decode"
        raise CorruptionError(message) from error


def is_captured(row: CheckpointRow) -> bool:
    """True if the list of files of a checkpoint was made for it. Its fields were verified before."""
    try:
        return _decode_capture(row.fields).captured
    except msgspec.DecodeError:
        return False


def encode_usage(usage: Usage) -> bytes:
    """A usage as bytes; nothing used takes no bytes."""
    if usage is _NO_USAGE or usage == _NO_USAGE:
        return b""
    extra = dict(usage.extra)
    flat = [usage.tokens_in, usage.tokens_out, usage.cost, usage.tasks_completed, extra]
    return encode_stored(flat, (Root("usage"),))


def decode_usage(data: bytes) -> Usage:
    """The usage again."""
    return Usage(*decode(data)) if data else _NO_USAGE


def total_of(parent: Fields | None, used: Usage) -> bytes:
    """The usage up to here: the parent's total and this step's own."""
    if parent is None or not parent.total:
        return encode_usage(used)
    return parent.total if used == _NO_USAGE else encode_usage(decode_usage(parent.total) + used)


class Given(msgspec.Struct, frozen=True, gc=False):
    """The fields of a checkpoint that a caller gave, checked. `status` and `loop` are the parent's where None."""

    trigger: str
    used: Usage = _NO_USAGE
    status: str | None = None
    reason: str | None = None
    step: int | None = None
    label: str | None = None
    metadata: bytes = b""
    resume_hint: str | None = None
    restored_from: str | None = None
    summary: str | None = None
    loop: bytes | None = None
    captured: bool = False


def check_given(
    *,
    step: object,
    label: str | None,
    trigger: str,
    status: object,
    usage: object,
    metadata: object,
    resume_hint: str | None,
    summary: str | None,
) -> Given:
    """The fields that a caller of `commit` gave, checked; or an InvalidInputError."""
    check_text(label, "label")
    check_text(resume_hint, "resume_hint")
    check_text(summary, "summary")
    check_text(trigger, "trigger", required=True)
    check_step(step)
    now, reason = check_status(status) or (None, None)
    return Given(
        trigger,
        check_usage(usage),
        now,
        reason,
        step,  # type: ignore[arg-type]
        label,
        encode_metadata(metadata),
        resume_hint,
        summary=summary,
    )


def make_fields(given: Given, parent: Fields | None, state: StateDict, *, branch: str, agent: str | None) -> Fields:
    """The fields of a checkpoint on this parent."""
    status, reason = given.status, given.reason
    if status is None:
        status, reason = ("in_progress", None) if parent is None else (parent.status, parent.reason)
    loop = given.loop
    if loop is None:
        loop = b"" if parent is None else parent.loop
    used, total = given.used, b"" if parent is None else parent.total
    if used is not _NO_USAGE:
        total = total_of(parent, used)
    made = Fields(
        at_us=time.time_ns() // 1000,
        branch=branch,
        trigger=given.trigger,
        status=status,
        step=given.step,
        label=given.label,
        reason=reason,
        agent=agent or (None if parent is None else parent.agent),
        usage=b"" if used is _NO_USAGE else encode_usage(used),
        total=total,
        metadata=given.metadata,
        resume_hint=given.resume_hint,
        restored_from=given.restored_from,
        summary=summarise(state) if given.summary is None else given.summary,
        loop=loop,
    )
    return CapturedFields(**msgspec.structs.asdict(made), captured=True) if given.captured else made


def check_state(state: object) -> None:
    """A state as a caller may give it: a dict with text keys."""
    if not isinstance(state, dict):
        message = f"a state is a dict, not {type(state).__name__}"
        raise InvalidInputError(message, hint="put it under a key: {'value': …}")
    for key in state:
        if type(key) is not str:
            message = f"state[{key!r}]: the keys of a state are text, not {type(key).__name__}"
            raise InvalidInputError(message, hint="nest it: dicts inside a state may have other keys")
        if key.startswith("\0"):
            message = f"state[{key!r}]: keys that begin with NUL are reserved"
            raise InvalidInputError(message, hint="give it another name")


def check_usage(usage: object) -> Usage:
    """A usage as a caller may give it: a Usage or a mapping of its fields."""
    if usage is None:
        return _NO_USAGE
    if isinstance(usage, Mapping):
        unknown = set(usage) - set(Usage.__struct_fields__)
        if unknown:
            message = f"usage has no field {min(map(str, unknown))!r}"
            raise InvalidInputError(message, hint=f"it has {', '.join(Usage.__struct_fields__)}; put others in extra")
        usage = Usage(**usage)
    if not isinstance(usage, Usage):
        message = f"usage must be a Usage or a dict of its fields, not {type(usage).__name__}"
        raise InvalidInputError(message)
    for name in ("tokens_in", "tokens_out", "tasks_completed", "cost"):
        kinds = (int, float) if name == "cost" else (int,)
        value = getattr(usage, name)
        if type(value) not in kinds:
            message = f"usage.{name} must be a number, not {type(value).__name__}"
            raise InvalidInputError(message)
        if not value >= 0 or (name == "cost" and value > _MAX_COST):
            message = f"usage.{name} must be a number of at least 0, not {value!r:.40}"
            raise InvalidInputError(message, hint="it is added to a total: what is not known is left out")
    if not isinstance(usage.extra, Mapping):
        message = f"usage.extra must be a dict, not {type(usage.extra).__name__}"
        raise InvalidInputError(message)
    for name, value in usage.extra.items():
        if isinstance(value, float) and not math.isfinite(value):
            message = f"usage.extra[{name!r}] must be a finite number, not {value!r}"
            raise InvalidInputError(message, hint="it is added to a total: what is not known is left out")
    return usage


def check_text(value: object, what: str, *, required: bool = False) -> None:
    """A text that goes into a checkpoint's fields; None is one unless it is required."""
    if value is None and not required:
        return
    if not isinstance(value, str):
        message = f"{what} must be text, not {type(value).__name__}"
        raise InvalidInputError(message)
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{what} contains a lone surrogate"
        raise InvalidInputError(message, hint="use text that can be written as UTF-8") from None


def check_step(step: object) -> None:
    """A step as a caller may give it: a whole number that every backend can keep."""
    if step is None:
        return
    if type(step) is not int or not -(2**63) <= step < 2**63:
        message = f"step must be a whole number of at most 63 bits, not {step!r:.40}"
        raise InvalidInputError(message)


def check_status(status: object) -> tuple[str, str | None] | None:
    """A status as a caller may give it: `Status.FAILED`, `Status.FAILED("why")`, or its text."""
    if status is None:
        return None
    if isinstance(status, Outcome):
        check_text(status.reason, "the reason of a status")
        return Status(status.status).value, status.reason
    try:
        return Status(status).value, None  # type: ignore[arg-type]
    except ValueError:
        message = f"{status!r} is not a status"
        raise InvalidInputError(message, hint=f"one of {', '.join(Status)}") from None


def encode_metadata(metadata: object) -> bytes:
    """Metadata as bytes: any dict that a state could hold."""
    if metadata is None:
        return b""
    if not isinstance(metadata, dict):
        message = f"metadata must be a dict, not {type(metadata).__name__}"
        raise InvalidInputError(message)
    return encode_stored(metadata, (Root("metadata"),)) if metadata else b""


def to_datetime(at_us: int) -> datetime:
    """A stored time, in UTC."""
    return _EPOCH + timedelta(microseconds=at_us)


def to_checkpoint(
    row: CheckpointRow,
    session: str,
    load: Callable[[], StateDict],
    fields: Fields | None = None,
    files: Callable[[], Files | None] | None = None,
) -> Checkpoint:
    """A row as people hold it; verified, unless its fields were made here a moment ago."""
    if fields is None:
        fields = read_fields(row)
    try:
        return _to_checkpoint(row, session, fields, StateSource(load, files))
    except _MEANINGLESS as error:  # an InvalidInputError too: what does not decode
        raise CorruptionError(f"checkpoint {row.id[:12]} has fields that mean nothing") from error


def _mapping(data: bytes | None) -> dict[str, Any]:
    found = decode(data) if data else {}
    if not isinstance(found, dict):
        message = "metadata must be a mapping"
        raise TypeError(message)
    return found


def _to_checkpoint(row: CheckpointRow, session: str, fields: Fields, source: StateSource) -> Checkpoint:
    metadata = _mapping(fields.metadata)
    used, total = fields.usage, fields.total
    return Checkpoint(
        id=row.id,  # type: ignore[arg-type] # the calls that would say so cost more than the rest of this line
        session_id=session,  # type: ignore[arg-type]
        branch=fields.branch,
        parent_id=row.parent_id,  # type: ignore[arg-type]
        sequence=row.sequence,
        step=fields.step,
        label=fields.label,
        trigger=fields.trigger,
        status=_STATUSES.get(fields.status) or Status(fields.status),
        reason=fields.reason,
        agent=fields.agent,
        created_at=_EPOCH + timedelta(microseconds=fields.at_us),
        usage=decode_usage(used) if used else _NO_USAGE,
        total_usage=decode_usage(total) if total else _NO_USAGE,
        metadata=metadata,
        resume_hint=fields.resume_hint,
        restored_from=fields.restored_from,  # type: ignore[arg-type]
        digest=row.digest.hex(),
        parent_digest=None if row.parent_digest is None else row.parent_digest.hex(),
        summary=fields.summary,
        size_bytes=row.size_bytes,
        source=source,
    )


def to_totals(fields: Fields) -> Totals:
    """The totals in a session's line after this checkpoint."""
    return Totals(fields.agent, fields.status, fields.reason, fields.step, fields.total, fields.at_us)


def to_call(row: CallRow, *, status: str | None = None, result: Any = None) -> Call:
    """A journaled call as people hold it; `result` is given where it stands in the state."""
    try:
        return _to_call(row, status, result)
    except _MEANINGLESS as error:
        raise CorruptionError(f"call {row.id[:24]!r} means nothing") from error


def _to_call(row: CallRow, status: str | None, result: Any) -> Call:
    return Call(
        id=row.id,
        name=row.name,
        key=row.key,
        kind=row.kind,
        args=None if row.args is None else decode(open_value(row.args)),
        status=status or row.status,
        result=result if row.result is None else decode(open_value(row.result)),
        error=None if row.error is None else ": ".join(row.error),
        started_at=to_datetime(row.started_us),
        ended_at=None if row.ended_us is None else to_datetime(row.ended_us),
        parent=row.parent,
        by=None if row.wait is None else row.wait.by,
        partial=None if row.partial is None else decode(open_value(row.partial)),
        edited=None if row.wait is None or row.wait.args is None else decode(open_value(row.wait.args)),
    )


def to_info(row: SessionRow, *, crashed: bool = False, waiting: bool = False) -> SessionInfo:
    """A session's line as people hold it."""
    try:
        return _to_info(row, crashed=crashed, waiting=waiting)
    except _MEANINGLESS as error:
        raise CorruptionError(f"the line of session {row.id[:64]!r} means nothing") from error


def _to_info(row: SessionRow, *, crashed: bool, waiting: bool) -> SessionInfo:
    return SessionInfo(
        id=SessionId(row.id),
        agent=row.agent,
        status=Status(row.status),
        reason=row.reason,
        branches=row.lanes,
        checkpoints=row.checkpoints,
        last_step=row.last_step,
        usage=decode_usage(row.usage),
        created_at=to_datetime(row.created_us),
        updated_at=to_datetime(row.updated_us),
        crashed=crashed,
        waiting=waiting,
        owner=row.owner,
        title=row.title,
        metadata=_mapping(row.metadata),
        cursor=row.touched,
    )
