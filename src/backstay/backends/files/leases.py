"""Claims on branches: who runs there now, in a small file per session beside the journals.

A claim is written again and again while a run lives and means nothing once its machine was started anew. So it is
written where it stands and never synced; the lasting facts (entered, with which token, ended) are lines of the journal.
A claim counts only for the run and token it names, and only if its sum is right. What cannot be read claims nothing:
the run it was for goes on until another is entered, and is then fenced by its token.

A claim is also a witness: of how many lines of the journal were surely on the disk. After a kill nothing else tells
a call at the end of a journal that rotted away from one that was never written down.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from backstay.backends.files.folder import Folder
from backstay.backends.files.lines import seal, unsealed
from backstay.whereabouts import Claim, Holder

LEASES = "leases"
_SLOT_BYTES = 1024
_LONGEST_HOST = 128
# Who reads without the store's lock may meet a claim that is being written.
_LOOKS = 4
_KNOWN_PLACES = 1000
_LOOK_S = 0.0005


class _Written(msgspec.Struct, frozen=True, gc=False):
    """A claim as it is written; `until` is for the eye."""

    run: int
    token: int
    host: str
    boot: str
    space: int
    pid: int
    born: int
    lease_us: int
    until_us: int
    until_wall_us: int
    until: str
    witness: tuple[int, int, int]


class Witness(NamedTuple):
    """The journal of the session that was born with this number, written anew this often, had at least these lines."""

    born: int
    epoch: int
    lines: int


NOBODY = Witness(0, 0, 0)
_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder(_Written).decode


class Leases:
    """See the module's text."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._places: dict[str, Path] = {}

    def path(self, session: str) -> Path:
        """Where the claims of a session lie, or would."""
        found = self._places.get(session)
        if found is None:
            if len(self._places) >= _KNOWN_PLACES:
                self._places.clear()
            found = self._places[session] = self._folder.path / LEASES / self._folder.journal(session).stem
        return found

    def put(self, session: str, run: int, token: int, claim: Claim, witness: Witness = NOBODY) -> None:
        """Write a claim down; with the store's lock held."""
        holder = claim.holder
        until = datetime.fromtimestamp(claim.until_wall_us / 1e6, UTC).isoformat(timespec="milliseconds")
        written = _Written(
            run,
            token,
            holder.host[:_LONGEST_HOST],
            holder.boot,
            holder.space,
            holder.pid,
            holder.born,
            claim.lease_us,
            claim.until_us,
            claim.until_wall_us,
            until,
            witness,
        )
        data = seal(_to_json(written)[:-1])[:-1].ljust(_SLOT_BYTES - 1) + b"\n"
        disk, path = self._folder.disk, self.path(session)
        try:
            file = disk.open(path)
        except FileNotFoundError:
            disk.make_folder(path.parent)
            file = disk.create(path)
        try:
            disk.write(file, data, (run - 1) * _SLOT_BYTES)
        finally:
            disk.close(file)

    def find(self, session: str, run: int, token: int) -> Claim | None:
        """The claim of a run, if that can be read."""
        disk = self._folder.disk
        try:
            file = disk.open(self.path(session))
        except FileNotFoundError:
            return None
        try:
            for _ in range(_LOOKS):
                data = disk.read(file, _SLOT_BYTES, (run - 1) * _SLOT_BYTES)
                found = _read(data)
                if found is not None or not data.strip(b"\0"):
                    break
                time.sleep(_LOOK_S)
        finally:
            disk.close(file)
        if found is None or (found.run, found.token) != (run, token):
            return None
        holder = Holder(found.host, found.boot, found.space, found.pid, found.born)
        return Claim(holder, found.lease_us, found.until_us, found.until_wall_us)

    def witnesses(self, journal: Path) -> list[Witness]:
        """What the claims beside a journal say of it. To be asked before the journal is read."""
        disk = self._folder.disk
        try:
            file = disk.open(self._folder.path / LEASES / journal.stem)
        except FileNotFoundError:
            return []
        try:
            data = disk.read(file, disk.stat(file).st_size, 0)
        finally:
            disk.close(file)
        found = [_read(data[at : at + _SLOT_BYTES]) for at in range(0, len(data), _SLOT_BYTES)]
        return [Witness(*one.witness) for one in found if one is not None]

    def remove(self, session: str) -> None:
        """Forget all claims of a session."""
        self._folder.disk.unlink(self.path(session))


def _read(data: bytes) -> _Written | None:
    text = unsealed(data.rstrip() + b"\n")
    try:
        return None if text is None else _from_json(text + b"}")
    except msgspec.MsgspecError:
        return None
