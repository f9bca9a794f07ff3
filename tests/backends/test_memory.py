"""The memory backend keeps the contract. Its rows are no bytes: damage is what they would open to."""

from typing import Any

import msgspec

from backstay.backends.memory import MemoryBackend
from backstay.port import Backend, Key, Kind
from backstay.port.row_codec import open_call, open_checkpoint, open_row, pack
from backstay.testing.contract import BackendContract, Change


class TestMemory(BackendContract):
    def make(self) -> Backend:
        return MemoryBackend()

    def reopen(self, backend: Backend) -> Backend:
        return backend

    def harm(self, backend: Backend, session: str, kind: Kind, key: Key, change: Change) -> bool:
        assert isinstance(backend, MemoryBackend)
        tables = backend._tables[False, session]
        uid = tables.session.uid
        if kind is Kind.SESSION:
            return False
        table: dict[Any, Any] = tables.names
        at: Any = key
        if kind is Kind.CALL:
            assert isinstance(key, tuple)
            table, at = tables.calls[key[0], key[1]], key[-1]
        elif kind is Kind.SEGMENT:
            table = tables.segments
        elif kind is not Kind.NAME:
            table = tables.checkpoints if kind is Kind.CHECKPOINT else tables.keyframes
        row = table[at]
        body = change(pack(row, uid))
        if body is None:
            del table[at]
        elif kind is Kind.NAME:
            return False
        elif kind is Kind.CHECKPOINT:
            table[at] = open_checkpoint(body, uid=uid, sequence=at, parent=row.parent)
        elif kind is Kind.SEGMENT:
            table[at] = open_row(kind, at, body, uid=uid)
        elif kind is Kind.KEYFRAME:
            table[at] = msgspec.structs.replace(row, data=body)
        else:
            table[at] = open_call(body, uid=uid, at=row.at)
        return True

    def harm_blob(self, backend: Backend, digest: bytes, change: Change) -> bool:
        assert isinstance(backend, MemoryBackend)
        data = change(backend._blobs.pop(digest))
        if data is not None:
            backend._blobs[digest] = data
        return True

    def raw_bytes(self, backend: Backend) -> bytes:
        assert isinstance(backend, MemoryBackend)
        return repr([backend._blobs, [list(tables.rows()) for tables in backend._tables.values()]]).encode()
