"""`backstay status`: the store at a glance: its size, crashed runs, calls in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backstay.cli.command import Command, json_option
from backstay.cli.store_option import name_of, open_store, store_option

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Store
    from backstay.face.run_status import RunStatus
    from backstay.model import StoreStats, Wait

_SHOWN = 5


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

            about = {
                "store": name_of(url),
                "backend": store.backend.name,
                "sessions": stats.sessions,
                "checkpoints": stats.checkpoints,
                "logical_bytes": stats.logical_bytes,
                "stored_bytes": stats.stored_bytes,
                "crashed": list(dict.fromkeys(name for name, each in crashed if not each.live)),
                "in_doubt": doubts,
                "waiting": [shapes.wait(wait) for wait in store.waiting()],
            }
            screen.line(shapes.dump(about))
            return
        _tell(screen, f"{name_of(url)} ({store.backend.name})", stats, crashed)
        _tell_waiting(screen, store.waiting())


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
