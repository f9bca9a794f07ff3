"""From what is known of the last state to the next one: the ops that lead there, and what is then known.

The walk goes down only where the shadow says that something differs. A list that only grew costs its new items. One
that was trimmed, edited or partly replaced is aligned by its items' digests, so each change costs what changed. A
text that changed at its place is a patch by common head and tail.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from operator import is_
from typing import Any, TypeVar

import msgspec

from backstay.codec import (
    HELD_MARK,
    LARGE,
    Ext,
    Path,
    Withheld,
    all_text,
    decode,
    encode_list,
    encode_settled,
    encode_stored,
    encode_tagged,
    held_in,
    settle,
    show_path,
    tag_scalar,
    tagged,
)
from backstay.delta.alignment import Gap, common_head, common_tail, gaps
from backstay.delta.record import (
    BYTES,
    DEL,
    ENCODED,
    LARGE_BYTES,
    LIST,
    MANY,
    MAX_PIECE_BYTES,
    MOVES_A_RECORD,
    PATCH,
    PIECE_BYTES,
    SET,
    SPLICE,
    SURROGATES,
    TEXT,
    Record,
)
from backstay.delta.shadow import Number, Vector, all_themselves, is_text_dict, same, shadow_of
from backstay.digest import DictTree, Leaf, ListTree, Tree, leaf_of, tree_of
from backstay.errors import InvalidInputError
from backstay.model import StateDict

_MISSING = object()
_MIN_PATCH_CHARS = 64

Text = TypeVar("Text", str, bytes)


class DeltaWriter:
    """Collects ops, values and the pieces of large values."""

    def __init__(self) -> None:
        self.ops: list[list[Any]] = []
        self.values: list[bytes] = []
        self._refs: list[bytes] = []
        self._pieces: dict[bytes, bytes] = {}
        self._moves = 0

    def op(self, *op: object) -> None:
        """Add an op; its values follow with `value`."""
        self.ops.append(list(op))

    def value(self, value: object, path: Path, data: bytes | None = None) -> None:
        """Add one value in its stored form (`data`, if the caller has it), large strings as references."""
        if data is None:
            data = encode_stored(value, path)
        if HELD_MARK in data:
            self._refs += held_in(value)
        if len(data) >= LARGE_BYTES:
            data = encode_tagged(tagged(value, path, scalar=self._scalar))
        self.values.append(data)

    def part(self, value: object, path: Path) -> None:
        """Add a value that does not change from step to step: if it is large, kept once per store as a whole."""
        self.value(value, path)
        if len(self.values[-1]) >= LARGE_BYTES:
            self.values[-1] = encode_tagged(self._large(ENCODED, self.values[-1]))

    def few(self, gaps: list[Gap], items: int) -> list[Gap]:
        """The gaps of a list, or one over all of them where so many splices would move its items too often."""
        cost = len(gaps) * items if len(gaps) > 1 else 0
        if self._moves + cost > MOVES_A_RECORD:
            return [Gap(gaps[0].old_from, gaps[-1].old_to, gaps[0].new_from, gaps[-1].new_to)]
        self._moves += cost
        return gaps

    def mark(self) -> tuple[int, int, int]:
        """A place to come back to with `rewind`."""
        return len(self.ops), len(self.values), len(self._refs)

    def rewind(self, mark: tuple[int, int, int]) -> None:
        """Forget all that was added since."""
        del self.ops[mark[0] :], self.values[mark[1] :], self._refs[mark[2] :]

    def weight_since(self, mark: tuple[int, int, int]) -> int:
        """Roughly how many bytes were added since, references and their pieces included."""
        ops = sum([4 * len(op) + sum([len(str(step)) for step in op[1]]) for op in self.ops[mark[0] :]])
        pieces = sum([len(self._pieces.get(ref, ref)) for ref in self._refs[mark[2] :]])
        return ops + pieces + sum(map(len, self.values[mark[1] :]))

    def finish(self) -> tuple[Record, dict[bytes, bytes]]:
        """The record, and the pieces of its values by their digests; the blobs that it holds are not among these."""
        if not self._refs:
            return Record(encode_ops(self.ops), b"".join(self.values)), {}
        refs = tuple(dict.fromkeys(self._refs))
        record = Record(encode_ops(self.ops), b"".join(self.values), refs)
        return record, {ref: self._pieces[ref] for ref in refs if ref in self._pieces}

    def _scalar(self, value: object) -> Any:
        if type(value) is str and len(value) * 4 >= LARGE_BYTES:
            try:
                kind, data = TEXT, value.encode()
            except UnicodeEncodeError:
                kind, data = SURROGATES, value.encode("utf-8", "surrogatepass")
            if len(data) >= LARGE_BYTES:
                return self._large(kind, data)
        if type(value) is bytes and len(value) >= LARGE_BYTES:
            return self._large(BYTES, value)
        return tag_scalar(value)

    def _large(self, kind: int, data: bytes) -> Ext:
        # Borders lie at fixed places, so that a text which only grows keeps the pieces it had.
        digests, at, length = b"", 0, PIECE_BYTES
        while at < len(data):
            piece = data[at : at + length]
            digest = sha256(piece).digest()
            self._refs.append(digest)
            self._pieces[digest] = piece
            digests += digest
            at, length = at + length, min(2 * length, MAX_PIECE_BYTES)
        return Ext(LARGE, bytes([kind]) + digests)


def encode_ops(ops: list[list[Any]]) -> bytes:
    """Ops as the first half of a record."""
    try:
        return encode_tagged(ops)
    except UnicodeEncodeError:  # a key with a lone surrogate, on the way or at its end
        return encode_stored([[list(step) if type(step) is tuple else step for step in op] for op in ops])


class Known(msgspec.Struct, frozen=True, eq=False):
    """What is kept of a state between two commits: its shadow and its digests. Never changed once made.

    `given` is the state itself, if who gave it promised never to change anything in it.
    """

    shadow: dict[str, Any]
    tree: DictTree
    given: StateDict | None = None

    @property
    def digest(self) -> bytes:
        """The state's digest."""
        return self.tree.digest

    @property
    def size_bytes(self) -> int:
        """The length of the state's canonical form, headers aside: what a plain copy would weigh."""
        return self.tree.size


