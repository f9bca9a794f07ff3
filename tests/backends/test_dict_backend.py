"""A backend of a stranger keeps the contract: it was written from docs/backends.md."""

import msgspec

from backstay.port import Ask, Backend, Batch, CallRow, CheckpointRow, Decide, Key, Kind, More, View
from backstay.testing.contract import BackendContract, Change
from tests.backends.dict_backend import DictBackend, Disk, kept_in, name_of, place


class ForgetfulBackend(DictBackend):
    """Does not know whether a write went through, where it was told to lose the answer; then it tries again."""

    loses = False

    def write(self, ask: Ask, decide: Decide) -> View:
        if not self.loses:
            return super().write(ask, decide)
        self.loses = False
        tried: list[Batch] = []

        def first(view: View) -> Batch | More:
            answer = decide(view)
            tried.extend([answer] if isinstance(answer, Batch) else [])
            return answer

        def second(view: View) -> Batch | More:
            view.again = True
            return decide(view)

        super().write(ask, first)
        rows = [row for batch in tried for row in batch.puts]
        sequences = tuple([row.sequence for row in rows if isinstance(row, CheckpointRow)])
        calls = tuple([row.at for row in rows if isinstance(row, CallRow)])
        wider = {"sequences": ask.sequences + sequences, "calls": ask.calls + calls}
        return super().write(msgspec.structs.replace(ask, **wider), second)


class TestDict(BackendContract):
    def make(self) -> Backend:
        return ForgetfulBackend(Disk())

    def lose_answer(self, backend: Backend) -> bool:
        assert isinstance(backend, ForgetfulBackend)
        backend.loses = True
        return True

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
