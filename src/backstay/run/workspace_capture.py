"""A workspace together with the store that its files go to: captured for a checkpoint, or only looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backstay.listing import Listing
from backstay.port import Backend
from backstay.store.files import BlobSink, GroupReader
from backstay.workspace.capturing import Capturer
from backstay.workspace.policy import Workspace

_OPTIONS = ("include", "exclude", "ignore", "max_file", "max_total", "secrets", "git")


class WorkspaceCapture:
    """Captures one folder into one store. What it saw is remembered, so a capture costs a scan and what changed."""

    def __init__(self, backend: Backend, workspace: Workspace) -> None:
        self._backend = backend
        self._capturer = Capturer(workspace)
        self.workspace = workspace

    @property
    def path(self) -> str:
        """The folder."""
        return self.workspace.path

    @property
    def options(self) -> dict[str, Any]:
        """What decides which files belong, to make the same Workspace again."""
        found = {name: getattr(self.workspace, name) for name in _OPTIONS}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    def capture(self, base: Listing, author: Callable[[bytes], str] | str) -> tuple[Listing, bool]:
        """The list of the folder now, its contents in the store; and whether it differs from the one before."""
        sink = BlobSink(self._backend)
        found = self._capturer.capture(base, fetch=GroupReader(self._backend), emit=sink, author=author)
        sink.flush()
        return found.listing, found.listing is not base

    def look(self, base: Listing) -> Listing:
        """The list of the folder now; its contents are not kept."""
        found = self._capturer.capture(base, fetch=GroupReader(self._backend), emit=_drop)
        return found.listing


def _drop(digest: bytes, contents: bytes) -> None:
    """Nothing is kept of what is only looked at."""
