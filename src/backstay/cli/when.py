"""Moments as people type them: `2h`, `3d`, `2025-06-02`, `2025-06-02T10:00`; in UTC, as everything here is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_AGO = re.compile(r"(\d+(?:\.\d+)?) ?(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(click.ParamType):
    """A moment: so long ago, or a date with or without a time."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The moment that was typed."""
        if isinstance(value, datetime):
            return value
        from backstay.cli import text

        found = _AGO.fullmatch(value.strip().lower())
        try:
            if found is not None:
                return text.now() - timedelta(**{_UNITS[found[2]]: float(found[1])})
            at = datetime.fromisoformat(value.strip())
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no moment: write 30m, 2h, 3d, 1w, 2025-06-02 or 2025-06-02T10:00", param, ctx)
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def since_option(help_: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--since WHEN`."""
    return click.option("--since", metavar="WHEN", type=Moment(), help=help_)
