"""A state replayed along its records, its digest known at every step: what a full re-read of a long history needs.

The digest tree here is one that changes in place, beside the state: a record is done to the state, the hashes that it
met are marked, and the marked ones are made anew once per record. So a step costs what changed, and little more than
the hashing itself. It is the recipe of `digest` written a second time, on purpose: what verifies shares no tree with
what wrote. Whatever an op does, the digest is that of the state it left behind, or it is a CorruptionError.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from backstay.codec import Withheld, array_header, encode_canonical, is_plain
from backstay.delta.record import (
    _MISFITS,
    _STEPS,
    DEL,
    LIST,
    MANY,
    PATCH,
    SET,
    SPLICE,
    Record,
    _reader,
    _Values,
    decode_ops,
    rebuild,
)
from backstay.digest import DIGEST_BYTES, FLAT_KEYS, GROUP_ITEMS
from backstay.errors import CorruptionError, InvalidInputError
from backstay.model import MAX_DEPTH, StateDict

_GROUP_BYTES = GROUP_ITEMS * DIGEST_BYTES
_NO_BUCKET = bytes(DIGEST_BYTES)


_read_small = _reader({}, salvage=False)  # made once: most records have no large values
_sorted = msgspec.msgpack.Encoder(order="deterministic").encode


class _Leaf:
    """A value hashed as one piece."""

    __slots__ = ("digest", "size")

    def __init__(self, value: object, depth: int) -> None:
        if type(value) is Withheld:
            self.digest, self.size = value.digest, value.size
            return
        data = _canonical(value, depth)
        self.digest = sha256(data).digest()
        self.size = len(data)

    def settle(self) -> bytes:
        return self.digest


class _List:
    """A list by its items' digests, in groups of 64."""

    __slots__ = ("_depth", "_digests", "_from", "_groups", "_sizes", "_value", "digest", "size")

    def __init__(self, value: list[Any], depth: int) -> None:
        self._value = value
        self._depth = depth
        self._digests = bytearray()
        self._sizes: list[int] = []
        self._groups: list[bytes] = []
        self._from: int | None = 0  # the first group that is to be made anew, and all behind it
        self.digest = b""
        self.size = 0
        self.splice(0, 0, len(value))

    def behind(self, start: object) -> int:
        """How many items stand from a place on."""
        return len(self._value) - start if type(start) is int else 0

    def take(self, start: int, drop: int, items: list[Any]) -> None:
        """Let `drop` items from `start` on give way to these, in the list and in its digests."""
        value = self._value
        if type(start) is not int or type(drop) is not int or start < 0 or drop < 0 or start + drop > len(value):
            raise _unfit("a splice reaches beyond its list")
        value[start : start + drop] = items
        self._renew(start, drop, items)

    def splice(self, start: int, drop: int, count: int) -> None:
        """`drop` items from `start` on have given way to the `count` items that now stand there."""
        self._renew(start, drop, self._value[start : start + count])

    def _renew(self, start: int, drop: int, items: list[Any]) -> None:
        depth = self._depth
        encoded = [_canonical(item, depth) for item in items]
        each = [sha256(data).digest() for data in encoded]
        sizes = list(map(len, encoded))
        for at, item in enumerate(items):
            if type(item) is Withheld:
                each[at], sizes[at] = item.digest, item.size
        digests = b"".join(each)
        if drop or start != len(self._sizes):
            at = start * DIGEST_BYTES
            self._digests[at : at + drop * DIGEST_BYTES] = digests
            self.size -= sum(self._sizes[start : start + drop])
            self._sizes[start : start + drop] = sizes
        else:
            self._digests += digests
            self._sizes += sizes
        self.size += sum(sizes)
        first = start // GROUP_ITEMS
        if self._from is None or first < self._from:
            self._from = first
        if len(self._sizes) != len(self._value):
            raise _unfit("a list has another length than its ops say")

    def touch(self, index: object) -> None:
        """The item at an index was changed, or replaced by one other."""
        # True and -1 find an item too, but not the one that is meant.
        if type(index) is not int or not 0 <= index < len(self._sizes) or len(self._value) != len(self._sizes):
            raise _unfit("an op counts from the wrong end of a list")
        self.splice(index, 1, 1)

    def settle(self) -> bytes:
        if self._from is not None:
            digests, groups = self._digests, self._groups
            del groups[self._from :]
            for at in range(self._from * _GROUP_BYTES, len(digests), _GROUP_BYTES):
                groups.append(sha256(digests[at : at + _GROUP_BYTES]).digest())
            count = len(self._sizes).to_bytes(8, "big")
            self.digest = sha256(b"".join([b"list\0", count, *groups])).digest()
            self._from = None
        return self.digest


