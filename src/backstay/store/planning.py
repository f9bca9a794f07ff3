"""From a state to a commit: what is to be written, prepared as far as that can be done before its sequence is known.

A commit always writes a delta; and a *keyframe*, a whole copy, when reading would otherwise take more than about twice
the state, or when the deltas since the last one are three times its size: reading a delta costs more than reading as
much of a keyframe, and damage to one of them does not reach far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import urandom
from typing import Any

import msgspec

from backstay.delta import Known, Record, advance, know, whole
from backstay.delta.record import decode_ops
from backstay.errors import InvalidInputError
from backstay.ids import TAIL_BYTES, UID_BYTES
from backstay.model import MAX_STATE_BYTES, StateDict
from backstay.port import CheckpointRow
from backstay.port.rows import Head
from backstay.rules.commit import Commit, Totals
from backstay.sealing import pack_blob, seal_keyframe, spill, spill_delta, spilled
from backstay.store.appending import Extension
from backstay.store.fields import Fields, Given, encode_fields, make_fields, read_fields
from backstay.store.files import join
from backstay.store.reading import Loaded

_MIN_DELTA_WEIGHT = 1024  # reading a row costs something, however small it is
_SLACK_BYTES = 4096
_READ_AT_MOST = 2  # times the state
_REACH = 3  # times the last keyframe
_KEEP_DELTA_BELOW = 0.25  # of the keyframe beside it


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
    forgets: int | None = None


def tip_of(loaded: Loaded) -> Tip:
    """The tip of a branch that was just read."""
    return Tip(
        loaded.session.uid,
        loaded.row.head,
        read_fields(loaded.row),
        know(join(loaded.state, loaded.files)),
        sum([max(_MIN_DELTA_WEIGHT, size) for size in loaded.deltas]),
        loaded.keyframe_bytes,
        loaded.touched,
        loaded.blobs,
        loaded.session.forgets,
    )


class Plan:
    """A commit ready to be written, and what the tip will be when it is."""

    __slots__ = ("_fields", "_known", "_tip", "_touched", "_weight", "commit", "delta", "pieces")

    def __init__(
        self,
        tip: Tip | None,
        state: StateDict | Extension,
        *,
        uid: bytes | None,
        given: Given | Fields,
        agent: str | None,
        commit: Commit,
        frozen: bool = False,
    ) -> None:
        """`commit` says all but what is planned here."""
        delta, pieces, known, touched = _compared(tip, state, frozen=frozen)
        before = None if tip is None else tip.known
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
            keyframe, more = whole(state.whole() if isinstance(state, Extension) else state, touched, known.tree)
            if delta is not None and delta.size_bytes > _KEEP_DELTA_BELOW * keyframe.size_bytes:
                delta, pieces = None, {}
            pieces = {**pieces, **more}
        self.delta = delta
        fields = given
        if not isinstance(fields, Fields):
            parent = None if tip is None else tip.fields
            shown = {state.part: state.items} if isinstance(state, Extension) else state
            fields = make_fields(fields, parent, shown, branch=commit.branch, agent=agent)
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
            forgets=None if tip is None else tip.forgets,
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

    def with_all_blobs(self, held: Mapping[bytes, bytes], whole: Collection[bytes]) -> Commit:
        """The commit with every piece it refers to: some that were thought to be kept are not."""
        blobs = {digest: pack_blob(piece) for digest, piece in self.pieces.items()}
        return self.with_blobs({**blobs, **held}, whole)

    def with_blobs(self, blobs: Mapping[bytes, bytes], whole: Collection[bytes]) -> Commit:
        """The commit with some more blobs, and those that must be whole then."""
        return msgspec.structs.replace(self.commit, blobs={**self.commit.blobs, **blobs}, whole=whole)

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

    def tip(self, row: CheckpointRow, forgets: int) -> Tip:
        """The tip once the commit is written as this row, in a session that counts so many forgettings."""
        before, commit = self._tip, self.commit
        head = Head(row.sequence, row.id, row.digest, row.state_digest)
        blobs = frozenset[bytes]() if before is None else before.blobs
        if self.pieces:
            blobs |= self.pieces.keys()
        if before is None or commit.keyframe is not None:
            keyframe = commit.size_bytes, frozenset[str](), blobs, forgets
            return Tip(commit.uid, head, self._fields, self._known, 0, *keyframe)
        delta = before.weight + self._weight, before.keyframe_bytes, self._touched, blobs, forgets
        return Tip(commit.uid, head, self._fields, self._known, *delta)


def _compared(
    tip: Tip | None, state: StateDict | Extension, *, frozen: bool
) -> tuple[Record | None, dict[bytes, bytes], Known, frozenset[str]]:
    """The delta from a head, the pieces it needs, what is known then, and the parts that changed since its keyframe."""
    before = None if tip is None else tip.known
    if tip is None or before is None:
        assert not isinstance(state, Extension)  # noqa: S101 - the state that it extends is known
        return None, {}, know(state), frozenset()
    if isinstance(state, Extension):
        delta, pieces, known = state.advance(before)
    else:
        delta, pieces, known = advance(before, state, frozen=frozen)
    changed: set[str] = set()
    for op in decode_ops(delta.ops):
        changed.add(op[1][0] if op[1] else op[2])
    touched = tip.touched if changed <= tip.touched else tip.touched | changed
    return delta, pieces, known, touched
