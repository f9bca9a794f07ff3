"""The store: how much is kept and in how little space, the largest sessions, and verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay.store.fields import to_info
from backstay.upkeep.weighing import largest, session_bytes
from backstay.web.view import Shown

if TYPE_CHECKING:
    from backstay.web.view import Visit

_LARGEST = 10


def show(visit: Visit) -> Shown:
    """The page."""
    stats = visit.store.stats()
    rows = [(to_info(row), row.logical_bytes) for row in largest(visit.store.backend, _LARGEST)]
    crumbs: list[tuple[str, str | None]] = [(visit.about.name, "/"), ("store", None)]
    return Shown("store.html", "Store", crumbs, {"stats": stats, "largest": rows}, lambda: _shape(visit, stats, rows))


def _shape(visit: Visit, stats: Any, rows: list[Any]) -> dict[str, Any]:
    """The shape that `backstay stats --json` has."""
    return {
        "sessions": stats.sessions,
        "checkpoints": stats.checkpoints,
        "logical_bytes": stats.logical_bytes,
        "stored_bytes": stats.stored_bytes,
        "ratio": round(stats.ratio, 2),
        "largest": [
            {
                "session": info.id,
                "checkpoints": info.checkpoints,
                "logical_bytes": logical,
                "written_bytes": session_bytes(visit.store.backend, info.id),
            }
            for info, logical in rows
        ],
    }