def know(state: StateDict) -> Known:
    """What is to be known of a state that was just read, or is the first of its history."""
    settled = {key: settle(value, (key,)) for key, value in state.items()}
    tree = tree_of(settled, ())
    assert isinstance(tree, DictTree)  # noqa: S101 - the store admits only dicts with text keys as states
    return Known(shadow_of(settled), tree)


def advance(known: Known, state: StateDict, *, frozen: bool = False) -> tuple[Record, dict[bytes, bytes], Known]:
    """The delta from a known state to this one, the pieces it needs, and what is known then.

    With `frozen` nothing in the state will ever be changed; then what is the same object next time is not compared.
    """
    writer = DeltaWriter()
    shadow, tree, skip = known.shadow, known.tree, frozenset[str]()
    if frozen and known.given is not None:
        shadow, tree, skip = _pass_over(writer, known, known.given, state)
    shadow, next_tree = _dict(writer, shadow, tree, state, (), skip)
    assert isinstance(next_tree, DictTree)  # noqa: S101 - a dict's tree is a DictTree
    return *writer.finish(), Known(shadow, next_tree, state if frozen else None)


def _pass_over(
    writer: DeltaWriter, known: Known, given: StateDict, state: StateDict
) -> tuple[dict[str, Any], DictTree, frozenset[str]]:
    """What is known once the lists that only grew are dealt with, and the keys that need no further look."""
    same_parts, grown = _identical(given, state)
    shadow, tree = known.shadow, known.tree
    for key, count in grown.items():
        items = state[key][count:]
        child = tree.children[key]
        assert isinstance(child, ListTree)  # noqa: S101 - a list's tree is a ListTree
        after = _splice(writer, child, (key,), Gap(count, count, count, count + len(items)), items)
        assert after is not None  # noqa: S101 - it has a tree
        shadow = {**shadow, key: shadow[key] + [shadow_of(item) for item in items]}
        tree = tree.replace({key: after}, [])
    return shadow, tree, frozenset([*same_parts, *grown])


def _identical(before: StateDict, after: StateDict) -> tuple[list[str], dict[str, int]]:
    """The parts that are the same objects, and the lists that begin with the same objects and how many those are."""
    parts: list[str] = []
    grown: dict[str, int] = {}
    for key, value in after.items():
        old = before.get(key, _MISSING)
        if old is value:
            parts.append(key)
        elif (
            type(old) is list
            and type(value) is list
            and 0 < len(old) < len(value)
            and type(old[0]) is dict
            and all(map(is_, old, value))
        ):
            grown[key] = len(old)
    return parts, grown


