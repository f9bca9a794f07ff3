"""`backstay hook`: what Claude Code's hooks run. `backstay.__main__` goes to the client without this module."""

from __future__ import annotations

import click

from backstay.cli.command import Command


@click.command("hook", cls=Command, examples=["backstay hook < event.json"])
@click.argument("event", metavar="[EVENT]", required=False)
@click.option("--store", "url", metavar="URL", help="The store; by default the .backstay/ of the project or above.")
def command(event: str | None, url: str | None) -> None:
    """Record an event of Claude Code, read as JSON from standard input; `backstay init --claude-code` sets it up.

    It prints nothing and its exit code is 0, so that it never stands in the agent's way; `backstay status` says what
    could not be recorded. EVENT is for people who read the settings: the event itself says what it is.
    """
    from backstay.cli.street import neighbour

    del event
    neighbour("adapters.claude_code.client").run(["--store", url] if url else [])