class _Dict:
    """A dict with text keys by its keys and what stands at them; in 256 buckets when it has more than 64 keys."""

    __slots__ = ("_buckets", "_entries", "_names", "children", "depth", "digest", "marked", "value")

    def __init__(self, value: dict[str, Any], depth: int) -> None:
        self.value = value
        self.depth = depth
        self.children: dict[str, _Node] = {key: _node(item, depth + 1) for key, item in value.items()}
        self.marked = set(value)
        self._names: dict[str, tuple[bytes, int]] = {}  # as it stands in an entry, and its bucket
        self._entries: list[tuple[bytes, str]] | None = None  # names and keys in the order of the digest
        self._buckets: dict[int, tuple[list[str], bytes]] | None = None
        self.digest = b""

    @property
    def size(self) -> int:
        return sum([len(_raw(key)) + 1 + child.size for key, child in self.children.items()])

    def renew(self) -> None:
        """Anything may have changed."""
        if not all([type(key) is str for key in self.value]):
            raise _unfit("the keys of a state are text")
        self.__init__(self.value, self.depth)  # type: ignore[misc]

    def put(self, key: str) -> None:
        """What stands at a key is another now, or was not there before."""
        if key not in self.children:
            self._entries = None
        self.children[key] = _node(self.value[key], self.depth + 1)
        self.marked.add(key)

    def drop(self, key: str) -> None:
        """A key is gone."""
        del self.children[key]
        self._entries = None
        self.marked.add(key)

    def settle(self) -> bytes:
        if not self.marked and self.digest:
            return self.digest
        children, count = self.children, len(self.children).to_bytes(8, "big")
        for key in self.marked:
            child = children.get(key)
            if child is not None:
                child.settle()
        if len(children) > FLAT_KEYS:
            self.digest = sha256(b"dict\1" + count + self._in_buckets()).digest()
        else:
            self._buckets = None
            if self._entries is None:
                self._entries = [(self._name(key)[0], key) for key in sorted(children)]
            parts = [b"dict\0", count]
            for name, key in self._entries:
                parts += (name, children[key].digest)
            self.digest = sha256(b"".join(parts)).digest()
        self.marked.clear()
        return self.digest

    def _in_buckets(self) -> bytes:
        met: dict[int, list[str]] = {}
        if self._buckets is None:
            self._buckets = {}
            for key in self.children:
                met.setdefault(self._name(key)[1], []).append(key)
        else:
            for number in {self._name(key)[1] for key in self.marked}:
                met[number] = [key for key in self._buckets.get(number, ((), b""))[0] if key in self.children]
            for key in self.marked:
                keys = met[self._name(key)[1]]
                if key in self.children and key not in keys:
                    keys.append(key)
        for number, keys in met.items():
            entries = b"".join([self._name(key)[0] + self.children[key].digest for key in sorted(keys)])
            self._buckets[number] = keys, sha256(entries).digest()
        return b"".join([self._buckets[at][1] if self._filled(at) else _NO_BUCKET for at in range(256)])

    def _filled(self, number: int) -> bool:
        return self._buckets is not None and number in self._buckets and bool(self._buckets[number][0])

    def _name(self, key: str) -> tuple[bytes, int]:
        found = self._names.get(key)
        if found is None:
            raw = _raw(key)
            found = self._names[key] = (len(raw).to_bytes(4, "big") + raw, sha256(raw).digest()[0])
        return found


_Node = _Leaf | _List | _Dict


