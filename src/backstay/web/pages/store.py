"""The store: how much is kept and in how little space, the largest sessions, verify, doctor, and a prune's preview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay import __version__, fitness
from backstay.errors import CorruptionError
from backstay.model import counted
from backstay.store.fields import to_info
from backstay.upkeep.weighing import largest, session_bytes
from backstay.web.view import Shown

if TYPE_CHECKING:
    from backstay.face import Store
    from backstay.fitness import Finding
    from backstay.web.jobs import Preview
    from backstay.web.view import AboutStore, Visit

_LARGEST, _LISTED = 10, 20
_MARKS = {fitness.OK: "done", fitness.WARN: "wait", fitness.BAD: "fail", fitness.OPEN: "off"}


def show(visit: Visit) -> Shown:
    """The page."""
    stats = visit.store.stats()
    rows = [(to_info(row), row.logical_bytes) for row in largest(visit.store.backend, _LARGEST)]
    preview = visit.jobs.preview.seen()
    data: dict[str, Any] = {
        "stats": stats,
        "largest": rows,
        "problems": visit.jobs.problems,
        "doctor": visit.jobs.doctor.seen(),
        "marks": _MARKS,
        "preview": preview,
        "going": None if preview.result is None else _going(preview.result),
    }
    crumbs: list[tuple[str, str | None]] = [(visit.about.name, "/"), ("store", None)]
    return Shown("store.html", "Store", crumbs, data, lambda: _shape(visit, stats, rows))


def findings(store: Store, about: AboutStore) -> list[Finding]:
    """What `backstay doctor` says, of the store that is served."""
    found = [fitness.versions(__version__)]
    if about.place is not None:
        found += fitness.of_folder(about.place.absolute().parent, files=store.backend.name == "files")
    try:
        found += fitness.of_store(store, about.name, about.place)
    except CorruptionError as error:
        found.append(fitness.Finding("damage", fitness.BAD, error.message))
    return [*found, *fitness.not_covered()]


def _going(preview: Preview) -> dict[str, Any]:
    """What would go, and by which command."""
    kept, report = preview.retention, preview.report
    rules = [("--keep-last", kept.keep_last), ("--keep-days", kept.keep_days), ("--finished", kept.finished_days)]
    options = [f"{name} {value:g}" for name, value in rules if value is not None]
    rows = [(name, "the whole session") for name in report.sessions]
    rows += [(name, counted(len(ids), "checkpoint")) for name, ids in report.checkpoints.items()]
    what = [counted(report.count, "checkpoint")] if report.count else []
    what += [counted(len(report.sessions), "whole session")] if report.sessions else []
    return {
        "rows": rows[:_LISTED],
        "more": max(0, len(rows) - _LISTED),
        "what": " and ".join(what),
        "bytes": report.freed_bytes,
        "command": f"backstay prune {' '.join(options)}",
    }


def _shape(visit: Visit, stats: Any, rows: list[Any]) -> dict[str, Any]:
    """The shape that `backstay stats --json` has."""
    return {
        "sessions": stats.sessions,
        "checkpoints": stats.checkpoints,
        "logical_bytes": stats.logical_bytes,
        "stored_bytes": stats.stored_bytes,
        "ratio": round(stats.ratio, 2),
        "file_stored_bytes": stats.file_stored_bytes,
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
