"""`backstay bisect`: the step that broke the tests, with its call, its prompt and its diff."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import session_argument, session_id
from backstay.cli.store_option import in_store
from backstay.cli.workspace_option import workspace_option

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Session, Store
    from backstay.file_model import Files
    from backstay.model import Checkpoint

_LINES = 60
_BYTES = 200_000


@click.command(
    "bisect",
    cls=Command,
    shape="bisected",
    examples=["backstay bisect fix-bug --good main~9 --bad main -- pytest -q"],
)
@session_argument()
@click.argument("test", metavar="-- COMMAND…", nargs=-1, required=True)
@click.option("--good", metavar="REF", required=True, help="A checkpoint whose files pass.")
@click.option("--bad", metavar="REF", default="main", show_default=True, help="A later one whose files fail.")
@click.option("--keep", "into", metavar="DIR", help="Work in this folder, new or empty, and leave it there.")
@click.option("--link", metavar="PATH", multiple=True, help="Link a path that is not captured from the workspace.")
@workspace_option
@json_option
@in_store
def command(
    store: Store,
    session: str,
    test: tuple[str, ...],
    *,
    good: str,
    bad: str,
    into: str | None,
    link: tuple[str, ...],
    workspace: str | None,
    as_json: bool,
) -> None:
    """Find the step of SESSION that broke something: COMMAND is run on the files of steps between GOOD and BAD.

    It runs in a temporary folder, which is changed in place between tries; your own folder is not touched. COMMAND says
    good by exit code 0, skip by 125, bad by any other up to 127, as with `git bisect run`. Paths that are not captured
    are not there, unless --link names them: `--link .venv`.
    """
    from backstay.cli.screen import Screen
    from backstay.shapes.points import point_at

    id_ = session_id(store, session)
    found = store.session(id_)
    if link:
        from backstay.cli.workspace_option import folder_of

        found = store.session(id_, workspace=workspace or folder_of(found, "main"))
    screen = Screen(aside=as_json)

    def told(point: Checkpoint, verdict: str) -> None:
        style = {"good": "green", "bad": "red"}.get(verdict, "yellow")
        screen.line((f"{verdict:<4}", style), "  ", *_point(point))

    first = found.bisect(
        good=point_at(found, good),
        bad=point_at(found, bad),
        test=test,
        into=into,
        link=link,
        on_try=None if as_json else told,
    )
    if as_json:
        from backstay import shapes

        told_shape = {"session": id_, "first_bad": shapes.checkpoint(first), **_about(found, first)}
        Screen().line(shapes.dump(told_shape))
        return
    _tell(screen, found, first)


def _point(point: Checkpoint) -> list[Any]:
    from backstay.cli.text import safe, short

    step = "" if point.step is None else f"step {point.step}  "
    label = "" if not point.label else f"{safe(point.label)}  "
    return [(short(point.id), "yellow"), f"  {step}{label}{safe(point.summary)}"]


def _about(session: Session, first: Checkpoint) -> dict[str, Any]:
    """The calls of a step, the prompt before it, and the paths that it changed."""
    from backstay.run.blaming import prompt_of

    return {
        "calls": [call.name for call in session.calls(first)],
        "prompt": prompt_of(first.state),
        "paths": _paths(session, first),
    }


def _paths(session: Session, point: Checkpoint) -> list[str]:
    """The files that a step added, changed or removed, as the two lists say."""
    old, new = _before(session, point), point.files
    paths = {*(() if old is None else old), *(() if new is None else new)}
    return sorted(path for path in paths if _known(old, path) != _known(new, path))


def _known(files: Files | None, path: str) -> tuple[Any, ...] | None:
    if files is None or path not in files:
        return None
    file = files[path]
    return file.kind, file.mode, file.size, file.digest, file.target


def _tell(screen: Screen, session: Session, first: Checkpoint) -> None:
    from backstay.cli.text import cut, safe

    about = _about(session, first)
    screen.line()
    screen.line("The first bad step is ", *_point(first))
    if about["prompt"]:
        screen.line(f"  prompt  {cut(safe(about['prompt']), screen.width - 12)}")
    if about["calls"]:
        screen.line(f"  calls   {cut(safe(', '.join(about['calls'])), screen.width - 12)}")
    for path in about["paths"][:_LINES]:
        _tell_change(screen, session, first, path)


def _tell_change(screen: Screen, session: Session, point: Checkpoint, path: str) -> None:
    """The change of a file by a step, as a unified diff."""
    import difflib

    from backstay.cli.text import safe

    old, new = (_lines(files, path) for files in (_before(session, point), point.files))
    screen.line((f"  {safe(path)}", "bold"))
    if old is None or new is None:
        screen.line("    no text, or too long to show")
        return
    styles = {"+": "green", "-": "red", "@": "cyan"}
    diff = list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    for line in diff[:_LINES]:
        screen.line(("    " + safe(line), styles.get(line[:1], "")))
    if len(diff) > _LINES:
        screen.line(f"    … and {len(diff) - _LINES:,} more lines")


def _before(session: Session, point: Checkpoint) -> Files | None:
    return None if point.parent_id is None else session.checkpoint(point.parent_id).files


def _lines(files: Files | None, path: str) -> list[str] | None:
    """The lines of a file; none where it is not there, None where it is no text."""
    if files is None or path not in files or files[path].kind != "file":
        return []
    if files[path].size > _BYTES:
        return None
    try:
        return files[path].read().decode().splitlines()
    except (UnicodeDecodeError, backstay.NotFoundError):
        return None
