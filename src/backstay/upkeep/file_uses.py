"""Which bytes of which groups the checkpoints of a session need, and how much: found by one walk over its lists.

The contents of a file are needed from the checkpoint that captured them to the last one of each line that has them. So
a walk looks at what a checkpoint has and its child has not; all files are looked at where a line ends, and at
checkpoints that are kept for their own sake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from backstay.codec import held_in
from backstay.errors import CorruptionError
from backstay.grouping import Fetch, ForgottenError, chain_of, contents_of, patch_of, ranges_of
from backstay.listing import FileEntry, Listing, from_value
from backstay.port import EVERY, Ask, Backend, CheckpointRow, Kind
from backstay.rules.file_restore import placing
from backstay.run.file_restore import place_call
from backstay.store.fields import read_fields
from backstay.store.files import split
from backstay.store.reading import Loaded, load
from backstay.store.refs import readable
from backstay.upkeep.pages import pages

UNWANTED, PINNED = 0, 1 << 62
_MOST_WHOLE_BYTES = 12 * 1024 * 1024
Range = tuple[int, int]  # an offset in a group, and a length
VersionKey = tuple[bytes, bytes, int]  # a path, the digest of its contents, and the number of their group


class FilePoint(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint as a policy sees it. `kept`: a branch, a tag, an undo or a restore in doubt leads to it.

    `head`: it is a branch's, or the one a restore in doubt goes to.
    """

    sequence: int
    parent: int | None
    id: str
    at_us: int
    labelled: bool
    kept: bool
    head: bool


class FilePolicy(Protocol):
    """What of a session's files is needed."""

    def begin(self, points: list[FilePoint]) -> None:
        """All checkpoints of a session, oldest first."""

    def pins(self, point: FilePoint) -> bool:
        """True if a checkpoint is kept for its own sake, whatever comes after it."""

    def weight(self, point: FilePoint, entry: FileEntry) -> int:
        """UNWANTED, PINNED, or the time of its last use: how much the contents of a file are needed."""

    def rewrites(self, entry: FileEntry) -> bool:
        """True if older contents of this file go although newer ones, patches on them, stay."""


class FileVersion(msgspec.Struct, frozen=True):
    """The contents of a file at some checkpoints: how long they are, and where they are read from.

    `unwanted`: all checkpoints that were looked at give them up. `inline`: a patch of theirs stands in the state;
    `withheld`: it stood there.
    """

    size: int
    ranges: tuple[tuple[bytes, int, int], ...]
    unwanted: bool
    inline: bool = False
    withheld: bool = False


class Uses:
    """The bytes that are needed, by group, and how much; and the versions of files that were met.

    `wholes`: contents that take the place of patches, by the group that these were made on. `chained`: all versions
    that are patches, by that group, and how much each is needed.
    """

    def __init__(self) -> None:
        self.ranges: dict[bytes, dict[Range, int]] = {}
        self.wholes: dict[bytes, dict[bytes, bytes]] = {}
        self.chained: dict[bytes, dict[bytes, int]] = {}
        self.versions: dict[VersionKey, FileVersion] = {}

    def add(self, other: Uses) -> None:
        """What another session needs."""
        for digest, ranges in other.ranges.items():
            mine = self.ranges.setdefault(digest, {})
            for at, weight in ranges.items():
                mine[at] = max(mine.get(at, UNWANTED), weight)
        for ident, version in other.versions.items():
            self.versions.setdefault(ident, version)
        for digest, wholes in other.wholes.items():
            self.wholes.setdefault(digest, {}).update(wholes)
        for digest, chained in other.chained.items():
            before = self.chained.setdefault(digest, {})
            for whole, weight in chained.items():
                before[whole] = max(before.get(whole, UNWANTED), weight)


