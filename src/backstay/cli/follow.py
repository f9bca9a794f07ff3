"""`log --follow`: checkpoints as they are made, by whichever process, the oldest first; until Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

import backstay
from backstay.store.overview import session_row

if TYPE_CHECKING:
    from backstay.face import Session, Store
    from backstay.model import Checkpoint

_PATIENCE_S = 5.0


def follow(store: Store, session: Session, branch: str | None, after: int) -> Iterator[Checkpoint]:
    """New checkpoints of a branch, or of all with None, from behind the one with this sequence; never ends."""
    while True:
        seen = store.backend.changes()  # before the look, so that nothing is made between the two unnoticed
        made = _made(store, session, branch, after)
        yield from made
        after = max([after, *[point.sequence for point in made]])
        store.backend.wait(_PATIENCE_S, since=seen)


def _made(store: Store, session: Session, branch: str | None, after: int) -> list[Checkpoint]:
    heads = session.branches()
    if not heads and session_row(store.backend, session.id) is None:
        raise backstay.NotFoundError(f"session {session.id!r} was deleted")
    found: dict[str, Checkpoint] = {}
    for name, head in heads.items():
        if branch in (None, name) and head.sequence > after:
            found |= {point.id: point for point in takewhile(lambda point: point.sequence > after, session.log(head))}
    return sorted(found.values(), key=lambda point: point.sequence)