class Replay:
    """A state and its digests. `follow` moves both on, in place; after an error neither can be used."""

    __slots__ = ("_root", "state")

    def __init__(self, state: StateDict) -> None:
        self.state = state
        try:
            root = _node(state, 0)
        except InvalidInputError as error:
            raise _unfit(str(error)) from error
        if type(root) is not _Dict:
            raise _unfit("the keys of a state are text")
        self._root = root
        root.settle()

    @property
    def digest(self) -> bytes:
        """The state's digest."""
        return self._root.digest

    @property
    def size_bytes(self) -> int:
        """What a plain copy of the state would weigh."""
        return self._root.size

    def follow(self, record: Record, pieces: Mapping[bytes, bytes]) -> None:
        """Do a delta to the state."""
        state, body = self.state, record.body
        try:
            ops = decode_ops(record.ops)
            total = sum([1 if op[0] == SET else _count(op) for op in ops])
            if total > len(body):
                raise _unfit("it announces more values than it has bytes")
            read = _reader(pieces, salvage=False) if record.refs else _read_small
            values = _Values()
            values.fill(read(array_header(total) + body))
            root = self._root
            for op in ops:
                path = op[1]
                if op[0] == SPLICE and len(path) == 1 and type(node := root.children[path[0]]) is _List:
                    # By far the most frequent: a list at the top of the state grows.
                    values.spend(moves=node.behind(op[2]))
                    node.take(op[2], op[3], values.many(op[4]))
                    root.marked.add(path[0])
                else:
                    _STEPS[op[0]](state, op, values)
                    _mark(root, op)
            root.settle()
        except InvalidInputError as error:
            raise _unfit(str(error)) from error
        except _MISFITS as error:
            raise _unfit("an op leads where nothing is") from error


def stand_on(record: Record, pieces: Mapping[bytes, bytes]) -> Replay:
    """Begin with a whole copy."""
    return Replay(rebuild([record], pieces).state)


def _count(op: list[Any]) -> int:
    """How many values an op takes."""
    code = op[0]
    if code in (SPLICE, LIST, MANY):
        count = op[-1]
        if type(count) is not int or count < 0:
            raise _unfit("it announces less than no values")
        return 2 * count if code == MANY else count
    return 0 if code == DEL else 1


def _mark(root: _Dict, op: list[Any]) -> None:
    """Have the hashes made anew that an op has met; it is done already."""
    node: _Node = root
    above, key = root, ""
    for depth, step in enumerate(op[1]):
        if type(node) is _Dict:
            node.marked.add(step)
            above, key, node = node, step, node.children[step]
        elif type(node) is _List:
            node.touch(step)
            return
        else:
            above.put(key)
            return
        if depth >= MAX_DEPTH:
            raise _unfit(f"it is nested deeper than {MAX_DEPTH} levels")
    code = op[0]
    if type(node) is _List and code == SPLICE:
        _, _, start, drop, count = op
        if type(start) is not int or type(drop) is not int:
            raise _unfit("a splice counts in whole numbers")
        node.splice(start, drop, count)
    elif type(node) is _List and code in (SET, PATCH, LIST):
        node.touch(op[2])
    elif type(node) is _Dict and code in (SET, PATCH, LIST) and type(op[2]) is str:
        node.put(op[2])
    elif type(node) is _Dict and code == DEL and type(op[2]) is str:
        node.drop(op[2])
    elif code == SPLICE:
        raise _unfit("a splice of what is not a list")
    elif node is root:
        root.renew()
    else:
        above.put(key)


def _node(value: Any, depth: int) -> _Node:
    kind = type(value)
    if depth > MAX_DEPTH and (kind is list or kind is dict):
        raise _unfit(f"it is nested deeper than {MAX_DEPTH} levels")
    if kind is list:
        return _List(value, depth)
    if kind is dict and all([type(key) is str for key in value]):
        return _Dict(value, depth)
    return _Leaf(value, depth - 1)


def _canonical(value: Any, depth: int) -> bytes:
    if is_plain(value, depth):
        try:
            return _sorted(value)
        except (OverflowError, UnicodeEncodeError):
            pass  # an int beyond 64 bits or a lone surrogate
    return encode_canonical(value, (None,) * (depth + 1))


def _raw(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _unfit(what: str) -> CorruptionError:
    return CorruptionError(f"a stored record does not fit the state before it: {what}")
