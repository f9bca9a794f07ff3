"""Paths that cannot be written, before and after it was tried: a restore that cannot do all of it does nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from backstay.errors import UnavailableError
from backstay.hints import Hint
from backstay.listing import PlaceStep, parent_of, shown
from backstay.workspace.open_root import BlockedError, OpenRoot

NOT_WRITABLE = "its folder cannot be written"
AGAIN = "make the folder writable or the disk larger, then try again"
OR_PARTIAL = Hint(f"{AGAIN}; partial=True puts back the others", f"{AGAIN}; --partial puts back the others")
_NAMED = 20


def not_writable(root: OpenRoot, steps: Iterable[PlaceStep]) -> tuple[bytes, ...]:
    """The paths among these steps whose folder the system would not let us change."""
    by_path = {step.path: step for step in steps}
    folders: dict[bytes, bool] = {}
    found: list[bytes] = []
    for step in by_path.values():
        folder = parent_of(step.path)
        if _is_mode_only(step) or folder in by_path:  # a folder with a step of its own is made, or opened up for it
            continue
        if folder not in folders:
            folders[folder] = _is_writable(root, folder)
        if not folders[folder]:
            found.append(step.path)
    return tuple(found)


def _is_mode_only(step: PlaceStep) -> bool:
    before, after = step.before, step.after
    return before is not None and after is not None and before.same_contents(after)


def _is_writable(root: OpenRoot, folder: bytes) -> bool:
    try:
        descriptor = root.open_folder(folder) if folder else os.dup(root.descriptor)
    except BlockedError as error:
        return not error.refused
    try:
        effective = os.access in os.supports_effective_ids
        return os.access(".", os.W_OK | os.X_OK, dir_fd=descriptor, effective_ids=effective)
    finally:
        os.close(descriptor)


def refuse_failed(failed: Mapping[bytes, str], what: str, hint: str) -> None:
    """UnavailableError that names the paths which could not be written, each with why; nothing if there are none."""
    if not failed:
        return
    reasons: dict[str, list[str]] = {}
    for path, why in failed.items():
        reasons.setdefault(why, []).append(shown(path))
    told = []
    for why, paths in reasons.items():
        more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
        told.append(f"{', '.join(paths[:_NAMED])}{more}: {why}")
    raise UnavailableError(f"{what}: {'; '.join(told)}", hint=hint, retryable=False)
