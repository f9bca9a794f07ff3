"""Going in circles: what a run has said lately, and whether to warn it or stop it. Pure.

A `LoopGuard` holds the limits, a `Watch` what was seen. The watch is recorded with every checkpoint, so that a run that
crashes and resumes in the middle of a loop does not begin to count anew; hence it keeps fingerprints, not texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from types import NoneType
from typing import Any
from uuid import UUID
from zlib import crc32

import msgspec

from backstay.errors import InvalidInputError

MAX_WINDOW = 1000

_SHORT_CHARS = 20  # texts below this are never *nearly* the same: "yes" and "no" are short, too
_LONG_CHARS = 20_000
_CALL = "\x01"  # stands before and after each tool call in a text to compare; no white space, as \x1c to \x1f are

# How alike two outputs are. Alike are those that differ in numbers: a warning, never a halt (see _fingerprint).
_OTHER, _ALIKE, _NEAR, _SAME = range(4)


class Watch(msgspec.Struct, frozen=True, array_like=True):
    """What was seen: fingerprints of the last outputs, newest last, and how many failures came in a row."""

    outputs: tuple[str, ...] = ()
    failures: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """What to tell the run, and why it must stop, if it must."""

    warning: str | None = None
    halt: str | None = None


class LoopGuard(msgspec.Struct, frozen=True, kw_only=True):
    """Warns a run that goes in circles, then halts it.

    `repeats` outputs in a row that are (nearly) the same are a warning, `halt_after` the end; so are as many rounds of
    two outputs that take turns, or, where `window` holds fewer, a window full of them. `window` is how many outputs are
    remembered. Limits that are None are none.

    ```python
    import backstay

    guard = backstay.LoopGuard(max_cost=5.0, max_iterations=50)
    with backstay.open() as store, store.run("report", loops=guard) as run:
        while not run.warning:                          # told before it is halted
            run.use(cost=0.5)
            run.step()
    ```
    """

    window: int = 10
    repeats: int = 3
    halt_after: int = 6
    max_iterations: int | None = None
    max_failures: int | None = 3
    max_cost: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits that could never be reached, or are from the start."""
        _check_count("repeats", self.repeats, least=2)
        _check_count("halt_after", self.halt_after, least=self.repeats, why=", which is `repeats`")
        # Not widened in silence: the window is what each checkpoint pays for, and whoever made it small meant it.
        _check_count("window", self.window, least=self.halt_after, why=": it must hold `halt_after` outputs to count")
        if self.window > MAX_WINDOW:
            message = f"window must be at most {MAX_WINDOW}, not {self.window}"
            raise InvalidInputError(message, hint="every checkpoint carries it")
        for name in ("max_iterations", "max_failures"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), least=1)
        cost = self.max_cost
        if cost is not None and (type(cost) not in (int, float) or not math.isfinite(cost) or cost <= 0):
            message = f"max_cost must be a number above 0, not {cost!r}"
            raise InvalidInputError(message, hint="leave it out for no limit")

    def seen(self, watch: Watch, output: str) -> Watch:
        """The watch after this output. One that says nothing counts as nothing."""
        mark = _fingerprint(output)
        if not mark:
            return watch
        return Watch((*watch.outputs, mark)[-self.window :], watch.failures)

    def failed(self, watch: Watch) -> Watch:
        """The watch after a failure."""
        return Watch(watch.outputs, watch.failures + 1)

    def succeeded(self, watch: Watch) -> Watch:
        """The watch after a success: failures are counted anew."""
        return Watch(watch.outputs, 0) if watch.failures else watch

    def verdict(self, watch: Watch, *, iteration: int, cost: float) -> Verdict:
        """What there is to say after `iteration` iterations that cost so much in all."""
        found = [*self._circles(watch), *self._failures(watch), *self._limits(iteration, cost)]
        halts = [text for halt, text in found if halt]
        warnings = [text for halt, text in found if not halt]
        return Verdict("; ".join(warnings) or None, "; ".join(halts) or None)

    def _circles(self, watch: Watch) -> Iterator[tuple[bool, str]]:
        outputs = watch.outputs[-self.window :]
        for period in (1, 2):
            rounds = _rounds(outputs, period, _ALIKE)
            if rounds < self.repeats:
                continue
            how = "the same" if _rounds(outputs, period, _SAME) == rounds else "nearly the same"
            what = f"{rounds} answers were {how}" if period == 1 else f"{2 * rounds} answers were {how} two in turn"
            # Two that take turns need twice the room. Where there is not enough a full window has to do, but never so
            # that there is no warning first.
            fits = self.window >= period * self.halt_after
            limit = self.halt_after if fits else max(self.window // period, self.repeats + 1)
            halt = _rounds(outputs, period, _NEAR) >= limit
            yield halt, f"the last {what}" if halt else f"the last {what}; try another way"
            return

    def _failures(self, watch: Watch) -> Iterator[tuple[bool, str]]:
        count, limit = watch.failures, self.max_failures
        if limit is not None and count >= limit:
            yield True, f"{count} failures in a row" if count > 1 else "a failure"
        elif count > 1 or (count == 1 and limit == count + 1):
            left = "" if limit is None else f"; the run stops at {limit}"
            yield False, f"{count} failure{'s' * (count > 1)} in a row; try another way{left}"

    def _limits(self, iteration: int, cost: float) -> Iterator[tuple[bool, str]]:
        limit = self.max_iterations
        if limit is not None:
            left = limit - iteration
            if left <= 0:
                yield True, f"the limit of {limit} iterations is reached"
            elif left <= max(1, limit // 10):
                yield False, f"{left} of {limit} iterations {'is' if left == 1 else 'are'} left; come to an end"
        if self.max_cost is not None:
            if not cost < self.max_cost:  # a cost that is no number must not lift the limit
                yield True, f"the cost of {cost:g} reaches the limit of {self.max_cost:g}"
            elif cost >= 0.9 * self.max_cost:
                yield False, f"{cost:g} of {self.max_cost:g} is spent; come to an end"


def _check_count(name: str, value: object, *, least: int, why: str = "") -> None:
    if type(value) is not int or value < least:
        message = f"{name} must be a whole number of at least {least}{why}, not {value!r}"
        raise InvalidInputError(message)


def _rounds(outputs: tuple[str, ...], period: int, least: int) -> int:
    """How often the last `period` outputs were given in a row, counting back.

    All are compared with the newest, not each with its neighbour: a draft that grows a little in every step is
    never far from the last one, and is no loop.
    """
    count = 0
    for place in range(len(outputs) - 1, -1, -1):
        if _likeness(outputs[place], outputs[-1 - count % period]) < least:
            break
        count += 1
    return count // period


# Measured over 300 paragraphs of prose: two of them share 0.27 at most; one word in ten exchanged leaves 0.7 or more in
# two of three cases, one in five in one of ten. The same sentence about other files ("{} has been checked, no problems
# found, so I go on to {}") reaches 0.7 in 1.6 % of pairs, 0.6 in 34 %. Tried before and given up: a common prefix of
# 80 % (takes every answer with a long preamble for the same), tool calls and numbers as part of the text (page 7 and
# page 8 of a long list are then a loop, and a run that does its work is halted).
_NEAR_SHARE = 0.7
_DIGEST_CHARS, _CHECK_CHARS, _BUCKETS, _SHINGLE_BYTES = 11, 4, 64, 5
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_NUMBER = re.compile(r"\d+")


def _fingerprint(output: str) -> str:
    """Under 90 characters by which outputs are compared; empty for one that says nothing.

    A digest of the text without case and white space; if it is long enough, also one of its tool calls, one of its
    numbers, and a sketch of its words: by the hash of each run of five bytes it falls into one of 64 buckets, of which
    the least hash is kept in six bits (one-permutation MinHash, which estimates how many runs two texts share).
    """
    text = "".join(_clipped(output).lower().split())
    if not text:
        return ""
    pieces = text.split(_CALL)
    prose = "".join(pieces[::2])
    if len(prose) < _SHORT_CHARS:
        return _digest(text, _DIGEST_CHARS)
    numbers = " ".join(_NUMBER.findall(prose))
    checks = _digest(" ".join(pieces[1::2]), _CHECK_CHARS) + _digest(numbers, _CHECK_CHARS)
    return _digest(text, _DIGEST_CHARS) + checks + _sketch(_NUMBER.sub("0", prose))


def _digest(text: str, chars: int) -> str:
    number = int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=9).digest())
    return "".join([_LETTERS[number >> 6 * place & 63] for place in range(chars)])


