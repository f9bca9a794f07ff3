"""How a ref becomes a row: branch, tag, id, unique prefix of one, and only then with `~N` for the Nth parent."""

from __future__ import annotations

from backstay.backend import Backend, Row
from backstay.errors import InvalidInputError, NotFoundError
from backstay.lineage import parse_steps
from backstay.model import MIN_PREFIX_CHARS, Checkpoint
from backstay.store.fields import check_text

Ref = str | Checkpoint

_CANDIDATES = 8


class Refs:
    """The refs of one session."""

    def __init__(self, backend: Backend, session: str) -> None:
        self._backend = backend
        self._session = session

    def row(self, ref: Ref) -> Row:
        """The row that a ref names."""
        return self.resolve(ref)[0]

    def resolve(self, ref: Ref) -> tuple[Row, str | None]:
        """The row a ref names, and the branch if it was one: branch, tag, id, prefix, and only then `~N`."""
        if isinstance(ref, Checkpoint):
            if ref.session_id != self._session:
                message = f"checkpoint {ref.id[:12]} belongs to session {ref.session_id!r}, not {self._session!r}"
                raise InvalidInputError(message)
            return self.row_by_id(ref.id), None
        if not ref or not isinstance(ref, str):
            message = f"a ref is a Checkpoint or a text like 'main', 'main~3' or an id, not {ref!r}"
            raise InvalidInputError(message)
        check_text(ref, "a ref")
        found = self._find(ref)
        if found is not None:
            return found
        steps = parse_steps(ref)
        start = self._find(steps.name) if steps is not None else None
        if steps is None or start is None:
            raise self._unknown(ref)
        line = self._backend.line(self._session, start[0].id, limit=steps.steps + 1)
        if len(line) <= steps.steps:
            message = f"{ref!r} goes back further than the history: there are {len(line) - 1} checkpoints before it"
            raise NotFoundError(message)
        return line[-1], None

    def _find(self, name: str) -> tuple[Row, str | None] | None:
        branch = self._backend.find_branch(self._session, name)
        if branch is not None:
            return self.row_by_id(branch.head_id), name
        for tag in self._backend.names(self._session).tags:
            if tag.name == name:
                return self.row_by_id(tag.id), None
        row = self._backend.find_row(self._session, name)
        if row is not None or len(name) < MIN_PREFIX_CHARS:
            return None if row is None else (row, None)
        ids = self._backend.find_ids(self._session, name, limit=_CANDIDATES)
        if len(ids) > 1:
            message = f"{name!r} could be {', '.join(ids)}"
            raise InvalidInputError(message, hint="give more characters")
        return (self.row_by_id(ids[0]), None) if ids else None

    def row_by_id(self, id_: str) -> Row:
        """The row with this very id."""
        row = self._backend.find_row(self._session, id_)
        if row is None:
            raise self._unknown(id_)
        return row

    def _unknown(self, ref: str) -> NotFoundError:
        names = self._backend.names(self._session)
        known = [branch.name for branch in names.branches] + [tag.name for tag in names.tags]
        message = f"session {self._session!r} has nothing called {ref!r}"
        if not known:
            return NotFoundError(f"{message}: it has no checkpoints yet", hint="commit a state first")
        return NotFoundError(message, hint=f"it has {', '.join(known[:_CANDIDATES])}, and ids as session.log() shows")

    def no_branch(self, branch: str) -> NotFoundError:
        """The error for a branch that is not there."""
        message = f"session {self._session!r} has no branch {branch!r}"
        return NotFoundError(message, hint="session.fork(ref, name) makes one")
