"""What arrives in a file, looked at in full before any of it is let in.

A Source is an export file with an index of its blocks: it is read once from front to back, and then at any place. An
Inspector is shown the checkpoints of one session in their order and refuses what a commit could not have made: wrong
digests, broken lines, names that are none, states too deep or too large. Nothing here knows a backend.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import IO, NamedTuple

import msgspec

from backstay.backend import Kept, Moved, Row
from backstay.codec import encode_canonical
from backstay.delta.replay import Replay, stand_on
from backstay.errors import BackstayError, CorruptionError
from backstay.names import check_name
from backstay.model import MAX_STATE_BYTES, StateDict
from backstay.store.fields import check_step, check_usage, to_checkpoint, to_info
from backstay.upkeep import auditing, bundle
from backstay.upkeep.journals import Arrived

_CACHED_BLOCKS = 8
_MAX_SEQUENCE = 2**62


class Block(NamedTuple):
    """Where a block's content stands in the file."""

    offset: int
    header: bundle.Header


class Source:
    """An export file. `blocks` reads it from front to back; `content` and `blob` go back to what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._blob_blocks: list[Block] = []
        self._blobs: dict[bytes, tuple[int, int]] = {}  # number of the block, place in it
        self._cache: OrderedDict[int, list[bytes]] = OrderedDict()
        self.size = os.fstat(file.fileno()).st_size
        self.done: bundle.Done | None = None  # what the last block said, once it was read

    def blocks(self) -> Iterator[Block]:
        """Every block in its order. The last one must be DONE, and agree with all that came before it."""
        file, digest, count = self._file, sha256(), 0
        file.seek(0)
        offset = bundle.read_magic(file.read(bundle.MAGIC_BYTES))
        while True:
            file.seek(offset)
            behind = self.size - offset - bundle.HEADER_BYTES
            block = Block(offset + bundle.HEADER_BYTES, bundle.read_header(file.read(bundle.HEADER_BYTES), left=behind))
            kind = block.header.kind
            if (count == 0) != (kind == bundle.OPEN):
                message = "the export is damaged: its first block is not the first"
                raise CorruptionError(message)
            if kind == bundle.BLOBS:
                self._note_blobs(block)
            yield block
            offset = block.offset + block.header.packed
            if kind == bundle.DONE:
                break
            digest.update(block.header.digest)
            count += 1
        done = bundle.read_done(self.content(block))
        if offset != self.size or (done.blocks, done.digest) != (count, digest.digest()):
            message = "the export is damaged: it was cut, or put together from several"
            raise CorruptionError(message, hint="copy the file again, or export again")
        if done.blobs != len(self._blobs):
            message = f"the export is damaged: it announces {done.blobs} blobs and has {len(self._blobs)}"
            raise CorruptionError(message)
        self.done = done

    def content(self, block: Block) -> bytes:
        """The content of a block, checked again: the file may have changed under us."""
        self._file.seek(block.offset)
        return bundle.unpack(block.header, self._file.read(block.header.packed))

    def blob(self, digest: bytes) -> bytes:
        """A blob that came in one of the blocks read so far."""
        found = self._blobs.get(digest)
        if found is None:
            message = f"the export is damaged: blob {digest.hex()[:12]} is needed and not in it"
            raise CorruptionError(message)
        number, at = found
        contents = self._cache.get(number)
        if contents is None:
            contents = self._keep(number, bundle.read_blobs(self.content(self._blob_blocks[number])))
        else:
            self._cache.move_to_end(number)
        return contents[at]

    def pieces(self, refs: Iterable[bytes]) -> dict[bytes, bytes]:
        """Several blobs."""
        return {ref: self.blob(ref) for ref in refs}

    def _note_blobs(self, block: Block) -> None:
        number = len(self._blob_blocks)
        self._blob_blocks.append(block)
        contents = bundle.read_blobs(self.content(block))
        for at, content in enumerate(contents):
            self._blobs[sha256(content).digest()] = (number, at)
        self._keep(number, contents)

    def _keep(self, number: int, contents: list[bytes]) -> list[bytes]:
        self._cache[number] = contents
        if len(self._cache) > _CACHED_BLOCKS:
            self._cache.popitem(last=False)
        return contents


class _Seen(NamedTuple):
    """What later checkpoints are compared with."""

    sequence: int
    digest: bytes
    state_digest: bytes


class Inspector:
    """Looks at one session: its line and names, its checkpoints in order, its journal, and whether that was all."""

    def __init__(self, moved: Moved, source: Source) -> None:
        self._moved = moved
        self._source = source
        self._seen: dict[str, _Seen] = {}
        self._sequence = 0
        self._tips = bundle.Tips()
        self._states: dict[str, Replay] = {}
        self._journal = auditing.Arriving()
        self._check_line()

    def show_runs(self, arrived: Arrived) -> None:
        """Some of its journal."""
        try:
            self._journal.take(arrived)
        except BackstayError as error:
            raise self._damaged(str(error)) from error

    def show(self, arrival: bundle.Arrival) -> None:
        """The next checkpoint."""
        id_ = arrival.kept.row.id
        try:
            check_name(id_, "a checkpoint id")
            self._check_row(arrival.kept)
            branch = self._check_fields(arrival.kept.row)
            state = self._check_state(arrival)
            self._journal.show(arrival.kept, branch=branch, stood=self._stood(arrival.kept.row), state=state)
        except BackstayError as error:
            raise self._damaged(f"checkpoint {id_[:12]!r}: {error}") from error

    def finish(self) -> None:
        """No more checkpoints come."""
        count = self._moved.line.checkpoints
        if len(self._seen) != count:
            raise self._damaged(f"{count} checkpoints are announced, and {len(self._seen)} come")
        names = self._moved.names
        targets = [(tag.name, tag.id) for tag in names.tags]
        for branch in names.branches:
            targets.append((branch.name, branch.head_id))
            if branch.undo_id is not None:
                targets.append((branch.name, branch.undo_id))
        for name, id_ in targets:
            if id_ not in self._seen:
                raise self._damaged(f"{name!r} points at a checkpoint that does not come")
        try:
            self._journal.finish({seen.sequence for seen in self._seen.values()})
        except BackstayError as error:
            raise self._damaged(str(error)) from error

    def _stood(self, row: Row) -> int | None:
        """The sequence of the checkpoint that one was committed on: 0 if on none, None if that is not here."""
        if row.parent_id is None:
            return 0
        parent = self._seen.get(row.parent_id)
        return None if parent is None else parent.sequence

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(f"session {self._moved.line.id[:64]!r} in the export: {what}")

    def _check_line(self) -> None:
        line, names = self._moved.line, self._moved.names
        try:
            check_name(line.id, "a session id")
            if line.totals.agent is not None:
                check_name(line.totals.agent, "an agent name")
            check_step(line.totals.last_step)
            check_usage(to_info(line).usage)
            called = [branch.name for branch in names.branches] + [tag.name for tag in names.tags]
            for name in called:
                check_name(name, "a branch or tag")
        except (BackstayError, ValueError, TypeError, ArithmeticError) as error:
            raise self._damaged(str(error)) from error
        if len(set(called)) != len(called):
            raise self._damaged("two of its names are the same")
        if not 0 <= line.checkpoints <= self._moved.sequence < _MAX_SEQUENCE:
            raise self._damaged("it counts more checkpoints than it has numbers for")

    def _check_row(self, kept: Kept) -> None:
        row = kept.row
        if row.id in self._seen:
            raise CorruptionError("it comes twice")
        if not self._sequence < row.sequence <= self._moved.sequence:
            raise CorruptionError("its sequence is not in order")
        if row.link_id is not None and row.link_id not in self._seen:
            raise CorruptionError("it is linked to one that does not come before it")
        if row.parent_id != row.link_id:
            check_name(row.parent_id, "a checkpoint id")
            if row.parent_id in self._seen:
                raise CorruptionError("its parent is here, and it is linked to another")
        if not 0 <= kept.size_bytes <= MAX_STATE_BYTES:
            raise CorruptionError("its size cannot be")
        self._sequence = row.sequence

    def _check_fields(self, row: Row) -> str:
        """Its digest, and that everything in it can be read and means something; its branch."""
        full = row if row.link_id is None else complete(row, self._seen[row.link_id].digest)
        try:
            checkpoint = to_checkpoint(full, self._moved.line.id, dict)
            if checkpoint.metadata:
                encode_canonical(checkpoint.metadata)
            if type(checkpoint.metadata) is not dict:
                raise CorruptionError("its metadata is not a dict")
            check_usage(checkpoint.usage)
            check_usage(checkpoint.total_usage)
            check_step(checkpoint.step)
        except (ValueError, TypeError, ArithmeticError) as error:
            message = f"its fields mean nothing: {error}"
            raise CorruptionError(message) from error
        self._seen[row.id] = _Seen(row.sequence, row.digest, row.state_digest)
        return checkpoint.branch

    def _check_state(self, arrival: bundle.Arrival) -> StateDict:
        """Its state: every way to read it gives the one that its digest says."""
        kept, row = arrival.kept, arrival.kept.row
        at_hand, let_go = self._tips.take(row.id, row.link_id)
        before = None if row.link_id is None else self._states.pop(row.link_id, None)
        if let_go is not None:
            self._states.pop(let_go, None)
        state: Replay | None = None
        if kept.delta is not None:
            state = before if at_hand and before is not None else self._base(arrival)
            state.follow(kept.delta, self._source.pieces(kept.delta.refs))
            _compare(state, row)
        if kept.whole is not None:
            copy = stand_on(kept.whole, self._source.pieces(kept.whole.refs))
            _compare(copy, row)
            state = state or copy
        if state is None:
            raise CorruptionError("it has neither a delta nor a whole copy")
        self._states[row.id] = state
        return state.state

    def _base(self, arrival: bundle.Arrival) -> Replay:
        base, link = arrival.base, arrival.kept.row.link_id
        if link is None:
            raise CorruptionError("it is a delta on nothing")
        if base is None:
            raise CorruptionError("the state that it starts from is not with it")
        state = stand_on(base.record, {sha256(piece).digest(): piece for piece in base.pieces})
        if state.digest != self._seen[link].state_digest:
            raise CorruptionError("the state that it starts from is another than that of its link")
        return state


def complete(row: Row, link_digest: bytes) -> Row:
    """A row from the file with its parent's digest, which the file does not repeat where the parent is the link."""
    return msgspec.structs.replace(row, parent_digest=link_digest) if row.parent_id == row.link_id else row


def _compare(state: Replay, row: Row) -> None:
    if state.digest != row.state_digest:
        raise CorruptionError("its state does not match its digest")
    if state.size_bytes > MAX_STATE_BYTES:
        raise CorruptionError("its state is larger than a state may be")
