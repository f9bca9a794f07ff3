"""The memory backend keeps the contract."""

from backstay.backends2.memory import MemoryBackend
from backstay.port import Backend
from backstay.testing.contract2 import BackendContract


class TestMemory(BackendContract):
    def make(self) -> Backend:
        return MemoryBackend()

    def reopen(self, backend: Backend) -> Backend:
        return backend
