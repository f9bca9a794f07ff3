"""The runs and the calls of a session as they stand in an export: the content of RUNS, and how it is parted.

The calls that a checkpoint took in come before its row, so that a reader who follows the states can hold their places
against the very state. What no checkpoint took in comes behind the last row. Leases stay at home, and so do tokens: a
call that was in flight names no run of the store it comes to, and is in doubt there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from backstay.backend import CallRow, Journaled, Kept, Moved, RunRow
from backstay.upkeep import bundle

_BLOCK_BYTES = 4 * 1024 * 1024
_CALL_BYTES = 256  # what a call weighs beside its arguments and its result

Took = tuple[int, int]


class _Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    branch: str
    unfinished: bool
    input: bytes | None


class _Took(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: str
    run: int
    after: int


class _Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    run: int
    after: int
    id: str
    parent: str | None
    name: str
    key: str | None
    nth: int
    kind: str
    args: bytes | None
    args_digest: bytes
    status: str
    started_us: int
    ended_us: int | None
    result: bytes | None
    place: bytes | None
    error: tuple[str, str] | None


class _Runs(msgspec.Struct, frozen=True, omit_defaults=True):
    """RUNS. There may be several for a session."""

    runs: list[_Run] = []
    took: list[_Took] = []
    calls: list[_Call] = []


class Arrived(msgspec.Struct, frozen=True):
    """A block of RUNS as it came: `took` has the checkpoints by their ids."""

    runs: tuple[RunRow, ...]
    took: tuple[tuple[str, Took], ...]
    calls: tuple[Journaled, ...]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Runs)


def read_runs(content: bytes) -> Arrived:
    """RUNS again. Nothing is known yet of what it says."""
    found: _Runs = bundle.decoded(_decoder, content, bundle.RUNS)
    return Arrived(
        runs=tuple([_row(run) for run in found.runs]),
        took=tuple([(took.id, (took.run, took.after)) for took in found.took]),
        calls=tuple([Journaled(call.run, call.after, 0, _call_row(call)) for call in found.calls]),
    )


def _row(run: _Run) -> RunRow:
    return RunRow(
        branch=run.branch,
        run=run.number,
        token=0,
        entered=False,
        live=False,
        unfinished=run.unfinished,
        input=run.input,
    )


def _call_row(call: _Call) -> CallRow:
    return CallRow(
        id=call.id,
        parent=call.parent,
        name=call.name,
        key=call.key,
        nth=call.nth,
        kind=call.kind,
        args=call.args,
        args_digest=call.args_digest,
        status=call.status,
        token=0,
        started_us=call.started_us,
        ended_us=call.ended_us,
        result=call.result,
        place=call.place,
        error=call.error,
    )


class Leaving:
    """The journal of a session on its way into a file, handed out as the contents of blocks.

    Runs are numbered anew, in the order in which they come: a number means nothing in another store.
    """

    def __init__(self, moved: Moved) -> None:
        self._runs = moved.runs
        self._numbers: dict[int, int] = {}
        self._groups: dict[Took, list[Journaled]] = {}
        for journaled in moved.calls:
            self._groups.setdefault((journaled.run, journaled.after), []).append(journaled)
        self._stood_at = {after for _, after in self._groups}
        self._sequences = {0}

    def heading(self) -> Iterator[bytes]:
        """The runs; nothing for a session that never ran."""
        runs, weight = [], 0
        for row in self._runs:
            runs.append(_Run(self._number(row.run), row.branch, row.unfinished or row.entered, row.input))
            weight += len(row.input or b"")
            if weight > _BLOCK_BYTES:
                yield _encode(_Runs(runs=runs))
                runs, weight = [], 0
        if runs:
            yield _encode(_Runs(runs=runs))

    def taken_by(self, page: Sequence[Kept]) -> Iterator[bytes]:
        """The calls that these checkpoints took in."""
        self._sequences.update([kept.row.sequence for kept in page if kept.row.sequence in self._stood_at])
        took: list[_Took] = []
        calls: list[_Call] = []
        for kept in page:
            found = None if kept.took is None else self._groups.pop(kept.took, None)
            if found is not None:
                took.append(_Took(kept.row.id, self._number(found[0].run), found[0].after))
                calls += self._calls(found)
        yield from _contents(took, calls)

    def rest(self) -> Iterator[bytes]:
        """What no checkpoint took in: pending and parked calls. What has no run, or stood nowhere, is nobody's."""
        known = {row.run for row in self._runs}
        left = [
            call
            for (run, after), found in self._groups.items()
            if run in known and after in self._sequences
            for call in self._calls(found)
        ]
        yield from _contents([], left)

    def _number(self, run: int) -> int:
        return self._numbers.setdefault(run, len(self._numbers) + 1)

    def _calls(self, group: Iterable[Journaled]) -> list[_Call]:
        return [self._call(journaled) for journaled in group]

    def _call(self, journaled: Journaled) -> _Call:
        call = journaled.call
        return _Call(
            run=self._number(journaled.run),
            after=journaled.after,
            id=call.id,
            parent=call.parent,
            name=call.name,
            key=call.key,
            nth=call.nth,
            kind=call.kind,
            args=call.args,
            args_digest=call.args_digest,
            status=call.status,
            started_us=call.started_us,
            ended_us=call.ended_us,
            result=call.result,
            place=call.place,
            error=call.error,
        )


def _contents(took: list[_Took], calls: list[_Call]) -> Iterator[bytes]:
    """Blocks of a size that can be held; what was taken is named before the calls come."""
    part: list[_Call] = []
    weight = 0
    for call in calls:
        part.append(call)
        weight += _CALL_BYTES + len(call.args or b"") + len(call.result or b"")
        if weight > _BLOCK_BYTES:
            yield _encode(_Runs(took=took, calls=part))
            took, part, weight = [], [], 0
    if part:
        yield _encode(_Runs(took=took, calls=part))
