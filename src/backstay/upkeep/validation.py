"""Rows of a file from outside, checked in full while it is copied and before any of it can be seen.

A seal keeps damage out, not intent: every program can compute one. So a Validator refuses what no commit and no run
could have written: wrong digests, names that are none, links that lead nowhere, states too deep or too large, results
that do not stand where they are said to. Each state is rebuilt along its deltas, and again from each keyframe. Lengths
are compared with what the checkpoint says of itself before anything is unpacked; what is held at a time is one state,
the last of a few lines, and some bytes for each name and each boundary of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import msgspec

from backstay.codec import encode_canonical
from backstay.delta import Record
from backstay.delta.replay import Replay, stand_on
from backstay.digest import DIGEST_BYTES
from backstay.errors import BackstayError, CorruptionError
from backstay.ids import MAX_SEQUENCE, UID_BYTES, sequence_of
from backstay.model import MAX_STATE_BYTES, StateDict, Status
from backstay.names import check_name
from backstay.port import (
    Ask,
    Backend,
    CallRow,
    CheckpointRow,
    JournalKey,
    KeyframeRow,
    Kind,
    LaneRow,
    SessionRow,
    TagRow,
)
from backstay.port.row_codec import is_foreign
from backstay.port.rows import ABANDONED, CANCELLED, MESSAGE, Head, LaneWait, Took
from backstay.rules.deletion import MAX_RUN
from backstay.rules.waiting import MAX_MESSAGES
from backstay.run.result_places import at_place
from backstay.sealing import MAX_ROW_BYTES, open_delta, open_keyframe, spilled, unspill
from backstay.store.fields import check_step, check_text, check_usage, to_checkpoint, to_info
from backstay.upkeep.call_checks import check_call, check_value
from backstay.upkeep.copying import Link
from backstay.upkeep.states import Pieces, Tips

_MEANINGLESS = (ValueError, TypeError, ArithmeticError)

# A record holds values of its state, and little more. The slack is for what a short state costs beside that.
_TIMES_STATE = 4
_SLACK_BYTES = 4 * 1024 * 1024
_TIPS = 8
_TIPS_BYTES = 16 * 1024 * 1024
_PIECES_BYTES = 16 * 1024 * 1024
_ANCESTORS = 16


class _Family(msgspec.Struct, frozen=True, gc=False):
    """The fields that tell a call from the others of its journal."""

    id: str
    parent: str | None
    slot: tuple[str | None, str, str | None, int] | None


class Validator:
    """One session of a source that no process writes to; see copying.Inspector for the order of what it is shown."""

    def __init__(self, source: Backend, line: SessionRow) -> None:
        self._source = source
        self._line = line
        self._pieces = Pieces(source, size_bytes=_PIECES_BYTES)
        self._tips = Tips(count=_TIPS, size_bytes=_TIPS_BYTES)
        self._wanted: dict[int, list[tuple[str, Head | None]]] = {}  # by sequence: the names that lead there
        self._tokens: dict[int, int] = {}  # by run: that of its branch
        self._taken: set[JournalKey] = set()
        self._foreign: set[str] = set()
        self._now: tuple[Took | None, StateDict] = None, {}  # of the checkpoint whose calls come
        self._group: list[_Family] = []
        self._check_line()

    # names

    def _check_line(self) -> None:
        line = self._line
        with self._said(""):
            check_name(line.id, "a session id")
            if line.agent is not None:
                check_name(line.agent, "an agent name")
            check_step(line.last_step)
            check_text(line.reason, "a reason")
            check_usage(to_info(line).usage)
            if len(line.uid) != UID_BYTES or not 0 <= line.checkpoints <= line.sequence <= MAX_SEQUENCE:
                raise CorruptionError("its numbers cannot be")

    def name(self, row: LaneRow | TagRow) -> None:
        """A branch or a tag."""
        with self._said(f"{row.name[:64]!r}: "):
            check_name(row.name, "a branch or tag")
            if isinstance(row, TagRow):
                self._lead(row.sequence, row.name, None)
            else:
                self._lane(row)

    def _lane(self, row: LaneRow) -> None:
        Status(row.status)
        check_text(row.reason, "a reason")
        check_value(row.input)
        last = self._line.sequence
        numbers = [row.journal, *([] if row.undo_journal is None else [row.undo_journal])]
        counts = (row.undo_calls, row.calls)
        if not all([0 <= n <= last for n in numbers]) or not all([0 <= n <= MAX_SEQUENCE for n in counts]):
            raise CorruptionError("it has calls on a checkpoint that cannot be")
        if row.undo_calls and (row.undo_journal in (None, row.journal) or not row.run):
            raise CorruptionError("it has parked calls that cannot be")
        if not 0 <= row.inbox <= row.sent <= MAX_MESSAGES or (row.sent and not row.run):
            raise CorruptionError("it has messages that cannot be")
        for wait in (row.wait, row.undo_wait):
            _check_wait(wait)
        check_text(row.stop, "why it was to stop")
        if not 0 <= row.run <= MAX_RUN or not 0 <= row.token <= MAX_RUN or row.run in self._tokens:
            raise CorruptionError("its run has a number that cannot be")
        if row.run:
            self._tokens[row.run] = row.token
        if row.head is not None:
            self._lead(row.head.sequence, row.name, row.head)
        if row.undo is not None:
            self._lead(row.undo, row.name, None)

    def _lead(self, sequence: int, name: str, head: Head | None) -> None:
        self._wanted.setdefault(sequence, []).append((name, head))

    # checkpoints

    def limit_bytes(self, row: CheckpointRow) -> int:
        """How long a record of this checkpoint may be, and all large values that it needs."""
        if not 0 <= row.size_bytes <= MAX_STATE_BYTES:
            raise self._damaged(f"checkpoint {row.id[:12]!r}: its size cannot be")
        return _TIMES_STATE * row.size_bytes + _SLACK_BYTES

    def checkpoint(
        self, row: CheckpointRow, parent: Link | None, delta: Record | None, keyframe: Record | None
    ) -> None:
        """A checkpoint whose seals were opened and whose fields match its digest."""
        with self._said(f"checkpoint {row.id[:12]!r}: "):
            self._check_id(row, parent)
            self._check_fields(row)
            state = self._check_state(row, parent, delta, keyframe)
            self._check_took(row)
        for name, head in self._wanted.pop(row.sequence, []):
            if head is not None and head != row.head:
                raise self._damaged(f"{name!r} leads to another checkpoint than it says")
        self._now = row.took, state

    def _check_id(self, row: CheckpointRow, parent: Link | None) -> None:
        uid = self._line.uid
        check_name(row.id, "a checkpoint id")
        if not 0 < row.sequence <= MAX_SEQUENCE:
            raise CorruptionError("its sequence cannot be")
        if is_foreign(row, uid):
            if row.id in self._foreign or sequence_of(row.id, uid) is not None:
                raise CorruptionError("its id is that of another")
            self._foreign.add(row.id)
        for digest in (row.state_digest, row.digest, row.parent_digest):
            if digest is not None and len(digest) != DIGEST_BYTES:
                raise CorruptionError("a digest has another length than 32 bytes")
        if (row.parent_id is None) != (row.parent_digest is None) or (row.parent_id is None and parent is not None):
            raise CorruptionError("it has half a parent")
        if row.parent_id is None or (parent is not None and parent.id == row.parent_id):
            if parent is not None and parent.digest != row.parent_digest:
                raise CorruptionError("its parent is another than it says")
            return
        # Its parent was deleted since, or it would rest on that.
        check_name(row.parent_id, "a checkpoint id")
        if row.parent_id in self._foreign or self._is_here(row.parent_id):
            raise CorruptionError("its parent is here, and it rests on another")

    def _is_here(self, id_: str) -> bool:
        return bool(self._source.read(Ask(self._line.id, ids=(id_,))).checkpoints)

    def _check_fields(self, row: CheckpointRow) -> None:
        """Everything in them can be read and means something."""
        if len(row.fields) > MAX_ROW_BYTES:
            raise CorruptionError("its fields are longer than they may be")
        try:
            checkpoint = to_checkpoint(row, self._line.id, dict)
            if type(checkpoint.metadata) is not dict:
                raise CorruptionError("its metadata is not a dict")
            encode_canonical(checkpoint.metadata)
            check_usage(checkpoint.usage)
            check_usage(checkpoint.total_usage)
            check_step(checkpoint.step)
        except _MEANINGLESS as error:
            raise CorruptionError(f"its fields mean nothing: {error}") from error

    def _check_took(self, row: CheckpointRow) -> None:
        for n, took in enumerate(() if row.took is None else row.took.each):
            at = took.run, took.journal
            if not 0 < took.run <= MAX_RUN or not 0 <= took.journal < row.sequence or took.count <= 0:
                raise CorruptionError("it took in calls that cannot be")
            if took.left is not None and not 0 <= took.left < row.sequence:
                raise CorruptionError("it left calls behind where nothing is")
            if n and (took.left is None or took.also):
                raise CorruptionError("it keeps calls that were not left behind")
            if at in self._taken:
                raise CorruptionError("it took in calls that another has")
            self._taken.add(at)

    # states

    def _check_state(
        self, row: CheckpointRow, parent: Link | None, delta: Record | None, keyframe: Record | None
    ) -> StateDict:
        """Every way to read it gives the state that its digest says."""
        state: Replay | None = None
        if delta is not None and row.parent is not None and parent is not None:
            state = self._tips.take(row.parent) or self._state_at(row.parent)
            _compare(state, parent.state_digest)
            self._follow(state, delta, row)
            _compare(state, row.state_digest)
        if keyframe is not None:
            state = None  # one state at a time: they may be large
            state = stand_on(keyframe, self._pieces.of(keyframe.refs, limit=self.limit_bytes(row)))
            _compare(state, row.state_digest)
        if state is None:
            raise CorruptionError("it has neither a delta nor a keyframe")
        if state.size_bytes > MAX_STATE_BYTES:
            raise CorruptionError("its state is larger than a state may be")
        self._tips.put(row.sequence, state, state.size_bytes)
        return state.state

    def _follow(self, state: Replay, delta: Record, row: CheckpointRow) -> None:
        if len(delta.ops) > _TIMES_STATE * (state.size_bytes + row.size_bytes) + _SLACK_BYTES:
            raise CorruptionError("it changes more than there is")
        state.follow(delta, self._pieces.of(delta.refs, limit=self.limit_bytes(row)))

    def _state_at(self, sequence: int) -> Replay:
        """A state that was let go, rebuilt: one record at a time, because each was looked at and the sum was not."""
        line = [sequence]
        row = self._row(sequence)
        while not row.keyframe:
            page = self._source.ancestors(self._line.id, line[-1], limit=_ANCESTORS)[1:]
            if not page:
                raise CorruptionError("it rests on nothing")
            for ancestor in page:
                if not isinstance(ancestor, CheckpointRow):
                    raise CorruptionError(ancestor.why)
                line.append(ancestor.sequence)
                row = ancestor
                if row.keyframe:
                    break
        state = self._from_keyframe(row)
        for at in reversed(line[:-1]):
            base, row = row.state_digest, self._row(at)
            data = unspill(row.delta, self._source.blobs(spilled(row.delta)))
            delta = open_delta(data, uid=self._line.uid, tail=row.tail, base=base, state=row.state_digest)
            state.follow(delta, self._pieces.of(delta.refs, limit=self.limit_bytes(row)))
        return state

    def _row(self, sequence: int) -> CheckpointRow:
        page = self._source.scan(self._line.id, Kind.CHECKPOINT, after=sequence - 1, limit=1)
        if not page or not isinstance(page[0], CheckpointRow) or page[0].sequence != sequence:
            raise CorruptionError(f"checkpoint #{sequence} is missing")
        return page[0]

    def _from_keyframe(self, row: CheckpointRow) -> Replay:
        page = self._source.scan(self._line.id, Kind.KEYFRAME, after=row.sequence - 1, limit=1)
        if not page or not isinstance(page[0], KeyframeRow):
            raise CorruptionError(f"the keyframe of checkpoint {row.id[:12]} is missing")
        data = unspill(page[0].data, self._source.blobs(spilled(page[0].data)))
        keyframe = open_keyframe(
            data, uid=self._line.uid, tail=row.tail, state=row.state_digest, limit=self.limit_bytes(row)
        )
        return stand_on(keyframe, self._pieces.of(keyframe.refs, limit=self.limit_bytes(row)))

    # calls

    def call(self, row: CallRow) -> None:
        """A call of the journal that comes."""
        with self._said(f"call {row.id[:24]!r}: "):
            check_call(row)
            took, state = self._now
            if row.place is not None:
                if took is None or took.left is not None or row.at[:2] != (took.run, took.journal):
                    raise CorruptionError("it stands in a state, and no checkpoint took it in")
                at_place(state, row.place)
            if row.token < 0 or (took is None and row.token > self._tokens.get(row.run, 0)):
                raise CorruptionError("it is of a run that is yet to come")
            slot = None if row.status in (ABANDONED, CANCELLED) or row.kind == MESSAGE else row.ident
            self._group.append(_Family(row.id, row.parent, slot))

    def journal_ends(self, at: JournalKey, count: int) -> None:
        """All calls of a journal have come."""
        took, _ = self._now
        with self._said("its calls: "):
            if took is None and count and at in self._taken:
                raise CorruptionError("they are pending, and a checkpoint took them in")
            _check_family(self._group)
        self._group = []

    def names_journals(self) -> None:
        """No more checkpoints come: calls belong to branches from now on."""
        self._now = None, {}

    def finish(self) -> None:
        """All of it has come."""
        if self._wanted:
            name = next(iter(self._wanted.values()))[0][0]
            raise self._damaged(f"{name!r} leads to a checkpoint that does not come")

    # errors

    @contextmanager
    def _said(self, where: str) -> Iterator[None]:
        try:
            yield
        except (BackstayError, *_MEANINGLESS) as error:
            raise self._damaged(f"{where}{error.args[0] if error.args else error}") from error

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(f"session {self._line.id[:64]!r} in the export: {what}")


def _check_wait(wait: LaneWait | None) -> None:
    if wait is not None:
        check_text(wait.reason, "a reason", required=True)
        for name in wait.names:
            check_name(name, "the name of a message")
        if not -(2**62) < (wait.due_us or 0) < 2**62:
            raise CorruptionError("it waits for a time that cannot be")


def _compare(state: Replay, digest: bytes) -> None:
    if state.digest != digest:
        raise CorruptionError("its state does not match its digest")


def _check_family(group: Collection[_Family]) -> None:
    """No call is inside itself, and no two are the same that a run would have to tell apart."""
    parents = {call.id: call.parent for call in group}
    slots = [call.slot for call in group if call.slot is not None]
    if len(parents) != len(group) or len(set(slots)) != len(slots):
        raise CorruptionError("two of them cannot be told apart")
    rooted: set[str | None] = {None}
    for id_ in parents:
        path: set[str | None] = set()
        at: str | None = id_
        while at not in rooted and at in parents:
            path.add(at)
            rooted.add(at)
            at = parents[at]
        if at in path:
            raise CorruptionError(f"call {id_[:24]!r} was made inside itself")
