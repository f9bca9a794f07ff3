"""Records: how one step of a state's history is written, and how a chain of them is read.

A record has two halves. `ops` is a short list that says where things go (which list, from which index, how many out,
how many in); `body` is the values that go in, one after the other. They are apart so that a damaged body costs the
values in it and not the shape of all that follows. A text or bytes value of 8 KiB and more is cut into pieces that
are kept once per store by their digest; `refs` names the pieces a record needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from backstay.codec import array_header, decoder, untag
from backstay.errors import CorruptionError
from backstay.model import MAX_STATE_BYTES, Damaged, StateDict

LARGE_BYTES = 8192
PIECE_BYTES = 32 * 1024  # the first piece of a large value; each further one is twice as long
MAX_PIECE_BYTES = 8 * 1024 * 1024
_MAX_LARGE_BYTES = 2 * MAX_STATE_BYTES
_LARGE_COST = 1024  # what is nested in itself takes time, however short it is
# How many items the splices of a commit move in its lists, counted generously; and how many those of a chain may, and
# how much its patches may copy: each list and each text once over, beside that.
MOVES_A_RECORD = 1 << 26
_MOVES = 1 << 28
_COPIES_A_RECORD = 2 * MAX_STATE_BYTES
_MOST_MARKS = 1_000_000
_GROUP_BYTES = 64 * 1024

# The first number of an op, and what follows it. Values come from the body in the order of the ops.
SET = 0  # path, key            one value: container[key] = value
DEL = 1  # path, key            no value
SPLICE = 2  # path, start, drop, count   count values: list[start : start + drop] = values
PATCH = 3  # path, key, head, tail       one value: the new middle of a text or bytes
MANY = 4  # path, count          2 * count values: keys and values of a dict
LIST = 5  # path, key, count     count values: container[key] = values

TEXT, BYTES, SURROGATES, ENCODED = range(4)

decode_ops = msgspec.msgpack.Decoder(list[list[Any]], ext_hook=untag).decode


class Record(msgspec.Struct, frozen=True, gc=False):
    """One step of a state, whole or as a delta; what crosses the port."""

    ops: bytes
    body: bytes
    refs: tuple[bytes, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What the record weighs before it is packed."""
        return len(self.ops) + len(self.body)


class Stretch:
    """Deltas, each on the one before, as one record; `count` is how many they are.

    Its values are unpacked when they are decoded, and not before: half a megabyte that was unpacked long ago is no
    longer near the processor. `unpack` is given the header of their array, and gives it back with the values behind it.
    """

    __slots__ = ("count", "ops", "refs", "unpack")

    def __init__(self, ops: bytes, refs: tuple[bytes, ...], count: int, unpack: Callable[[bytes], bytes]) -> None:
        self.ops = ops
        self.refs = refs
        self.count = count
        self.unpack = unpack


class Rebuilt(msgspec.Struct, frozen=True, gc=False):
    """A state read back, and the top-level keys that changed since the chain's whole copy."""

    state: StateDict
    touched: frozenset[str]


def refs_of(records: Iterable[Record | Stretch]) -> set[bytes]:
    """All pieces that these records need."""
    return {ref for record in records for ref in record.refs}


def rebuild(records: Sequence[Record | Stretch], pieces: Mapping[bytes, bytes], *, salvage: bool = False) -> Rebuilt:
    """The state at the end of a chain: the first record is whole, each further one a delta on the one before.

    With `salvage`, a record whose body is lost (None is passed as its body through `lost_body`) leaves Damaged marks.
    """
    state: StateDict = {}
    touched: set[str] = set()
    # A whole copy alone is one state. A chain is more than that: its deltas may have replaced large values many times.
    read = read_small
    if salvage or pieces:
        read = _reader(pieces, salvage=salvage, limit=_MAX_LARGE_BYTES if len(records) == 1 else None)
    budget = _Values(sum([record.count if type(record) is Stretch else 1 for record in records]))
    groups = [[record] for record in records] if salvage else list(_grouped(records))
    try:
        chapters = [[op for record in group for op in decode_ops(record.ops)] for group in groups]
        for number, values in enumerate(_read(groups, chapters, read, salvage=salvage)):
            budget.fill(values)
            _follow(state, chapters[number], budget, touched if number else set(), salvage=salvage)
    except _MISFITS as error:
        message = "a stored delta does not fit the state before it"
        raise CorruptionError(message) from error
    return Rebuilt(state, frozenset(touched))


