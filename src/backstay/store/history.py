"""One session's history as the hall reads and writes it: load, plan, write. Session and Run share it.

A History keeps what is known of the heads it wrote, so that a commit costs what changed, and where each branch was last
seen (see looks), so that it never writes over what its caller has not seen.

Here is decided what a commit writes. Always a delta; and a *keyframe*, a whole copy, when reading would otherwise take
more than about twice the state, or when the deltas since the last one are five times its size, so that damage to one of
them does not reach far.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping

import msgspec

from backstay.delta import Known, Record, advance, know, whole
from backstay.errors import ConflictError, CorruptionError, InvalidInputError
from backstay.hints import NEWEST_INTACT
from backstay.ids import TAIL_BYTES, UID_BYTES
from backstay.model import ANY, MAX_STATE_BYTES, NOTHING, Checkpoint, SessionId, StateDict
from backstay.port import Ask, Backend, Batch, BlobsAbsentError, CallKey, CheckpointRow, LaneRow, Stale, View
from backstay.port.rows import Head
from backstay.rules import refusals
from backstay.rules.commit import Commit, Totals, commit
from backstay.rules.refusals import Lease
from backstay.sealing import pack_blob, seal_delta, seal_keyframe, spill, spilled
from backstay.store.events import Events
from backstay.store.fields import (
    Fields,
    Given,
    check_state,
    encode_fields,
    make_fields,
    read_fields,
    to_checkpoint,
    to_totals,
)
from backstay.store.looks import Looks, Place
from backstay.store.reading import Loaded, load
from backstay.store.refs import Ref, Refs

RACES = 100  # tries of a write that expects nothing before it gives up and reports the conflict

_NO_TOTALS = Totals(None, "in_progress", None, None, b"", 0)
_MIN_DELTA_WEIGHT = 1024  # reading a row costs something, however small it is
_SLACK_BYTES = 4096
_READ_AT_MOST = 2  # times the state
_REACH = 5  # times the last keyframe
_KEEP_DELTA_BELOW = 0.25  # of the keyframe beside it


class History:
    """See the module's text. Threads may share it as far as Looks says."""

    def __init__(self, backend: Backend, events: Events, id_: SessionId, *, agent: str | None) -> None:
        self.backend = backend
        self.events = events
        self.id = id_
        self.agent = agent
        self.refs = Refs(backend, id_)
        self.looks = Looks()
        self._tips: dict[str, Tip] = {}
        self._uid: bytes | None = None

    # reading

    def load(self, ref: Ref, *, salvage: bool = False) -> Loaded:
        """The state at a ref with where it was read: one read for a branch or a tag."""
        if isinstance(ref, str) and ref:
            found = self._read(self.refs.text(ref), salvage=salvage)
            if found is not None:
                return found
        row = self.refs.row(ref)
        found = self._read(row.sequence, salvage=salvage)
        if found is None or found.row.id != row.id:
            raise refusals.no_checkpoint(self.id, row.id)[1]
        return found

    def find(self, ref: str | int) -> Loaded | None:
        """The state at a branch, a tag or a sequence; None if there is none."""
        return self._read(ref)

    def _read(self, ref: str | int, *, salvage: bool = False) -> Loaded | None:
        try:
            found = load(self.backend, self.id, ref, salvage=salvage)
            if isinstance(found, Loaded):
                read_fields(found.row)
                return found
        except CorruptionError as error:
            message = f"session {self.id!r}: the state at {ref!r} is damaged: {error.args[0]}"
            raise CorruptionError(message, hint=NEWEST_INTACT) from error
        return None

    def state_of(self, row: CheckpointRow) -> StateDict:
        """The state of a checkpoint."""
        found = self._read(row.sequence)
        if found is None or found.row.id != row.id:
            raise refusals.no_checkpoint(self.id, row.id)[1]
        return found.state

    def checkpoint(self, row: CheckpointRow, fields: Fields | None = None) -> Checkpoint:
        """A row as people hold it; verified, unless its fields were made here a moment ago."""
        return to_checkpoint(row, self.id, lambda: self.state_of(row), fields)

    def lane(self, branch: str) -> LaneRow:
        """A branch's row; NotFoundError if there is none with a checkpoint."""
        lane = self.backend.read(Ask(self.id, names=(branch,))).lanes.get(branch)
        if lane is None or lane.head is None:
            raise refusals.no_branch(self.id, branch)[1]
        return lane

    # what is known of heads

    def remember(self, branch: str, loaded: Loaded) -> Tip:
        """Keep what was read of a branch's head for the next commit."""
        tip = self._tips[branch] = tip_of(loaded)
        return tip

    def remember_as(self, branch: str, head_id: str) -> None:
        """A new branch at a head that is known."""
        for tip in self._tips.values():
            if tip.head.id == head_id:
                self._tips[branch] = tip
                break

    def forget(self, branch: str | None = None) -> None:
        """Forget the cached head of a branch, or of all: it may be out of date."""
        if branch is None:
            self._tips.clear()
        else:
            self._tips.pop(branch, None)

    def is_at_head(self, branch: str, state: StateDict) -> bool:
        """True if a state is the one that was last written or read on the branch."""
        tip = self._tips.get(branch)
        return tip is not None and tip.known is not None and advance(tip.known, state)[2].digest == tip.known.digest

    # writing

    def write(
        self,
        branch: str,
        state: StateDict,
        given: Given | Fields,
        *,
        expect: Place,
        id_: str | None = None,
        root: bool = False,
        frozen: bool = False,
        undoable: bool = False,
        takes_up: bool = False,
        lease: Lease | None = None,
        places: Mapping[CallKey, bytes] | None = None,
        ends_run: bool = False,
    ) -> Checkpoint:
        """Commit on the expected head; with ANY, on whatever head there is. Durable when this returns.

        With Fields instead of what a caller says, all of them are as given: a checkpoint that was made elsewhere.
        """
        check_state(state)
        draft = Commit(
            self.id,
            branch,
            b"",
            b"",
            None,
            b"",
            b"",
            0,
            _NO_TOTALS,
            id=id_,
            undoable=undoable,
            takes_up=takes_up,
            lease=lease,
            places=places or {},
            ends_run=ends_run,
        )
        for _ in range(RACES):
            with contextlib.suppress(Stale):
                tip = None if root else self._tip(branch, expect, draft)
                if root:
                    session = self.backend.read(Ask(self.id)).session
                    self._uid = None if session is None else session.uid
                uid = self._uid if tip is None else tip.uid
                parent = None if tip is None else tip.fields
                fields = given
                if not isinstance(fields, Fields):
                    fields = make_fields(fields, parent, state, branch=branch, agent=self.agent)
                draft = msgspec.structs.replace(draft, expect=None if tip is None else tip.head.id)
                plan = Plan(tip, state, uid=uid, fields=fields, commit=draft, frozen=frozen)
                try:
                    return self._written(branch, plan)
                except ConflictError:
                    self.forget(branch)
                    if expect is not ANY or id_ is not None or root:
                        raise
        message = f"session {self.id!r}: branch {branch!r} moved {RACES} times while this commit was tried"
        raise ConflictError(message, hint="try again, or use a branch of its own")

    def _written(self, branch: str, plan: Plan) -> Checkpoint:
        new = plan.commit
        try:
            row = self.backend.write(new.ask, commit(new)).answer
        except BlobsAbsentError:  # a deletion took some that were thought to be kept
            new = plan.with_all_blobs()
            row = self.backend.write(new.ask, commit(new)).answer
        except Stale:
            self.forget()
            raise
        tip = self._tips[branch] = plan.tip(row)
        self.looks.moved(branch, row.id)
        made = self.checkpoint(row, tip.fields)
        if self.events.listeners["checkpoint"]:
            self.events.emit("checkpoint", made)
        return made

    def _tip(self, branch: str, expect: Place, draft: Commit) -> Tip | None:
        """What is known of the head a commit goes on; None if there is none yet.

        A head that is not the expected one is refused by the rule itself, which knows what else stands against it.
        """
        tip = self._tips.get(branch)
        if tip is not None and (expect is ANY or tip.head.id == expect):
            return tip
        try:
            found = load(self.backend, self.id, branch)
        except CorruptionError:
            return self._blind_tip(branch, expect, draft)
        if isinstance(found, Loaded):
            head: Place = NOTHING if found.lane is None else found.row.id
            if found.lane is None or expect not in (ANY, head):
                self._refuse(draft, expect)
            return self.remember(branch, found)
        session = found.session
        self._uid = None if session is None else session.uid
        if expect in (ANY, NOTHING) and session is not None and session.checkpoints:
            raise refusals.no_branch(self.id, branch)[1]  # a branch begins by a fork, or with `root`
        if expect not in (ANY, NOTHING):
            self._refuse(draft, expect)
        return None

    def _blind_tip(self, branch: str, expect: Place, draft: Commit) -> Tip:
        """The tip of a branch whose head cannot be read, so that work can go on behind it."""
        view = self.backend.read(Ask(self.id, names=(branch,), heads=True))
        lane = view.lanes.get(branch)
        if view.session is None or lane is None or lane.head is None or expect not in (ANY, lane.head.id):
            self._refuse(draft, expect)
            raise AssertionError  # pragma: no cover - refused above
        fields = None
        row = view.checkpoints.get(lane.head.sequence)
        if isinstance(row, CheckpointRow):
            with contextlib.suppress(CorruptionError):
                fields = read_fields(row)
        return Tip(view.session.uid, lane.head, fields, None)

    def _refuse(self, draft: Commit, expect: Place) -> None:
        """Let the rule say why this commit cannot be; Stale if it could be by now."""
        new = msgspec.structs.replace(draft, expect=expect if isinstance(expect, str) else None)

        def decide(view: View) -> Batch:
            uid = b"" if view.session is None else view.session.uid
            commit(msgspec.structs.replace(new, uid=uid))(view)
            raise Stale

        self.backend.write(new.ask, decide)


