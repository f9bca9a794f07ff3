"""Where two lists differ, and how much two texts share: for changes that are no plain append.

A list that was trimmed or edited is aligned by its items' digests, so that each change costs what changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from backstay.codec import Path, settle
from backstay.delta.shadow import same
from backstay.digest import ListTree, leaf_of

Text = TypeVar("Text", str, bytes)


class Gap(NamedTuple):
    """old[old_from:old_to] gives way to new[new_from:new_to]."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


def common_head(a: Text, b: Text) -> int:
    """How many characters both begin with; by halving, so that the comparing is done by memcmp."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_tail(a: Text, b: Text, limit: int) -> int:
    """How many characters both end with, `limit` at most."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def gaps(old: list[Any], tree: ListTree | None, new: list[Any], path: Path) -> tuple[list[Any], list[Gap]]:
    """The new items, settled where they are not as before; and where the two lists differ, in ascending order."""
    head, most = 0, min(len(old), len(new))
    while head < most and same(old[head], new[head]):
        head += 1
    tail, most = 0, most - head
    while tail < most and same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    middle = Gap(head, len(old) - tail, head, len(new) - tail)
    items = new.copy()
    out, into = middle.old_to - middle.old_from, middle.new_to - middle.new_from
    if out and into:  # before all others are settled, because a window that moves does so at every step
        trimmed = _trimmed(old, items, middle)
        if trimmed is not None:
            for at in range(trimmed[1].new_from, trimmed[1].new_to):
                items[at] = settle(new[at], (*path, at))
            return items, trimmed
    for at in range(head, len(new) - tail):
        items[at] = settle(new[at], (*path, at))
    if not out or not into or _stands(old, items, middle):
        return items, [middle]
    return items, [middle] if tree is None else _align(tree, items, middle)


def _trimmed(old: list[Any], new: list[Any], gap: Gap) -> list[Gap] | None:
    """A window that moved on: some items gone at its front, all others as they were, some added behind."""
    try:
        start = old.index(new[gap.new_from], gap.old_from, gap.old_to)
    except Exception:  # noqa: BLE001 - not there, or a foreign __eq__ raised
        return None
    kept = gap.old_to - start
    behind = gap.new_from + kept
    if behind > gap.new_to or not same(old[start : gap.old_to], new[gap.new_from : behind]):
        return None
    return [
        Gap(gap.old_from, start, gap.new_from, gap.new_from),
        Gap(gap.old_to, gap.old_to, behind, gap.new_to),
    ]


def _stands(old: Sequence[Any], new: list[Any], gap: Gap) -> bool:
    """True when the items stayed at their places and only some changed."""
    count = gap.old_to - gap.old_from
    if count != gap.new_to - gap.new_from:
        return False
    pairs = zip(old[gap.old_from : gap.old_to], new[gap.new_from : gap.new_to], strict=True)
    return 2 * sum(same(a, b) for a, b in pairs) >= count - 2


def _align(tree: ListTree, new: list[Any], gap: Gap) -> list[Gap]:
    """Pair equal items in order (the longest rising run of old positions); what lies between pairs is a gap."""
    places: dict[bytes, int] = {}
    for at in range(gap.old_from, gap.old_to):
        digest = tree.digest_of(at)
        places[digest] = -1 if digest in places else at
    pairs = [
        (place, at)
        for at in range(gap.new_from, gap.new_to)
        if (place := places.get(leaf_of(new[at], ()).digest, -1)) >= 0
    ]
    gaps: list[Gap] = []
    from_old, from_new = gap.old_from, gap.new_from
    for place, at in [*_rising(pairs), (gap.old_to, gap.new_to)]:
        if place > from_old or at > from_new:
            gaps.append(Gap(from_old, place, from_new, at))
        from_old, from_new = place + 1, at + 1
    return gaps


def _rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence of pairs whose first members rise (patience sorting)."""
    tops: list[int] = []
    piles: list[int] = []
    back: list[int] = []
    for number, (place, _) in enumerate(pairs):
        pile = bisect_left(tops, place)
        back.append(piles[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(place)
            piles.append(number)
        else:
            tops[pile], piles[pile] = place, number
    result: list[tuple[int, int]] = []
    number = piles[-1] if piles else -1
    while number >= 0:
        result.append(pairs[number])
        number = back[number]
    return result[::-1]
