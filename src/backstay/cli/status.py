"""`backstay status`: the store at a glance: its size, crashed runs, calls in doubt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backstay.cli.command import Command, json_option
from backstay.cli.store_option import name_of, open_store, store_option

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Store
    from backstay.face.run_status import RunStatus
    from backstay.model import SessionInfo, StoreStats, Wait

_SHOWN = 5
_LOOKED_AT = 5  # of the last sessions, for one whose folder this is


@click.command("status", cls=Command, shape="status", examples=["backstay status", "backstay status --json"])
@json_option
@store_option
def command(*, url: str | None, as_json: bool) -> None:
    """Show the store at a glance: its size, crashed runs, and what waits for an answer or a decision."""
    from backstay.cli.screen import Screen

    with open_store(url) as store:
        stats, crashed = store.stats(), _crashed(store)
        doubts = sum(len(each.in_doubt) for _, each in crashed)
        screen = Screen()
        if as_json:
            from backstay import shapes

            about: dict[str, Any] = {
                "store": name_of(url),
                "backend": store.backend.name,
                "sessions": stats.sessions,
                "checkpoints": stats.checkpoints,
                "logical_bytes": stats.logical_bytes,
                "stored_bytes": stats.stored_bytes,
                "crashed": list(dict.fromkeys(name for name, each in crashed if not each.live)),
                "in_doubt": doubts,
                "waiting": [shapes.wait(wait) for wait in store.waiting()],
                "problems": _problems(url),
            }
            screen.line(shapes.dump(about))
            return
        _tell(screen, f"{name_of(url)} ({store.backend.name})", stats, crashed)
        _tell_waiting(screen, store.waiting())
        _tell_files(screen, store)
        _tell_problems(screen, _problems(url))


def _tell_waiting(screen: Screen, waits: list[Wait]) -> None:
    """A line for each wait: of which session, what for, since when, and whose session it is."""
    from backstay.cli.text import ago, cut, safe
    from backstay.model import counted

    if not waits:
        return
    screen.line()
    screen.line(("waiting   ", "dim"), (counted(len(waits), "wait"), "magenta"))
    for wait in waits[:_SHOWN]:
        name = cut(safe(wait.session_id), screen.width - 44)
        whose = "" if wait.owner is None else f" ({safe(wait.owner)})"
        screen.line("          ", (name, "bold"), f"{whose}  {safe(wait.reason)}, since {ago(wait.since)}")
    if len(waits) > _SHOWN:
        screen.line(f"          … and {len(waits) - _SHOWN} more")
    screen.line()
    screen.line("`backstay answer SESSION` answers one.")


def _tell_files(screen: Screen, store: Store) -> None:
    """How this folder differs from the last session that was recorded in it, and what is not captured."""
    import backstay
    from backstay.cli.text import cut, safe
    from backstay.model import counted

    for info in store.sessions(limit=_LOOKED_AT):
        try:
            root = _root_of(store, info)
            files = None if root is None else store.session(info.id).checkpoint("main").files
            changes = None if root is None else store.session(info.id).diff("main", backstay.Workspace(root)).files
        except (backstay.BackstayError, OSError):
            continue
        if files is None or changes is None:
            continue
        busy = any([run.live for run in store.session(info.id).runs()])
        count = sum([len(paths) for paths in (changes.added, changes.removed, changes.changed, changes.mode)])
        whose = "" if not count else " while a run is at work" if busy else f" ({count} by you)"
        out = ", ".join([f"{number} {why}" for why, (number, _, _) in files.left_out.items()])
        total = sum([number for number, _, _ in files.left_out.values()])
        rest = f", {counted(total, 'path')} left out ({out})" if total else ""
        name = cut(safe(info.id), screen.width // 3)
        screen.line(("files     ", "dim"), f"{counted(count, 'path')} changed since main of {name}{whose}{rest}")
        return


def _root_of(store: Store, info: SessionInfo) -> str | None:
    """The folder that a session captured last, if this is it or one below it."""
    files = store.session(info.id).checkpoint("main").files
    here = os.path.realpath(Path.cwd())
    is_here = files is not None and files.root and os.path.commonpath([here, files.root]) == files.root
    return files.root if files is not None and is_here else None


def _problems(url: str | None) -> list[dict[str, Any]]:
    """Events that hooks could not record: in the project here, and in that of the store."""
    from backstay import opening
    from backstay.cli.street import neighbour

    places = neighbour("adapters.claude_code.places")
    place = opening.place(url)
    beside = [] if place is None or place.parent.name != places.FOLDER else [str(place.absolute().parent.parent)]
    found: list[dict[str, Any]] = []
    for project in dict.fromkeys([places.project_of(str(Path.cwd())), *map(os.path.realpath, beside)]):
        found += places.problems_of(project)
    return found


def _tell_problems(screen: Screen, problems: list[dict[str, Any]]) -> None:
    """Each in a line of its own, in red: nothing of it was said when it happened."""
    from datetime import UTC, datetime

    from backstay.cli.text import ago, cut, safe
    from backstay.model import counted

    if not problems:
        return
    screen.line(("hooks     ", "dim"), (f"{counted(len(problems), 'event')} could not be recorded in full", "bold red"))
    for each in problems[-_SHOWN:]:
        when = ago(datetime.fromtimestamp(int(each["at"]), UTC))
        screen.line("          ", (cut(safe(f"{each['what']}, {when}"), screen.width - 10), "red"))


def _crashed(store: Store) -> list[tuple[str, RunStatus]]:
    from backstay.face.run_status import run_statuses

    return [(info.id, each) for info in store.crashed() for each in run_statuses(store.backend, store.session(info.id))]


def _tell(screen: Screen, name: str, stats: StoreStats, crashed: list[tuple[str, RunStatus]]) -> None:
    from backstay.cli.text import cut, safe, size, times_smaller
    from backstay.model import counted

    screen.line(("store     ", "dim"), safe(name))
    screen.line(
        ("sessions  ", "dim"), f"{counted(stats.sessions, 'session')}, {counted(stats.checkpoints, 'checkpoint')}"
    )
    if stats.checkpoints:
        on_disk = f"{size(stats.stored_bytes)} on disk{times_smaller(stats.ratio)}"
        screen.line(("size      ", "dim"), on_disk)
    if not stats.sessions:
        screen.line()
        screen.line("Nothing is kept here yet. An agent writes with backstay.open(); `backstay demo` shows how.")
        return
    dead = [(id_, each) for id_, each in crashed if not each.live]
    if not dead:
        screen.line(("crashed   ", "dim"), ("none", "green"))
        return
    screen.line(("crashed   ", "dim"), (counted(len(dead), "run"), "bold red"))
    for id_, each in dead[:_SHOWN]:
        doubts = len(each.in_doubt)
        what = f"{counted(doubts, 'call')} in doubt" if doubts else "nothing in doubt: run it again to go on"
        where = "" if each.branch == "main" else f" ({safe(each.branch)})"
        screen.line("          ", (cut(f"{safe(id_)}{where}", screen.width - 44), "bold"), f"  {what}")
    if len(dead) > _SHOWN:
        screen.line(f"          … and {len(dead) - _SHOWN} more")
    screen.line()
    screen.line("`backstay recover` says where each stood and decides what is in doubt.")
