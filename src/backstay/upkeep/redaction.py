"""States of a session without the patches of some files: other bytes, the same digests.

A short patch of a file stands in the list of files itself. Where the contents are to be forgotten, an item that has
its digest and nothing else takes its place (codec.Withheld); the checkpoints that brought it, and whole copies that
have it, are written anew. The newest ones come first: each can be read at every moment, because what it says of a
list does not depend on which items of it are withheld already. Calls lose what they kept of such files for a rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from backstay.codec import Withheld
from backstay.delta import advance, know, whole
from backstay.digest import leaf_of
from backstay.errors import ConflictError, CorruptionError
from backstay.grouping import chain_of, patch_of
from backstay.listing import FileEntry, Listing, from_value
from backstay.listing.folders import folder_of, key_of
from backstay.model import StateDict
from backstay.port import Ask, Backend, CallRow, CheckpointRow, Kind, SessionRow
from backstay.rules import refusals
from backstay.rules.deletion import Rewrite
from backstay.rules.forgetting import Redaction, redact
from backstay.run.rollback import without_paths
from backstay.sealing import pack_blob, seal_delta, seal_keyframe, spill, spilled
from backstay.store.files import join, split
from backstay.store.reading import Loaded, load
from backstay.store.refs import readable
from backstay.upkeep.deletion import repacked, segments_of
from backstay.upkeep.pages import pages

_TRIES = 20
_PORTION_ROWS = 100

Goes = Callable[[CheckpointRow, Listing, FileEntry], bool]


def redact_patches(backend: Backend, session: str, goes: Goes, matches: Callable[[bytes], bool]) -> int:
    """Withhold the patches of files that `goes` names, and what calls kept of paths that match; how many rows."""
    for _ in range(_TRIES):
        try:
            return _Redacting(backend, session, goes, matches).run()
        except ConflictError:
            continue  # it was written to meanwhile
    raise refusals.changed(session, "it is written to all the time; not all was forgotten")[1]


class _Point(msgspec.Struct):
    """A checkpoint on its way: its state and patches as they are to be, and the files whose patches are others now."""

    row: CheckpointRow
    state: StateDict
    patched: dict[str, list[Any]]
    changed: frozenset[str]


class _Redacting:
    """One pass over a session that is not written to meanwhile."""

    def __init__(self, backend: Backend, session: str, goes: Goes, matches: Callable[[bytes], bool]) -> None:
        self._backend = backend
        self._session = session
        self._goes = goes
        self._matches = matches

    def run(self) -> int:
        line = self._backend.read(Ask(self._session)).session
        if line is None:
            raise refusals.no_session(self._session)[1]
        blobs: dict[bytes, bytes] = {}
        found = sorted(self._rewrites(line, blobs), key=lambda rewrite: -rewrite.sequence)
        calls = list(self._calls())
        touched = line.touched
        for at in range(0, max(len(found), 1 if calls else 0), _PORTION_ROWS):
            portion = found[at : at + _PORTION_ROWS]
            packed = tuple([rewrite.sequence for rewrite in portion if rewrite.sequence <= line.packed])
            before = segments_of(self._backend, self._session, packed)
            needed = {ref for rewrite in portion for ref in (*rewrite.refs, *rewrite.keyframe_refs)}
            new = Redaction(
                self._session,
                touched,
                line.packed,
                tuple(portion),
                {digest: blobs[digest] for digest in needed if digest in blobs},
                tuple(before),
                tuple(repacked(self._session, line.uid, before, set(), portion)),
                tuple(calls) if not at else (),
            )
            touched = self._backend.write(new.ask, redact(new)).answer
        return len(found) + len(calls)

    # states

    def _rewrites(self, line: SessionRow, blobs: dict[bytes, bytes]) -> Iterator[Rewrite]:
        rows = [
            readable(self._session, row)  # type: ignore[arg-type]
            for page in pages(self._backend, self._session, Kind.CHECKPOINT)
            for row in page
        ]
        left: dict[int, int] = {}
        for row in rows:
            if row.parent is not None:
                left[row.parent] = left.get(row.parent, 0) + 1
        points: dict[int, _Point] = {}
        for row in rows:
            point = self._point(row)
            parent = points.get(row.parent) if row.parent is not None else None
            if self._is_concerned(point, parent):
                yield self._rewrite(line, point, parent, blobs)
            if row.parent is not None:
                left[row.parent] -= 1
                if not left[row.parent]:
                    points.pop(row.parent, None)
            if left.get(row.sequence):
                points[row.sequence] = point

    def _point(self, row: CheckpointRow) -> _Point:
        found = load(self._backend, self._session, row.sequence)
        if not isinstance(found, Loaded):
            raise refusals.changed(self._session, f"checkpoint #{row.sequence} was deleted meanwhile")[1]
        found = split(found)
        if found.files is None:
            return _Point(row, found.state, {}, frozenset())
        listing = from_value(found.files)
        patched: dict[str, list[Any]] = dict(listing.patches)
        changed: set[str] = set()
        for path in [path for path in patched if patched[path]]:
            entry = _entry_of(listing, path)
            if entry is None or not self._goes(row, listing, entry):
                continue
            chain = chain_of(listing, entry)
            patched[path] = [_withheld(item) if at else item for at, item in enumerate(chain)]
            if patched[path] != chain:
                changed.add(path)
        files = {**found.files, "patched": patched}
        return _Point(row, join(found.state, files), patched, frozenset(changed))

    def _is_concerned(self, point: _Point, parent: _Point | None) -> bool:
        """True if the record of a checkpoint has a patch that goes, or says how to get on from one."""
        paths = point.changed | (frozenset() if parent is None else parent.changed)
        if not paths:
            return False
        if point.row.keyframe or parent is None:
            return bool(point.changed)
        return any([point.patched.get(path) != parent.patched.get(path) for path in paths])

    def _rewrite(self, line: SessionRow, point: _Point, parent: _Point | None, blobs: dict[bytes, bytes]) -> Rewrite:
        row, uid = point.row, line.uid
        known = know(point.state)
        if known.digest != row.state_digest:
            raise CorruptionError(f"session {self._session!r}: checkpoint {row.id[:12]} would get another digest")
        made: dict[str, Any] = {}
        if row.delta and parent is not None:
            base = parent.row.state_digest
            delta, pieces, _ = advance(know(parent.state), point.state)
            data, parts = spill(seal_delta(delta, uid=uid, tail=row.tail, base=base, state=row.state_digest))
            blobs.update({**parts, **{digest: pack_blob(piece) for digest, piece in pieces.items()}})
            made |= {"base_digest": base, "delta": data, "refs": (*delta.refs, *spilled(data))}
        if row.keyframe:
            keyframe, pieces = whole(point.state)
            data, parts = spill(seal_keyframe(keyframe, uid=uid, tail=row.tail, state=row.state_digest))
            blobs.update({**parts, **{digest: pack_blob(piece) for digest, piece in pieces.items()}})
            made |= {"keyframe": data, "keyframe_refs": (*keyframe.refs, *spilled(data))}
        return Rewrite(row.sequence, row.parent, **made)

    # calls

    def _calls(self) -> Iterator[CallRow]:
        for page in pages(self._backend, self._session, Kind.CALL):
            for call in page:
                if isinstance(call, CallRow) and call.files is not None:
                    left = without_paths(call.files, self._matches)
                    if left != call.files:
                        yield msgspec.structs.replace(call, files=left)


def _entry_of(listing: Listing, key: str) -> FileEntry | None:
    entry = listing.find(folder_of(key))
    return entry if entry is not None and key_of(entry.path) == key and entry.kind == "file" else None


def _withheld(item: Any) -> Any:
    """An inline patch by its digest; what is kept in a group is cut there."""
    if isinstance(item, Withheld) or isinstance(patch_of(item), tuple):
        return item
    leaf = leaf_of(item, ())
    return Withheld(leaf.digest, leaf.size)
