"""Digests: what makes two states, or two checkpoints, provably the same (version 1, frozen: docs/format.md).

A leaf's digest is sha256 over its canonical form. A list reached from the state's root through dicts alone is hashed
over its items' digests in groups of 64; such a dict over its keys and their digests, in 256 buckets when it has more
than 64 keys. So a digest depends on the value alone, never on how it is stored, and a tree kept from the last
checkpoint gives the next digest in time proportional to what changed. Trees are persistent: a change makes a new one.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256

from holdfast.codec import Path, encode_canonical

GROUP_ITEMS = 64
FLAT_KEYS = 64
DIGEST_BYTES = 32
_GROUP_BYTES = GROUP_ITEMS * DIGEST_BYTES


class Leaf:
    """A value hashed as one piece; `size` is the length of its canonical form."""

    __slots__ = ("digest", "size")

    def __init__(self, digest: bytes, size: int) -> None:
        self.digest = digest
        self.size = size


class ListTree:
    """A list by its items' digests; `size` is the sum of its items."""

    __slots__ = ("_digests", "_groups", "_lengths", "digest", "size")

    def __init__(self, digests: bytearray, lengths: array[int], groups: list[bytes], size: int) -> None:
        self._digests = digests
        self._lengths = lengths
        self._groups = groups
        self.size = size
        self.digest = sha256(b"list\0" + len(lengths).to_bytes(8, "big") + b"".join(groups)).digest()

    def splice(self, start: int, drop: int, leaves: Sequence[Leaf]) -> ListTree:
        """The tree with `drop` items from `start` on replaced by these."""
        added = b"".join([leaf.digest for leaf in leaves])
        sizes = array("Q", [leaf.size for leaf in leaves])
        digests, lengths = self._digests.copy(), self._lengths[:]
        size = self.size + sum(sizes) - (sum(lengths[start : start + drop]) if drop else 0)
        digests[start * DIGEST_BYTES : (start + drop) * DIGEST_BYTES] = added
        lengths[start : start + drop] = sizes
        # Groups before the first changed item stand; those behind an edit that moved nothing stand too.
        first = start // GROUP_ITEMS
        behind = (start + drop - 1) // GROUP_ITEMS + 1 if drop and drop == len(leaves) else None
        groups = self._groups[:first] + _groups(digests, first, behind)
        if behind is not None:
            groups += self._groups[behind:]
        return ListTree(digests, lengths, groups, size)

    def digest_of(self, index: int) -> bytes:
        """The digest of one item."""
        return bytes(self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES])


def _groups(digests: bytearray, first: int, behind: int | None) -> list[bytes]:
    end = len(digests) if behind is None else min(behind * _GROUP_BYTES, len(digests))
    return [sha256(digests[at : at + _GROUP_BYTES]).digest() for at in range(first * _GROUP_BYTES, end, _GROUP_BYTES)]


EMPTY_LIST = ListTree(bytearray(), array("Q"), [], 0)


class DictTree:
    """A dict by its keys and the trees of its values; `size` is the sum of both."""

    __slots__ = ("_buckets", "children", "digest", "size")

    def __init__(self, children: dict[str, Tree], buckets: dict[int, Bucket] | None, size: int) -> None:
        self.children = children
        self._buckets = buckets
        self.size = size
        count = len(children).to_bytes(8, "big")
        if buckets is None:
            self.digest = sha256(b"dict\0" + count + _entries(children, children)).digest()
        else:
            hashes = b"".join([buckets[at].digest if at in buckets else bytes(DIGEST_BYTES) for at in range(256)])
            self.digest = sha256(b"dict\1" + count + hashes).digest()

    def replace(self, changed: Mapping[str, Tree], removed: Collection[str]) -> DictTree:
        """The tree with these keys set and those gone."""
        children, size = self.children.copy(), self.size
        for key in removed:
            size -= _key_size(key) + children.pop(key).size
        for key, tree in changed.items():
            before = children.get(key)
            size += tree.size - before.size if before is not None else _key_size(key) + tree.size
            children[key] = tree
        if len(children) <= FLAT_KEYS:
            return DictTree(children, None, size)
        if self._buckets is None:
            return dict_tree(children)
        return DictTree(children, _update_buckets(self._buckets, children, changed, removed), size)


Tree = Leaf | ListTree | DictTree


class Bucket:
    """The keys of a large dict that share a first byte of their hash."""

    __slots__ = ("digest", "keys")

    def __init__(self, keys: frozenset[str], children: Mapping[str, Tree]) -> None:
        self.keys = keys
        self.digest = sha256(_entries(keys, children)).digest()


def dict_tree(children: dict[str, Tree]) -> DictTree:
    """A dict's tree from its values' trees."""
    size = sum([_key_size(key) + tree.size for key, tree in children.items()])
    if len(children) <= FLAT_KEYS:
        return DictTree(children, None, size)
    return DictTree(children, _update_buckets({}, children, children, ()), size)


def _update_buckets(
    buckets: dict[int, Bucket], children: Mapping[str, Tree], changed: Collection[str], removed: Collection[str]
) -> dict[int, Bucket]:
    touched: dict[int, set[str]] = {}
    for keys, add in ((changed, True), (removed, False)):
        for key in keys:
            at = sha256(_key_bytes(key)).digest()[0]
            if at not in touched:
                touched[at] = set(buckets[at].keys) if at in buckets else set()
            (touched[at].add if add else touched[at].discard)(key)
    result = buckets | {at: Bucket(frozenset(keys), children) for at, keys in touched.items()}
    return {at: bucket for at, bucket in result.items() if bucket.keys}


def _entries(keys: Collection[str], children: Mapping[str, Tree]) -> bytes:
    parts: list[bytes] = []
    for key, raw in sorted([(key, _key_bytes(key)) for key in keys]):
        parts += (len(raw).to_bytes(4, "big"), raw, children[key].digest)
    return b"".join(parts)


def _key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _key_size(key: str) -> int:
    return len(_key_bytes(key)) + 1


def leaf_of(value: object, path: Path) -> Leaf:
    """The digest of a value taken as one piece."""
    data = encode_canonical(value, path)
    return Leaf(sha256(data).digest(), len(data))


def tree_of(value: object, path: Path) -> Tree:
    """The tree of a value in its stored types (see delta.settle), from nothing."""
    if type(value) is dict and all([type(key) is str for key in value]):
        return dict_tree({key: tree_of(item, (*path, key)) for key, item in value.items()})
    if type(value) is list:
        return EMPTY_LIST.splice(0, 0, [leaf_of(item, (*path, at)) for at, item in enumerate(value)])
    return leaf_of(value, path)


def state_digest(state: Mapping[str, object]) -> bytes:
    """The digest of a whole state, from nothing: what `verify` compares."""
    return tree_of(state, ()).digest


def checkpoint_digest(*, id_: str, parent: bytes | None, state: bytes, sequence: int, fields: bytes) -> bytes:
    """A checkpoint's digest: its parent's, its state's, and every field of its own."""
    raw = id_.encode("utf-8", "surrogatepass")
    head = b"checkpoint\0" + len(raw).to_bytes(4, "big") + raw + sequence.to_bytes(8, "big")
    return sha256(head + (parent or bytes(DIGEST_BYTES)) + state + fields).digest()