def _follow(state: StateDict, ops: list[list[Any]], values: _Values, touched: set[str], *, salvage: bool) -> None:
    """Do ops to a state."""
    number = 0
    while number < len(ops):
        op = ops[number]
        grown = _grow(state, ops, number, values) if op[0] == SPLICE and not salvage else 0
        number += grown or 1
        if not grown:
            try:
                _STEPS[op[0]](state, op, values)
            except (CorruptionError, *_MISFITS):
                if not salvage:
                    raise
                _mark(state, op, values)
        touched.add(op[1][0] if op[1] else op[2])


def _grow(state: StateDict, ops: list[list[Any]], number: int, values: _Values) -> int:
    """Put items behind a list at the top of the state, as all ops from one on say; and how many ops these are.

    That is by far the most frequent change.
    """
    _, path, start, drop, count = ops[number]
    target = state.get(path[0]) if len(path) == 1 else None
    if type(target) is not list or drop != 0 or start != len(target) or count <= 0:
        return 0
    end, done = start + count, 1
    for op in islice(ops, number + 1, None):
        if op[0] != SPLICE or op[2] != end or op[3] != 0 or op[1] != path or op[4] <= 0:
            break
        end += op[4]
        done += 1
    target += values.many(end - start)
    return done


_MISFITS = (msgspec.DecodeError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)

LOST = b"\xc1"  # never used in msgpack: the body of a record that could not be read


def _counts(ops: list[list[Any]]) -> int:
    total = 0
    for op in ops:
        code = op[0]
        total += 1 if code in (SET, PATCH) else 2 * op[2] if code == MANY else op[-1] if code in (SPLICE, LIST) else 0
    return total