def whole(
    state: StateDict, touched: Collection[str] = (), tree: DictTree | None = None
) -> tuple[Record, dict[bytes, bytes]]:
    """A record that needs no other. Parts not touched since the last whole copy are kept once per store if large.

    The state's tree, if there is one, tells how long the items of its lists are.
    """
    writer = DeltaWriter()
    run: list[str] = []

    def flush() -> None:
        if run:
            writer.op(MANY, [], len(run))
            for key in run:
                writer.value(key, ())
                (writer.value if key in touched else writer.part)(state[key], (key,))
            run.clear()

    for key, value in state.items():
        if key in touched and type(value) is list:
            flush()
            writer.op(LIST, [], key, len(value))
            known = None if tree is None else tree.children.get(key)
            if type(known) is ListTree and known.largest < LARGE_BYTES:
                data = encode_list(value)
                if data is not None:
                    writer.values.append(data)
                    continue
            for at, item in enumerate(value):
                data = encode_stored(item, (key, at))
                if len(data) < LARGE_BYTES:
                    writer.values.append(data)
                else:
                    writer.value(item, (key, at), data)
        else:
            run.append(key)
    flush()
    return writer.finish()


def extend(known: Known, key: str, items: list[Any]) -> tuple[Record, dict[bytes, bytes], Known]:
    """As `advance`, to a state that differs in some more items of the list at a key: nothing else is compared."""
    writer = DeltaWriter()
    before = known.shadow.get(key, _MISSING)
    child = known.tree.children.get(key)
    added = list(items)
    if before is _MISSING:
        shadow, after = _hashed(writer, _MISSING, None, added, (), key)
    elif not isinstance(child, ListTree) or not isinstance(before, list | Vector):
        message = f"{show_path((key,))} is no list: nothing can be appended to it"
        raise InvalidInputError(message, hint="name another part, or commit the whole state")
    else:
        count = len(before)
        grown = _splice(writer, child, (key,), Gap(count, count, count, count + len(added)), added)
        assert grown is not None  # noqa: S101 - it has a tree
        after = grown
        if isinstance(before, Vector):
            shadow = shadow_of([*decode(before.encoded), *added])
        else:
            shadow = before + [shadow_of(item) for item in added] if before else shadow_of(added)
    return *writer.finish(), Known({**known.shadow, key: shadow}, known.tree.replace({key: after}, []))


def unshared(state: StateDict) -> Record:
    """A record that needs no other, nor any pieces: for memory, not for a store."""
    values: list[bytes] = []
    for key, value in state.items():
        values += (encode_stored(key), encode_stored(value, (key,)))
    return Record(encode_ops([[MANY, [], len(state)]]), b"".join(values))


def _dict(
    writer: DeltaWriter,
    old: dict[str, Any],
    tree: DictTree | None,
    new: dict[str, Any],
    path: Path,
    skip: Collection[str] = (),
) -> tuple[dict[str, Any], DictTree | None]:
    """Ops that turn one dict into the other, but for the keys in `skip`. Without a tree no digests are kept."""
    shadow: dict[str, Any] | None = None
    changed: dict[str, Tree] = {}
    fresh = 0
    find = old.get
    for key, value in new.items():
        if skip and key in skip:
            continue
        before = find(key, _MISSING)
        # The same number as before, told by what it is: of many keys most are that, and a call for each would add up.
        if type(before) is Number and before.value is value:
            continue
        if before is not _MISSING:
            try:  # as `same`, without a call for each part of a state
                if before == value:
                    continue
            except Exception:  # noqa: BLE001, S110 - a foreign __eq__ may do anything; then a closer look decides
                pass
        if shadow is None:
            shadow = old.copy()
        fresh += before is _MISSING
        if tree is None:
            shadow[key], _ = _value(writer, before, None, value, path, key)
        else:
            child = tree.children.get(key)
            shadow[key], changed[key] = _hashed(writer, before, child, value, path, key)
    removed = [] if len(new) == len(old) + fresh else [key for key in old if key not in new]
    if shadow is None and not removed:
        return old, tree
    shadow = old.copy() if shadow is None else shadow
    for key in removed:
        writer.op(DEL, path, key)
        del shadow[key]
    return shadow, tree.replace(changed, removed) if tree is not None else None


def _hashed(
    writer: DeltaWriter, before: object, tree: Tree | None, value: object, path: Path, key: str
) -> tuple[Any, Tree]:
    """As `_value`, with the value's tree: kept along where the change went below it, made anew where it was set."""
    shadow, after = _value(writer, before, tree, value, path, key)
    if after is None:
        here = (*path, key)
        after = tree_of(settle(value, here), here)
    return shadow, after


