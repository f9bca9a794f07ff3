"""Two changes of one text put together line by line; only where they do not touch."""

from __future__ import annotations

from difflib import SequenceMatcher

MOST_LINES = 20_000  # of either text: comparing takes the product of both in the worst case
MOST_BYTES = 4 << 20


def merge_lines(base: bytes, mine: bytes, theirs: bytes) -> bytes | None:
    """`base` with the changes of both; None where both changed the same or neighbouring lines, or it is no text."""
    if theirs in (mine, base):
        return mine
    if mine == base:
        return theirs
    texts = (base, mine, theirs)
    if any(b"\0" in text or len(text) > MOST_BYTES for text in texts):
        return None
    old, left, right = [text.splitlines(keepends=True) for text in texts]
    if max(len(old), len(left), len(right)) > MOST_LINES:
        return None
    merged: list[bytes] = []
    at = at_left = at_right = 0
    for start, in_left, in_right, count in _common(old, left, right):
        piece = _piece(old[at:start], left[at_left:in_left], right[at_right:in_right])
        if piece is None:
            return None
        merged += piece
        merged += old[start : start + count]
        at, at_left, at_right = start + count, in_left + count, in_right + count
    return b"".join(merged)


def _piece(old: list[bytes], left: list[bytes], right: list[bytes]) -> list[bytes] | None:
    """What comes between two stretches that all three have."""
    if left in (right, old):
        return right
    return left if right == old else None


def _common(old: list[bytes], left: list[bytes], right: list[bytes]) -> list[tuple[int, int, int, int]]:
    """Stretches of lines that all three texts have: where in each, and how many lines. The last one is empty."""
    found: list[tuple[int, int, int, int]] = []
    ours, theirs = _blocks(old, left), _blocks(old, right)
    i = j = 0
    while i < len(ours) and j < len(theirs):
        a, in_left, many = ours[i]
        b, in_right, more = theirs[j]
        start, end = max(a, b), min(a + many, b + more)
        if start < end:
            found.append((start, in_left + start - a, in_right + start - b, end - start))
        if a + many <= b + more:
            i += 1
        else:
            j += 1
    return [*found, (len(old), len(left), len(right), 0)]


def _blocks(old: list[bytes], new: list[bytes]) -> list[tuple[int, int, int]]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [(block.a, block.b, block.size) for block in matcher.get_matching_blocks() if block.size]
