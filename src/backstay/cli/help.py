"""`backstay help [TOPIC]`: the guides at the terminal; with the name of a command, how that is used."""

from __future__ import annotations

import importlib.resources
import io
import re
from pathlib import Path

import click

from backstay.cli import COMMANDS, commands
from backstay.cli.command import Command, alike
from backstay.cli.screen import Screen

# By what people come for; each is a page of docs/ of that name, or of the one below.
TOPICS = {
    "start": "The first ten minutes: kill an agent, find out, carry on, go back.",
    "runs": "Loops that survive: calls, doubt, human in the loop, stop, recovery.",
    "commits": "States, commits, lost-update safety, refs, branches.",
    "time-travel": "Go back, fork, change, compare.",
    "adapters": "LangGraph, deepagents, the OpenAI Agents SDK, one of your own.",
    "page": "The store in your browser: `backstay web`.",
    "web-apps": "A chat behind FastAPI.",
    "retries": "What to repeat where.",
    "cost": "Tokens, cost and limits.",
    "postgres": "PostgreSQL in production.",
    "upkeep": "Verify, repair, retention.",
    "moving": "Moving sessions from store to store.",
    "observability": "Events, metrics, alerts.",
    "testing": "Killing your agent in a test.",
    "security": "What is protected against whom.",
    "errors": "Every error, when it comes, what to do next.",
    "glossary": "Every word, and the words people search for.",
    "guarantees": "What holds, and which test shows it.",
    "comparison": "LangGraph, DBOS, Temporal, Restate: when to use which.",
}

PAGES = {"commits": "sessions", "moving": "export", "page": "web"}  # whose own names are those of commands
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def _complete(_ctx: click.Context, _param: click.Parameter, start: str) -> list[str]:
    return [name for name in (*TOPICS, *COMMANDS) if name.startswith(start)]


@click.command("help", cls=Command, examples=["backstay help", "backstay help fork"])
@click.argument("topic", required=False, shell_complete=_complete)
@click.pass_context
def command(ctx: click.Context, topic: str | None) -> None:
    """Show a guide, or how a command is used. Without TOPIC, list both."""
    root = ctx.find_root()
    if topic is None:
        click.echo(commands.get_help(root))
        with Screen() as screen:
            screen.line()
            screen.line("Guides, by `backstay help TOPIC`:")
            for name, text in TOPICS.items():
                screen.line(f"  {name:<14} {text}")
    elif topic in COMMANDS:
        found = commands.get_command(root, topic)
        if found is not None:
            with click.Context(found, info_name=topic, parent=root) as context:
                click.echo(found.get_help(context))
    elif topic in TOPICS:
        _show(topic)
    else:
        likely = alike(topic, [*TOPICS, *COMMANDS])
        rest = f"Did you mean {' or '.join(likely)}?" if likely else "`backstay help` lists those there are."
        message = f"There is no topic and no command {topic}. {rest}"
        raise click.UsageError(message, ctx=ctx)


def page_of(topic: str) -> str:
    """The text of a guide: it comes with the package, and in a checkout it lies in docs/. A terminal has no links."""
    name = f"{PAGES.get(topic, topic)}.md"
    shipped = importlib.resources.files("backstay") / "docs" / name
    text = (shipped if shipped.is_file() else Path(__file__).parents[3] / "docs" / name).read_text("utf-8")
    parts = text.split("```")  # every second one is code
    return "```".join([part if number % 2 else _LINK.sub(r"\1", part) for number, part in enumerate(parts)])


def _show(topic: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    with Screen(paged=True) as screen:
        out = io.StringIO()
        console = Console(
            file=out, width=min(screen.width, 100), force_terminal=screen.colour, no_color=not screen.colour
        )
        console.print(Markdown(page_of(topic), hyperlinks=False, code_theme="ansi_dark"))
        for line in out.getvalue().splitlines():
            screen.line(line.rstrip())
