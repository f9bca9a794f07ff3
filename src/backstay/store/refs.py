"""How a ref becomes a row: branch, tag, id, unique prefix of one, and only then with `~N` or `^N`.

`~N` is the Nth parent. `^N` goes N steps back in the *story*: from a restore or an undo it goes on with the checkpoint
that was brought back, so that `restore("main^")` again and again goes back further and further.
"""

from __future__ import annotations

from collections.abc import Mapping

from backstay import names
from backstay.bookkeeping import checkpoint_of
from backstay.errors import CorruptionError, InvalidInputError, NotFoundError
from backstay.hints import NEWEST_INTACT, Hint
from backstay.ids import sequences_starting
from backstay.model import MIN_PREFIX_CHARS, Checkpoint, counted
from backstay.port import EVERY, Ask, Backend, CheckpointRow, Unreadable, View
from backstay.store.fields import check_text, read_fields

Ref = str | Checkpoint

_CANDIDATES = 8
_PAGE_ROWS = 100
_MAX_WAYS = 64  # each is looked up: `main^^^` is three
_LOOKS = 8  # at a branch that is committed to and pruned by others all the while
_ALONG = Hint(
    "~N goes along what is left; session.log() shows it", "~N goes along what is left, as `backstay log` shows"
)


class _GoneMeanwhileError(Exception):
    """A checkpoint that was just looked at is not there any more."""


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
        for _ in range(_LOOKS):
            try:
                return self._resolve(text)
            except _GoneMeanwhileError:  # where the steps began: the branch has moved on and that was pruned
                continue
        raise self.unknown(text)

    def _resolve(self, text: str) -> tuple[CheckpointRow, str | None]:
        found = self._find(text)
        if found is not None:
            return found
        ways: list[names.Ref] = []
        start = None
        while start is None:
            steps = names.parse_steps(ways[-1].name if ways else text)
            if steps is None or len(ways) >= _MAX_WAYS:
                raise self.unknown(text)
            ways.append(steps)
            start = self._find(steps.name)
        row = start[0]
        try:
            for steps in reversed(ways):
                back = self._back_in_story if steps.in_story else self._back
                row = back(row, steps.steps, text)
        except NotFoundError:
            now = self._find(ways[-1].name)
            if now is not None and now[0].id == start[0].id:
                raise
            raise _GoneMeanwhileError from None
        return row, None

    def _back(self, row: CheckpointRow, steps: int, ref: str) -> CheckpointRow:
        """The Nth parent."""
        line = self._backend.ancestors(self._session, row.sequence, limit=steps + 1)
        if not line:
            raise _GoneMeanwhileError
        if len(line) <= steps:
            before = counted(len(line) - 1, "checkpoint")
            message = f"{ref!r} goes back further than the history, which has {before} before it"
            raise NotFoundError(message)
        return readable(self._session, line[-1])

    def _back_in_story(self, row: CheckpointRow, steps: int, ref: str) -> CheckpointRow:
        """The checkpoint N steps before in the story: the parent, or that of what a restore brought back."""
        page: dict[str, CheckpointRow] = {}
        for _ in range(steps):
            source = read_fields(row).restored_from
            while source is not None:
                before = self._exactly(source, page, ref)
                if before.sequence >= row.sequence:  # only a file from outside says so, and a walk must end
                    why = f"checkpoint {row.id[:12]} was restored from one that is newer"
                    raise CorruptionError(f"session {self._session!r}: {why}", hint=NEWEST_INTACT)
                row, source = before, read_fields(before).restored_from
            if row.parent_id is None:
                raise NotFoundError(f"{ref!r} goes back further than the history, which begins with {row.id[:12]}")
            if row.parent_id not in page:
                line = self._backend.ancestors(self._session, row.sequence, limit=min(steps + 1, _PAGE_ROWS))
                page = {found.id: found for found in line if isinstance(found, CheckpointRow)}
            row = self._exactly(row.parent_id, page, ref)
        return row

    def _exactly(self, id_: str, page: Mapping[str, CheckpointRow], ref: str) -> CheckpointRow:
        """A checkpoint by its id; NotFoundError if it was deleted or pruned."""
        if id_ in page:
            return page[id_]
        for row in self._backend.read(Ask(self._session, ids=(id_,))).checkpoints.values():
            return readable(self._session, row)
        raise NotFoundError(f"{ref!r} goes back to checkpoint {id_[:12]}, which was deleted", hint=_ALONG)

    def text(self, ref: Ref) -> str:
        """A ref as text; InvalidInputError for what is none."""
        if isinstance(ref, Checkpoint):
            if ref.session_id != self._session:
                message = f"checkpoint {ref.id[:12]} belongs to session {ref.session_id!r}, not {self._session!r}"
                raise InvalidInputError(message)
            return ref.id
        if not ref or not isinstance(ref, str):
            message = f"a ref is a Checkpoint or a text like 'main', 'main~3', 'main^' or an id, not {ref!r}"
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
            # An adapter's rows are named after a checkpoint, with more behind its id: that one is meant, or the last
            # row that holds its state where it was pruned.
            own = [row for row in found if checkpoint_of(row.id) == row.id or "+" in row.id]
            if own and len({checkpoint_of(row.id) for row in found}) == 1:
                return min(own, key=lambda row: (checkpoint_of(row.id) != row.id, -row.sequence)), None
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
