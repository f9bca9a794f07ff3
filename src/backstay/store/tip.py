"""What a Session keeps of a branch between two commits, and how the next commit is planned from it.

Here is decided what a commit writes. Always a delta; and a *whole copy* when reading would otherwise take more than
about twice the state, or when the deltas since the last one are five times its size, so that damage to one of them
does not reach far. After 32 deltas they are written a second time, merged into one (a *roll*), because reading 32 rows
costs more than reading their bytes. A state can thus be had in more than one way, and damage to one costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from backstay.backend import GROUP_DELTAS, Chain, Commit, Lease, Row, next_prefix
from backstay.delta import Known, Rebuilt, Record, advance, know, merge, whole
from backstay.errors import InvalidInputError
from backstay.model import MAX_STATE_BYTES, State
from backstay.store.fields import Fields, encode_fields, read_fields, to_totals

_MIN_DELTA_WEIGHT = 1024  # reading a row costs something, however small it is
_SLACK_BYTES = 4096
_READ_AT_MOST = 2  # times the state
_REACH = 5  # times the last whole copy
_ROLL_DELTAS = 32
_KEEP_DELTA_BELOW = 0.25  # of the whole copy beside it


class Tip:
    """A branch's head: its row, what is known of its state, and what the chain behind it weighs.

    Of a head whose state is damaged nothing is known: the next commit is a whole copy.
    """

    __slots__ = (
        "epoch",
        "fields",
        "known",
        "place",
        "prefix",
        "roll_base",
        "row",
        "singles",
        "touched",
        "weight",
        "whole_size",
    )

    def __init__(
        self,
        *,
        row: Row,
        known: Known | None,
        weight: int,
        whole_size: int,
        place: int,
        prefix: bytes,
        epoch: int,
        touched: frozenset[str],
        singles: tuple[Record, ...],
        roll_base: str | None,
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
        self.singles = singles
        self.roll_base = roll_base


def tip_of(chain: Chain, rebuilt: Rebuilt) -> Tip:
    """The tip of a branch that was just read."""
    singles = chain.records[len(chain.records) - chain.singles :]
    return Tip(
        row=chain.row,
        known=know(rebuilt.state),
        weight=sum([_weight(delta) for delta in chain.records[1:]]),
        whole_size=chain.whole_bytes,
        place=chain.place,
        prefix=chain.prefix,
        epoch=chain.epoch,
        touched=rebuilt.touched,
        singles=singles,
        roll_base=chain.roll_base,
    )


def blind_tip(row: Row) -> Tip:
    """The tip of a branch whose head cannot be read, so that work can go on behind it."""
    return Tip(
        row=row,
        known=None,
        weight=0,
        whole_size=0,
        place=0,
        prefix=b"",
        epoch=0,
        touched=frozenset(),
        singles=(),
        roll_base=None,
    )


class Plan:
    """A commit ready to be written, and what the tip will be when it is."""

    __slots__ = ("_fields", "_known", "_tip", "_touched", "commit")

    def __init__(
        self,
        tip: Tip | None,
        state: State,
        *,
        session: str,
        id_: str,
        fields: Fields,
        undo_to: str | None,
        take_up: str | None,
        lease: Lease | None,
        kept: Mapping[str, bytes],
        ends_run: bool,
        frozen: bool = False,
    ) -> None:
        delta: Record | None = None
        blobs: dict[bytes, bytes] = {}
        touched: frozenset[str] = frozenset()
        before = None if tip is None else tip.known
        if tip is None or before is None:
            known = know(state)
        else:
            delta, blobs, known = advance(before, state, frozen=frozen)
            touched = tip.touched | _keys_in(before, known)
        if known.size_bytes > MAX_STATE_BYTES:
            message = f"the state has {known.size_bytes:,} bytes, more than the limit of {MAX_STATE_BYTES:,}"
            raise InvalidInputError(message, hint="keep large things outside and store where they are")
        copy: Record | None = None
        roll: Record | None = None
        if tip is None or delta is None or _whole_is_due(tip, delta, known):
            copy, more = whole(state, touched)
            if delta is not None and delta.size_bytes > _KEEP_DELTA_BELOW * copy.size_bytes:
                delta, blobs = None, {}
            blobs = {**blobs, **more}
        elif len(tip.singles) + 1 >= _ROLL_DELTAS and (tip.place + 1) % GROUP_DELTAS == 0:
            roll = merge([*tip.singles, delta])
        self._tip, self._known, self._touched, self._fields = tip, known, touched, fields
        self.commit = Commit(
            session=session,
            branch=fields.branch,
            id=id_,
            expect=None if tip is None else tip.row.id,
            fields=encode_fields(fields),
            state_digest=known.digest,
            base_digest=None if before is None else before.digest,
            delta=delta,
            whole=copy,
            roll=roll,
            roll_base=None if tip is None or roll is None else tip.roll_base,
            prefix=b"" if tip is None else tip.prefix,
            epoch=0 if tip is None else tip.epoch,
            blobs=blobs,
            size_bytes=known.size_bytes,
            totals=to_totals(fields),
            undo_to=undo_to,
            take_up=take_up,
            lease=lease,
            kept_in_state=kept,
            ends_run=ends_run,
        )

    def tip(self, row: Row) -> Tip:
        """The tip once the commit is written as this row."""
        before, delta = self._tip, self.commit.delta
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
                singles=(),
                roll_base=row.id,
            )
        place = before.place + 1
        roll = self.commit.roll
        rolled = roll is not None
        weight = before.weight + _weight(delta)
        if roll is not None:  # who reads reads it instead of the deltas in it
            weight += _weight(roll) - sum([_weight(single) for single in (*before.singles, delta)])
        return Tip(
            row=row,
            fields=self._fields,
            known=self._known,
            weight=weight,
            whole_size=before.whole_size,
            place=place,
            prefix=next_prefix(place, before.prefix, delta.body),
            epoch=before.epoch,
            touched=self._touched,
            singles=() if rolled else (*before.singles, delta),
            roll_base=row.id if rolled else before.roll_base,
        )


def _whole_is_due(tip: Tip, delta: Record, known: Known) -> bool:
    weight = tip.weight + _weight(delta)
    reading = tip.whole_size + weight
    return reading > _READ_AT_MOST * known.size_bytes + _SLACK_BYTES or weight > _REACH * tip.whole_size + _SLACK_BYTES


def _weight(delta: Record) -> int:
    return max(_MIN_DELTA_WEIGHT, delta.size_bytes)


def _keys_in(before: Known, after: Known) -> frozenset[str]:
    """The top-level keys whose trees are not the same object: those that `advance` went into."""
    old = before.tree.children
    return frozenset([key for key, tree in after.tree.children.items() if old.get(key) is not tree])
