"""How calls are compared, measured and spoken of: the words of their errors, in one place."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Literal

from backstay.codec import Root, decode, encode_canonical
from backstay.errors import CallFailedError, ChildEndedError, InDoubtError, InvalidInputError, MismatchError
from backstay.hints import Hint
from backstay.loops import LoopGuard
from backstay.model import Call
from backstay.port import CallRow
from backstay.run.state_parts import differing_keys
from backstay.sealing import MAX_ROW_BYTES, open_value
from backstay.strategy import Strategy

_CHANGED = Hint(
    "the code, or the state it starts from, has changed since: change it back, or session.resolve / session.abandon()",
    "the code, or the state it starts from, has changed since: change it back, or decide with `backstay recover`",
)

_STATE_CHANGED = Hint(
    "times, random numbers and ids in the state must come from run.now(), run.random() and run.uuid(), which a replay "
    "is given again; args= compares less than the state; on_mismatch='again' asks a model again",
    "the code must put the same into the state when it runs again; or decide with `backstay recover`",
)

_NO_WORKSPACE = Hint("store.run(id, workspace=folder) says which", "the program must name its workspace")

OnDoubt = Literal["ask", "retry", "skip", "unknown", "rollback"] | Callable[[Call], Any]
OnFailed = Literal["raise", "retry"]
OnMismatch = Literal["raise", "again"]

VALUE = "value"  # the kind of a call that only records a value: no tool, no model, never in doubt

DIGEST_BYTES = 16
_MAX_BYTES = MAX_ROW_BYTES - 64 * 1024  # a call is one row, its name and error included
_TEXT_CHARS = 4000
_KEYS_NAMED = 8
_MIN_LEASE_S, _MAX_LEASE_S = 0.05, 7 * 86_400


def check_options(strategy: object, lease_s: object, loops: object) -> None:
    """InvalidInputError for what no run can have."""
    if not isinstance(strategy, Strategy):
        message = f"strategy must be one like Always() or EveryN(5), not {strategy!r:.80}"
        raise InvalidInputError(message, hint="strategies can be joined with |")
    if type(lease_s) not in (int, float) or not _MIN_LEASE_S <= lease_s <= _MAX_LEASE_S:  # type: ignore[operator]
        message = f"lease_s must be a number of seconds from {_MIN_LEASE_S} to {_MAX_LEASE_S:,}, not {lease_s!r}"
        raise InvalidInputError(message)
    if loops is not None and not isinstance(loops, LoopGuard):
        raise InvalidInputError(f"loops must be a LoopGuard, not {type(loops).__name__}")


def check_effects(effects: object, kind: str, files: object) -> None:
    """InvalidInputError for effects that no call can have."""
    if effects is None:
        return
    if effects != "files" or kind != "tool":
        raise InvalidInputError(f"effects must be 'files', and of a tool, not {effects!r} of kind {kind!r}")
    if files is None:
        message = "effects='files' needs the workspace that the files are in"
        raise InvalidInputError(message, hint=_NO_WORKSPACE)


def check_choices(on_doubt: object, on_failed: object) -> None:
    """InvalidInputError for what cannot be done with a call in doubt, or one that failed."""
    if on_doubt not in ("ask", "retry", "skip", "unknown", "rollback") and not callable(on_doubt):
        message = f"on_doubt must be 'ask', 'retry', 'skip', 'unknown', 'rollback' or a function, not {on_doubt!r}"
        raise InvalidInputError(message)
    if on_failed not in ("raise", "retry"):
        raise InvalidInputError(f"on_failed must be 'raise' or 'retry', not {on_failed!r}")


def check_mismatch(on_mismatch: object, kind: str) -> None:
    """InvalidInputError for what cannot be done with a call that was recorded otherwise."""
    if on_mismatch not in ("raise", "again"):
        raise InvalidInputError(f"on_mismatch must be 'raise' or 'again', not {on_mismatch!r}")
    if on_mismatch == "again" and kind != "llm":
        message = "on_mismatch='again' is for kind='llm': a tool that was made is not made again unasked"
        raise InvalidInputError(message, hint="session.resolve(call_id, 'retry') decides about one call")


def digest_of(args: Any) -> bytes:
    """By which the arguments of a call are compared: the order of a dict's keys does not count."""
    return sha256(b"args\0" + encode_canonical(args, (Root("args"),))).digest()[:DIGEST_BYTES]


