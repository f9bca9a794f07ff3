"""Which store a command works on, and how it prints what came from one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

import holdfast


def in_store(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the store named by `--store` or HOLDFAST_URL, else the one found here or above."""

    @click.option("--store", "url", envvar="HOLDFAST_URL", help="Its URL; otherwise the .holdfast/ here or above.")
    @functools.wraps(run)
    def wrapped(url: str | None, **arguments: Any) -> None:
        with holdfast.open(url) as store:
            run(store, **arguments)

    return wrapped


def show(text: str) -> None:
    """Print lines; names come from anywhere, and no escape of theirs reaches the terminal."""
    for line in text.splitlines():
        click.echo("".join(char if char.isprintable() else repr(char)[1:-1] for char in line))
