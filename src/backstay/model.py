"""The nouns people hold: Checkpoint, Branch, SessionInfo, Usage, Status, and the reports.

Frozen, slotted values without behaviour beyond reading themselves. Limits that are part of the promise (how long a
name may be, how large a state) are stated here, once. Nothing here does I/O or knows how anything is stored.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, NewType

import msgspec

from backstay.file_model import Files

CheckpointId = NewType("CheckpointId", str)
SessionId = NewType("SessionId", str)

StateDict = dict[str, Any]


class State(StateDict):
    """A state as `load` gives it: a dict that remembers the checkpoint and the branch it was read at.

    `commit` expects the branch still to be there, and moves it on. A copy (`dict(state)`) remembers nothing.

    ```python
    import backstay

    with backstay.open() as store:
        session = store.session("chat")
        session.commit({"n": 1})
        state = session.load()
        session.commit({"n": 2})                        # another turn is faster
        try:
            session.commit(state)
        except backstay.ConflictError:
            state = session.load()
    ```
    """

    __slots__ = ("at",)

    def __init__(self, state: StateDict, at: tuple[str, str, str] | None = None) -> None:
        super().__init__(state)
        self.at = at  # session id, branch, checkpoint id


class Mark(enum.Enum):
    """What a commit may expect of its branch beside a checkpoint."""

    NOTHING = "nothing"
    ANY = "any"

    def __repr__(self) -> str:
        return f"backstay.{self.name}"


NOTHING = Mark.NOTHING
"""For `expect`: there must be no such branch yet."""
ANY = Mark.ANY
"""For `expect`: commit on top of whatever is there."""

MAX_NAME_CHARS = 256
MAX_DEPTH = 200
MAX_STATE_BYTES = 256 * 1024 * 1024
MIN_PREFIX_CHARS = 4


def counted(number: int, noun: str) -> str:
    """`1 session`, `1,000 sessions`, `2 branches`, `2 entries`: a number and its noun, for everything that counts."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("ry"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith(('ch', 'sh', 's')) else 's'}"


OnExists = Literal["refuse", "skip", "rename"]
Durability = Literal["full", "relaxed"]
StatusName = Literal["in_progress", "waiting", "completed", "failed", "halted", "cancelled"]


class Outcome(msgspec.Struct, frozen=True):
    """A status together with why: `Status.FAILED("out of memory")`."""

    status: Status
    reason: str


class Status(enum.StrEnum):
    """How a branch stands."""

    IN_PROGRESS = "in_progress"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"
    CANCELLED = "cancelled"

    def __call__(self, reason: str) -> Outcome:
        """The status with its reason, as `commit(status=…)` takes it."""
        return Outcome(self, reason)


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step used. Usages add up with `+`."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    tasks_completed: int = 0
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def __add__(self, other: Usage) -> Usage:
        """The sum; numbers in `extra` add up by key, anything else is taken from the right.

        A number that is none (NaN, an infinity) counts as nothing: one of them would spoil every later total.
        """
        if other == _NOTHING:
            return self
        extra = dict(self.extra)
        for key, value in other.extra.items():
            before = extra.get(key)
            if isinstance(value, int | float) and isinstance(before, int | float):
                extra[key] = _sum(before, value)
            else:
                extra[key] = value
        return Usage(
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            _sum(self.cost, other.cost),
            self.tasks_completed + other.tasks_completed,
            extra,
        )


_NOTHING = Usage()


def _sum(a: float, b: float) -> float:
    """The sum of what counts; one that no float holds stays at what there was before."""
    a, b = (number if isinstance(number, int) or math.isfinite(number) else 0 for number in (a, b))
    try:
        total = a + b
    except OverflowError:
        return a
    return total if isinstance(total, int) or math.isfinite(total) else a


class Damaged(msgspec.Struct, frozen=True):
    """Stands in a salvaged state where an item could not be read. It cannot be committed: decide what goes there."""

    what: str


