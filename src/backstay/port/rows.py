"""The rows that hall, rules and backends speak of. Frozen values; a backend keeps each as its key and one sealed body.

| row | key | holds |
|---|---|---|
| SessionRow | the session's id | totals, counts, the last sequence |
| LaneRow, TagRow | a name | a branch with all that is mutable about it; a name that does not move |
| CheckpointRow | its sequence | header, fields, delta |
| KeyframeRow | its checkpoint's sequence | a whole copy of the state |
| SegmentRow | the sequence of its first checkpoint | older checkpoints, packed together |
| CallRow | run, journal, n | one journaled call; under the journal INBOX, one message |
"""

from __future__ import annotations

import enum

import msgspec

from backstay.port.lease import Claim


class Kind(enum.IntEnum):
    """The kinds of rows. Branches and tags share one kind because they share their names."""

    SESSION = 0
    NAME = 1
    CHECKPOINT = 2
    KEYFRAME = 3
    SEGMENT = 4
    CALL = 5
    MESSAGE = 6


class SessionRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A session's line. `uid` is made with the session and travels with it; its counts make a missing row noticed.

    `sequence` is that of the checkpoint made last. `touched` rises with every write that a listing shows. A *hidden*
    session is one that is being imported or deleted; `claim` says who does it. Checkpoints up to `packed` are in
    segments, those behind it are rows of their own. `parent`: it is a child of that session. `forgets` counts how
    often states of it were rewritten without what was to be forgotten.
    """

    id: str
    uid: bytes
    created_us: int
    updated_us: int
    touched: int = 0
    sequence: int = 0
    checkpoints: int = 0
    lanes: int = 0
    tags: int = 0
    logical_bytes: int = 0
    agent: str | None = None
    status: str = "in_progress"
    reason: str | None = None
    last_step: int | None = None
    usage: bytes = b""
    hidden: bool = False
    claim: Claim | None = None
    owner: str | None = None
    title: str | None = None
    metadata: bytes = b""
    packed: int = 0
    parent: str | None = None
    forgets: int = 0


class Head(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The head of a branch: what a commit needs to know of its parent."""

    sequence: int
    id: str
    digest: bytes
    state_digest: bytes


