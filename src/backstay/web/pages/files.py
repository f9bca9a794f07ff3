"""The files of a checkpoint: what changed in them here, all of them, one of them, and what was left out."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from backstay.bookkeeping import told
from backstay.errors import BackstayError, NotFoundError
from backstay.listing import CALL, OUTSIDE
from backstay.model import counted
from backstay.port import CheckpointRow, Kind
from backstay.shapes import files as shapes
from backstay.shapes.files import MARKS, name_of, spelled
from backstay.shapes.points import told_as
from backstay.shapes.text import short, size
from backstay.store.fields import is_captured
from backstay.store.file_contents import CheckpointFiles, files_between
from backstay.web.about_session import crumbs_of, head_of
from backstay.web.file_views import SHOWN_BYTES, FileViews, address_of, is_binary, path_in, seen, views_of
from backstay.web.history import Page, history_page, steps_of
from backstay.web.needs import needs_of_session
from backstay.web.reader import Room, Unfolded
from backstay.web.view import Shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backstay.face import Session, Store
    from backstay.file_model import File, Files
    from backstay.model import Checkpoint
    from backstay.web.view import Visit

_PAGE, _BRANCHES, _LOOKED_AT = 200, 200, 50
_AUTHORS = {"outside": "outside the agent", "restore": "a restore", "carried": "an earlier capture"}


def show(visit: Visit) -> Shown:
    """The files of a session: those at the head of a branch, and what became of them since its first checkpoint."""
    session = visit.session()
    needs = needs_of_session(visit.store, session, None, ())
    heads = session.branches()
    branch = visit.query.get("branch") or ("main" if "main" in heads else next(iter(heads), ""))
    if branch not in heads and (heads or branch):
        raise NotFoundError(f"session {session.id!r} has no branch {branch!r}")
    point = told_as(session, heads[branch]) if heads else None
    files = None if point is None else files_of(point)
    first = None if point is None else _first(visit.store, session)
    names = {} if files is None else call_names(history_page(visit.store, session, branch=branch))
    data: dict[str, Any] = {
        **head_of(visit, session, "files", needs),
        "in_session": True,
        "branch": branch,
        "branches": sorted(heads)[:_BRANCHES],
        "point": point,
        "changed": None,
        "changed_since": "" if first is None else first.id,
        **tab_data(files, {key: value for key, value in visit.query.items() if key == "from"}, names),
    }
    if first is not None and point is not None and first.id != point.id:
        data["changed"] = _changes(first, files)
    crumbs = crumbs_of(visit, session, ("files", None))
    shape = partial(shape_of, files, {})
    return Shown("session_files.html", f"Files of {session.id}", crumbs, data, shape)


def _first(store: Store, session: Session) -> Checkpoint | None:
    """The first checkpoint that files were captured for, if it is among the first."""
    rows = store.backend.scan(session.id, Kind.CHECKPOINT, after=0, limit=_LOOKED_AT)
    found = next((row for row in rows if isinstance(row, CheckpointRow) and is_captured(row)), None)
    return None if found is None else steps_of(store, session.id, [found])[0].point


def call_names(page: Page) -> dict[str, str]:
    """The names of the calls of a page of the history, by their ids."""
    return {call.id: call.name for step in page.steps for call in step.calls}


def files_in_file(store: Store, session: Session, point: Checkpoint, names: Mapping[str, str]) -> dict[str, Any]:
    """The files of a checkpoint for a file that stands alone: what became of them, and the list."""
    files = files_of(point)
    first = None if files is None else _first(store, session)
    changed = None if first is None or first.id == point.id else _changes(first, files)
    return {"changed": changed, **tab_data(files, {}, names)}


def _changes(before: Checkpoint, files: Files | None) -> FileViews | None:
    old = files_of(before)
    if not isinstance(files, CheckpointFiles) or not isinstance(old, CheckpointFiles):
        return None
    return views_of(files_between(old, files))


def files_of(point: Checkpoint) -> Files | None:
    """The files of a checkpoint; None if it has none, or none that can be read."""
    try:
        return point.files
    except BackstayError:  # the page says that the state is damaged
        return None


def changes_of(session: Session, point: Checkpoint, files: Files | None, *, only: str = "") -> FileViews | None:
    """What changed in the files since the checkpoint before; None if that had no files."""
    if not isinstance(files, CheckpointFiles):
        return None
    try:
        before = next(islice(told(session.log(point)), 1, None), None)
        old = None if before is None else before.files
        return views_of(files_between(old, files), only=only) if isinstance(old, CheckpointFiles) else None
    except BackstayError:  # the one before is damaged
        return None


def tab_data(files: Files | None, query: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """The tab: one file, or those at and below a path. `names` are those of calls, by their ids."""
    if files is None:
        return {"listing": None, "file": None}
    path = path_in(query).strip("/")
    found = files.list(path)
    if (path and not found) or (query.get("raw") and not path):
        raise NotFoundError(
            f"this checkpoint has no file {spelled(path)!r}", hint="its tab of files lists those it has"
        )
    if path and found[0].path == path and found[0].kind != "folder":
        return {"listing": None, "file": _file(found[0], query, names)}
    start = _number(query.get("from"))
    rows = [_row(file, names) for file in found[start : start + _PAGE]]
    return {
        "file": None,
        "listing": {
            "rows": rows,
            "above": spelled(path),
            "start": start,
            "earlier": max(0, start - _PAGE),
            "later": start + _PAGE if start + _PAGE < len(found) else 0,
            "total": len(found),
            "address": address_of(path) if path else {},
            "root": files.root,
            "size": files.bytes,
            "count": counted(files.count, "file"),
            "how": _how(files),
            "left_out": [] if path else _left_out(files),
        },
    }


def shape_of(files: Files | None, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """The same list as `backstay files --json` has."""
    return [] if files is None else [shapes.file(file) for file in files.list(path_in(query).strip("/"))]


def author_of(author: str, names: Mapping[str, str]) -> str:
    """Who made the last change: the name of the call where it is known."""
    kind, _, ids = author.partition(":")
    if not ids:
        return _AUTHORS.get(author, author)
    calls = [names.get(id_) or f"call {short(id_)}" for id_ in ids.split(",")]
    return " or ".join(calls) if f"{kind}:" != CALL else calls[0]


def _how(files: Files) -> str:
    """What a reader must know of the capture; empty if it is exact."""
    if files.author == "carried":
        return "as last captured: this checkpoint was made without the folder"
    return "" if files.exact else "not exact: files were written while they were captured"


def _row(file: File, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": seen(name_of(file)),
        "address": address_of(file.path),
        "size": size(file.size) if file.kind == "file" else "",
        "by": author_of(file.author, names) if file.kind != "folder" else "",
        "mark": MARKS.get(file.mark, file.mark),
    }


def _left_out(files: Files) -> list[dict[str, Any]]:
    return [
        {"why": why, "count": counted(count, "path"), "size": total, "first": first, "more": max(0, count - len(first))}
        for why, (count, total, first) in files.left_out.items()
    ]


def _file(file: File, query: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """One file: its text, folded, or why none is shown."""
    text, note = _text(file)
    room: Room = Unfolded() if query.get("full") else Room()
    return {
        "name": seen(name_of(file)),
        "address": address_of(file.path),
        "folders": _folders(file.path),
        "size": file.size,
        "mode": f"{file.mode:04o}",
        "by": author_of(file.author, names) if file.author == OUTSIDE else f"by {author_of(file.author, names)}",
        "digest": file.digest or "",
        "mark": MARKS.get(file.mark, file.mark),
        "text": None if text is None else room.fold(text),
        "note": note,
    }


def _folders(path: str) -> Sequence[tuple[str, dict[str, str]]]:
    """The folders that a path is in, from the root down."""
    parts = path.split("/")[:-1]
    return [(spelled(part), address_of("/".join(parts[: at + 1]))) for at, part in enumerate(parts)]


def _text(file: File) -> tuple[str | None, str]:
    if file.kind == "link":
        return None, f"A link to {spelled(file.target or '')}. It is not followed."
    if file.size > SHOWN_BYTES:
        return None, f"{size(file.size)}: too large to show."
    try:
        contents = file.read()
    except BackstayError as error:
        return None, f"{error.message[:1].upper()}{error.message[1:]}."
    if is_binary(contents):
        return None, f"{size(file.size)}, no text."
    if not contents:
        return None, "The file is empty."
    return contents.decode("utf-8", "backslashreplace"), ""


def _number(given: str | None) -> int:
    return int(given) if given and given.isdecimal() and len(given) < 10 else 0  # noqa: PLR2004