def _value(
    writer: DeltaWriter, before: object, tree: Tree | None, value: object, path: Path, key: Any
) -> tuple[Any, Tree | None]:
    """Make container[key] the value: by ops below it if both are dicts or lists, by a patch if both are texts."""
    here = (*path, key)
    if type(before) is dict and is_text_dict(value):
        return _dict(writer, before, tree if isinstance(tree, DictTree) else None, value, here)
    if type(value) is list and (type(before) is list or type(before) is Vector):
        return _list(writer, before, tree if isinstance(tree, ListTree) else None, value, here)
    value = settle(value, here)
    if before is not _MISSING and same(before, value):
        return before, tree
    if not _patch(writer, before, value, path, key):
        writer.op(SET, path, key)
        (writer.part if before is _MISSING else writer.value)(value, here)
    return shadow_of(value), None


def _patch(writer: DeltaWriter, before: object, value: object, path: Path, key: Any) -> bool:
    if isinstance(before, str) and isinstance(value, str):
        return _patch_text(writer, before, value, path, key)
    if isinstance(before, bytes) and isinstance(value, bytes):
        return _patch_text(writer, before, value, path, key)
    return False


def _patch_text(writer: DeltaWriter, before: Text, value: Text, path: Path, key: Any) -> bool:
    if min(len(before), len(value)) < _MIN_PATCH_CHARS:
        return False
    head = common_head(before, value)
    tail = common_tail(before, value, min(len(before), len(value)) - head)
    if 2 * (head + tail) < len(value):
        return False
    writer.op(PATCH, path, key, head, tail)
    writer.value(value[head : len(value) - tail], (*path, key))
    return True


def _list(
    writer: DeltaWriter, before: Any, tree: ListTree | None, new: list[Any], path: Path
) -> tuple[Any, ListTree | None]:
    count = len(before)
    vector = type(before) is Vector
    if vector:
        grew = before.begins(new)
        old = before.members() if not grew else []
    else:
        old = before
        try:
            grew = len(new) >= count and bool(old == (new if len(new) == count else new[:count]))
        except Exception:  # noqa: BLE001 - as in `same`
            grew = False
    if grew:
        items = new[count:]
        tree = _splice(writer, tree, path, Gap(count, count, count, len(new)), items)
        if vector or not before:
            return shadow_of(new if vector else items), tree
        grown = before.copy()
        for item in items:  # most are messages with texts only: their shadow is a copy
            plain = type(item) is dict and all_text(map(type, item)) and all_themselves(map(type, item.values()))
            grown.append(item.copy() if plain else shadow_of(item))
        return grown, tree
    shadow = old.copy()
    items, found = gaps(old, tree, new, path)
    for gap in reversed(writer.few(found, len(old))):
        added = items[gap.new_from : gap.new_to]
        if gap.old_to - gap.old_from == len(added):
            tree = _edit(writer, shadow, tree, path, gap, added)
        else:
            tree = _splice(writer, tree, path, gap, added)
            shadow[gap.old_from : gap.old_to] = [shadow_of(item) for item in added]
    return shadow_of(items) if vector else shadow, tree


def _splice(writer: DeltaWriter, tree: ListTree | None, path: Path, gap: Gap, items: list[Any]) -> ListTree | None:
    """Put these items in the place of the old ones; they are settled where they lie, as each is looked at anyway."""
    drop = gap.old_to - gap.old_from
    if not drop and not items:
        return tree
    writer.op(SPLICE, path, gap.old_from, drop, len(items))
    leaves: list[Leaf] = []
    for at, given in enumerate(items):
        here = (*path, gap.new_from + at)
        item, stored, canonical = encode_settled(given, here)
        items[at] = item
        if len(stored) < LARGE_BYTES:
            writer.values.append(stored)
        else:
            writer.value(item, here, stored)
        withheld = type(item) is Withheld
        leaves.append(leaf_of(item, here) if withheld else Leaf(sha256(canonical).digest(), len(canonical)))
    return None if tree is None else tree.splice(gap.old_from, drop, leaves)


def _edit(
    writer: DeltaWriter, shadow: list[Any], tree: ListTree | None, path: Path, gap: Gap, items: list[Any]
) -> ListTree | None:
    """Items changed where they stand: ops inside each, or the item anew where that is shorter."""
    for offset in range(len(items) - 1, -1, -1):
        at, item = gap.old_from + offset, items[offset]
        if same(shadow[at], item):
            continue
        mark = writer.mark()
        after, _ = _value(writer, shadow[at], None, item, path, at)
        inside = writer.weight_since(mark)
        writer.rewind(mark)
        writer.op(SPLICE, path, at, 1, 1)
        writer.value(item, (*path, at))
        if inside < writer.weight_since(mark):
            writer.rewind(mark)
            _value(writer, shadow[at], None, item, path, at)
        shadow[at] = after
        if tree is not None:
            tree = tree.splice(at, 1, [leaf_of(item, (*path, at))])
    return tree
