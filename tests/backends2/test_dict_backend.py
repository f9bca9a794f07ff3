"""A backend of a stranger keeps the contract: it was written from docs/backends.md."""

import msgspec

from backstay.port import Backend, Key, Kind
from backstay.testing.contract2 import BackendContract, Change
from tests.backends2.dict_backend import DictBackend, Disk, kept_in, name_of, place


class TestDict(BackendContract):
    def make(self) -> Backend:
        return DictBackend(Disk())

    def reopen(self, backend: Backend) -> Backend:
        assert isinstance(backend, DictBackend)
        backend.close()
        return DictBackend(backend.disk)

    def beside(self, backend: Backend) -> Backend:
        assert isinstance(backend, DictBackend)
        return DictBackend(backend.disk)

    def harm(self, backend: Backend, session: str, kind: Kind, key: Key, change: Change) -> bool:
        assert isinstance(backend, DictBackend)
        kept = backend.disk.kept
        at = place(kept[name_of(hidden=False, id_=session)], kind, key)
        row = kept_in(kept.pop(at))
        body = change(row.body)
        if body is not None:
            row.body = body
            kept[at] = msgspec.msgpack.encode(row)
        return True

    def harm_blob(self, backend: Backend, digest: bytes, change: Change) -> bool:
        assert isinstance(backend, DictBackend)
        data = change(backend.disk.kept.pop(b"b" + digest))
        if data is not None:
            backend.disk.kept[b"b" + digest] = data
        return True

    def raw_bytes(self, backend: Backend) -> bytes:
        assert isinstance(backend, DictBackend)
        return repr(backend.disk.kept).encode()
