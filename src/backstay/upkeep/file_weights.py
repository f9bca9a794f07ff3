"""What the files of a session take over all its checkpoints. Contents are weighed as they are kept, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from backstay.listing import shown
from backstay.port import Backend, SessionQuery
from backstay.sealing import Remnant
from backstay.store.file_contents import GroupReader, remnants_of
from backstay.upkeep.file_policies import KeepEverything
from backstay.upkeep.file_uses import FileVersion, SessionWalk

_AT_ONCE = 16
_PAGE_ROWS = 1000


class FileWeight(msgspec.Struct, frozen=True):
    """A path, how many versions of it there are, and their bytes as plain copies."""

    path: str
    versions: int
    size_bytes: int


class FilesWeight(msgspec.Struct, frozen=True):
    """What the files of a session take. `stored_bytes`: groups of contents; short patches are in the states.

    `forgotten` of the versions have no contents any more.
    """

    session: str
    checkpoints: int
    versions: int
    logical_bytes: int
    stored_bytes: int
    files: tuple[FileWeight, ...]
    forgotten: int = 0

    def largest(self, top: int) -> list[FileWeight]:
        """Those with the most bytes."""
        return sorted(self.files, key=lambda file: (-file.size_bytes, file.path))[:top]


def weigh_files(backend: Backend, session: str) -> FilesWeight:
    """Go through all checkpoints of a session in order."""
    walk = SessionWalk(backend, session, KeepEverything(), GroupReader(backend))
    uses = walk.run()
    versions: Counter[bytes] = Counter()
    sizes: Counter[bytes] = Counter()
    remnants = remnants_of(backend, list(uses.ranges))
    forgotten = 0
    for (path, digest, _), version in uses.versions.items():
        versions[path] += 1
        sizes[path] += version.size
        first = remnants.get(version.ranges[0][0]) if version.ranges else None
        whole = first is not None and digest in first.wholes
        forgotten += not whole and (version.withheld or _is_gone(version, remnants))
    stored, digests = 0, sorted(uses.ranges)
    for at in range(0, len(digests), _AT_ONCE):
        stored += sum(map(len, backend.blobs(digests[at : at + _AT_ONCE]).values()))
    return FilesWeight(
        session,
        len(walk.with_files),
        sum(versions.values()),
        sum(sizes.values()),
        stored,
        tuple([FileWeight(shown(path), versions[path], sizes[path]) for path in versions]),
        forgotten,
    )


def _is_gone(version: FileVersion, remnants: dict[bytes, Remnant]) -> bool:
    return any(
        [digest in remnants and remnants[digest].read(offset, size) is None for digest, offset, size in version.ranges]
    )


def sessions_with_files(backend: Backend) -> Iterator[FilesWeight]:
    """What each session takes that has files, the one touched last first."""
    before: int | None = None
    while page := backend.sessions(SessionQuery(before=before, limit=_PAGE_ROWS)):
        for row in page:
            found = weigh_files(backend, row.id)
            if found.checkpoints:
                yield found
        before = page[-1].touched
