"""`backstay help [TOPIC]`: the guides at the terminal; with the name of a command, how that is used."""

from __future__ import annotations

import importlib.resources
import io
import re
from pathlib import Path

import click

from backstay.cli import COMMANDS, commands
from backstay.cli.command import Command, alike, json_option
from backstay.cli.screen import Screen

# By what people come for; each is a page of docs/ of that name, or of the one below.
TOPICS = {
    "start": "The first ten minutes: kill an agent, find out, carry on, go back.",
    "first-agent": "An agent that edits files, asks before it publishes, and is rewound.",
    "runs": "Loops that survive: calls, doubt, human in the loop, stop, recovery.",
    "commits": "States, commits, lost-update safety, refs, branches.",
    "workspace": "Files in the same checkpoint: rewind, undo, fork into a folder, bisect.",
    "claude-code": "Claude Code, Codex and others: every tool call with its files.",
    "sub-agents": "Children with sessions of their own.",
    "streaming": "Chunks as they come, kept and replayed.",
    "time-travel": "Go back, fork, change, compare.",
    "adapters": "LangGraph, deepagents, the OpenAI Agents SDK, one of your own.",
    "page": "The store in your browser: `backstay web`.",
    "web-apps": "A chat behind FastAPI.",
    "retries": "Three kinds of retry, each in its place.",
    "cost": "Tokens, cost and limits.",
    "postgres": "PostgreSQL in production.",
    "upkeep": "Verify, repair, retention.",
    "moving": "Moving sessions from store to store.",
    "observability": "Events, metrics, alerts.",
    "testing": "Killing your agent in a test.",
    "security": "Attackers, and the protection against each.",
    "errors": "Every error, when it comes, what to do next.",
    "glossary": "Every word, and the words people search for.",
    "guarantees": "Each promise, and the test that breaks without it.",
    "comparison": "LangGraph, DBOS, Temporal, Restate: when to use which.",
}

PAGES = {"commits": "sessions", "moving": "export", "page": "web"}  # whose own names are those of commands
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def _complete(_ctx: click.Context, _param: click.Parameter, start: str) -> list[str]:
    return [name for name in (*TOPICS, *COMMANDS) if name.startswith(start)]


@click.command("help", cls=Command, shape="topic*", examples=["backstay help fork"])
@click.argument("topic", required=False, shell_complete=_complete)
@json_option
@click.pass_context
def command(ctx: click.Context, topic: str | None, *, as_json: bool) -> None:
    """Show a guide, or how a command is used. Without TOPIC, list both."""
    root = ctx.find_root()
    if as_json:
        from backstay import shapes

        known = TOPICS if topic is None else {topic: page_of(topic) if topic in TOPICS else _usage(root, topic)}
        for name, text in known.items():
            click.echo(shapes.dump({"topic": name, "text": text}))
    elif topic is None:
        click.echo(commands.get_help(root))
        click.echo("\nGuides, by `backstay help TOPIC`:")
        for name, text in TOPICS.items():
            click.echo(f"  {name:<14} {text}")
    elif topic in TOPICS:
        _show(topic)
    else:
        click.echo(_usage(root, topic))


def _usage(root: click.Context, name: str) -> str:
    found = commands.get_command(root, name) if name in COMMANDS else None
    if found is None:
        likely = alike(name, [*TOPICS, *COMMANDS])
        rest = f"Did you mean {' or '.join(likely)}?" if likely else "`backstay help` lists those there are."
        message = f"There is no topic and no command {name}. {rest}"
        raise click.UsageError(message, ctx=root)
    with click.Context(found, info_name=name, parent=root) as context:
        return found.get_help(context)


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