def _grouped(records: Sequence[Record | Stretch]) -> Iterator[list[Record | Stretch]]:
    """The whole copy, each stretch, and deltas as many together as are read in one go.

    Reading small ones one by one costs more in calls than in bytes. Reading all in one go takes a buffer as long as the
    state, which the system hands out page by page.
    """
    group: list[Record | Stretch] = []
    size = 0
    for number, record in enumerate(records):
        weight = _GROUP_BYTES if type(record) is Stretch else len(record.body)  # type: ignore[union-attr]
        if group and (number == 1 or size + weight > _GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(record)
        size += weight
    if group:
        yield group


def _read(
    groups: list[list[Record | Stretch]],
    chapters: list[list[list[Any]]],
    read: Callable[[bytes], Any],
    *,
    salvage: bool,
) -> list[list[Any]]:
    """The values of each group."""
    totals = [_counts(ops) for ops in chapters]
    found: list[list[Any]] = []
    for group, total in zip(groups, totals, strict=True):
        header = array_header(total)
        try:
            if type(group[0]) is Stretch:
                data = group[0].unpack(header)
            else:
                data = b"".join([header, *map(attrgetter("body"), group)])
            if total > len(data) - len(header):
                # Every value takes a byte, so a hostile count is caught before anything is made.
                message = "a stored delta announces more values than it has bytes"
                raise CorruptionError(message)
            found.append(read(data))
        except CorruptionError:
            if not salvage:
                raise
            found.append([Damaged("this value could not be read")] * min(total, _MOST_MARKS))
    return found


def _mark(state: StateDict, op: list[Any], values: _Values) -> None:
    """A step of a salvage that does not fit what is left: its list is made, and filled with marks up to its place."""
    if op[0] != SPLICE or not op[1]:
        return
    try:
        container = _at(state, op[1][:-1])
        target = container.get(op[1][-1]) if isinstance(container, dict) else container[op[1][-1]]
        if not isinstance(target, list):
            target = container[op[1][-1]] = []
        _, _, start, drop, count = op
        if start + drop > _MOST_MARKS:
            return
        target += [Damaged("this item could not be read")] * (start + drop - len(target))
        target[start : start + drop] = values.many(count)
    except _MISFITS:
        return


class _Values:
    """The values of records, taken in order; and how much their ops may still move and copy."""

    __slots__ = ("at", "copies", "moves", "values")

    def __init__(self, records: int = 1) -> None:
        self.fill([])
        self.moves, self.copies = _MOVES + 2 * MOVES_A_RECORD * records, _COPIES_A_RECORD * records

    def fill(self, values: list[Any]) -> None:
        """The next values."""
        self.values = values
        self.at = 0

    def spend(self, *, moves: int = 0, copies: int = 0) -> None:
        """Items moved in a list, or letters copied in a text; a CorruptionError where it is too much."""
        self.moves -= moves
        self.copies -= copies
        if self.moves < 0 or self.copies < 0:
            message = "a stored delta moves more than any commit would"
            raise CorruptionError(message)

    def one(self) -> Any:
        self.at += 1
        return self.values[self.at - 1]

    def many(self, count: int) -> list[Any]:
        at, self.at = self.at, self.at + count
        if count and count == len(self.values):  # taken once; an empty list would be handed to everybody
            return self.values
        return self.values[at : at + count]


def _reader(
    pieces: Mapping[bytes, bytes], *, salvage: bool, limit: int | None = _MAX_LARGE_BYTES
) -> Callable[[bytes], Any]:
    spent = 0

    def large(data: bytes) -> Any:
        value = find(data)
        # A few bytes can name the same eight megabytes a thousand times over: that is no state that anybody committed.
        spend(len(value) if isinstance(value, str | bytes) else 0)
        return value

    def spend(size: int) -> None:
        nonlocal spent
        spent += size + _LARGE_COST
        if limit is not None and spent > limit:
            message = "the large values of a record are larger than a state may be"
            raise CorruptionError(message)

    def find(data: bytes) -> Any:
        # The same prompt often stands in many messages: made once. Text and bytes do not change, so it can be shared.
        value = made.get(data)
        if value is None:
            value = build(data)
            if isinstance(value, str | bytes):
                made[data] = value
        return value

    def build(data: bytes) -> Any:
        kind, digests = data[0], data[1:]
        try:
            content = b"".join([pieces[digests[at : at + 32]] for at in range(0, len(digests), 32)])
        except KeyError as missing:
            if salvage:
                return Damaged("a large value could not be read")
            message = f"a piece of a large value is missing: {missing.args[0].hex()[:12]}"
            raise CorruptionError(message) from None
        if kind == ENCODED:
            spend(len(content))
            return read(content)
        if kind == BYTES:
            return content
        return content.decode("utf-8", "surrogatepass" if kind == SURROGATES else "strict")

    made: dict[bytes, str | bytes] = {}
    read = decoder(large)
    return read


read_small = _reader({}, salvage=False, limit=None)  # made once: most records have no large values


def _at(state: StateDict, path: list[Any]) -> Any:
    container: Any = state
    for step in path:
        container = container[step]
    return container


def _set(state: StateDict, op: list[Any], values: _Values) -> None:
    _at(state, op[1])[op[2]] = values.one()


def _del(state: StateDict, op: list[Any], _values: _Values) -> None:
    del _at(state, op[1])[op[2]]


def _splice(state: StateDict, op: list[Any], values: _Values) -> None:
    _, path, start, drop, count = op
    target = _at(state, path)
    if start + drop > len(target) or start < 0 or drop < 0:
        message = "a splice reaches beyond its list"
        raise CorruptionError(message)
    values.spend(moves=len(target) - start)
    target[start : start + drop] = values.many(count)


def _patch(state: StateDict, op: list[Any], values: _Values) -> None:
    _, path, key, head, tail = op
    container = _at(state, path)
    old, middle = container[key], values.one()
    if isinstance(old, Damaged) or isinstance(middle, Damaged):
        container[key] = Damaged("this text could not be read")
        return
    if head < 0 or tail < 0 or head + tail > len(old):
        message = "a patch reaches beyond its text"
        raise CorruptionError(message)
    values.spend(copies=len(old))
    container[key] = old[:head] + middle + old[len(old) - tail :]


def _many(state: StateDict, op: list[Any], values: _Values) -> None:
    flat = values.many(2 * op[2])
    if flat and isinstance(flat[0], Damaged):
        return  # the keys are lost with the values
    _at(state, op[1]).update(zip(flat[::2], flat[1::2], strict=True))


def _list(state: StateDict, op: list[Any], values: _Values) -> None:
    _at(state, op[1])[op[2]] = values.many(op[3])


_STEPS: dict[int, Callable[[StateDict, list[Any], _Values], None]] = {
    SET: _set,
    DEL: _del,
    SPLICE: _splice,
    PATCH: _patch,
    MANY: _many,
    LIST: _list,
}
