"""Who leans on whom among the rows of a session, and what becomes of them when some go. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from backstay import packing
from backstay.backend import GROUP_DELTAS, Rewrite, next_prefix
from backstay.chains import missing
from backstay.delta import Record
from backstay.errors import ConflictError, InvalidInputError


class Shape(NamedTuple):
    """Where a checkpoint stands among the others of its session; `number` is what its backend calls the row."""

    number: int
    sequence: int
    link: int | None
    place: int
    complete: bool
    has_delta: bool
    base: int | None
    size: int
    took_run: int | None
    took_stood: int | None
    id: str | bytes
    state_digest: bytes
    digest: bytes
    lost_id: str | bytes | None
    lost_digest: bytes | None

    @property
    def took(self) -> tuple[int, int]:
        """The run whose calls it took in, and how far; of no use without a run."""
        return self.took_run or 0, self.took_stood or 0


Shapes = Mapping[int, Shape]


def orphans(session: str, gone: Collection[int], shapes: Shapes, rewrites: Collection[int]) -> list[int]:
    """Those that stay and lean on one that goes; each must come with what is written in its place."""
    found = sorted([shape.number for shape in shapes.values() if shape.link in gone and shape.number not in gone])
    if set(found) != set(rewrites):
        message = f"session {session!r}: other checkpoints lean on those to be deleted than a moment ago"
        raise ConflictError(message, hint="try again")
    return found


def anchor(link: int | None, gone: Collection[int], shapes: Shapes) -> int | None:
    """The nearest ancestor that stays."""
    while link is not None and link in gone:
        link = shapes[link].link
    return link


def moves(
    names: Iterable[tuple[str, bool, int, int | None]], gone: Collection[int], shapes: Shapes, *, spare: bool
) -> Iterator[tuple[str, int | None, bool]]:
    """For each name (with its tag, head and undo) that must move: where to, if anywhere, and whether undo goes."""
    for name, is_tag, head, undo in names:
        if head not in gone and undo not in gone:
            continue
        if head in gone and is_tag:
            message = f"the checkpoint is tagged {name!r}"
            raise InvalidInputError(message, hint="untag it first")
        if spare:
            message = f"branch {name!r} needs a checkpoint that was to be deleted"
            raise ConflictError(message, hint="try again")
        target = anchor(head, gone, shapes) if head in gone else None
        if head in gone and target is None:
            message = f"branch {name!r} has no other checkpoint to stand on"
            raise InvalidInputError(message, hint="delete the branch or the whole session instead")
        yield name, target, undo in gone


def rolls_over(gone: Collection[int], shapes: Shapes) -> list[int]:
    """Those that stay whose roll starts from, or leads over, one that goes: what it held must go from there too."""
    found = []
    for owner in shapes.values():
        at: int | None = owner.number
        while owner.base is not None and owner.number not in gone and at is not None:
            if at in gone:
                found.append(owner.number)
                break
            if at == owner.base:
                break
            at = shapes[at].link if at in shapes else None
    return found


class Repack(NamedTuple):
    """A delta that is packed anew, because what it was packed against goes."""

    number: int
    record: Record
    prefix: bytes
    base: bytes
    state: bytes

    def seal(self) -> bytes:
        """It as it is stored."""
        return packing.seal_delta(self.record, prefix=self.prefix, base=self.base, state=self.state)


class Reading(Protocol):
    """What is read of the rows that stay."""

    def prefix_behind(self, number: int) -> bytes:
        """What a delta behind this checkpoint is packed against."""

    def delta(self, number: int) -> bytes:
        """A delta as it was sealed."""


def rest_of_group(
    orphan: int, rewrite: Rewrite, shapes: Shapes, gone: Collection[int], reading: Reading
) -> list[Repack]:
    """The deltas below an orphan in its group, opened, each with the prefix it will have once that is rewritten."""
    if shapes[orphan].complete:
        return []  # what follows a whole copy never leaned on what was before it
    below: dict[int, list[Shape]] = {}
    for shape in shapes.values():
        # Below one that goes stands another orphan, which is rewritten itself: its old delta must not come back.
        if shape.link is not None and shape.number not in gone and (shape.place - 1) % GROUP_DELTAS:
            below.setdefault(shape.link, []).append(shape)
    rest: list[Repack] = []
    start = b"" if rewrite.whole is not None or rewrite.delta is None else next_prefix(1, b"", rewrite.delta.body)
    todo = [(orphan, start, reading.prefix_behind(orphan) if below.get(orphan) else b"")]
    while todo:
        parent, prefix, old = todo.pop()
        for shape in below.get(parent, ()):
            if not shape.has_delta:
                continue  # a whole copy stands on its own
            base, state = shapes[parent].state_digest, shape.state_digest
            record = packing.open_delta(reading.delta(shape.number), prefix=old, base=base, state=state)
            rest.append(Repack(shape.number, record, prefix, base, state))
            if not shape.complete:
                following = next_prefix(shape.place, prefix, record.body)
                todo.append((shape.number, following, next_prefix(shape.place, old, record.body)))
    return rest


def committed_on(shape: Shape, shapes: Shapes) -> tuple[str | bytes, bytes | None]:
    """The parent an orphan was committed on, which is remembered even if it went before this one."""
    if shape.lost_id is not None:
        return shape.lost_id, shape.lost_digest
    if shape.link is None or shape.link not in shapes:
        raise missing("a row that must be there")
    return shapes[shape.link].id, shapes[shape.link].digest


def sealed_anew(
    shape: Shape, rewrite: Rewrite, standing: Shape | None, show: Callable[[Any], str]
) -> tuple[Record, bytes]:
    """What an orphan is written as: whole, or as a delta on the state of the nearest that stays."""
    if rewrite.whole is not None:
        return rewrite.whole, packing.seal_whole(rewrite.whole, state=shape.state_digest)
    if rewrite.delta is None:
        message = f"checkpoint {show(shape.id)[:12]} has no whole copy yet"
        raise ConflictError(message, hint="try again")
    if standing is None or standing.state_digest != rewrite.base_digest:
        message = f"checkpoint {show(shape.id)[:12]} would stand on another state than a moment ago"
        raise ConflictError(message, hint="try again")
    base, state = standing.state_digest, shape.state_digest
    return rewrite.delta, packing.seal_delta(rewrite.delta, prefix=b"", base=base, state=state)
