"""Moments as people type them: `2h`, `3d`, `2025-06-02`, `2025-06-02T10:00`; in UTC, as everything here is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_AGO = re.compile(r"(\d+(?:\.\d+)?) ?(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def since_option(help_: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--since WHEN`."""
    return click.option("--since", metavar="WHEN", callback=_moment, help=help_)


def _moment(_ctx: click.Context, _param: click.Parameter, given: str | None) -> datetime | None:
    """The moment that was typed: so long ago, or a date with or without a time."""
    if given is None:
        return None
    from backstay.shapes import text

    found = _AGO.fullmatch(given.strip().lower())
    try:
        if found is not None:
            return text.now() - timedelta(**{_UNITS[found[2]]: float(found[1])})
        at = datetime.fromisoformat(given.strip())
    except (ValueError, OverflowError):
        message = f"{given!r} is no moment: write 30m, 2h, 3d, 1w, 2025-06-02 or 2025-06-02T10:00"
        raise click.BadParameter(message) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
