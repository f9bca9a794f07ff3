"""Caches for the replay of a history: the states at the ends of its lines, and large values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from backstay.codec import is_held
from backstay.delta.replay import Replay
from backstay.errors import CorruptionError
from backstay.port import Backend
from backstay.sealing import open_blob

_BLOBS_AT_ONCE = 4  # 16 MiB each at most


class Tips:
    """The states at the ends of the lines that were followed last."""

    def __init__(self, *, count: int, size_bytes: int) -> None:
        self._limits = count, size_bytes
        self._kept: OrderedDict[int, tuple[Replay, int]] = OrderedDict()  # the one used longest ago first
        self._bytes = 0

    def take(self, sequence: int) -> Replay | None:
        """A state, to be moved on: it is no longer here."""
        kept = self._kept.pop(sequence, None)
        if kept is None:
            return None
        self._bytes -= kept[1]
        return kept[0]

    def put(self, sequence: int, tip: Replay, size_bytes: int) -> None:
        """A state for those that rest on it."""
        self._kept[sequence] = tip, size_bytes
        self._bytes += size_bytes
        count, most = self._limits
        while len(self._kept) > count or (self._bytes > most and len(self._kept) > 1):
            self.take(next(iter(self._kept)))


class Pieces:
    """Large values, each read and verified when it is first needed; the last ones stay at hand."""

    def __init__(self, backend: Backend, *, size_bytes: int) -> None:
        self._backend = backend
        self._limit = size_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def of(self, refs: Sequence[bytes], *, limit: int | None = None) -> dict[bytes, bytes]:
        """Those of a record; CorruptionError if they are missing, damaged, or longer than `limit` together.

        Blobs that it only holds are not among them.
        """
        refs = [ref for ref in refs if not is_held(ref)]
        found = {ref: self._kept[ref] for ref in refs if ref in self._kept}
        missing = [ref for ref in refs if ref not in found]
        total = sum(map(len, found.values()))
        for at in range(0, len(missing), _BLOBS_AT_ONCE):
            wanted = missing[at : at + _BLOBS_AT_ONCE]
            packed = self._backend.blobs(wanted)
            for ref in wanted:
                if ref not in packed:
                    raise CorruptionError(f"blob {ref.hex()[:12]} is missing")
                found[ref] = self._keep(ref, open_blob(packed[ref], ref))
                total += len(found[ref])
            if limit is not None and total > limit:
                break
        if limit is not None and total > limit:
            raise CorruptionError("its large values are longer than its state")
        return found

    def _keep(self, ref: bytes, content: bytes) -> bytes:
        self._kept[ref] = content
        self._bytes += len(content)
        while self._bytes > self._limit and len(self._kept) > 1:
            self._bytes -= len(self._kept.popitem(last=False)[1])
        return content