def _sketch(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    least = [1 << 32] * _BUCKETS
    for place in range(len(data) - _SHINGLE_BYTES + 1):
        # CRC alone is linear, and its low bits follow those of the text.
        mixed = crc32(data[place : place + _SHINGLE_BYTES]) * 0x9E3779B1 & 0xFFFFFFFF
        bucket = mixed >> 26
        least[bucket] = min(least[bucket], mixed)
    return "".join([" " if each >> 32 else _LETTERS[each & 63] for each in least])


def _likeness(a: str, b: str) -> int:
    if a[:_DIGEST_CHARS] == b[:_DIGEST_CHARS]:
        return _SAME
    calls = slice(_DIGEST_CHARS, _DIGEST_CHARS + _CHECK_CHARS)
    numbers = slice(calls.stop, calls.stop + _CHECK_CHARS)
    if len(a) != len(b) or len(a) <= numbers.stop or a[calls] != b[calls]:
        return _OTHER
    pairs = [pair for pair in zip(a[numbers.stop :], b[numbers.stop :], strict=True) if pair != (" ", " ")]
    if sum([left == right for left, right in pairs]) < _NEAR_SHARE * len(pairs):
        return _OTHER
    return _NEAR if a[numbers] == b[numbers] else _ALIKE


def _clipped(text: str) -> str:
    """The text, or the two ends of a very long one: time and room do not grow with what a tool throws at us."""
    if len(text) <= _LONG_CHARS:
        return text
    return f"{text[: _LONG_CHARS // 2]}…{len(text)}…{text[-_LONG_CHARS // 2 :]}"


_CHARS_AT_MOST, _NODES_AT_MOST, _DEPTH_AT_MOST, _SORTED_AT_MOST = 100_000, 5_000, 30, 200
_PLAIN = (bool, int, float, NoneType, date, time, timedelta, Decimal, UUID)
_HIDDEN = frozenset({"thinking", "redacted_thinking", "reasoning"})
_TEXTS = frozenset({"text", "input_text", "output_text", "refusal"})
_ARGUMENTS = ("arguments", "args", "input", "action", "actions", "operation")


def text_of(value: object) -> str:
    """The text by which an outcome is compared.

    A text is itself. A message (or a provider's whole answer) is what it says and which tools it asks for, without
    what differs each time: ids, times, usage, hidden reasoning. Any other plain value is written out, keys in order.
    Long ones are clipped early. Nothing, and objects that are not plain, have no text.
    """
    if isinstance(value, str):
        return value
    if value is None or not isinstance(value, (*_PLAIN, bytes, bytearray, Mapping, list, tuple, set, frozenset)):
        return ""
    return _joined(value, _DEPTH_AT_MOST).strip()


def _joined(value: object, depth: int) -> str:
    pieces: list[str] = []
    chars = 0
    for piece in islice(_write(value, depth), _NODES_AT_MOST):
        pieces.append(piece)
        chars += len(piece)
        if chars > _CHARS_AT_MOST:
            break
    return "".join(pieces)


def _write(value: object, depth: int) -> Iterator[str]:
    if depth <= 0:
        yield "…"
    elif isinstance(value, str):
        yield _clipped(value).replace(_CALL, " ") + " "
    elif isinstance(value, Mapping):
        yield from _write_mapping(value, depth - 1)
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}: " if len(value) > _NODES_AT_MOST else "["
        for each in value:
            yield from _write(each, depth - 1)
            yield ", "
        yield "]"
    elif isinstance(value, set | frozenset):
        # They have no order that lasts, so they are put in one; of a huge one only the size is told.
        few = value if len(value) <= _SORTED_AT_MOST else ()
        yield f"{{{len(value)}: {', '.join(sorted([_joined(each, min(depth - 1, 2)) for each in few]))}}}"
    else:
        yield _scalar(value) + " "


def _scalar(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes {blake2b(value[:_LONG_CHARS], digest_size=8).hexdigest()}"
    if isinstance(value, int) and value.bit_length() > _LONG_CHARS // 2:  # Python refuses to write out a huge one
        return f"{value.bit_length()} bits {value & 0xFFFFFFFFFFFFFFFF:x}"
    return str(value) if isinstance(value, _PLAIN) else f"<{type(value).__qualname__}>"  # a repr may hold an address


def _write_mapping(value: Mapping[Any, Any], depth: int) -> Iterator[str]:
    kind, whole = value.get("type"), value.get("object")
    if isinstance(whole, str) and whole.startswith("chat.completion"):
        choices = value.get("choices")
        for each in choices if isinstance(choices, list) else ():
            yield from _write(each.get("message") if isinstance(each, Mapping) else each, depth)
    elif whole == "response":
        yield from _write(value.get("output"), depth)
    elif isinstance(value.get("tool_calls"), list) or (isinstance(value.get("role"), str) and "content" in value):
        calls = value.get("tool_calls")
        for each in [*(calls if isinstance(calls, list) else ()), value.get("function_call")]:
            yield from _write_call(each, depth)
        yield from [] if value.get("content") is None else _write(value["content"], depth)
        yield from [] if value.get("refusal") is None else _write(value["refusal"], depth)
    elif isinstance(kind, str) and kind in _HIDDEN:
        return
    elif isinstance(kind, str) and kind.endswith(("_call", "tool_use")):
        yield from _write_call(value, depth)
    elif isinstance(kind, str) and kind.endswith(("_call_output", "tool_result")):
        yield from _write(value.get("output", value.get("content")), depth)
    elif isinstance(kind, str) and kind in _TEXTS:
        yield from _write(value.get("text", value.get("refusal")), depth)
    else:
        yield "{"
        keys = [(_joined(key, 2), key) for key in islice(value, _NODES_AT_MOST)]
        for name, key in sorted(keys, key=itemgetter(0)) if len(keys) <= _SORTED_AT_MOST else keys:
            yield f"{name}: "
            yield from _write(value[key], depth)
        yield "}"


def _write_call(call: object, depth: int) -> Iterator[str]:
    """A tool call by its name and arguments, marked as one; never by its id."""
    if not isinstance(call, Mapping):
        return
    inner = next((call[key] for key in ("function", "custom") if isinstance(call.get(key), Mapping)), call)
    arguments = [_joined(inner[key], depth) for key in _ARGUMENTS if key in inner]
    text = f"{_joined(inner.get('name', inner.get('type')), 2)}({''.join(arguments)})"
    yield _CALL + text.replace(_CALL, " ") + _CALL
