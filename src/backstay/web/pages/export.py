"""A session as a file to take away: what `backstay export` writes, or one page of HTML."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from backstay.web.about_session import info_of
from backstay.web.html_file import html_file

if TYPE_CHECKING:
    from backstay.web.view import Visit

_KEPT = re.compile(r"[^A-Za-z0-9._-]+")


def show(visit: Visit) -> Response:
    """The file, as a download."""
    session = visit.session()
    info_of(visit, session)
    name = _KEPT.sub("-", session.id).strip("-.")[:80] or "session"
    if visit.query.get("as") == "html":
        return _download(html_file(visit.store, session).encode("utf-8", "replace"), f"{name}.html")
    with tempfile.TemporaryDirectory(prefix="backstay-export-") as folder:
        path = Path(folder) / "session.backstay"
        visit.store.export(path, session=session.id)
        return _download(path.read_bytes(), f"{name}.backstay")


def _download(data: bytes, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)
