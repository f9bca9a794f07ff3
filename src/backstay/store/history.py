"""One session's history as the hall reads and writes it: load, plan, write. Session and Run share it.

A History keeps what is known of the heads it wrote, so that a commit costs what changed, and where each branch was last
seen (Looks), so that it never writes over what its caller has not seen.

Here is decided what a commit writes. Always a delta; and a *keyframe*, a whole copy, when reading would otherwise take
more than about twice the state, or when the deltas since the last one are five times its size, so that damage to one of
them does not reach far.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from os import urandom
from typing import Any

import msgspec

from backstay.codec import all_text
from backstay.delta import Known, Record, advance, know, whole
from backstay.errors import ConflictError, CorruptionError, InvalidInputError
from backstay.hints import NEWEST_INTACT, Hint
from backstay.ids import TAIL_BYTES, UID_BYTES
from backstay.model import ANY, MAX_STATE_BYTES, NOTHING, Checkpoint, SessionId, State, StateDict
from backstay.port import Ask, Backend, Batch, BlobsAbsentError, CallKey, CheckpointRow, LaneRow, Records, Stale, View
from backstay.port.rows import Head
from backstay.rules import refusals
from backstay.rules.commit import Commit, Totals, commit
from backstay.rules.refusals import Lease
from backstay.rules.sessions import About
from backstay.sealing import pack_blob, seal_keyframe, spill, spill_delta, spilled
from backstay.store.events import Events
from backstay.store.fields import Fields, Given, check_state, encode_fields, make_fields, read_fields, to_checkpoint
from backstay.store.looks import Looks, Place
from backstay.store.reading import Loaded, load
from backstay.store.recent import RecentHeads
from backstay.store.refs import Ref, Refs

RACES = 100  # tries of a write that expects nothing before it gives up and reports the conflict

_STATES = frozenset({dict, State})  # whatever else is given is looked at closely
_NO_TOTALS = Totals(None, "in_progress", None, None, b"", 0)
_MIN_DELTA_WEIGHT = 1024  # reading a row costs something, however small it is
_SLACK_BYTES = 4096
_READ_AT_MOST = 2  # times the state
_REACH = 5  # times the last keyframe
_TIPS = 16
_KEEP_DELTA_BELOW = 0.25  # of the keyframe beside it
_LOOK_AGAIN = Hint(
    "look again: session.load() reads a branch and its state in one moment",
    "look again: another process is pruning this session",
)
_LOOKS = 8  # at a branch that is committed to and pruned by others all the while


class History:
    """See the module's text. Threads may share it as far as Looks says."""

    def __init__(
        self,
        backend: Backend,
        events: Events,
        id_: SessionId,
        *,
        agent: str | None,
        recent: RecentHeads | None = None,
    ) -> None:
        self.backend = backend
        self.events = events
        self.id = id_
        self.agent = agent
        self.about: About | None = None
        self.recent = RecentHeads() if recent is None else recent
        self.refs = Refs(backend, id_)
        self.looks = Looks()
        self._tips: dict[str, Tip] = {}
        self._keeping = threading.Lock()
        self._uid: bytes | None = None

    # reading

    def load(self, ref: Ref, *, salvage: bool = False) -> Loaded:
        """The state at a ref with where it was read: one read for a branch or a tag."""
        if isinstance(ref, str) and ref:
            found = self._read(ref if ref.isascii() else self.refs.text(ref), salvage=salvage)
            if found is not None:
                return found
        for _ in range(_LOOKS):
            row, branch = self.refs.resolve(ref)
            # A branch that was begun between the two looks is read by its name, so that the reader is told where.
            found = None if branch is None else self._read(branch, salvage=salvage)
            if found is not None:
                return found
            found = self._read(row.sequence, salvage=salvage)
            if found is not None and found.row.id == row.id:
                return found
            # It was pruned since; `main~1` is another by now, and an id is not found when it is looked for again.
        raise refusals.no_checkpoint(self.id, row.id)[1]

    def find(self, ref: str | int) -> Loaded | None:
        """The state at a branch, a tag or a sequence; None if there is none."""
        return self._read(ref)

    def _read(self, ref: str | int, *, salvage: bool = False) -> Loaded | None:
        try:
            found: Loaded | Records | None = None
            if not salvage and (self.id, ref) in self.recent.heads:
                found = self._read_again(str(ref))
            again = found is not None
            if found is None:
                found = load(self.backend, self.id, ref, salvage=salvage)
            if isinstance(found, Loaded):
                read_fields(found.row)
                if not again and not salvage and isinstance(ref, str):
                    self.recent.saw(ref, found)
                return found
        except CorruptionError as error:
            message = f"session {self.id!r}: the state at {ref!r} is damaged: {error.args[0]}"
            raise CorruptionError(message, hint=NEWEST_INTACT) from error
        return None

    def _read_again(self, name: str) -> Loaded | None:
        """The state of a head that this Store has read before, if it is still the head."""
        recent = self.recent.heads.get((self.id, name))
        if recent is None or not recent.records:
            return None
        try:
            view = self.backend.read(Ask(self.id, names=(name,), heads=True))
        except CorruptionError:
            return None  # a full read says what is damaged
        lane, tag = view.lanes.get(name), view.tags.get(name)
        at = None if tag is None else tag.sequence
        if lane is not None and lane.head is not None:
            at = lane.head.sequence
        row = None if at is None else view.checkpoints.get(at)
        if view.session is None or not isinstance(row, CheckpointRow) or not recent.is_at(view.session, row):
            return None
        return recent.read(view.session, lane, row)

    def state_of(self, row: CheckpointRow) -> StateDict:
        """The state of a checkpoint that was looked at; ConflictError if it was deleted since.

        It must not seem that there never was one: a loop that takes that for a new session would bury the old one.
        """
        found = self._read(row.sequence)
        if found is None or found.row.id != row.id:
            message = f"session {self.id!r}: checkpoint {row.id[:12]} was deleted or pruned since it was looked at"
            raise ConflictError(message, hint=_LOOK_AGAIN)
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

    def _keep(self, branch: str, tip: Tip) -> Tip:
        """The tips of the branches written last: each holds a state, and a session may have thousands of branches."""
        with self._keeping:
            self._tips.pop(branch, None)
            if len(self._tips) >= _TIPS:
                del self._tips[next(iter(self._tips))]
            self._tips[branch] = tip
        return tip

    def remember(self, branch: str, loaded: Loaded) -> Tip:
        """Keep what was read of a branch's head for the next commit."""
        return self._keep(branch, tip_of(loaded))

    def remember_as(self, branch: str, head_id: str) -> None:
        """A new branch at a head that is known."""
        for tip in [*self._tips.values()]:
            if tip.head.id == head_id:
                self._keep(branch, tip)
                break

    def forget(self, branch: str | None = None) -> None:
        """Forget the cached head of a branch, or of all: it may be out of date."""
        with self._keeping:
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
        received: tuple[int, ...] = (),
        ends_run: bool = False,
        look: Callable[[View], None] | None = None,
    ) -> Checkpoint:
        """Commit on the expected head; with ANY, on whatever head there is. Durable when this returns.

        `look` is shown the rows that the rule saw, once they are written.
        With Fields instead of what a caller says, all of them are as given: a checkpoint that was made elsewhere.
        """
        if type(state) not in _STATES or not all_text(map(type, state)):
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
            received=received,
            ends_run=ends_run,
            about=self.about,
        )
        for _ in range(RACES):
            try:
                tip = None if root else self._tips.get(branch)
                if root:
                    session = self.backend.read(Ask(self.id)).session
                    self._uid = None if session is None else session.uid
                elif tip is None or (expect is not ANY and tip.head.id != expect):
                    tip = self._tip(branch, expect, draft)
                uid = self._uid if tip is None else tip.uid
                return self._written(tip, uid, state, given, draft, frozen=frozen, look=look)
            except Stale:
                continue
            except ConflictError:
                self.forget(branch)
                if expect is not ANY or id_ is not None or root:
                    raise
        message = f"session {self.id!r}: branch {branch!r} moved {RACES} times while this commit was tried"
        raise ConflictError(message, hint="try again, or use a branch of its own")

    def _written(
        self,
        tip: Tip | None,
        uid: bytes | None,
        state: StateDict,
        given: Given | Fields,
        draft: Commit,
        *,
        frozen: bool,
        look: Callable[[View], None] | None,
    ) -> Checkpoint:
        plan = Plan(tip, state, uid=uid, given=given, agent=self.agent, commit=draft, frozen=frozen)
        branch, new = draft.branch, plan.commit
        try:
            view = self.backend.write(new.ask, commit(new))
        except BlobsAbsentError:  # a deletion took some that were thought to be kept
            new = plan.with_all_blobs()
            view = self.backend.write(new.ask, commit(new))
        except Stale:
            self.forget()
            raise
        row: CheckpointRow = view.answer
        if look is not None:
            look(view)
        tip = self._keep(branch, plan.tip(row))
        self.looks.moved(branch, row.id)
        recent = self.recent.heads.get((self.id, branch))
        if recent is not None and recent.records:
            self.recent.moved(branch, recent, plan.delta, plan.pieces, plan.moved(recent.loaded, tip, row))
        made = to_checkpoint(row, self.id, lambda: self.state_of(row), tip.fields)
        if self.events.listeners["checkpoint"]:
            self.events.emit("checkpoint", made)
        return made

    def _tip(self, branch: str, expect: Place, draft: Commit) -> Tip | None:
        """What is known of the head a commit goes on; None if there is none yet.

        A head that is not the expected one is refused by the rule itself, which knows what else stands against it.
        """
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
        sum([max(_MIN_DELTA_WEIGHT, size) for size in loaded.deltas]),
        loaded.keyframe_bytes,
        loaded.touched,
        loaded.blobs,
    )


