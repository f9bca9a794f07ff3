"""`backstay du`: what the files of sessions take: as they are, as they are kept, and the largest of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from backstay.cli.command import Command, json_option
from backstay.cli.lookup import session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Piece, Screen
    from backstay.face import Store
    from backstay.upkeep.file_weights import FilesWeight


@click.command("du", cls=Command, shape="du*", examples=["backstay du", "backstay du fix-bug --top 20"])
@session_argument(required=False)
@click.option(
    "--top", metavar="N", type=click.IntRange(min=0), default=10, show_default=True, help="How many files are listed."
)
@json_option
@in_store
def command(store: Store, session: str | None, *, top: int, as_json: bool) -> None:
    """Say what the files of all sessions take, or of one SESSION: versions, bytes, and the largest files."""
    from backstay.cli.screen import Screen
    from backstay.upkeep.file_weights import sessions_with_files, weigh_files

    screen = Screen()
    if session is None:
        weights = list(sessions_with_files(store.backend))
    else:
        weights = [weigh_files(store.backend, session_of(store, session).id)]
    if as_json:
        for found in weights:
            _tell_json(screen, found, top)
    elif session is None:
        _tell_all(screen, weights, store.stats().file_stored_bytes)
    else:
        _tell(screen, weights[0], top)


def _tell_json(screen: Screen, found: FilesWeight, top: int) -> None:
    from backstay import shapes

    about: dict[str, Any] = {
        "session": found.session,
        "checkpoints": found.checkpoints,
        "versions": found.versions,
        "forgotten": found.forgotten,
        "logical_bytes": found.logical_bytes,
        "stored_bytes": found.stored_bytes,
        "largest": [
            {"path": file.path, "versions": file.versions, "bytes": file.size_bytes} for file in found.largest(top)
        ],
    }
    screen.line(shapes.dump(about))


def _tell_all(screen: Screen, weights: list[FilesWeight], stored_bytes: int) -> None:
    from backstay.cli.columns import Column, listing
    from backstay.cli.text import safe, size

    if not weights:
        screen.line("No session has files: none was given a workspace.")
        return
    columns = [
        Column("SESSION", least=12, is_name=True),
        Column("VERSIONS", right=True),
        Column("FORGOTTEN", right=True),
        Column("PLAIN COPIES", right=True),
        Column("STORED", right=True),
    ]
    rows: list[list[Piece]] = [
        [
            (safe(found.session), "bold"),
            f"{found.versions:,}",
            f"{found.forgotten:,}" if found.forgotten else "",
            size(found.logical_bytes),
            size(found.stored_bytes),
        ]
        for found in sorted(weights, key=lambda found: -found.stored_bytes)
    ]
    listing(screen, columns, rows)
    screen.line((f"contents of files in the store: {size(stored_bytes)}; what sessions share is there once", "dim"))


def _tell(screen: Screen, found: FilesWeight, top: int) -> None:
    from backstay.cli.columns import Column, listing
    from backstay.cli.text import safe, size

    for name, text in (
        ("checkpoints with files", f"{found.checkpoints:,}"),
        ("versions of files", f"{found.versions:,}"),
        *((("forgotten", f"{found.forgotten:,}"),) if found.forgotten else ()),
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
