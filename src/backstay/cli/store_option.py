"""Which store a command works on: `--store`, else BACKSTAY_URL, else the `.backstay/` here or above.

A command that looks does not make a store by looking: where there is none it says so. `backstay init` makes one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

import backstay

if TYPE_CHECKING:
    from backstay.face import Store

store_option = click.option(
    "--store", "url", metavar="URL", envvar="BACKSTAY_URL", help="The store; by default the .backstay/ here or above."
)


def in_store(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the store that is there."""

    @store_option
    @functools.wraps(run)
    def wrapped(url: str | None, **arguments: Any) -> None:
        with open_store(url) as store:
            run(store, **arguments)

    return wrapped


def is_there(url: str | None) -> bool:
    """False if opening a store would make it; one that is elsewhere counts as there."""
    from backstay import opening

    place = opening.place(url)
    return url is not None if place is None else place.exists()


def open_store(url: str | None, *, makes: bool = False) -> Store:
    """The store of a URL; NotFoundError if there is none and it must not be made."""
    from backstay import opening

    if not makes:
        place = opening.place(url)
        if url is None and place is None:
            message = "there is no store here or in a folder above"
            raise backstay.NotFoundError(message, hint="`backstay init` makes one; --store URL names another")
        if place is not None and not place.exists():
            message = f"there is no store at {place}"
            raise backstay.NotFoundError(message, hint="`backstay init` makes one; --store URL names another")
    return backstay.open(url)


def name_of(url: str | None) -> str:
    """How a store is called when it is spoken of: its path, or its URL without a password."""
    from backstay import opening

    place = opening.place(url)
    if place is not None:
        return str(place)
    from urllib.parse import urlsplit

    parts = urlsplit(url or "")
    return (url or "").replace(f":{parts.password}@", ":…@") if parts.password else (url or "")