def refuse_long(data: bytes, what: str) -> None:
    """InvalidInputError for what does not fit a row."""
    if len(data) > _MAX_BYTES:
        message = f"{what} has {len(data):,} bytes, more than the limit of {_MAX_BYTES:,}"
        raise InvalidInputError(message, hint="keep large things outside and store where they are")


def now_us() -> int:
    """The calendar's time, for people."""
    return time.time_ns() // 1000


def text_of_error(error: BaseException) -> str:
    """The text of an exception, in a form that can be stored."""
    text = str(error)[:_TEXT_CHARS]
    return text.encode("utf-8", "replace").decode()


def shown(call: CallRow) -> str:
    """A call as an error names it."""
    key = "" if call.key is None else f" key {call.key!r}"
    return f"call {call.name!r}{key} ({call.id})"


def call_failed(call: CallRow) -> CallFailedError:
    """The error for a call that failed, as it is recorded."""
    kind, text = call.error or ("", "")
    message = f"call {call.name!r} failed: {kind}: {text}"
    hint = "handle it in the loop; on_failed='retry' makes it again at a resume"
    return CallFailedError(message, hint=hint, type=kind, text=text)


def not_storable(call: CallRow, why: str) -> InvalidInputError:
    """The error for a call whose outcome cannot be kept."""
    if call.kind == "tool":
        message = f"call {call.name!r} was done, and is not made again, but its result cannot be stored: {why}"
        hint = Hint(
            f"return plain values; session.resolve({call.id!r}, result=…) records what came out",
            f"return plain values; `backstay recover SESSION --call {call.id} --result JSON` records what came out",
        )
        return InvalidInputError(message, hint=hint)
    message = f"the answer of {call.name!r} cannot be stored: {why}"
    return InvalidInputError(message, hint="return plain values")


def changed(call: CallRow, kind: str, digest: bytes, args: bytes | None, parts: bytes) -> MismatchError:
    """The error for a call that is asked for in another way than it was recorded."""

    def spoken(kind: str, digest: bytes, args: bytes | None) -> str:
        what = "the state" if args is None else f"args {repr(decode(open_value(args)))[:200]}"
        return f"a {kind} call with {what} ({digest.hex()[:8]})"

    was, now = spoken(call.kind, call.args_digest, call.args), spoken(kind, digest, args)
    message = f"{shown(call)} was recorded as {was}, and is now asked for as {now}"
    hint = _CHANGED
    keys = differing_keys(call.parts, parts) if call.args is None and args is None else []
    if keys:
        message += f"; the state differs in {', '.join([repr(key) for key in keys[:_KEYS_NAMED]])}"
        message += "" if len(keys) <= _KEYS_NAMED else f" and {len(keys) - _KEYS_NAMED} more"
        hint = _STATE_CHANGED
    return MismatchError(message, hint=hint)


def doubt(call: CallRow, session: str) -> InDoubtError:
    """The error for a call in doubt."""
    message = f"it is not known whether {shown(call)} happened: it was in flight when its run ended"
    hint = Hint(
        f"find out, then session.resolve({call.id!r}, 'retry' or 'skip'), or with result=… or failed=…, "
        "or `backstay recover` at the shell; on_doubt= decides beforehand",
        f"find out, then `backstay recover SESSION --call {call.id}` with --retry, --skip, --result or --mark-failed",
    )
    return InDoubtError(message, hint=hint, call_id=call.id, session_id=session)


def approved(fn: Callable[..., Any], args: Any, edited: Any) -> Callable[[], Any]:
    """A function as it is called once it was approved: one that has a parameter is given the args."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin says nothing about itself
        parameters = {}.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any([each.kind in positional and each.default is each.empty for each in parameters]):
        return lambda: fn(args if edited is None else edited)
    if edited is not None:
        message = "the call was approved with other args than it asked for, and its function takes none"
        raise InvalidInputError(message, hint="give a function of the args: run.call(…, lambda args: …, approve=True)")
    return fn


def child_ended(call: CallRow) -> ChildEndedError:
    """The error for a child that did not come to its end, as it is recorded."""
    kind, text = call.error or ("", "")
    message = f"child {call.name!r} ended: {kind}: {text}"
    hint = "handle it in the loop; the session of the child says where it was"
    return ChildEndedError(message, hint=hint, type=kind, text=text)