class LaneWait(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A run that was left waiting, summed up for those who look for work.

    It may go on once it is `ready`, from `due_us` on by the calendar, or when a message of one of these `names` comes.
    """

    reason: str
    due_us: int | None = None
    ready: bool = False
    names: tuple[str, ...] = ()


class LaneRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A branch with all that is mutable about it. It may have been entered by a run before it has a head.

    `journal` is the number under which its pending calls are kept: the sequence of the head they were made on. A
    restore parks them: `undo` and `undo_journal` are the head and the journal that an undo goes back to, `undo_calls`
    how many calls that journal has.

    `run` is the number of the runs on this branch, 0 before the first; a branch made again under the same name gets
    another. `token` rises with each run, and with a foreign write where a run was silent for longer than its lease.
    `entered`: a run was entered and has neither ended nor been given up. `unfinished`: the next one goes on with its
    `input`. `crashes` counts those at one `spot`. `nonce` recognises an enter that is tried again; `was_entered` and
    `was_unfinished` are what it found, `since_us` is when that was. `purpose` is set where the lease is held for
    something that is no run. `doubts`: the run was left, or came in an import, with so many calls in doubt. `stop` is
    why the run alive here was asked to stop; it ends at its next call or boundary.

    `wait` is there while its run was left waiting; a restore puts it aside as `undo_wait`. `sent` counts the messages
    that were ever sent here, `inbox` those that no boundary took in yet. `caller` is the call of a parent that
    the last run of this child was made for. `calls`: so many were pending when a run was entered or left here, and must
    be there still.
    """

    name: str
    head: Head | None = None
    journal: int = 0
    undo: int | None = None
    undo_journal: int | None = None
    status: str = "in_progress"
    reason: str | None = None
    run: int = 0
    token: int = 0
    entered: bool = False
    unfinished: bool = False
    claim: Claim | None = None
    input: bytes | None = None
    crashes: int = 0
    spot: bytes = b""
    nonce: bytes = b""
    purpose: str | None = None
    undo_calls: int = 0
    was_entered: bool = False
    was_unfinished: bool = False
    stop: str | None = None
    since_us: int = 0
    doubts: int = 0
    wait: LaneWait | None = None
    undo_wait: LaneWait | None = None
    sent: int = 0
    inbox: int = 0
    caller: str = ""
    calls: int = 0


class TagRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A tag and the checkpoint it holds."""

    name: str
    sequence: int


class Took(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The calls that a checkpoint took in: those under a run's journal, and how many there were.

    `left`: it did not take them in but left them behind, at the head with this sequence (0: before the first one). They
    are history, asked for by no run any more, unless the branch goes back to that head because the checkpoint goes.

    `also`: the same of checkpoints that it came after and that were deleted; each says where they were left.
    """

    run: int
    journal: int
    count: int
    left: int | None = None
    also: tuple[Took, ...] = ()

    @property
    def each(self) -> tuple[Took, ...]:
        """These, and those of deleted checkpoints."""
        return (self, *self.also)


class CheckpointRow(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint. `digest` covers its state, its parent and its fields; `fields` and `delta` are opaque to backends.

    `parent` is the sequence of the nearest ancestor still there; `parent_id` and `parent_digest` are those of the
    checkpoint it was committed on. `tail` is the random part that its bodies are sealed with. `delta` is sealed, and
    empty where the state is read from the keyframe alone. `refs`: the blobs that `delta` needs, None where they stay as
    they are kept.
    """

    sequence: int
    id: str
    tail: bytes
    parent: int | None
    parent_id: str | None
    parent_digest: bytes | None
    state_digest: bytes
    digest: bytes
    size_bytes: int
    keyframe: bool
    took: Took | None
    fields: bytes
    delta: bytes = b""
    refs: tuple[bytes, ...] | None = None

    @property
    def head(self) -> Head:
        """This checkpoint as a branch names it."""
        return Head(self.sequence, self.id, self.digest, self.state_digest)


class KeyframeRow(msgspec.Struct, frozen=True, gc=False):
    """A whole copy of a checkpoint's state, sealed; `refs` as in CheckpointRow."""

    sequence: int
    data: bytes
    refs: tuple[bytes, ...] | None = None


class SegmentRow(msgspec.Struct, frozen=True, gc=False):
    """The checkpoints of a session from `first` to `last`, of all branches, in frames (port.segments packs and opens).

    `links` says which these are and what each rests on; it is sealed and never encrypted, so that a backend can follow
    parents. `needs` is the smallest sequence outside that one of them rests on. `refs` as in CheckpointRow, of all.
    """

    first: int
    last: int
    needs: int | None
    links: bytes
    body: bytes
    refs: tuple[bytes, ...] | None = None


CallKey = tuple[int, int, int]  # run, journal, n
JournalKey = tuple[int, int]  # run, journal: all calls under it

# The journal of a branch's messages, beyond the sequence of any checkpoint. It has gaps: received messages are gone.
INBOX = 2**32


class CallWait(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a call of kind "wait" waits for (`what` is one of the words below), and how that came.

    `due_us` is when it ends by itself, by the calendar; `by` is who answered; `args` those approved instead of the ones
    asked for; `message` the number of the message that was received.
    """

    what: str
    due_us: int | None = None
    by: str | None = None
    args: bytes | None = None
    message: int | None = None


FOR_ANSWER, FOR_APPROVAL, FOR_TIME, FOR_MESSAGE, FOR_CHILD = "answer", "approval", "time", "message", "child"


class CallRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A journaled call, the `n`th under its run's journal.

    `parent` is the call it was made in, `nth` how often that was asked before since a boundary. `args` is None where
    none were given; `args_digest` is then that of the state, and `parts` has a few bytes of each of its keys. A
    finished call has a `result`, or its `place` in the state of the checkpoint that took it in, or an `error`: type and
    text. `args` and `result` are packed values (sealing.pack_value). `token` is that of the run which started it last;
    `nonce` recognises an outside decision;
    `partial` is what had come of a stream that was cut off; `files` the files as they were before a call that may be
    rolled back.
    """

    run: int
    journal: int
    n: int
    id: str
    parent: str | None
    name: str
    key: str | None
    nth: int
    kind: str
    args: bytes | None
    args_digest: bytes
    status: str
    token: int
    started_us: int
    ended_us: int | None = None
    result: bytes | None = None
    place: bytes | None = None
    error: tuple[str, str] | None = None
    nonce: bytes = b""
    parts: bytes = b""
    wait: CallWait | None = None
    partial: bytes | None = None
    files: bytes | None = None

    @property
    def at(self) -> CallKey:
        """Its key."""
        return self.run, self.journal, self.n

    @property
    def ident(self) -> tuple[str | None, str, str | None, int]:
        """By which a replay tells it from the others. A wait may have the name of the call that it comes before."""
        return self.parent, wait_slot(self.name) if self.kind == WAIT else self.name, self.key, self.nth


class Unreadable(msgspec.Struct, frozen=True, gc=False):
    """Stands in the place of a row that is damaged or missing. `parent` is what its index column says."""

    key: str | int | CallKey
    why: str
    parent: int | None = None


Row = SessionRow | LaneRow | TagRow | CheckpointRow | KeyframeRow | SegmentRow | CallRow
Key = str | int | CallKey | JournalKey

# The statuses of a call. The first two are in doubt once the run that wrote them is gone.
STARTED, IN_DOUBT, DONE, FAILED, SKIPPED, RETRY, ABANDONED = (
    "started",
    "in_doubt",
    "done",
    "failed",
    "skipped",
    "retry",
    "abandoned",
)

UNKNOWN = "unknown"  # passed over like a skipped one, by a run that says that it is not known whether it was made
CUT_OFF = "cut_off"  # a stream that was closed early; it is asked for again

# Those of a call of kind WAIT; its answer is DONE. A message is SENT until it is received.
WAITING, REJECTED, TIMED_OUT, CANCELLED, SENT = "waiting", "rejected", "timed_out", "cancelled", "sent"

WAIT, MESSAGE = "wait", "message"  # kinds of calls beside "tool" and "llm"


def wait_slot(name: str) -> str:
    """The name by which a wait is told from a call of the same name: none that a caller could give."""
    return f"\0{name}"


# Index marks of a lane, so that lanes that need attention are found without reading all: see `row_codec.marks_of`.
ENTERED, DOUBTFUL, MARK_WAITING, MARK_READY = 1, 2, 4, 8
DUE_BITS = 8  # above these bits of the marks: when a waiting lane is due, in milliseconds by the calendar


def kind_of(row: Row) -> Kind:
    """The kind of a row."""
    return _KINDS[type(row)]


def key_of(row: Row) -> Key:
    """The key of a row inside its session."""
    if isinstance(row, LaneRow | TagRow):
        return row.name
    if isinstance(row, CheckpointRow | KeyframeRow):
        return row.sequence
    if isinstance(row, SegmentRow):
        return row.first
    return row.at if isinstance(row, CallRow) else row.id


_KINDS: dict[type, Kind] = {
    SessionRow: Kind.SESSION,
    LaneRow: Kind.NAME,
    TagRow: Kind.NAME,
    CheckpointRow: Kind.CHECKPOINT,
    KeyframeRow: Kind.KEYFRAME,
    SegmentRow: Kind.SEGMENT,
    CallRow: Kind.CALL,
}
