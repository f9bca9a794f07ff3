"""Confirmation before something is changed: `-y`, or a yes at a terminal. Without a terminal nothing is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from backstay.cli.exit_codes import FAILED

yes_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "-y", "--yes", is_flag=True, help="Do not ask."
)

dry_run_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--dry-run", is_flag=True, help="Only show what would go."
)


def agree(question: str, *, yes: bool) -> None:
    """Come back if it may be done. Without `-y` and without a terminal to ask at it may not, and that is a failure."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        message = "nothing was changed: there is no terminal to ask at (-y does it without asking)"
        raise click.ClickException(message)
    sys.stdout.flush()
    try:
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        sys.stderr.write("\nNothing was changed.\n")
        raise
    if answer.strip().lower() not in ("y", "yes"):
        sys.stderr.write("Nothing was changed.\n" if answer else "\nNothing was changed.\n")
        raise click.exceptions.Exit(FAILED)
