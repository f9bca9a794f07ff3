"""`backstay stats`: sessions, checkpoints and bytes, compared with plain copies; and the largest sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from backstay.cli.bar import Bar
from backstay.cli.command import Command, json_option
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Store
    from backstay.model import SessionInfo, StoreStats


@click.command("stats", cls=Command, shape="stats", examples=["backstay stats", "backstay stats --top 1 --json"])
@click.option(
    "--top",
    metavar="N",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="The number of sessions listed.",
)
@json_option
@in_store
def command(store: Store, *, top: int, as_json: bool) -> None:
    """Count sessions, checkpoints and bytes, compare with plain copies, and list the largest sessions."""
    from backstay.cli.screen import Screen

    stats = store.stats()
    largest = _largest(store, top) if top else []
    screen = Screen()
    if not as_json:
        _tell(screen, stats, largest)
        return
    from backstay import shapes

    weights = [
        {"session": info.id, "checkpoints": info.checkpoints, "logical_bytes": logical, "written_bytes": written}
        for info, logical, written in largest
    ]
    about: dict[str, Any] = {
        "sessions": stats.sessions,
        "checkpoints": stats.checkpoints,
        "logical_bytes": stats.logical_bytes,
        "stored_bytes": stats.stored_bytes,
        "ratio": round(stats.ratio, 2),
        "file_stored_bytes": stats.file_stored_bytes,
        "largest": weights,
    }
    screen.line(shapes.dump(about))


def _largest(store: Store, top: int) -> list[tuple[SessionInfo, int, int]]:
    """Sessions with the bytes of their states, and the bytes that their rows and large values take."""
    from backstay.store.fields import to_info
    from backstay.upkeep.weighing import largest, session_bytes

    rows = largest(store.backend, top)
    found = []
    with Bar("stats") as bar:
        for done, row in enumerate(rows):
            bar(done, len(rows))
            found.append((to_info(row), row.logical_bytes, session_bytes(store.backend, row.id)))
    return found


def _tell(screen: Screen, stats: StoreStats, largest: list[tuple[SessionInfo, int, int]]) -> None:
    from backstay.cli.columns import Column, listing
    from backstay.cli.text import age, safe, size, times_smaller

    for name, text in (
        ("sessions", f"{stats.sessions:,}"),
        ("checkpoints", f"{stats.checkpoints:,}"),
        ("as plain copies", size(stats.logical_bytes)),
        ("on disk", size(stats.stored_bytes) + times_smaller(stats.ratio)),
        *((("of it files", size(stats.file_stored_bytes)),) if stats.file_stored_bytes else ()),
    ):
        screen.line((f"{name:<17}", "dim"), text)
    if not largest:
        return
    screen.line()
    columns = [
        Column("LARGEST", least=12, is_name=True),
        Column("CHECKPOINTS", right=True),
        Column("PLAIN COPIES", right=True),
        Column("WRITTEN", right=True),
        Column("AGE", right=True),
    ]
    listing(
        screen,
        columns,
        [
            [
                (safe(info.id), "bold"),
                f"{info.checkpoints:,}",
                size(logical),
                size(written),
                (age(info.updated_at), "dim"),
            ]
            for info, logical, written in largest
        ],
    )