class Plan:
    """A commit ready to be written, and what the tip will be when it is."""

    __slots__ = ("_fields", "_known", "_tip", "_touched", "_weight", "commit", "delta", "pieces")

    def __init__(
        self,
        tip: Tip | None,
        state: StateDict,
        *,
        uid: bytes | None,
        given: Given | Fields,
        agent: str | None,
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
            touched = tip.touched
            old = before.tree.children
            for key, tree in known.tree.children.items():
                if old.get(key) is not tree and key not in touched:  # a tree that `advance` went into is another
                    touched |= {key}
        size = known.tree.size
        if size > MAX_STATE_BYTES:
            message = f"the state has {size:,} bytes, more than the limit of {MAX_STATE_BYTES:,}"
            raise InvalidInputError(message, hint="keep large things outside and store where they are")
        keyframe: Record | None = None
        self._weight = 0
        due = tip is None or delta is None
        if tip is not None and delta is not None:
            self._weight = max(_MIN_DELTA_WEIGHT, len(delta.ops) + len(delta.body))
            if pieces:  # large values are read with their delta
                self._weight += sum(map(len, pieces.values()))
            weight = tip.weight + self._weight
            due = tip.keyframe_bytes + weight > _READ_AT_MOST * size + _SLACK_BYTES
            due |= weight > _REACH * tip.keyframe_bytes + _SLACK_BYTES
        if due:
            keyframe, more = whole(state, touched, known.tree)
            if delta is not None and delta.size_bytes > _KEEP_DELTA_BELOW * keyframe.size_bytes:
                delta, pieces = None, {}
            pieces = {**pieces, **more}
        self.delta = delta
        fields = given
        if not isinstance(fields, Fields):
            parent = None if tip is None else tip.fields
            fields = make_fields(fields, parent, state, branch=commit.branch, agent=agent)
        self._tip, self._known, self._touched, self._fields, self.pieces = tip, known, touched, fields, pieces
        uid = uid or urandom(UID_BYTES)
        tail = urandom(TAIL_BYTES)
        change: dict[str, Any] = {}
        if delta is not None and before is not None:
            base, digest = before.tree.digest, known.tree.digest
            change["delta"], change["refs"], change["blobs"] = spill_delta(
                delta, uid=uid, tail=tail, base=base, state=digest
            )
        if keyframe is not None or pieces:
            self._add_keyframe(change, keyframe, uid, tail)
        self.commit: Commit = msgspec.structs.replace(
            commit,
            expect=None if tip is None else tip.head.id,
            uid=uid,
            tail=tail,
            fields=encode_fields(fields),
            state_digest=known.tree.digest,
            size_bytes=size,
            totals=Totals(fields.agent, fields.status, fields.reason, fields.step, fields.total, fields.at_us),
            **change,
        )

    def _add_keyframe(self, change: dict[str, Any], keyframe: Record | None, uid: bytes, tail: bytes) -> None:
        """What a commit has that is more than a small delta: a keyframe, and blobs."""
        blobs = {digest: pack_blob(piece) for digest, piece in self._fresh_pieces()} | change.get("blobs", {})
        if keyframe is not None:
            data, parts = spill(seal_keyframe(keyframe, uid=uid, tail=tail, state=self._known.digest))
            change |= {"keyframe": data, "keyframe_refs": (*keyframe.refs, *spilled(data))}
            blobs |= parts
        change["blobs"] = blobs

    def _fresh_pieces(self) -> list[tuple[bytes, bytes]]:
        kept = frozenset[bytes]() if self._tip is None else self._tip.blobs
        return [(digest, piece) for digest, piece in self.pieces.items() if digest not in kept]

    def with_all_blobs(self) -> Commit:
        """The commit with every piece it refers to: some that were thought to be kept are not."""
        blobs = {digest: pack_blob(piece) for digest, piece in self.pieces.items()}
        return msgspec.structs.replace(self.commit, blobs={**self.commit.blobs, **blobs})

    def moved(self, loaded: Loaded, tip: Tip, row: CheckpointRow) -> Loaded | None:
        """What a load of the head would say once the commit is written; None if it was on another head."""
        if self._tip is None or self._tip.head.digest != loaded.row.digest:
            return None
        return msgspec.structs.replace(
            loaded,
            row=row,
            touched=tip.touched,
            deltas=(tip.weight,) if tip.weight else (),
            keyframe_bytes=tip.keyframe_bytes,
            blobs=tip.blobs,
        )

    def tip(self, row: CheckpointRow) -> Tip:
        """The tip once the commit is written as this row."""
        before, commit = self._tip, self.commit
        head = Head(row.sequence, row.id, row.digest, row.state_digest)
        blobs = frozenset[bytes]() if before is None else before.blobs
        if self.pieces:
            blobs |= self.pieces.keys()
        if before is None or commit.keyframe is not None:
            return Tip(commit.uid, head, self._fields, self._known, 0, commit.size_bytes, frozenset(), blobs)
        weight = before.weight + self._weight
        return Tip(commit.uid, head, self._fields, self._known, weight, before.keyframe_bytes, self._touched, blobs)
