"""A session a second time, under another name: the way through a file that has no name, so that nobody can find it."""

from __future__ import annotations

import tempfile

from backstay.backend import Backend
from backstay.upkeep.exporting import export_to
from backstay.upkeep.importing import import_from


def copy_session(backend: Backend, session: str, name: str) -> None:
    """Copy a session as of one moment, with its branches, tags and journal."""
    with tempfile.TemporaryFile() as file:
        export_to(backend, file, session)
        file.flush()
        import_from(backend, file, name)
