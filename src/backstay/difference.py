"""What differs between two states: per part, lists item by item, everything else by path.

Equality is that of the codec, not of `==`: `True` is not `1`, `0.0` is not `-0.0`, NaN is NaN, and the order of keys
does not count. Nothing here reads a store, knows a checkpoint or colours a terminal; a face that wants more than
`str(diff)` renders the data. Nothing recurses to the bottom of a value, which may lie deeper than the caller's stack.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

from backstay.listing import FileDiff

COLUMNS, LINES_PER_PART, LINES_PER_ITEM = 80, 200, 20
DEPTH_LIMIT = 64  # below, a value is reported whole: nobody reads a longer path
ALIGN_LIMIT = 2_000 * 2_000  # pairs of items; beyond, one common stretch is looked for and not all
AKIN_LIMIT, AKIN_CHARS = 40_000, 2_000  # pairs of items tried for likeness, and how far into each
LINE_CHARS, CHARS_SHOWN, ITEMS_SHOWN = 160, 60, 6

Kind = Literal["added", "removed", "changed"]
Path = tuple[Hashable, ...]
_Twins = tuple[Path, Any, Any]  # a place, and the values found there before and after


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs. An index in the path counts in the new list, or in the old one if removed."""

    path: Path
    kind: Kind
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True)
class ItemChange:
    """One item of a list part. `changes` says what differs inside an item that changed in place."""

    index_before: int | None
    index_after: int | None
    kind: Kind
    before: Any = None
    after: Any = None
    changes: tuple[Change, ...] = ()


class PartStat(NamedTuple):
    """How much of a part differs, in items for a list and in values for the rest."""

    part: Hashable
    added: int
    removed: int
    changed: int


@dataclass(frozen=True, slots=True)
class PartDiff:
    """One part that differs: in its `items` if it is a list wherever it exists, else in `changes`."""

    name: Hashable
    kind: Kind
    before: Any = None
    after: Any = None
    items: tuple[ItemChange, ...] = ()
    changes: tuple[Change, ...] = ()

    def stat(self) -> PartStat:
        """Count what was added, removed and changed."""
        counts = Counter(change.kind for change in self.items or self.changes)
        return PartStat(self.name, counts["added"], counts["removed"], counts["changed"])


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """What differs from state `a` to state `b`; false when nothing does."""

    a: str
    b: str
    parts: tuple[PartDiff, ...] = ()
    files: FileDiff | None = None  # where both sides have files

    @property
    def added(self) -> tuple[Hashable, ...]:
        """Names of the parts that only `b` has."""
        return tuple(part.name for part in self.parts if part.kind == "added")

    @property
    def removed(self) -> tuple[Hashable, ...]:
        """Names of the parts that only `a` has."""
        return tuple(part.name for part in self.parts if part.kind == "removed")

    @property
    def changed(self) -> tuple[Hashable, ...]:
        """Names of the parts that both have, with different values."""
        return tuple(part.name for part in self.parts if part.kind == "changed")

    def stat(self) -> tuple[PartStat, ...]:
        """Count per part that differs."""
        return tuple(part.stat() for part in self.parts)

    def __bool__(self) -> bool:
        return bool(self.parts) or bool(self.files)

    def __str__(self) -> str:
        if not self:
            return _fit(f"no difference between {self.a} and {self.b}")
        files = ["files:", *[f"  {line}" for line in str(self.files).splitlines()]] if self.files else []
        lines = chain([f"--- {self.a}", f"+++ {self.b}"], *map(_part_lines, self.parts), files)
        # The one place where width and escaping are settled, so that no line above can forget them.
        return "\n".join(_fit(line.rstrip(" ")) for line in lines)

    def __repr__(self) -> str:
        return f"<Diff {self.a!r} -> {self.b!r}: parts that differ: {len(self.parts)}>"


def difference(before: Mapping[Any, Any], after: Mapping[Any, Any], *, a: str = "a", b: str = "b") -> Diff:
    """Compare two states part by part; `a` and `b` are what the reader calls them."""
    parts = (_part(step) for step in _dict_steps((), before, after))
    return Diff(a, b, tuple(part for part in parts if part.items or part.changes))


