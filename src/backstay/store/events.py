"""Listeners of a store: `store.on(event, fn)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from backstay.errors import InvalidInputError

EventName = Literal["checkpoint", "call", "in_doubt", "fenced", "crash_loop", "waiting", "answered", "overtaken"]
EVENTS: tuple[EventName, ...] = get_args(EventName)


class Events:
    """The listeners of one store. An exception in one is logged and disturbs nothing."""

    def __init__(self) -> None:
        self.listeners: dict[str, list[Callable[[Any], object]]] = {event: [] for event in EVENTS}

    def on(self, event: str, fn: Callable[[Any], object]) -> None:
        """Call `fn` after each event of that name."""
        if event not in self.listeners:
            raise InvalidInputError(f"there is no event {event!r}", hint=f"one of {', '.join(EVENTS)}")
        self.listeners[event].append(fn)

    def emit(self, event: str, value: object) -> None:
        """Tell the listeners."""
        for fn in self.listeners[event]:
            try:
                fn(value)
            except Exception:  # a listener's fault is not the writer's
                import logging  # noqa: PLC0415 - seldom needed

                logging.getLogger("backstay").exception("a listener for %r failed", event)