class SessionWalk:
    """One walk over a session's lists."""

    def __init__(self, backend: Backend, session: str, policy: FilePolicy, fetch: Fetch) -> None:
        self._backend = backend
        self._session = session
        self._policy = policy
        self._fetch = fetch
        self.uses = Uses()
        self.points: dict[int, FilePoint] = {}
        self.with_files: list[int] = []

    def run(self) -> Uses:
        """Go through all checkpoints, the oldest first; CorruptionError if one cannot be read."""
        rows = [
            readable(self._session, row)  # type: ignore[arg-type]
            for page in pages(self._backend, self._session, Kind.CHECKPOINT)
            for row in page
        ]
        heads, kept = self._kept_ids()
        for row in rows:
            fields = read_fields(row)
            self.points[row.sequence] = FilePoint(
                row.sequence,
                row.parent,
                row.id,
                fields.at_us,
                fields.label is not None,
                row.sequence in kept or row.id in heads or row.sequence in heads,
                row.sequence in heads or row.id in heads,
            )
        self._policy.begin(list(self.points.values()))
        left: dict[int, int] = {}  # children that are still to come
        for row in rows:
            if row.parent is not None:
                left[row.parent] = left.get(row.parent, 0) + 1
        lists: dict[int, Listing] = {}
        for row in rows:
            parent = lists.get(row.parent) if row.parent is not None else None
            now = self._listing(row)
            self._step(row, parent, now, leaf=not left.get(row.sequence))
            if row.parent is not None:
                left[row.parent] -= 1
                if not left[row.parent]:
                    lists.pop(row.parent, None)
            if now is not None and left.get(row.sequence):
                lists[row.sequence] = now
        return self.uses

    def _kept_ids(self) -> tuple[set[int | str], set[int]]:
        """The heads, with what a restore in doubt needs; and what tags and undos lead to."""
        view = self._backend.read(Ask(self._session, names=EVERY, pending=EVERY))
        lanes = view.lanes.values()
        heads: set[int | str] = {lane.head.sequence for lane in lanes if lane.head is not None}
        for calls in view.pending.values():
            call = placing(calls)
            if call is not None:
                args = place_call(call)
                heads |= {args.before, args.request.target}
        kept = {tag.sequence for tag in view.tags.values()}
        return heads, kept | {lane.undo for lane in lanes if lane.undo is not None}

    def _listing(self, row: CheckpointRow) -> Listing | None:
        found = load(self._backend, self._session, row.sequence)
        if not isinstance(found, Loaded):
            raise CorruptionError(f"checkpoint {row.id[:12]} cannot be read")
        value = split(found).files
        if value is None:
            return None
        listing = from_value(value)
        for digest in held_in(listing.groups):
            self.uses.ranges.setdefault(digest, {})
        self.with_files.append(row.sequence)
        return listing

    def _step(self, row: CheckpointRow, parent: Listing | None, now: Listing | None, *, leaf: bool) -> None:
        point = self.points[row.sequence]
        if parent is not None and row.parent is not None:
            before = self.points[row.parent]
            for entry in _ended(parent, now):
                self._note(before, parent, entry)
        if now is not None and (leaf or self._policy.pins(point)):
            for entry in now:
                self._note(point, now, entry)

    def _note(self, point: FilePoint, listing: Listing, entry: FileEntry) -> None:
        if entry.place is None or not entry.size:
            return
        weight = self._policy.weight(point, entry)
        ident = entry.path, entry.digest, entry.place.group
        before = self.uses.versions.get(ident)
        needed = ranges_of(listing, entry)
        if before is None or (before.unwanted and weight):
            inline = any([isinstance(patch_of(kept), bytes) for kept in chain_of(listing, entry)[1:]])
            withheld = any([patch_of(kept) is None for kept in chain_of(listing, entry)[1:]])
            self.uses.versions[ident] = FileVersion(entry.size, tuple(needed), not weight, inline, withheld)
        if chain_of(listing, entry):
            chained = self.uses.chained.setdefault(listing.group(entry.place.group), {})
            chained[entry.digest] = max(chained.get(entry.digest, UNWANTED), weight)
        if weight and self._policy.rewrites(entry) and self._rewrite(listing, entry):
            weight = UNWANTED
        for digest, offset, size in needed:
            ranges = self.uses.ranges.setdefault(digest, {})
            ranges[offset, size] = max(ranges.get((offset, size), UNWANTED), weight)

    def _rewrite(self, listing: Listing, entry: FileEntry) -> bool:
        """Have the whole contents of a file that is a patch on what goes; False if it is none, or too long for that."""
        if entry.place is None or not chain_of(listing, entry):
            return False
        wholes = self.uses.wholes.setdefault(listing.group(entry.place.group), {})
        if entry.digest not in wholes:
            if entry.size + sum(map(len, wholes.values())) > _MOST_WHOLE_BYTES:
                return False
            try:
                wholes[entry.digest] = contents_of(listing, entry, self._fetch)
            except ForgottenError:
                return False
        return True


def _ended(before: Listing, now: Listing | None) -> Iterator[FileEntry]:
    """The files of a list whose contents the next one does not have at the same place."""
    if now is None or not _continues(before, now):
        yield from before
        return
    for folder in before.folders_that_differ(now):
        for path, entry in before.folder(folder).items():
            if entry.place is None:
                continue
            after = now.find(path)
            if after is None or after.place != entry.place or after.digest != entry.digest:
                yield entry


def _continues(before: Listing, now: Listing) -> bool:
    """True if the groups of a list are numbered on from those of another; zeros stand for those that none needs."""
    for key, held in before.groups.items():
        after = now.groups.get(key)
        if after is None:
            continue
        if after.digests != held.digests and any(
            [mine != theirs and any(theirs) for mine, theirs in zip(held.each(), after.each(), strict=False)]
        ):
            return False
    return True
