"""What is kept of a branch between two commits, and how the next commit is planned from it.

Here is decided what a commit writes. Always a delta; and a *keyframe*, a whole copy, when reading would otherwise take
more than about twice the state, or when the deltas since the last one are five times its size, so that damage to one of
them does not reach far.
"""

from __future__ import annotations

import secrets

import msgspec

from backstay.delta import Known, Record, advance, know, whole
from backstay.errors import InvalidInputError
from backstay.ids import TAIL_BYTES, UID_BYTES
from backstay.model import MAX_STATE_BYTES, StateDict
from backstay.port import CheckpointRow
from backstay.port.rows import Head
from backstay.rules.commit import Commit
from backstay.sealing import pack_blob, seal_delta, seal_keyframe, spill, spilled
from backstay.store.fields import Fields, encode_fields, read_fields, to_totals
from backstay.store.reading import Loaded

_MIN_DELTA_WEIGHT = 1024  # reading a row costs something, however small it is
_SLACK_BYTES = 4096
_READ_AT_MOST = 2  # times the state
_REACH = 5  # times the last keyframe
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

    __slots__ = ("_fields", "_known", "_pieces", "_tip", "_touched", "commit")

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
        if tip is None or delta is None or _keyframe_is_due(tip, delta, known):
            keyframe, more = whole(state, touched)
            if delta is not None and delta.size_bytes > _KEEP_DELTA_BELOW * keyframe.size_bytes:
                delta, pieces = None, {}
            pieces = {**pieces, **more}
        self._tip, self._known, self._touched, self._fields, self._pieces = tip, known, touched, fields, pieces
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
        weight = before.weight + max(_MIN_DELTA_WEIGHT, len(commit.delta))
        return Tip(commit.uid, row.head, self._fields, self._known, weight, before.keyframe_bytes, self._touched, blobs)


def _keyframe_is_due(tip: Tip, delta: Record, known: Known) -> bool:
    weight = tip.weight + max(_MIN_DELTA_WEIGHT, delta.size_bytes)
    reading = tip.keyframe_bytes + weight
    return (
        reading > _READ_AT_MOST * known.size_bytes + _SLACK_BYTES or weight > _REACH * tip.keyframe_bytes + _SLACK_BYTES
    )


def _keys_in(before: Known, after: Known) -> frozenset[str]:
    """The top-level keys whose trees are not the same object: those that `advance` went into."""
    old = before.tree.children
    return frozenset([key for key, tree in after.tree.children.items() if old.get(key) is not tree])
