"""The counters that are recorded with a boundary, so that the next run goes on counting."""

from __future__ import annotations

import msgspec

from backstay.loops import Watch
from backstay.store.fields import Fields


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """Counters recorded with a boundary beside its state: where the run began to count, and what its guard has seen."""

    iteration: int = 0
    first_iteration: int = 0
    first_cost: float = 0.0
    watch: Watch = Watch()


encode_counters = msgspec.msgpack.Encoder().encode
_decode_counters = msgspec.msgpack.Decoder(Counters).decode


def read_counters(fields: Fields) -> Counters:
    """The counters of a checkpoint; those of one that no run wrote begin with its step."""
    try:
        counters = _decode_counters(fields.loop) if fields.loop else Counters(fields.step or 0)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Counters(fields.step or 0)  # written by another version
    return counters
