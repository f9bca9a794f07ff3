"""`backstay du`: what the files of a session take: as they are, as they are kept, and the largest of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from backstay.cli.command import Command, json_option
from backstay.cli.lookup import session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Store


@click.command("du", cls=Command, shape="du", examples=["backstay du fix-bug", "backstay du fix-bug --top 20"])
@session_argument()
@click.option(
    "--top", metavar="N", type=click.IntRange(min=0), default=10, show_default=True, help="How many files are listed."
)
@json_option
@in_store
def command(store: Store, session: str, *, top: int, as_json: bool) -> None:
    """Say what the files of SESSION take over all its checkpoints: versions, bytes, and the largest files."""
    from backstay.cli.screen import Screen
    from backstay.upkeep.file_weights import weigh_files

    found = weigh_files(store.backend, session_of(store, session).id)
    screen = Screen()
    if not as_json:
        _tell(screen, found, top)
        return
    from backstay import shapes

    about: dict[str, Any] = {
        "session": found.session,
        "checkpoints": found.checkpoints,
        "versions": found.versions,
        "logical_bytes": found.logical_bytes,
        "stored_bytes": found.stored_bytes,
        "largest": [
            {"path": file.path, "versions": file.versions, "bytes": file.size_bytes} for file in found.largest(top)
        ],
    }
    screen.line(shapes.dump(about))


def _tell(screen: Screen, found: Any, top: int) -> None:
    from backstay.cli.columns import Column, listing
    from backstay.cli.text import safe, size

    for name, text in (
        ("checkpoints with files", f"{found.checkpoints:,}"),
        ("versions of files", f"{found.versions:,}"),
        ("as plain copies", size(found.logical_bytes)),
        ("contents in the store", size(found.stored_bytes)),
    ):
        screen.line((f"{name:<24}", "dim"), text)
    rows = [[safe(file.path), f"{file.versions:,}", size(file.size_bytes)] for file in found.largest(top)]
    if rows:
        screen.line()
        listing(
            screen,
            [
                Column("LARGEST OVER ALL VERSIONS", least=16, is_name=True),
                Column("VERSIONS", right=True),
                Column("PLAIN COPIES", right=True),
            ],
            rows,
        )
