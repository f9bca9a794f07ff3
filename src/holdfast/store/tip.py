"""What a Session keeps of a branch between two commits, and how the next commit is planned from it.

Here is decided whether a commit writes a delta, a whole copy, or both. A whole copy is due when the deltas since the
last one outweigh it (a delta weighs at least a kilobyte, because reading a row costs something too): so writing stays
proportional to what changed, and reading to the state. The commit that writes a whole copy keeps its delta as well:
if either is damaged, the state can be had from the other.
"""

from __future__ import annotations

from holdfast.backend import Chain, Commit, Row, next_prefix
from holdfast.delta import Known, Rebuilt, Record, advance, know, whole
from holdfast.errors import InvalidInputError
from holdfast.model import MAX_STATE_BYTES, State
from holdfast.store.fields import Fields, encode_fields, read_fields, to_totals

_MIN_DELTA_WEIGHT = 1024
_WHOLE_AT = 0.75  # of the last whole copy's size; measured in bench: more saves space, less saves reading time
_KEEP_DELTA_BELOW = 0.25  # of the whole copy beside it


class Tip:
    """A branch's head: its row, what is known of its state, and what the chain behind it weighs."""

    __slots__ = ("epoch", "fields", "known", "place", "prefix", "row", "touched", "weight", "whole_size")

    def __init__(
        self,
        *,
        row: Row,
        known: Known,
        weight: int,
        whole_size: int,
        place: int,
        prefix: bytes,
        epoch: int,
        touched: frozenset[str],
        fields: Fields | None = None,
    ) -> None:
        self.row = row
        self.fields = read_fields(row) if fields is None else fields
        self.known = known
        self.weight = weight
        self.whole_size = whole_size
        self.place = place
        self.prefix = prefix
        self.epoch = epoch
        self.touched = touched


def tip_of(chain: Chain, rebuilt: Rebuilt) -> Tip:
    """The tip of a branch that was just read."""
    return Tip(
        row=chain.row,
        known=know(rebuilt.state),
        weight=sum([_weight(delta) for delta in chain.records[1:]]),
        whole_size=chain.whole_bytes,
        place=chain.place,
        prefix=chain.prefix,
        epoch=chain.epoch,
        touched=rebuilt.touched,
    )


class Plan:
    """A commit ready to be written, and what the tip will be when it is."""

    __slots__ = ("_delta", "_fields", "_known", "_tip", "_touched", "commit")

    def __init__(
        self, tip: Tip | None, state: State, *, session: str, id_: str, fields: Fields, undo_to: str | None
    ) -> None:
        delta: Record | None
        if tip is None:
            delta, blobs, self._known = None, {}, know(state)
            self._touched: frozenset[str] = frozenset()
        else:
            delta, blobs, self._known = advance(tip.known, state)
            self._touched = tip.touched | _keys_in(tip.known, self._known)
        if self._known.size_bytes > MAX_STATE_BYTES:
            message = f"the state has {self._known.size_bytes:,} bytes, more than the limit of {MAX_STATE_BYTES:,}"
            raise InvalidInputError(message, hint="keep large things outside and store where they are")
        copy: Record | None = None
        if tip is None or delta is None or tip.weight + _weight(delta) >= _WHOLE_AT * tip.whole_size:
            copy, more = whole(state, self._touched)
            blobs = {**blobs, **more}
            if delta is not None and delta.size_bytes > _KEEP_DELTA_BELOW * copy.size_bytes:
                delta = None
                blobs = more
        self._tip, self._delta, self._fields = tip, delta, fields
        self.commit = Commit(
            session=session,
            branch=fields.branch,
            id=id_,
            expect=None if tip is None else tip.row.id,
            fields=encode_fields(fields),
            state_digest=self._known.digest,
            base_digest=None if tip is None else tip.known.digest,
            delta=delta,
            whole=copy,
            prefix=b"" if tip is None else tip.prefix,
            epoch=0 if tip is None else tip.epoch,
            blobs=blobs,
            size_bytes=self._known.size_bytes,
            totals=to_totals(fields),
            undo_to=undo_to,
        )

    def tip(self, row: Row) -> Tip:
        """The tip once the commit is written as this row."""
        before, delta = self._tip, self._delta
        if before is None or delta is None or self.commit.whole is not None:
            return Tip(
                row=row,
                fields=self._fields,
                known=self._known,
                weight=0,
                whole_size=self._known.size_bytes,
                place=0,
                prefix=b"",
                epoch=self.commit.epoch,
                touched=frozenset(),
            )
        place = before.place + 1
        return Tip(
            row=row,
            fields=self._fields,
            known=self._known,
            weight=before.weight + _weight(delta),
            whole_size=before.whole_size,
            place=place,
            prefix=next_prefix(place, before.prefix, delta.body),
            epoch=before.epoch,
            touched=self._touched,
        )


def _weight(delta: Record) -> int:
    return max(_MIN_DELTA_WEIGHT, delta.size_bytes)


def _keys_in(before: Known, after: Known) -> frozenset[str]:
    """The top-level keys whose trees are not the same object: those that `advance` went into."""
    old = before.tree.children
    return frozenset([key for key, tree in after.tree.children.items() if old.get(key) is not tree])
