"""Verification: everything read again and compared with its digests, session by session."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.backend import Backend
from holdfast.delta import rebuild
from holdfast.digest import state_digest
from holdfast.errors import CorruptionError, InvalidInputError, NotFoundError, UnavailableError
from holdfast.model import CheckpointId, Problem, SessionId
from holdfast.store.fields import read_fields
from holdfast.store.reading import read_chain


def check_session(backend: Backend, session: str) -> Iterator[Problem | None]:
    """One result per checkpoint: None if it is whole, otherwise what is wrong with it; then the names."""
    try:
        for id_ in backend.ids(session):
            yield _check_checkpoint(backend, session, id_)
        names = backend.names(session)
        targets = [(branch.name, branch.head_id) for branch in names.branches] + [(t.name, t.id) for t in names.tags]
        for name, id_ in targets:
            if backend.find_row(session, id_) is None:
                yield Problem(
                    what=f"{name!r} points at {id_[:12]}, which is not there",
                    session_id=SessionId(session),
                    remedy="verify(repair=True) moves it to its newest intact ancestor",
                )
    except CorruptionError as error:
        yield Problem(what=str(error), session_id=SessionId(session))


def _check_checkpoint(backend: Backend, session: str, id_: str) -> Problem | None:
    try:
        chain, pieces = read_chain(backend, session, id_)
        read_fields(chain.row)
        state = rebuild(chain.records, pieces).state
        if state_digest(state) == chain.row.state_digest:
            return None
        what = "its state does not match its digest"
    except NotFoundError:
        return None  # deleted since it was listed
    except (CorruptionError, InvalidInputError, UnavailableError) as error:
        what = str(error)
    return Problem(
        what=f"checkpoint {id_[:12]}: {what}",
        session_id=SessionId(session),
        checkpoints=(CheckpointId(id_),),
        cost="its state cannot be loaded",
        remedy="carry on from session.newest_intact(), or load(salvage=True)",
    )
