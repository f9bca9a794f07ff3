"""How a saver comes to its store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, Protocol, TypeVar

from backstay.aio import AsyncStore
from backstay.face import Store


def sync_store(store: Store | AsyncStore) -> Store:
    """The store itself, for those that do their own awaiting."""
    return store.sync if isinstance(store, AsyncStore) else store


class _Leaving(Protocol):
    def leave(self) -> None: ...


S = TypeVar("S", bound=_Leaving)


class SaverOpening(Generic[S]):
    """What `BackstaySaver.open` gives: the store is opened and closed by `with`, or by `async with`."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._opened: list[S] = []

    def __enter__(self) -> S:
        self._opened.append(self._make())
        return self._opened[-1]

    def __exit__(self, *_: object) -> None:
        self._opened.pop().leave()

    async def __aenter__(self) -> S:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)


class Done:
    """Something that is done already, for those who await it."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()
