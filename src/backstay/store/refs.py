"""How a ref becomes a row: branch, tag, id, unique prefix of one, and only then with `~N` for the Nth parent."""

from __future__ import annotations

from backstay.errors import CorruptionError, InvalidInputError, NotFoundError
from backstay.hints import NEWEST_INTACT, Hint
from backstay.ids import sequences_starting
from backstay.model import MIN_PREFIX_CHARS, Checkpoint, counted
from backstay.names import parse_steps
from backstay.port import EVERY, Ask, Backend, CheckpointRow, Unreadable, View
from backstay.store.fields import check_text

Ref = str | Checkpoint

_CANDIDATES = 8


class Refs:
    """The refs of one session. Each look is one moment: a name is resolved together with what it names."""

    def __init__(self, backend: Backend, session: str) -> None:
        self._backend = backend
        self._session = session

    def row(self, ref: Ref) -> CheckpointRow:
        """The row that a ref names."""
        return self.resolve(ref)[0]

    def resolve(self, ref: Ref) -> tuple[CheckpointRow, str | None]:
        """The row a ref names, and the branch if it was one."""
        text = self.text(ref)
        if isinstance(ref, Checkpoint):
            row = self._backend.read(Ask(self._session, sequences=(ref.sequence,))).checkpoints.get(ref.sequence)
            if row is None or (isinstance(row, CheckpointRow) and row.id != ref.id):
                raise self.unknown(text)
            return readable(self._session, row), None
        found = self._find(text)
        if found is not None:
            return found
        steps = parse_steps(text)
        start = self._find(steps.name) if steps is not None else None
        if steps is None or start is None:
            raise self.unknown(text)
        line = self._backend.ancestors(self._session, start[0].sequence, limit=steps.steps + 1)
        if len(line) <= steps.steps:
            before = counted(len(line) - 1, "checkpoint")
            message = f"{ref!r} goes back further than the history, which has {before} before it"
            raise NotFoundError(message)
        return readable(self._session, line[-1]), None

    def text(self, ref: Ref) -> str:
        """A ref as text; InvalidInputError for what is none."""
        if isinstance(ref, Checkpoint):
            if ref.session_id != self._session:
                message = f"checkpoint {ref.id[:12]} belongs to session {ref.session_id!r}, not {self._session!r}"
                raise InvalidInputError(message)
            return ref.id
        if not ref or not isinstance(ref, str):
            message = f"a ref is a Checkpoint or a text like 'main', 'main~3' or an id, not {ref!r}"
            raise InvalidInputError(message)
        check_text(ref, "a ref")
        return ref

    def _find(self, name: str) -> tuple[CheckpointRow, str | None] | None:
        prefix = name if len(name) >= MIN_PREFIX_CHARS else ""
        view = self._backend.read(Ask(self._session, names=(name,), heads=True, ids=(name,), prefix=prefix))
        if view.session is None:
            return None
        lane, tag = view.lanes.get(name), view.tags.get(name)
        if lane is not None and lane.head is not None:
            return self._named(view, lane.head.sequence, name), name
        if tag is not None:
            return self._named(view, tag.sequence, name), None
        for row in view.checkpoints.values():
            if isinstance(row, Unreadable) or row.id == name:
                return readable(self._session, row), None
        return self._by_prefix(view, name) if prefix else None

    def _named(self, view: View, sequence: int, name: str) -> CheckpointRow:
        row = view.checkpoints.get(sequence)
        if row is None:
            message = f"session {self._session!r}: {name!r} names checkpoint #{sequence}, which is missing"
            raise CorruptionError(message, hint=NEWEST_INTACT)
        return readable(self._session, row)

    def _by_prefix(self, view: View, prefix: str) -> tuple[CheckpointRow, str | None] | None:
        assert view.session is not None  # noqa: S101 - looked at before
        wanted = [*view.foreign.values(), *sequences_starting(prefix, view.session.uid, last=view.session.sequence)]
        if not wanted:
            return None
        rows = self._backend.read(Ask(self._session, sequences=tuple(wanted))).checkpoints.values()
        found = [row for row in rows if isinstance(row, CheckpointRow) and row.id.startswith(prefix)]
        if len(found) > 1:
            message = f"{prefix!r} could be {', '.join([row.id for row in found[:_CANDIDATES]])}"
            raise InvalidInputError(message, hint="give more characters")
        return (found[0], None) if found else None

    def unknown(self, ref: str) -> NotFoundError:
        """The error for a ref that names nothing."""
        view = self._backend.read(Ask(self._session, names=EVERY))
        known = [lane.name for lane in view.lanes.values() if lane.head is not None] + list(view.tags)
        message = f"session {self._session!r} has nothing called {ref!r}"
        if not known:
            return NotFoundError(f"{message}: it has no checkpoints yet", hint="commit a state first")
        names = f"it has {', '.join(known[:_CANDIDATES])}"
        hint = Hint(f"{names}, and ids as session.log() shows", f"{names}, and ids as `backstay log SESSION` shows")
        return NotFoundError(message, hint=hint)


def readable(session: str, row: CheckpointRow | Unreadable) -> CheckpointRow:
    """A row that can be read, or a CorruptionError."""
    if isinstance(row, Unreadable):
        message = f"session {session!r}: {row.why}"
        raise CorruptionError(message, hint=NEWEST_INTACT)
    return row
