"""`backstay export`: sessions into one file that can be checked, carried and imported; or as another system's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import backstay
from backstay.cli.bar import Bar
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import session_id
from backstay.cli.store_option import open_store, store_option
from backstay.cli.text import safe

if TYPE_CHECKING:
    from backstay.face import Store

_ASKED = len(("SYSTEM", "SESSION", "DIR"))
_NARROWED = len(("FILE", "SESSION"))


@click.command(
    "export",
    cls=Command,
    shape="exported",
    examples=[
        "backstay export all.backstay",
        "backstay export one.backstay ticket-42",
        "backstay export --html ticket.html ticket-42",
    ],
)
@click.argument("what", nargs=-1, required=True, metavar="FILE [SESSION] | SYSTEM SESSION DIR")
@click.option("--session", metavar="SESSION", help="Only this session, into FILE; all by default.")
@click.option(
    "--branch", metavar="NAME", default="main", show_default=True, help="The branch for a SYSTEM that has none."
)
@click.option("--html", is_flag=True, help="Write SESSION to FILE as one page of HTML, for a colleague.")
@click.option("--with-secrets", is_flag=True, help="Also the contents of secrets that a workspace captured.")
@click.option("--overwrite", is_flag=True, help="Replace an existing FILE, or files in DIR.")
@json_option
@store_option
def command(
    what: tuple[str, ...],
    *,
    url: str | None,
    session: str | None,
    branch: str,
    html: bool,
    with_secrets: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write sessions with their whole history into FILE; or one SESSION into DIR, as files of another SYSTEM.

    SYSTEM is ccswarm, ares, continuum or smooth (for which DIR may be a new SQLite store, FILE.db). DIR is made if
    it is missing. With --html, FILE is one page that needs no script and fetches nothing.
    """
    from backstay.cli.screen import Screen

    if html:
        _html(what, url, session, overwrite=overwrite, as_json=as_json)
        return
    systems = backstay.formats.EXPORTS
    foreign = len(what) == _ASKED and what[0] in systems and session is None
    if not foreign:
        if len(what) == _NARROWED and session is None:
            what, session = what[:1], what[1]
        if len(what) != 1 or what[0] in systems:
            raise click.UsageError(f"give a FILE; or one of {', '.join(systems)}, then a SESSION and a folder")
    with open_store(url) as store, Bar("export") as bar:
        if foreign:
            written = backstay.formats.export(
                store,
                session_id(store, what[1]),
                what[2],
                system=what[0],
                branch=branch,
                overwrite=overwrite,
                progress=bar,
            )
            names = [str(written.session)]
            files, notes, said = list(written.files), list(written.notes), str(written)
        else:
            if session is None:
                _refuse_session(store, what[0])
            given = None if session is None else session_id(store, session)
            names = [given] if given is not None else [str(info.id) for info in store.sessions()] if as_json else []
            store.export(what[0], session=given, overwrite=overwrite, with_secrets=with_secrets, progress=bar)
            files, notes, said = [what[0]], [], f"written: {what[0]}"
    if not as_json:
        Screen().text(said)
        return
    from backstay import shapes

    shape = {"path": what[-1], "system": what[0] if foreign else None, "sessions": names, "files": files}
    Screen().line(shapes.dump({**shape, "notes": notes}))


def _refuse_session(store: Store, file: str) -> None:
    """A file that is called as a session was meant as one: all sessions would go into it."""
    if file.isprintable() and any(
        info.id == file for info in store.sessions(prefix=file)
    ):  # bytes that are no text are no id
        name = safe(file)
        raise click.UsageError(f"{name} is a session: give a FILE before it, or ./{name} for a file of that name.")


def _html(what: tuple[str, ...], url: str | None, session: str | None, *, overwrite: bool, as_json: bool) -> None:
    """Write one session as one page, with the templates of `backstay web`."""
    from backstay import shapes
    from backstay.cli.out_file import write_out
    from backstay.cli.screen import Screen
    from backstay.cli.street import neighbour

    if len(what) + (session is not None) != _NARROWED:
        raise click.UsageError("--html takes a FILE and a SESSION")
    file = what[0]
    with open_store(url) as store:
        name = session_id(store, session or what[1])
        text = neighbour("web").html_file(store, store.session(name))
        write_out(file, text, overwrite=overwrite, hint="give another FILE, or --overwrite")
    if as_json:
        shape = {"path": file, "system": "html", "sessions": [name], "files": [file], "notes": []}
        Screen().line(shapes.dump(shape))
    else:
        Screen().text(f"written: {file}")