def _part(step: Change | _Twins) -> PartDiff:
    if isinstance(step, Change):
        kind, (name,), before, after = step.kind, step.path, step.before, step.after
        # A list that came or went is compared with an empty one, so that its items are listed.
        old, new = after[:0] if _is_list(after) else before, before[:0] if _is_list(before) else after
    else:
        kind, ((name,), before, after) = "changed", step
        old, new = before, after
    if _is_list(old) and type(old) is type(new) and (old or new):
        return PartDiff(name, kind, before, after, items=tuple(_item(name, item) for item in _align(old, new)))
    changes = (step,) if isinstance(step, Change) else tuple(_changes(step))
    return PartDiff(name, kind, before, after, changes=changes)


def _item(name: Hashable, item: ItemChange) -> ItemChange:
    twins = (name, item.index_after), item.before, item.after
    return replace(item, changes=tuple(_changes(twins))) if item.kind == "changed" else item


def same(before: object, after: object) -> bool:
    """Whether both are the same value to the last type, sign and offset."""
    pairs: list[tuple[Any, Any]] = [(before, after)]
    while pairs:
        x, y = pairs.pop()
        if x is y:
            continue
        if (kind := type(x)) is not type(y):
            return False
        if kind is list or kind is tuple:
            if len(x) != len(y):
                return False
            pairs.extend(zip(x, y, strict=True))
        elif kind is dict:
            old, new = _entries(x), _entries(y)
            if old.keys() != new.keys():
                return False
            pairs.extend((entry[1], new[ident][1]) for ident, entry in old.items())
        elif x != y if kind in _PLAIN else _fingerprint(x) != _fingerprint(y):
            return False
    return True


_PLAIN = frozenset({str, bytes, int, bool})  # their == is strict enough once the types are the same
_BRACKETS: dict[type, Sequence[str]] = {
    list: "[]",
    tuple: "()",
    dict: "{}",
    set: "{}",
    frozenset: ("frozenset({", "})"),
}


def _is_list(value: object) -> bool:
    return type(value) is list or type(value) is tuple


def _leaf(value: object) -> bytes:
    """Bytes that are equal exactly when two scalars are the same value."""
    kind = type(value)
    if isinstance(value, str):
        text = value
    elif isinstance(value, bytes):
        return b"bytes:" + value
    elif isinstance(value, int) and kind is not bool:
        text = hex(value)  # repr refuses an int of more than 4300 digits
    elif isinstance(value, dt.datetime | dt.time):
        text = f"{value.isoformat()} {value.fold}"  # the offset counts, not the class of the tzinfo
    else:
        text = repr(value)  # tells -0.0 from 0.0 and Decimal('1.0') from Decimal('1'), and NaN is nan
    return f"{kind.__name__}:{text}".encode("utf-8", "surrogatepass")


def _fingerprint(value: object) -> bytes:
    """Bytes that are equal exactly when two values are the same; containers go in as digests."""
    result: list[bytes] = []
    frames: list[tuple[type, Iterator[Any], list[bytes]]] = [(object, iter((value,)), result)]
    while frames:
        kind, rest, sealed = frames[-1]
        for child in rest:
            if (child_kind := type(child)) in _BRACKETS:
                inner = chain.from_iterable(child.items()) if child_kind is dict else iter(child)
                frames.append((child_kind, inner, []))
                break
            sealed.append(_leaf(child))
        else:
            frames.pop()
            if frames:
                frames[-1][2].append(_seal(kind, sealed))
    return result[0]


def _seal(kind: type, sealed: list[bytes]) -> bytes:
    """One digest for a container from the fingerprints of what it holds (key, value, key, ... for a dict)."""
    framed = [len(piece).to_bytes(8, "big") + piece for piece in sealed]
    if kind is dict:
        framed = sorted(key + value for key, value in zip(framed[::2], framed[1::2], strict=True))
    elif kind is set or kind is frozenset:
        framed.sort()
    return f"<{kind.__name__}>".encode() + hashlib.sha256(b"".join(framed)).digest()


def _ident(value: object) -> Hashable:
    """A hashable stand-in for a value; a plain string, by far the most frequent key, stands for itself."""
    return value if type(value) is str else _fingerprint(value)


