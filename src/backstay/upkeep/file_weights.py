"""What the files of a session take over all its checkpoints. Contents are weighed as they are kept, each once."""

from __future__ import annotations

from collections import Counter

import msgspec

from backstay.codec import held_in
from backstay.listing import EMPTY, Listing, difference, from_value, shown
from backstay.port import Backend, CheckpointRow, Kind
from backstay.store.files import split
from backstay.store.reading import Loaded, load
from backstay.upkeep.pages import pages

_AT_ONCE = 64


class FileWeight(msgspec.Struct, frozen=True):
    """A path, how many versions of it there are, and their bytes as plain copies."""

    path: str
    versions: int
    size_bytes: int


class FilesWeight(msgspec.Struct, frozen=True):
    """What the files of a session take. `stored_bytes`: groups of contents; patches are in the states."""

    session: str
    checkpoints: int
    versions: int
    logical_bytes: int
    stored_bytes: int
    files: tuple[FileWeight, ...]

    def largest(self, top: int) -> list[FileWeight]:
        """Those with the most bytes."""
        return sorted(self.files, key=lambda file: (-file.size_bytes, file.path))[:top]


def weigh_files(backend: Backend, session: str) -> FilesWeight:
    """Go through all checkpoints of a session in order."""
    versions: Counter[bytes] = Counter()
    sizes: Counter[bytes] = Counter()
    held: set[bytes] = set()
    lists: dict[int, Listing] = {}
    checkpoints = 0
    for page in pages(backend, session, Kind.CHECKPOINT):
        for row in page:
            found = load(backend, session, row.sequence) if isinstance(row, CheckpointRow) else None
            value = split(found).files if isinstance(found, Loaded) else None
            if value is None or not isinstance(row, CheckpointRow):
                continue
            checkpoints += 1
            held.update(held_in(value))
            now = lists[row.sequence] = from_value(value)
            before = lists.pop(row.parent, EMPTY) if row.parent is not None else EMPTY
            for change in difference(before, now).changes:
                if change.after is not None and change.after.kind == "file" and not change.only_mode:
                    versions[change.path] += 1
                    sizes[change.path] += change.after.size
    stored, digests = 0, sorted(held)
    for at in range(0, len(digests), _AT_ONCE):
        stored += sum(map(len, backend.blobs(digests[at : at + _AT_ONCE]).values()))
    return FilesWeight(
        session,
        checkpoints,
        sum(versions.values()),
        sum(sizes.values()),
        stored,
        tuple([FileWeight(shown(path), versions[path], sizes[path]) for path in versions]),
    )
