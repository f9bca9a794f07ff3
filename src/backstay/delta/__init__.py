"""What changed between two states, as splices; and how a chain of them gives a state back.

`advance` compares a new state with what is known of the last one and writes a Record; `whole` writes a Record that
needs no other; `rebuild` turns a chain of Records into a state. Nothing relies on object identity: what is known is
a private copy, compared by value and exact type. Pure: no I/O, no clock.
"""

from backstay.delta.advance import Known, advance, extend, know, unshared, whole
from backstay.delta.appends import ListEnd, each_op, end_behind, merged_ops, put_there
from backstay.delta.record import LARGE_BYTES, LOST, PIECE_BYTES, Rebuilt, Record, Stretch, rebuild, refs_of
from backstay.delta.shadow import item_key

__all__ = [
    "LARGE_BYTES",
    "LOST",
    "PIECE_BYTES",
    "Known",
    "ListEnd",
    "Rebuilt",
    "Record",
    "Stretch",
    "advance",
    "each_op",
    "end_behind",
    "extend",
    "item_key",
    "know",
    "merged_ops",
    "put_there",
    "rebuild",
    "refs_of",
    "unshared",
    "whole",
]