class Tip(msgspec.Struct, frozen=True):
    """A branch's head: what is known of its state, and what the chain behind it weighs.

    Of a head whose state is damaged nothing is known: the next commit is a keyframe. `blobs` are known to be kept.
    """

    uid: bytes
    head: Head
    fields: Fields | None
    known: Known | None
    weight: int = 0
    keyframe_bytes: int = 0
    touched: frozenset[str] = frozenset()
    blobs: frozenset[bytes] = frozenset()


def tip_of(loaded: Loaded) -> Tip:
    """The tip of a branch that was just read."""
    return Tip(
        loaded.session.uid,
        loaded.row.head,
        read_fields(loaded.row),
        know(loaded.state),
        sum(map(_weight, loaded.deltas)),
        loaded.keyframe_bytes,
        loaded.touched,
        loaded.blobs,
    )


class Plan:
    """A commit ready to be written, and what the tip will be when it is."""

    __slots__ = ("_fields", "_known", "_pieces", "_tip", "_touched", "_weight", "commit")

    def __init__(
        self,
        tip: Tip | None,
        state: StateDict,
        *,
        uid: bytes | None,
        fields: Fields,
        commit: Commit,
        frozen: bool = False,
    ) -> None:
        """`commit` says all but what is planned here."""
        delta: Record | None = None
        pieces: dict[bytes, bytes] = {}
        touched: frozenset[str] = frozenset()
        before = None if tip is None else tip.known
        if tip is None or before is None:
            known = know(state)
        else:
            delta, pieces, known = advance(before, state, frozen=frozen)
            touched = tip.touched | _keys_in(before, known)
        if known.size_bytes > MAX_STATE_BYTES:
            message = f"the state has {known.size_bytes:,} bytes, more than the limit of {MAX_STATE_BYTES:,}"
            raise InvalidInputError(message, hint="keep large things outside and store where they are")
        keyframe: Record | None = None
        weight = 0 if delta is None else _weight(delta.size_bytes + sum(map(len, pieces.values())))
        if tip is None or delta is None or _keyframe_is_due(tip, weight, known):
            keyframe, more = whole(state, touched)
            if delta is not None and delta.size_bytes > _KEEP_DELTA_BELOW * keyframe.size_bytes:
                delta, pieces = None, {}
            pieces = {**pieces, **more}
        self._tip, self._known, self._touched, self._fields, self._pieces = tip, known, touched, fields, pieces
        self._weight = weight
        uid = uid or secrets.token_bytes(UID_BYTES)
        tail = secrets.token_bytes(TAIL_BYTES)
        self.commit = self._sealed(commit, uid, tail, delta, keyframe, None if before is None else before.digest)

    def _sealed(
        self, commit: Commit, uid: bytes, tail: bytes, delta: Record | None, keyframe: Record | None, base: bytes | None
    ) -> Commit:
        state = self._known.digest
        change: dict[str, object] = {}
        blobs = {digest: pack_blob(piece) for digest, piece in self._fresh_pieces()} if self._pieces else {}
        if delta is not None and base is not None:
            data, parts = spill(seal_delta(delta, uid=uid, tail=tail, base=base, state=state))
            change |= {"delta": data, "refs": (*delta.refs, *spilled(data))}
            blobs |= parts
        if keyframe is not None:
            data, parts = spill(seal_keyframe(keyframe, uid=uid, tail=tail, state=state))
            change |= {"keyframe": data, "keyframe_refs": (*keyframe.refs, *spilled(data))}
            blobs |= parts
        return msgspec.structs.replace(
            commit,
            uid=uid,
            tail=tail,
            fields=encode_fields(self._fields),
            state_digest=state,
            size_bytes=self._known.size_bytes,
            totals=to_totals(self._fields),
            blobs=blobs,
            **change,
        )

    def _fresh_pieces(self) -> list[tuple[bytes, bytes]]:
        kept = frozenset[bytes]() if self._tip is None else self._tip.blobs
        return [(digest, piece) for digest, piece in self._pieces.items() if digest not in kept]

    def with_all_blobs(self) -> Commit:
        """The commit with every piece it refers to: some that were thought to be kept are not."""
        blobs = {digest: pack_blob(piece) for digest, piece in self._pieces.items()}
        return msgspec.structs.replace(self.commit, blobs={**self.commit.blobs, **blobs})

    def tip(self, row: CheckpointRow) -> Tip:
        """The tip once the commit is written as this row."""
        before, commit = self._tip, self.commit
        blobs = frozenset[bytes]() if before is None else before.blobs
        if self._pieces:
            blobs |= self._pieces.keys()
        if before is None or commit.keyframe is not None:
            return Tip(commit.uid, row.head, self._fields, self._known, 0, self._known.size_bytes, frozenset(), blobs)
        weight = before.weight + self._weight
        return Tip(commit.uid, row.head, self._fields, self._known, weight, before.keyframe_bytes, self._touched, blobs)


def _weight(size_bytes: int) -> int:
    """The cost of reading a delta, its large values included."""
    return max(_MIN_DELTA_WEIGHT, size_bytes)


def _keyframe_is_due(tip: Tip, delta_weight: int, known: Known) -> bool:
    weight = tip.weight + delta_weight
    reading = tip.keyframe_bytes + weight
    return (
        reading > _READ_AT_MOST * known.size_bytes + _SLACK_BYTES or weight > _REACH * tip.keyframe_bytes + _SLACK_BYTES
    )


def _keys_in(before: Known, after: Known) -> frozenset[str]:
    """The top-level keys whose trees are not the same object: those that `advance` went into."""
    old = before.tree.children
    return frozenset([key for key, tree in after.tree.children.items() if old.get(key) is not tree])
