"""`backstay init`: make a store, here or at a URL; and the hooks of Claude Code in this folder."""

from __future__ import annotations

from pathlib import Path

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.store_option import name_of
from backstay.cli.street import neighbour
from backstay.cli.text import safe
from backstay.cli.workspace_option import refuse_folder


@click.command(
    "init",
    cls=Command,
    shape="place",
    examples=["backstay init", "backstay init sqlite:///agents.db", "backstay init --claude-code"],
)
@click.argument("url", metavar="[URL]", required=False, envvar="BACKSTAY_URL")
@click.option("--claude-code", is_flag=True, help="Have Claude Code record its sessions in this folder, by hooks.")
@click.option("--print", "only_print", is_flag=True, help="Show the settings with the hooks; write nothing.")
@click.option("--remove", is_flag=True, help="Take the hooks out again; the store stays.")
@json_option
def command(url: str | None, *, claude_code: bool, only_print: bool, remove: bool, as_json: bool) -> None:
    """Make a store: at URL, or as .backstay/store.db in this folder.

    \b
    sqlite:///store.db, or a path that ends in .db   one file (SQLite)
    file:folder                                      a folder of JSON lines
    One that is there already is left as it is.

    With --claude-code, hooks go into .claude/settings.local.json beside what is there: each prompt, tool call and turn
    becomes a checkpoint with the files of this folder. --print and --remove are for these hooks.
    """
    if only_print or remove:
        if not claude_code or as_json or (only_print and remove):
            raise click.UsageError("--print or --remove stands alone behind --claude-code")
        _show_hooks(url) if only_print else _remove_hooks()
        return
    if claude_code:
        refuse_folder(backstay.Workspace(Path.cwd()))
    hooks = _put_hooks(url) if claude_code else None
    store_url = url
    if store_url is None:
        from backstay import opening

        store_url = str(opening.make_folder(Path.cwd()) / "store.db")
    _make(store_url, hooks, as_json=as_json)


def _make(url: str, hooks: str | None, *, as_json: bool) -> None:
    from backstay import opening

    place = opening.place(url)
    known = place is not None and place.exists()
    with backstay.open(url) as store:
        backend = store.backend.name
    if as_json:
        from backstay import shapes

        click.echo(shapes.dump({"store": name_of(url), "backend": backend, "made": not known, "hooks": hooks}))
        return
    click.echo(safe(f"{'There is a store' if known else 'Made a store'} ({backend}): {name_of(url)}"))
    if place is None or place.parent.name != ".backstay":
        click.echo(f"Commands find it by --store {safe(url)} or BACKSTAY_URL={safe(url)}.")
    if hooks is not None:
        click.echo(f"Claude Code has its hooks in {hooks}. Start it again here; `backstay log` shows what it does.")


def _put_hooks(url: str | None) -> str:
    """Put the hooks into the settings of this folder; where that is."""
    settings, here = neighbour("adapters.claude_code.settings"), Path.cwd()
    before = settings.read(here)
    after = settings.with_hooks(before, settings.hook_command(url))
    if after != before:
        settings.write(here, after)
    neighbour("adapters.claude_code.places").prepare_problems(str(here))
    return str(settings.PATH)


def _show_hooks(url: str | None) -> None:
    settings = neighbour("adapters.claude_code.settings")
    click.echo(settings.with_hooks(settings.read(Path.cwd()), settings.hook_command(url)), nl=False)


def _remove_hooks() -> None:
    settings, here = neighbour("adapters.claude_code.settings"), Path.cwd()
    before = settings.read(here)
    after = settings.without_hooks(before)
    if before is None or after == before:
        click.echo(f"{settings.PATH} has no hooks of Backstay's.")
        return
    settings.write(here, after)
    click.echo(f"The hooks are gone from {settings.PATH}. The store stays.")