def _entries(mapping: Mapping[Any, Any]) -> dict[Hashable, tuple[Any, Any]]:
    """The entries of a mapping by strict key, in its order."""
    rows = [(_ident(key), (key, value)) for key, value in mapping.items()]
    entries = dict(rows)
    if len(entries) < len(rows):
        # Only NaN can be a key twice. Which of them is first means nothing, so their values decide.
        entries.clear()
        for key, entry in sorted(rows, key=lambda row: _fingerprint(row[1][1])):
            ident = key
            while ident in entries:
                ident = (ident,)
            entries[ident] = entry
    return entries


def _changes(twins: _Twins) -> Iterator[Change]:
    """Every value that differs between two, in the order a reader would meet them."""
    todo: list[Change | _Twins] = [twins]  # next on top; a Change only waits for its turn
    while todo:
        step = todo.pop()
        if isinstance(step, Change):
            yield step
            continue
        path, x, y = step
        if type(x) is type(y) and len(path) < DEPTH_LIMIT and (type(x) is dict or _is_list(x)):
            steps = _dict_steps(path, x, y) if type(x) is dict else _list_steps(path, x, y)
            todo.extend(reversed(list(steps)))
        elif not same(x, y):
            yield Change(path, "changed", x, y)


def _dict_steps(path: Path, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Iterator[Change | _Twins]:
    old, new = _entries(before), _entries(after)
    for ident, (key, value) in old.items():
        if ident not in new:
            yield Change((*path, key), "removed", before=value)
        elif value is not new[ident][1]:
            yield (*path, key), value, new[ident][1]
    yield from (Change((*path, key), "added", after=v) for ident, (key, v) in new.items() if ident not in old)


def _list_steps(path: Path, before: Sequence[Any], after: Sequence[Any]) -> Iterator[Change | _Twins]:
    for item in _align(before, after):
        here = (*path, item.index_before if item.index_after is None else item.index_after)
        twins = here, item.before, item.after
        yield twins if item.kind == "changed" else Change(here, item.kind, item.before, item.after)


def _align(before: Sequence[Any], after: Sequence[Any]) -> Iterator[ItemChange]:
    """The items that differ, in order."""
    start, stop, limit = 0, 0, min(len(before), len(after))
    while start < limit and same(before[start], after[start]):
        start += 1
    while stop < limit - start and same(before[-1 - stop], after[-1 - stop]):
        stop += 1
    old_end, new_end = len(before) - stop, len(after) - stop
    blocks: list[tuple[int, ...]] = [(start, old_end, start, new_end)]
    if start < old_end and start < new_end:
        # Only what lies between the common ends is fingerprinted; most of the time that is nothing.
        old, new = ([_ident(x) for x in side] for side in (before[start:old_end], after[start:new_end]))
        # Its autojunk bounds the work on items that repeat; they still match beside ones that do not.
        matcher = SequenceMatcher(None, old, new)
        if len(old) * len(new) <= ALIGN_LIMIT:
            blocks = [code[1:] for code in matcher.get_opcodes() if code[0] != "equal"]
        else:
            i, j, size = matcher.find_longest_match()
            blocks = [(0, i, 0, j), (i + size, len(old), j + size, len(new))]
        blocks = [tuple(n + start for n in block) for block in blocks]
    for n, m in chain.from_iterable(_pairs(before, after, block) for block in blocks):
        if n is None:
            yield ItemChange(None, m, "added", after=after[m])
        elif m is None:
            yield ItemChange(n, None, "removed", before=before[n])
        elif not same(before[n], after[m]):
            yield ItemChange(n, m, "changed", before[n], after[m])


def _pairs(before: Sequence[Any], after: Sequence[Any], block: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    """Decide which items of a replaced stretch are one item that changed in place; None has no partner."""
    i, i_end, j, j_end = block
    if i_end - i == j_end - j:
        for n, m in zip(range(i, i_end), range(j, j_end), strict=True):
            yield from [(n, m)] if _role(before[n]) == _role(after[m]) else [(n, None), (None, m)]
        return
    # Of different lengths, place says nothing (a summary is not the first of the messages it replaces).
    if (i_end - i) * (j_end - j) <= AKIN_LIMIT:
        for n in range(i, i_end):
            for m in (m for m in range(j, j_end) if _akin(before[n], after[m])):
                yield from ((k, None) for k in range(i, n))
                yield from ((None, k) for k in range(j, m))
                yield n, m
                i, j = n + 1, m + 1
                break
    yield from ((k, None) for k in range(i, i_end))
    yield from ((None, k) for k in range(j, j_end))


def _role(item: object) -> str | None:
    """The role of a message, None for anything that is not one."""
    role = item.get("role") if isinstance(item, dict) else None
    return role if isinstance(role, str) else None


def _akin(x: Any, y: Any) -> bool:
    """Whether two different items look like one that was edited."""
    if isinstance(x, dict) and isinstance(y, dict) and _role(x) == _role(y):
        if x.get("id") is not None and y.get("id") is not None:
            return same(x["id"], y["id"])
        alike = sum(1 for k, v in x.items() if k != "role" and v is not None and k in y and same(v, y[k]))
        return alike * 2 >= max(len(x), len(y)) - 1 > 0 or _akin(x.get("content"), y.get("content"))
    if not isinstance(x, str) or not isinstance(y, str):
        return False
    old, new = x[:AKIN_CHARS], y[:AKIN_CHARS]
    head, tail = _common_ends(old, new)
    return 2 * (head + tail) >= max(len(old), len(new)) > 0


def _common_ends(x: Sequence[Any], y: Sequence[Any]) -> tuple[int, int]:
    """How much two texts share at the start and, of what is left, at the end."""
    ends = []
    for _ in range(2):
        low, high = 0, min(len(x), len(y))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if x[low:middle] == y[low:middle] else (low, middle - 1)
        ends.append(low)
        x, y = x[low:][::-1], y[low:][::-1]
    return ends[0], ends[1]


def _part_lines(part: PartDiff) -> Iterator[str]:
    counts = zip(part.stat()[1:], _MARKS, strict=True)
    whole = part.kind != "changed" or (part.changes and len(part.changes[0].path) == 1)
    heading = part.kind if whole else ", ".join(f"{n:,} {kind}" for n, kind in counts if n)
    yield f"{_path_text((part.name,))}: {heading}"
    yield from _lines(part.items or part.changes, LINES_PER_PART, "  ")


_MARKS: dict[Kind, str] = {"added": "+", "removed": "-", "changed": "~"}


def _lines(changes: Sequence[ItemChange | Change], limit: int, indent: str) -> Iterator[str]:
    for change in changes[:limit]:
        yield from _item_lines(change) if isinstance(change, ItemChange) else _change_lines(change, indent)
    if len(changes) > limit:
        yield f"{indent}… and {len(changes) - limit:,} more"


def _item_lines(item: ItemChange) -> Iterator[str]:
    i, j = item.index_before, item.index_after
    index = f"{i} -> {j}" if item.kind == "changed" and i != j else str(i if j is None else j)
    yield f"  {_MARKS[item.kind]} [{index}] {_summary(item.before if j is None else item.after)}"
    yield from _lines(item.changes, LINES_PER_ITEM, "      ")


def _change_lines(change: Change, indent: str) -> list[str]:
    x, y = change.before, change.after
    start = f"{indent}{_MARKS[change.kind]} {_path_text(change.path)}:"
    if change.kind != "changed":
        return [f"{start} {_summary(x if change.kind == 'removed' else y)}"]
    if type(x) is type(y) and isinstance(x, set | frozenset):
        return [f"{start} {_set_text(x, y)}"]
    old, new, note = _contrast(x, y)
    line = f"{start} {old} -> {new}" + (f" ({note})" if old == new else "")
    return [line] if _fit(line) == line else [f"{start} {note}", f"{indent}    - {old}", f"{indent}    + {new}"]


def _set_text(before: set[Any] | frozenset[Any], after: set[Any] | frozenset[Any]) -> str:
    old, new = ({_ident(item): item for item in side} for side in (before, after))
    gone, come = ([x for ident, x in p.items() if ident not in q] for p, q in ((old, new), (new, old)))
    texts = [f"{_show(set(x))} {what}" for x, what in ((gone, "removed"), (come, "added")) if x]
    return ", ".join(texts) or f"{len(before):,} -> {len(after):,} items"  # so many NaN


def _contrast(before: Any, after: Any) -> tuple[str, str, str]:
    """Both values, cut so that what differs is in sight, and a note on what is out of sight."""
    if isinstance(before, bytes) and isinstance(after, bytes):
        return _show(before), _show(after), f"from byte {_common_ends(before, after)[0]:,} on"
    if not isinstance(before, str) or not isinstance(after, str):
        old, new = _show(before), _show(after)
        return old, new, "they differ beyond what is shown" if old == new else ""
    head, tail = _common_ends(before, after)
    start = max(0, head - 16) if max(len(before), len(after)) > CHARS_SHOWN // 2 else 0
    while start < head and len(repr(before[start:head])) > CHARS_SHOWN // 2:
        start += 1  # escapes are wide and would push what changed out of sight
    old, new = (_quoted(text, start, len(text) - tail + 16) for text in (before, after))
    return old, new, f"{len(before):,} -> {len(after):,} characters"


def _quoted(text: str, start: int = 0, stop: int = CHARS_SHOWN) -> str:
    stop = min(stop, start + CHARS_SHOWN)
    return "…" * (start > 0) + repr(text[start:stop]) + "…" * (stop < len(text))


def _show(value: Any, depth: int = 3) -> str:
    """A value in Python's own notation where that is short, cut where it is not."""
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if kind is bytes:
        return f"<{len(value):,} byte{'' if len(value) == 1 else 's'}>"
    if kind is int and value.bit_length() > CHARS_SHOWN * 3:
        return f"<int of {value.bit_length():,} bits>"
    if isinstance(value, dt.date | dt.time | dt.timedelta):
        return str(value) + " fold=1" * getattr(value, "fold", 0)
    if kind not in _BRACKETS or not value:
        return repr(value)
    if kind in (set, frozenset):
        items = sorted(_show(item, depth - 1) for item in value) if depth else []  # the same in every process
    elif kind is dict:
        pairs = islice(value.items(), ITEMS_SHOWN if depth else 0)
        items = [f"{_show(key, depth - 1)}: {_show(item, depth - 1)}" for key, item in pairs]
    else:
        items = [_show(item, depth - 1) for item in value[: ITEMS_SHOWN if depth else 0]]
    items = items[:ITEMS_SHOWN] + ["…"] * (len(value) > min(len(items), ITEMS_SHOWN))
    return (", ".join(items) + "," * (kind is tuple and len(value) == 1)).join(_BRACKETS[kind])


def _summary(value: Any) -> str:
    """One line on a value: for a message who speaks, the first line of what is said, and what is called."""
    if (role := _role(value)) is None:
        return _show(value)
    blocks = value.get("content")
    said, calls = [], [*_dicts(value.get("tool_calls"))]
    for block in [{"text": blocks}] if isinstance(blocks, str) else _dicts(blocks):
        text = block.get("text", block.get("content"))
        if block.get("type") == "tool_use":
            calls.append(block)
        else:
            said.append(text if isinstance(text, str) else _show(block.get("type")).strip("'").join("<>"))
    lines = "\n".join(said).strip().splitlines() or [""]
    line = lines[0][:LINE_CHARS] + " …" * (len(lines) > 1)
    return " ".join(filter(None, [f"{role[:CHARS_SHOWN]}:", line, *map(_call_text, calls[:ITEMS_SHOWN])]))


def _call_text(call: dict[Any, Any]) -> str:
    call = next(_dicts([call.get("function")]), call)
    arguments = call.get("arguments", call.get("args", call.get("input", "")))
    name, text = (v[:LINE_CHARS] if isinstance(v, str) else _show(v) for v in (call.get("name"), arguments))
    return f"-> {name}({text})"


def _dicts(value: Any) -> Iterator[dict[Any, Any]]:
    return (item for item in value if isinstance(item, dict)) if _is_list(value) else iter(())


def _path_text(path: Path) -> str:
    steps = (f".{s}" if isinstance(s, str) and s.isidentifier() else f"[{_show(s)}]" for s in path)
    text = "".join(steps).removeprefix(".")
    return text if len(text) <= CHARS_SHOWN else f"{text[: CHARS_SHOWN // 3]}…{text[-CHARS_SHOWN // 2 :]}"


def _fit(line: str) -> str:
    """Make a line harmless to a terminal and cut it to its width."""
    shown: list[str] = []
    used = kept = 0
    for char in line:
        text = char if char.isprintable() else repr(char)[1:-1]
        # Zero-width marks count as one: terminals do not agree on them, and a heap of them has no end.
        used += 2 if unicodedata.east_asian_width(text[0]) in "WF" else len(text)
        if used > COLUMNS:
            return "".join(shown[:kept]) + "…"
        shown.append(text)
        kept = len(shown) if used < COLUMNS else kept
    return "".join(shown)
