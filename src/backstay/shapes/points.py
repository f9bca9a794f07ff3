"""Checkpoints as a person means them: a thread of a framework has rows between them that only record writes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from backstay.bookkeeping import PART, checkpoint_of, is_writes, owner_of, told, visible
from backstay.difference import difference
from backstay.errors import NotFoundError
from backstay.names import parse_steps
from backstay.store.overview import names_by_checkpoint

if TYPE_CHECKING:
    from backstay.difference import Diff
    from backstay.face import Session, Store
    from backstay.model import Checkpoint


def point_at(session: Session, ref: str) -> Checkpoint:
    """The checkpoint at a ref. In a framework's thread `~N` counts checkpoints, as `log` shows them."""
    point = session.checkpoint(ref)
    steps = parse_steps(ref)
    if steps is None or steps.in_story or PART not in point.metadata:
        return told_as(session, point)
    try:
        start = session.checkpoint(steps.name)
    except NotFoundError:
        return told_as(session, point)
    found = next(islice(told(session.log(start)), steps.steps, None), None)
    if found is None:
        raise NotFoundError(f"{ref!r} goes back further than the history")
    return found


def told_as(session: Session, point: Checkpoint) -> Checkpoint:
    """A row of writes as the checkpoint it belongs to; any other as it is."""
    return next(told(session.log(point) if is_writes(point) else [point]), point)


def diff_between(session: Session, a: Checkpoint | None, b: Checkpoint, *, names: tuple[str, str]) -> Diff:
    """The difference of two states, or of nothing and one (None), without what an adapter keeps for itself."""
    before = {} if a is None else visible(session.load(a))
    found = difference(before, visible(session.load(b)), a=names[0], b=names[1])
    return found if a is None else replace(found, files=session.diff(a, b).files)


def names_told(store: Store, session: Session) -> dict[str, list[tuple[str, str]]]:
    """By the ids of checkpoints: the names they have. A branch that ends with writes is at their checkpoint."""
    found = names_by_checkpoint(store.backend, session.id)
    if any([checkpoint_of(id_) != id_ for id_ in found]):
        owners = {str(head.id): owner_of(head) for head in session.branches().values() if is_writes(head)}
        there: dict[str, list[tuple[str, str]]] = {}
        for id_, names in found.items():
            there.setdefault(owners.get(id_) or id_, []).extend(names)
        return there
    return found
