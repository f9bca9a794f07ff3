"""The memory backend keeps the contract."""

from backstay.backend import Backend
from backstay.backends.memory import MemoryBackend
from backstay.testing import BackendContract


class TestMemory(BackendContract):
    def make(self) -> Backend:
        return MemoryBackend()

    def reopen(self, backend: Backend) -> Backend:
        return backend

    def raw_text(self, backend: Backend) -> bytes:
        assert isinstance(backend, MemoryBackend)
        return repr((backend._sessions, backend._blobs, backend._needed_by)).encode()
