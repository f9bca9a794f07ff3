"""Files as they were before a call: kept in its journal row, and put back where the call was cut off.

A call with `effects="files"` does nothing but change files of the workspace. So one that was in flight at a crash is
rolled back and made again: its effect on captured files is there once. The row has the paths that differed from the
last boundary when the call began, with their contents: a rollback needs the boundary's list and this row, no more.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

import msgspec

from backstay.errors import AlreadyExistsError, CorruptionError, InvalidInputError
from backstay.listing import FileEntry, Listing, PlaceStep, difference, in_order, parent_of
from backstay.model import ANY, NOTHING, StateDict
from backstay.port import CallRow
from backstay.rules import branches
from backstay.sealing import open_value, pack_value
from backstay.store.fields import Given
from backstay.store.files import CapturedFiles
from backstay.store.history import History
from backstay.workspace.open_root import OpenRoot
from backstay.workspace.placement import Placed, Placement
from backstay.workspace.writability import AGAIN, refuse_failed

_MOST_BYTES = 8 * 1024 * 1024
Contents = Callable[[FileEntry], bytes]


class KeptFile(msgspec.Struct, array_like=True, frozen=True):
    """One path as it was: nothing (`mode` 0), a folder, a link (`contents` is where it leads), or a file."""

    path: bytes
    mode: int
    contents: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[KeptFile]).decode


def pack_before(boundary: Listing, now: Listing, contents: Contents) -> bytes:
    """The paths that differ from a boundary's list, with their contents; InvalidInputError if that is too much."""
    kept: list[KeptFile] = []
    size = 0
    for change in difference(boundary, now).changes:
        entry = change.after
        if entry is None or not entry.has_contents:
            kept += [KeptFile(change.path, 0)] if entry is None else []
            continue
        data = entry.target if entry.kind == "link" else contents(entry) if entry.kind == "file" else b""
        kept.append(KeptFile(entry.path, entry.mode, data))
        size += len(data)
        if size > _MOST_BYTES:
            message = f"more than {_MOST_BYTES:,} bytes of files changed since the last boundary"
            raise InvalidInputError(message, hint="record a boundary before a call that is to be rolled back")
    return pack_value(_encode(kept))


def without_paths(packed: bytes, matches: Callable[[bytes], bool]) -> bytes:
    """The files before a call without those of some paths; as they were if there are none, or if they are damaged."""
    try:
        kept = _decode(open_value(packed))
    except (msgspec.DecodeError, ValueError, CorruptionError):
        return packed
    left = [file for file in kept if not (file.contents and matches(file.path))]
    return packed if len(left) == len(kept) else pack_value(_encode(left))


def rollback_steps(packed: bytes, boundary: Listing, disk: Listing) -> list[PlaceStep]:
    """The way back from the folder as it is to how it was when a call began."""
    try:
        kept = {file.path: file for file in _decode(open_value(packed))}
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptionError("the files before a call cannot be read") from error
    paths = {change.path for change in difference(boundary, disk).changes} | kept.keys()
    steps: list[PlaceStep] = []
    for path in sorted(paths):
        file, now = kept.get(path), disk.find(path)
        contents: bytes | None = None
        before = boundary.find(path)
        if file is not None:
            before, contents = _entry(file)
        if before is not None and not before.has_contents:
            continue
        if not _is_same(now, before):
            steps.append(PlaceStep(path, now, before, contents))
    return list(in_order(steps))


def lost_steps(paths: Iterable[bytes], boundary: Listing, disk: Listing) -> list[PlaceStep]:
    """The way from the folder as it is to the boundary's version of some files, with the folders that they lie in."""
    wanted = set(paths)
    for path in paths:
        while path := parent_of(path):
            wanted.add(path)
    steps = [PlaceStep(path, disk.find(path), boundary.find(path)) for path in wanted]
    return list(in_order([step for step in steps if not _is_same(step.before, step.after)]))


def _is_same(a: FileEntry | None, b: FileEntry | None) -> bool:
    return a is b or (a is not None and b is not None and a.same(b))


def _entry(file: KeptFile) -> tuple[FileEntry | None, bytes | None]:
    if not file.mode:
        return None, None
    if stat.S_ISLNK(file.mode):
        return FileEntry(file.path, file.mode, target=file.contents), None
    if stat.S_ISDIR(file.mode):
        return FileEntry(file.path, file.mode), None
    digest = sha256(file.contents).digest()
    return FileEntry(file.path, file.mode, len(file.contents), digest), file.contents


def keep_aside(history: History, branch: str, call: CallRow, state: StateDict, files: CapturedFiles) -> str:
    """Record the folder as the call left it on a branch of its own, so that a half-done edit can still be seen."""
    name = f"before-rollback/{call.id}"
    view = history.lane_or_none(branch)
    given = Given("rollback", label=f"before {call.name!r} was rolled back"[:200])
    if view is None or view.head is None:
        with contextlib.suppress(AlreadyExistsError):
            history.write(name, state, given, expect=NOTHING, root=True, files=files)
        return name
    with contextlib.suppress(AlreadyExistsError):
        ask = branches.naming_ask(history.id, name, view.head.sequence)
        history.backend.write(ask, branches.fork(history.id, name, sequence=view.head.sequence, id_=view.head.id))
    history.write(name, state, given, expect=ANY, files=files)
    return name


def put_back(folder: str, name: str, steps: list[PlaceStep], contents: Contents) -> Placed:
    """Do the steps under a name of their own; killed anywhere, or refused by the system, the next try does the rest."""

    def chunks(step: PlaceStep) -> Iterator[bytes]:
        assert step.after is not None  # noqa: S101 - only what comes is staged
        yield contents(step.after) if step.contents is None else step.contents

    with OpenRoot(folder) as root, root.locked():
        placement = Placement(root, name, steps)
        placement.stage(chunks)
        placed = placement.apply()
        placement.clear()
        refuse_failed(placed.failed, "not all files could be put back", AGAIN)
        return placed
