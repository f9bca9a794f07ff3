"""The files backend keeps the contract, on a disk."""

import base64
import json
import re
from pathlib import Path

import pytest

from holdfast.backend import Backend
from holdfast.backends.files import FilesBackend
from holdfast.testing import BackendContract
from holdfast.testing.contract import What


class TestFiles(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"store-{number}" for number in range(1_000))

    def make(self) -> Backend:
        return FilesBackend(next(self.paths))

    def reopen(self, backend: Backend) -> Backend:
        backend.close()
        return self.beside(backend)

    def beside(self, backend: Backend) -> Backend:
        return FilesBackend(path_of(backend))

    def damage(self, backend: Backend, session: str, id_: str, what: What, *, at: float = 0.5) -> bool:
        return damage(path_of(backend), session, id_, what, at=at)

    def raw_text(self, backend: Backend) -> bytes:
        text = b"".join([path.read_bytes() for path in path_of(backend).rglob("*") if path.is_file()])
        # What is kept as base64 is looked into as well.
        return text + b"".join([base64.b64decode(found) for found in re.findall(rb'"fields":"([^"]*)"', text)])


def path_of(backend: Backend) -> Path:
    assert isinstance(backend, FilesBackend)
    return backend.path


def journal_path(store: Path, session: str) -> Path:
    """The journal of a session, found by what is written in it."""
    for path in (store / "sessions").iterdir():
        with path.open("rb") as file:
            if json.loads(file.read().splitlines()[1])["id"] == session:
                return path
    raise LookupError(session)


def damage(store: Path, session: str, id_: str, what: What, *, at: float) -> bool:
    """Flip a bit in a checkpoint's line, in its record's line, in a blob; or cut all its lines out."""
    path = journal_path(store, session)
    lines = path.read_bytes().splitlines(keepends=True)
    mine = [n for n, line in enumerate(lines) if line.strip() and about(line).get("id") == id_]
    if what == "row":
        path.write_bytes(b"".join([line for n, line in enumerate(lines) if n not in mine]))
        return True
    if what == "blob":
        digest = next(ref for n in mine for ref in json.loads(lines[n]).get("refs", []))
        blob = store / "blobs" / digest[:2] / digest
        blob.write_bytes(flipped(blob.read_bytes(), at))
        return True
    kind, member = ("checkpoint", b'"fields":"') if what == "fields" else (what, b'"ops":')
    for n in mine:
        if json.loads(lines[n])["what"] == kind:
            begin = lines[n].index(member) + (len(member) if what == "fields" else 0)
            stop = lines[n].index(b'"', begin) if what == "fields" else len(lines[n]) - 1
            lines[n] = lines[n][:begin] + flipped(lines[n][begin:stop], at) + lines[n][stop:]
            with path.open("r+b") as file:
                file.write(b"".join(lines))
            return True
    return False


def about(line: bytes) -> dict[str, object]:
    try:
        found = json.loads(line).get("about")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def flipped(data: bytes, at: float) -> bytes:
    changed = bytearray(data)
    changed[int(at * len(changed))] ^= 1
    return bytes(changed)
