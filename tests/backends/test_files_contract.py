"""The files backend keeps the contract, on a disk."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from backstay.backends.files import FilesBackend
from backstay.backends.files.disk import Disk
from backstay.backends.files.folder import place
from backstay.backends.files.lines import (
    KIND_NAMES,
    Header,
    JournalLine,
    Put,
    body_of,
    open_header,
    open_line,
    seal,
    sum_of,
)
from backstay.port import Backend, Key, Kind
from backstay.testing.contract import BackendContract, Change


class CountingDisk(Disk):
    """Counts its syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def before(self, operation: str, size: int) -> int:
        self.syncs += operation in ("sync", "sync_folder")
        return size


class TestFiles(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"store-{number}" for number in range(1_000))
        self.disks: dict[int, CountingDisk] = {}

    @pytest.fixture(autouse=True)
    def _alone(self, request: pytest.FixtureRequest) -> None:
        if "damaged" in request.node.name:
            request.getfixturevalue("alone")

    def make(self) -> Backend:
        return self._open(next(self.paths))

    def _open(self, path: Path) -> Backend:
        disk = CountingDisk()
        backend = FilesBackend(path, disk=disk)
        self.disks[id(backend)] = disk
        return backend

    def reopen(self, backend: Backend) -> Backend:
        backend.close()
        return self.beside(backend)

    def beside(self, backend: Backend) -> Backend:
        return self._open(path_of(backend))

    def harm(self, backend: Backend, session: str, kind: Kind, key: Key, change: Change) -> bool:
        """Sums are put right again: what a row says of itself must do. Lost lines are in test_files."""
        path = path_of(backend)
        journal = path / "sessions" / f"{place(session)}.jsonl"
        raws = [raw + b"\n" for raw in journal.read_bytes().rstrip(b" \0\n").split(b"\n")]
        header = open_header(raws[0])
        assert isinstance(header, Header)
        lines = [open_line(raw) for raw in raws[1:]]
        name = KIND_NAMES[kind]
        holding = [n for n, line in enumerate(lines) if line and any(is_it(put, name, key) for put in line.rows)]
        if not holding:
            return False
        for n in holding:  # in each, so that no older one is taken for the row
            line = lines[n]
            assert line is not None
            puts = [harmed(put, change) if is_it(put, name, key) else put for put in line.rows]
            lines[n] = msgspec.structs.replace(line, rows=tuple([put for put in puts if put is not None]))
        texts = [seal(header)]
        for one in lines:
            assert isinstance(one, JournalLine)
            texts.append(seal(msgspec.structs.replace(one, prev=sum_of(texts[-1]))))
        journal.write_bytes(b"".join(texts))
        (path / "notes" / place(session)).unlink(missing_ok=True)
        return True

    def harm_blob(self, backend: Backend, digest: bytes, change: Change) -> bool:
        path = path_of(backend) / "blobs" / digest.hex()[:2] / digest.hex()
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "big")
        contents = change(data[12 : 12 + size])
        if contents is None:
            path.unlink()
        else:
            path.write_bytes(len(contents).to_bytes(8, "big") + data[8:12] + contents + data[12 + size :])
        return True

    def opening_code(self, backend: Backend) -> str | None:
        return (
            "from pathlib import Path; from backstay.backends.files import FilesBackend; "
            f"backend = FilesBackend(Path({str(path_of(backend))!r}))"
        )

    def raw_bytes(self, backend: Backend) -> bytes | None:
        found = [file.read_bytes() for file in sorted(path_of(backend).rglob("*")) if file.is_file()]
        bodies: list[bytes] = []
        for raw in b"\n".join(found).split(b"\n"):
            line = open_line(raw.lstrip(b" \0") + b"\n")
            bodies += [body_of(put.body) for put in line.rows] if line is not None else []
        return b"\n".join([*found, *bodies])

    def syncs(self, backend: Backend) -> int | None:
        return self.disks[id(backend)].syncs


def is_it(put: Put, name: str, key: Any) -> bool:
    return put.kind == name and put.key == key


def harmed(put: Put, change: Change) -> Put | None:
    body = change(body_of(put.body))
    return None if body is None else msgspec.structs.replace(put, body=msgspec.Raw(msgspec.json.encode(body)))


def path_of(backend: Backend) -> Path:
    assert isinstance(backend, FilesBackend)
    return backend.path