class StateSource(msgspec.Struct):
    """Where a Checkpoint gets its state from when it is asked for: loaded once, then kept."""

    load: Callable[[], StateDict]
    load_files: Callable[[], Files | None] | None = None
    loaded: StateDict | None = None

    def state(self) -> StateDict:
        """The state; the first call loads it."""
        if self.loaded is None:
            self.loaded = self.load()
        return self.loaded


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One immutable recorded state and everything known about it. `size_bytes` is the whole state's, uncompressed."""

    id: CheckpointId
    session_id: SessionId
    branch: str
    parent_id: CheckpointId | None
    sequence: int
    step: int | None
    label: str | None
    trigger: str
    status: Status
    reason: str | None
    agent: str | None
    created_at: datetime
    usage: Usage
    total_usage: Usage
    metadata: Mapping[str, Any]
    resume_hint: str | None
    restored_from: CheckpointId | None
    digest: str
    parent_digest: str | None
    summary: str
    size_bytes: int
    source: StateSource

    @property
    def state(self) -> StateDict:
        """The state recorded here, verified; loaded on first use."""
        return self.source.state()

    @property
    def files(self) -> Files | None:
        """The files of the workspace as they were; None if none were captured. Read on each use."""
        return None if self.source.load_files is None else self.source.load_files()

    def __eq__(self, other: object) -> bool:
        """Two checkpoints are the same if session, id and digest are."""
        if not isinstance(other, Checkpoint):
            return NotImplemented
        return (self.session_id, self.id, self.digest) == (other.session_id, other.id, other.digest)

    def __hash__(self) -> int:
        """Consistent with equality."""
        return hash((self.session_id, self.id, self.digest))

    def __repr__(self) -> str:
        """Short enough for a prompt."""
        label = f" {self.label!r}" if self.label else ""
        return f"<Checkpoint {self.id[:8]} #{self.sequence} {self.branch}{label}: {self.summary}>"


class Branch(msgspec.Struct, frozen=True):
    """A movable name and the checkpoint it points at."""

    name: str
    head: Checkpoint


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One line about a session, had without opening its states.

    `owner`, `title` and `metadata` are the session's own, see `describe`. `store.sessions(before=info.cursor)` goes on
    with those behind this one.
    """

    id: SessionId
    agent: str | None
    status: Status
    reason: str | None
    branches: int
    checkpoints: int
    last_step: int | None
    usage: Usage
    created_at: datetime
    updated_at: datetime
    crashed: bool = False
    waiting: bool = False
    owner: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] = {}
    cursor: int = 0


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has not come to its end: alive, crashed, or ended with work left that the next run goes on with.

    `holder` is the process that has, or had, the lease; None once it was given back. `since` is when it was entered.
    """

    branch: str
    live: bool
    holder: str | None
    since: datetime | None
    crashed: bool
    waiting: bool = False
    status: Status = Status.IN_PROGRESS
    reason: str | None = None


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a text came up: the first checkpoint that has it there, where in its state, the words around it."""

    session: SessionId
    checkpoint: Checkpoint
    path: tuple[Any, ...]
    excerpt: str


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One journaled call of a model or a tool: started, done, failed, in_doubt, skipped, unknown, retry or abandoned.

    `args` is None where none were given; `error` is what was raised, as text; `parent` is the call it was made in.
    """

    id: str
    name: str
    key: str | None
    kind: str
    args: Any
    status: str
    result: Any
    error: str | None
    started_at: datetime
    ended_at: datetime | None
    parent: str | None = None
    by: str | None = None
    edited: Any = None
    partial: Any = None


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a session waits for: an answer, an approval, a time or a message (`what`), or another system's.

    `args` is what was asked, for an approval the arguments of the call; `since` and `until` when it began and when it
    ends by itself. `id` is for `session.answer`; a wait of another system has none. `agent` and `owner` are those of
    the session: which agent waits, and on whose behalf.
    """

    session_id: SessionId
    branch: str
    agent: str | None
    owner: str | None = None
    id: str | None
    name: str
    key: str | None = None
    what: str
    args: Any = None
    since: datetime
    until: datetime | None = None
    reason: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.session_id} waits {self.reason}, since {self.since:%Y-%m-%d %H:%M} UTC"


class RecoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `recover` did with the crashed sessions: by what became of each, and why where there is a why."""

    completed: tuple[SessionId, ...] = ()
    failed: Mapping[SessionId, str] = {}
    in_doubt: Mapping[SessionId, str] = {}
    halted: Mapping[SessionId, str] = {}
    cancelled: Mapping[SessionId, str] = {}
    waiting: Mapping[SessionId, str] = {}
    skipped: tuple[SessionId, ...] = ()

    @property
    def handled(self) -> int:
        """How many the handler was called for."""
        return len(self.completed) + len(self.failed) + len(self.in_doubt) + len(self.cancelled) + len(self.waiting)

    def __str__(self) -> str:
        """The count, then a line per session that did not come to its end."""
        head = f"{counted(len(self.completed), 'session')} recovered, {len(self.skipped)} left to others"
        rest = [
            f"{id_!r} {what}: {why}"
            for what, why_of in (
                ("failed", self.failed),
                ("is in doubt", self.in_doubt),
                ("was halted", self.halted),
                ("was cancelled", self.cancelled),
                ("waits", self.waiting),
            )
            for id_, why in why_of.items()
        ]
        return "\n".join([head, *rest])


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that `verify` found: what, where, what it costs, what to do."""

    what: str
    session_id: SessionId | None = None
    checkpoints: tuple[CheckpointId, ...] = ()
    cost: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        """One readable line."""
        where = f"session {self.session_id!r}: " if self.session_id is not None else ""
        tail = "; ".join(part for part in (self.cost, self.remedy) if part)
        return f"{where}{self.what}" + (f" ({tail})" if tail else "")


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` looked at and what it found. `forgotten`: contents of files that a retention or you gave up."""

    problems: tuple[Problem, ...]
    checked: int
    repaired: tuple[str, ...] = ()
    forgotten: int = 0

    @property
    def ok(self) -> bool:
        """True when nothing is damaged."""
        return not self.problems

    def __str__(self) -> str:
        """The count, then a line per problem."""
        head = f"{counted(self.checked, 'checkpoint')} checked, {counted(len(self.problems), 'problem')}"
        head += f", contents of {counted(self.forgotten, 'file version')} forgotten" if self.forgotten else ""
        done = [f"repaired: {what}" for what in self.repaired]
        return "\n".join([head, *map(str, self.problems), *done])


class PruneReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `prune` removed, or with `dry_run` would remove: checkpoints by session, and sessions as a whole.

    `files`: so many contents of files were forgotten, of checkpoints that stay.
    """

    checkpoints: Mapping[SessionId, tuple[CheckpointId, ...]]
    sessions: tuple[SessionId, ...]
    freed_bytes: int
    dry_run: bool
    files: int = 0

    @property
    def count(self) -> int:
        """How many single checkpoints."""
        return sum(len(ids) for ids in self.checkpoints.values())

    def __str__(self) -> str:
        """One line."""
        verb = "would go" if self.dry_run else "gone"
        what = f"{counted(self.count, 'checkpoint')} and {counted(len(self.sessions), 'session')}"
        files = f", contents of {counted(self.files, 'file version')} {verb}" if self.files else ""
        return f"{what} {verb}{files}, {counted(self.freed_bytes, 'byte')} freed"


class ForgottenFile(msgspec.Struct, frozen=True):
    """A path, how many versions of its contents go, and how long they are together."""

    path: str
    versions: int
    size_bytes: int


class ForgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `forget_files` gave up, or with `dry_run` would: contents of files, by path.

    `elsewhere`: paths with contents that stay, because another path, checkpoint or session has the same.
    """

    session_id: SessionId
    files: tuple[ForgottenFile, ...]
    elsewhere: tuple[str, ...]
    freed_bytes: int
    dry_run: bool

    @property
    def versions(self) -> int:
        """How many contents."""
        return sum(file.versions for file in self.files)

    def __str__(self) -> str:
        """One line, and one for what stays elsewhere."""
        verb = "would be forgotten" if self.dry_run else "forgotten"
        head = f"contents of {counted(self.versions, 'file version')} {verb}"
        kept = f"the same contents stay elsewhere: {', '.join(self.elsewhere)}"
        return f"{head}\n{kept}" if self.elsewhere else head


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `import_` brought: sessions by the names they have now, what they were called, and those it skipped.

    `in_doubt` names those with calls in doubt, and how many: they are in `crashed()` until each is decided.
    """

    sessions: tuple[SessionId, ...]
    checkpoints: int
    renamed: Mapping[SessionId, SessionId]
    skipped: tuple[SessionId, ...]
    in_doubt: Mapping[SessionId, int] = {}
    dry_run: bool = False

    def __str__(self) -> str:
        """The count, then a line per session that is not simply there."""
        verb = "would be imported" if self.dry_run else "imported"
        head = f"{counted(len(self.sessions), 'session')} with {counted(self.checkpoints, 'checkpoint')} {verb}"
        renamed = [f"{old!r} {'would be' if self.dry_run else 'is now'} {new!r}" for old, new in self.renamed.items()]
        skipped = [f"{name!r} was here already and is as it was" for name in self.skipped]
        doubts = [f"{name!r} has {counted(count, 'call')} in doubt" for name, count in self.in_doubt.items()]
        return "\n".join([head, *renamed, *skipped, *doubts])


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept, and in how little space. `file_stored_bytes` of it are contents of files in workspaces."""

    sessions: int
    checkpoints: int
    logical_bytes: int
    stored_bytes: int
    file_stored_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Logical bytes per stored byte: how many times over the store would be larger as plain copies."""
        return self.logical_bytes / self.stored_bytes if self.stored_bytes else 0.0
