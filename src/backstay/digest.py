"""Digests of states: what makes two of them provably the same (version 1, frozen: docs/format.md).

A leaf's digest is sha256 over its canonical form. A list reached from the state's root through dicts alone is hashed
over its items' digests in groups of 64; such a dict over its keys and their digests, in 256 buckets when it has more
than 64 keys. So a digest depends on the value alone, never on how it is stored, and a tree kept from the last
checkpoint gives the next digest in time proportional to what changed. Trees are persistent: a change makes a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256

import msgspec

from backstay.codec import Path, Withheld, encode_canonical

GROUP_ITEMS = 64
FLAT_KEYS = 64
DIGEST_BYTES = 32


class Leaf(msgspec.Struct, frozen=True, gc=False):
    """A value hashed as one piece; `size` is the length of its canonical form."""

    digest: bytes
    size: int


class Group(msgspec.Struct, frozen=True, gc=False):
    """Up to 64 items of a list: their digests one after the other, their sizes, and the digest of the group."""

    digests: bytes
    sizes: tuple[int, ...]
    digest: bytes


def _group(digests: bytes, sizes: tuple[int, ...]) -> list[Group]:
    """These items cut into groups, the last one as long as it comes."""
    if 0 < len(sizes) <= GROUP_ITEMS:
        return [Group(digests, sizes, sha256(digests).digest())]
    groups = []
    for at in range(0, len(sizes), GROUP_ITEMS):
        part = digests[at * DIGEST_BYTES : (at + GROUP_ITEMS) * DIGEST_BYTES]
        groups.append(Group(part, sizes[at : at + GROUP_ITEMS], sha256(part).digest()))
    return groups


class ListTree:
    """A list by its items' digests; `size` is the sum of its items. Only the groups that a change meets are touched."""

    __slots__ = ("_groups", "count", "digest", "size")

    def __init__(self, groups: list[Group], count: int, size: int) -> None:
        self._groups = groups
        self.count = count
        self.size = size
        head = b"list\0" + count.to_bytes(8, "big")
        self.digest = sha256(b"".join([head, *[group.digest for group in groups]])).digest()

    def splice(self, start: int, drop: int, leaves: Sequence[Leaf]) -> ListTree:
        """The tree with `drop` items from `start` on replaced by these."""
        came = tuple([leaf.size for leaf in leaves])
        added = b"".join([leaf.digest for leaf in leaves])
        size, first = self.size + sum(came), start // GROUP_ITEMS
        if start == self.count and start % GROUP_ITEMS:  # the most frequent: some more at the end of the last group
            met = self._groups[first]
            groups = self._groups[:first]
            groups += _group(met.digests + added, met.sizes + came)
            return ListTree(groups, start + len(came), size)
        # An edit that moved nothing meets the groups it lies in; anything else all groups behind it as well.
        last = (start + drop - 1) // GROUP_ITEMS + 1 if drop == len(leaves) else len(self._groups)
        digests = b"".join([group.digests for group in self._groups[first:last]])
        sizes = tuple([size for group in self._groups[first:last] for size in group.sizes])
        at = start - first * GROUP_ITEMS
        gone = sizes[at : at + drop]
        digests = digests[: at * DIGEST_BYTES] + added + digests[(at + drop) * DIGEST_BYTES :]
        groups = self._groups[:first] + _group(digests, sizes[:at] + came + sizes[at + drop :]) + self._groups[last:]
        return ListTree(groups, self.count + len(leaves) - drop, size - sum(gone))

    @property
    def largest(self) -> int:
        """The size of the largest item."""
        return max([max(group.sizes) for group in self._groups], default=0)

    def digest_of(self, index: int) -> bytes:
        """The digest of one item."""
        at = index % GROUP_ITEMS * DIGEST_BYTES
        return self._groups[index // GROUP_ITEMS].digests[at : at + DIGEST_BYTES]


EMPTY_LIST = ListTree([], 0, 0)


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
    """The digest of a value taken as one piece; of an item that is withheld, the one it had."""
    if type(value) is Withheld:
        return Leaf(value.digest, value.size)
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
