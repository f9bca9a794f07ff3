"""`backstay files`: the files of a checkpoint: a list, what was left out and why, the contents of one or of all."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Store
    from backstay.file_model import Files


@click.command(
    "files",
    cls=Command,
    shape="file*",
    examples=[
        "backstay files fix-bug",
        "backstay files fix-bug main~3 src --left-out",
        "backstay files fix-bug main~3 src/main.py --cat",
    ],
)
@session_argument()
@ref_argument(default="main")
@click.argument("path", metavar="[PATH]", required=False, default="")
@click.option("--left-out", is_flag=True, help="Also what was not captured, and why.")
@click.option("--cat", is_flag=True, help="Print the contents of the file at PATH.")
@click.option("--to", "folder", metavar="DIR", help="Write all files into a folder that is new or empty.")
@click.option("--partial", is_flag=True, help="Where contents were forgotten, write the other files.")
@json_option
@in_store
def command(
    store: Store,
    session: str,
    ref: str,
    path: str,
    *,
    left_out: bool,
    cat: bool,
    folder: str | None,
    partial: bool,
    as_json: bool,
) -> None:
    """List the files of SESSION at REF: their sizes, and who changed each last."""
    from backstay.cli.screen import Screen

    files = files_at(store, session, ref)
    found = files.list(path)
    if path and not found:
        message = f"there is no file {path!r} at {ref}"
        raise backstay.NotFoundError(message, hint="`backstay files SESSION REF` lists them")
    if cat:
        if len(found) != 1 or found[0].kind != "file":
            raise click.UsageError("--cat takes the path of one file")
        _print(found[0].read())
        return
    if folder is not None:
        count = files.export_to(folder, partial=partial)
        from backstay.model import counted

        Screen().text(f"Wrote {counted(count, 'file')} to {folder}.")
        return
    with Screen(paged=not as_json) as screen:
        if as_json:
            from backstay import shapes
            from backstay.shapes.files import file as shape

            for file in found:
                screen.line(shapes.dump(shape(file)))
            return
        _tell(screen, files, found)
        if left_out:
            tell_left_out(screen, files)


def _print(contents: bytes) -> None:
    """Contents as they are; where no bytes can be printed, as text."""
    out = getattr(sys.stdout, "buffer", None)
    if out is None:
        sys.stdout.write(contents.decode("utf-8", "backslashreplace"))
    else:
        out.write(contents)
        out.flush()


def files_at(store: Store, session: str, ref: str) -> Files:
    """The files at a ref; NotFoundError if it has none."""
    where = session_of(store, session)
    files = where.checkpoint(ref).files
    if files is None:
        message = f"session {where.id!r}: {ref} has no files"
        raise backstay.NotFoundError(message, hint="they are recorded where a session has a workspace")
    return files


def _tell(screen: Screen, files: Files, found: Any) -> None:
    from backstay.cli.columns import Column, listing
    from backstay.cli.text import safe, size
    from backstay.model import counted
    from backstay.shapes.files import MARKS, name_of

    exact = "" if files.exact else ", as last captured" if files.author == "carried" else ", not exact"
    screen.line((f"{counted(files.count, 'file')}, {size(files.bytes)}, in {safe(files.root)}{exact}", "dim"))
    if files.forgotten:
        screen.line((f"the contents of {counted(len(files.forgotten), 'file')} were forgotten", "yellow"))
    columns = [Column("PATH", least=16, is_name=True), Column("SIZE", right=True), Column("BY"), Column("")]
    listing(
        screen,
        columns,
        [
            [
                safe(name_of(file)),
                size(file.size) if file.kind == "file" else "",
                (safe(file.author), "dim"),
                (MARKS.get(file.mark, ""), "yellow"),
            ]
            for file in found
        ],
    )


def tell_left_out(screen: Screen, files: Files) -> None:
    """Paths that were not captured, by reason."""
    from backstay.cli.text import safe, size
    from backstay.model import counted

    if not files.left_out:
        screen.line(("nothing was left out", "dim"))
    for why, (count, size_bytes, first) in files.left_out.items():
        weight = f", {size(size_bytes)}" if size_bytes else ""
        screen.line((f"left out, {why}: ", "bold"), f"{counted(count, 'path')}{weight}")
        for path in first:
            screen.line(f"  {safe(path)}")
        if count > len(first):
            screen.line((f"  … and {count - len(first):,} more", "dim"))
