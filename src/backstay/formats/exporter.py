"""A session of a store on its way out, as the writers need it: its checkpoints one by one, and what may be written.

What a checkpoint was elsewhere is in its metadata under the name of that system (`own`); without it, a writer makes do
with what Backstay knows. Values that JSON has no form for are refused by their path.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from backstay.codec import show_path
from backstay.errors import CorruptionError, InvalidInputError, NotFoundError
from backstay.face import Session, Store
from backstay.formats.model import PendingCall
from backstay.hints import LIST_SESSIONS, RUN_VERIFY
from backstay.model import Checkpoint, SessionId, Status, counted
from backstay.names import check_name
from backstay.port import Ask, CallRow, CheckpointRow, Kind
from backstay.port.rows import IN_DOUBT, STARTED
from backstay.rules import refusals
from backstay.store.fields import read_fields
from backstay.store.history import History
from backstay.upkeep.pages import pages
from backstay.upkeep.progress import Progress

_PAGE_ROWS = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_DEPTH = 120  # serde_json reads 128 levels, and some are around the state


class Exporter:
    """One session and the branch that a system without branches gets."""

    def __init__(self, store: Store, session: str, *, branch: str, progress: Progress | None = None) -> None:
        self.session: str = check_name(session, "a session id")
        self.branch = check_name(branch, "a branch name")
        self._notes: list[str] = []
        self._left: dict[str, set[str]] = {}  # what has no place there, and whose it is
        self._last_us = -1
        self._session: Session = store.session(session)
        self._backend = store.backend
        self._history = History(store.backend, store.events, SessionId(session), agent=None)
        self._progress = progress
        self._done = 0
        line = self._backend.read(Ask(session)).session
        if line is None or not line.checkpoints:
            message = f"there is no session {session!r}" if line is None else f"session {session!r} has no checkpoints"
            raise NotFoundError(message, hint=LIST_SESSIONS)
        rows = {row.sequence: (read_fields(row).at_us, row.id, row.parent) for row in self._rows()}
        self._times = {sequence: at_us for sequence, (at_us, _, _) in rows.items()}
        self._ids = {sequence: id_ for sequence, (_, id_, _) in rows.items()}
        self._parents = {id_: parent for _, id_, parent in rows.values()}
        self.branches = self._session.branches()
        self.tags: dict[str, list[str]] = {}
        for name, tagged in self._session.tags().items():
            self.tags.setdefault(tagged.id, []).append(name)
        self.head = self._session.checkpoint(branch) if branch == "main" else self._branch_head(branch)
        for what, there in (("owner", line.owner), ("title", line.title), ("metadata", line.metadata)):
            if there:
                self.note(f"the {what} of the session has no place there and stays behind")
        self.agent = line.agent
        self.count = len(self._times)

    def _rows(self) -> Iterator[CheckpointRow]:
        for page in pages(self._backend, self.session, Kind.CHECKPOINT):
            for row in page:
                if not isinstance(row, CheckpointRow):
                    raise CorruptionError(f"session {self.session!r}: a checkpoint is damaged", hint=RUN_VERIFY)
                yield row

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Every checkpoint, oldest first."""
        return self._each(list(self._times))

    def line(self) -> Iterator[Checkpoint]:
        """Those that lead to the head of the branch, oldest first."""
        return self._each(self._line())

    def line_length(self) -> int:
        """How many lead to the head of the branch."""
        return len(self._line())

    def is_all(self) -> bool:
        """True if every checkpoint leads to the head of the branch."""
        return len(self._line()) == self.count

    def _line(self) -> list[int]:
        found: list[int] = []
        at: int | None = self.head.sequence
        while at is not None:
            rows = self._backend.ancestors(self.session, at, limit=_PAGE_ROWS)
            for row in rows:
                if not isinstance(row, CheckpointRow):
                    raise CorruptionError(f"session {self.session!r}: {row.why}", hint=RUN_VERIFY)
                found.append(row.sequence)
            at = rows[-1].parent if rows else None
        return found[::-1]

    def others(self) -> Iterator[Checkpoint]:
        """Those that do not lead there, oldest first."""
        line = set(self._line())
        return self._each([sequence for sequence in self._times if sequence not in line])

    def newest_is_elsewhere(self) -> bool:
        """True when some other checkpoint is younger, by its time, than the head of the branch."""
        return max(self._times.values()) > self._times[self.head.sequence]

    def pending(self) -> list[PendingCall]:
        """The calls on the branch of which no outcome is known."""
        calls = self._session.calls(self.branch, pending=True)
        return [
            PendingCall(call.key or call.id, call.name, call.args)
            for call in calls
            if call.status in (STARTED, IN_DOUBT)
        ]

    def settled(self) -> set[str | None]:
        """The keys of calls that were decided here: a state may still name them as pending."""
        return {
            call.key
            for page in pages(self._backend, self.session, Kind.CALL)
            for call in page
            if isinstance(call, CallRow) and call.status not in (STARTED, IN_DOUBT)
        }

    def parent(self, checkpoint: Checkpoint) -> str | None:
        """The nearest ancestor that is still there: a checkpoint that was pruned is no parent elsewhere."""
        sequence = self._parents[checkpoint.id]
        return None if sequence is None else self._ids[sequence]

    def written_us(self, checkpoint: Checkpoint, told_us: int | None = None) -> int:
        """The time to write, later than that of the one written before: these systems go on with the latest time.

        `told_us` is the time it had there, which stays as it was.
        """
        at_us = micros(checkpoint.created_at) if told_us is None else told_us
        if told_us is None and at_us <= self._last_us:
            at_us = self._last_us + 1
            self.note("times that were not later than the one before were moved on: the latest time is what is loaded")
        self._last_us = max(self._last_us, at_us)
        return at_us

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of what was written."""
        left = [
            f"{what} of {counted(len(ids), 'checkpoint')} {'has' if what.startswith('the ') else 'have'} no place there"
            f" and stay{'s' if what.startswith('the ') else ''} behind"
            for what, ids in self._left.items()
        ]
        return (*self._notes, *left)

    def note(self, what: str) -> None:
        """Something that the other system has no place for."""
        if what not in self._notes:
            self._notes.append(what)

    def note_parts(self, state: dict[str, Any], known: set[str]) -> None:
        """Say which parts of a state stay behind."""
        for part in state:
            if part not in known:
                self.note(f"the part {part!r} of the state has no place there and stays behind")

    def note_branches(self, system: str) -> None:
        """Say which branches stay behind, where the other system has none."""
        others = [name for name in self.branches if name != self.branch]
        if others:
            shown = ", ".join([repr(name) for name in others[:8]]) + (", …" if len(others) > len(others[:8]) else "")
            self.note(f"{system} has no branches: only {self.branch!r} was written, and not {shown}")
        elif not self.is_all():
            self.note(f"{system} has no branches: only {self.branch!r} was written")

    def note_fields(self, checkpoint: Checkpoint, system: str, carried: frozenset[str] = frozenset()) -> None:
        """Say which fields of a checkpoint stay behind; `carried` are those that do not."""
        if own(checkpoint, system):
            told = {"tags": checkpoint.id in self.tags}
        else:
            used = checkpoint.total_usage
            told = {
                "labels": checkpoint.label is not None,
                "reasons": checkpoint.reason is not None,
                "resume hints": checkpoint.resume_hint is not None,
                "triggers": checkpoint.trigger not in ("manual", "import"),
                "statuses": checkpoint.status != Status.IN_PROGRESS,
                "agents": checkpoint.agent is not None,
                "tokens": bool(used.tokens_in or used.tokens_out),
                "costs": bool(used.cost),
                "counts of tasks": bool(used.tasks_completed),
                "tags": checkpoint.id in self.tags,
            }
            told |= {f"the usage {key!r}": True for key in used.extra} if "usage" not in carried else {}
            told |= {f"the metadata {key!r}": True for key in checkpoint.metadata} if "metadata" not in carried else {}
        for what, there in told.items():
            if there and what not in carried:
                self._left.setdefault(what, set()).add(checkpoint.id)

    def _branch_head(self, branch: str) -> Checkpoint:
        found = self._session.head(branch)
        if found is None:
            message = f"session {self.session!r} has no branch {branch!r}"
            raise NotFoundError(message, hint=f"it has {', '.join(self._session.branches())}")
        return found

    def _each(self, sequences: list[int]) -> Iterator[Checkpoint]:
        for sequence in sequences:
            row = self._backend.read(Ask(self.session, sequences=(sequence,))).checkpoints.get(sequence)
            if not isinstance(row, CheckpointRow):
                raise refusals.no_checkpoint(self.session, f"#{sequence}")[1]
            yield self._history.checkpoint(row)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, None)


def own(checkpoint: Checkpoint, system: str) -> dict[str, Any]:
    """What a checkpoint was in that system; nothing if it does not come from there.

    Metadata can be copied from one commit to the next, so it counts only where it names this checkpoint.
    """
    kept = checkpoint.metadata.get(system)
    if not isinstance(kept, dict) or not isinstance(kept.get("id"), str):
        return {}
    id_ = kept["id"]
    renamed = checkpoint.id.startswith((f"{id_[:240]}.", "imported-"))
    return kept if checkpoint.id == id_ or renamed else {}


def micros(at: datetime) -> int:
    """Microseconds since 1970, without the rounding of a float."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def made_uuid(*names: str) -> str:
    """A UUID that is always the same for these names, where a system wants one and there is none."""
    return str(uuid5(NAMESPACE_URL, "backstay:" + "/".join(names)))


def is_jsonable(value: Any) -> bool:
    """True if JSON can hold the value."""
    try:
        jsonable(value, "")
    except InvalidInputError:
        return False
    return True


def jsonable(value: Any, system: str, path: tuple[Any, ...] = ()) -> Any:
    """The value itself, if JSON can hold it; InvalidInputError with its path otherwise."""
    kind = type(value)
    why = ""
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                why = "a key that is not text"
                break
            jsonable(item, system, (*path, key))
    elif kind is list:
        for at, item in enumerate(value):
            jsonable(item, system, (*path, at))
    elif kind is float:
        why = "" if value - value == 0 else "not a number, or infinite"
    elif kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            why = "a text with half of a surrogate pair"
    elif value is not None and kind not in (int, bool):
        why = f"a value of type {kind.__name__}"
    if not why and len(path) > _MAX_DEPTH:
        why = "nested too deep"
    if why:
        message = f"{show_path(path[:8])}: {system} has no form for this: {why}"
        raise InvalidInputError(message, hint="commit a state with plain JSON values, then export that")
    return value
