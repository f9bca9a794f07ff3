"""The state of a run between its boundaries, and what was used since the last one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from backstay.errors import InvalidInputError
from backstay.model import StateDict, Usage
from backstay.store.fields import check_usage


class StateKeeping:
    """A state that a loop changes, and counts of what it used."""

    state: StateDict
    usage: Usage
    _used: Usage
    _lock: threading.RLock

    def append(self, message: Any, part: str = "messages") -> None:
        """Add a message to a list in the state."""
        items = self.state.setdefault(part, [])
        if type(items) is not list:
            message_ = f"state[{part!r}] is a {type(items).__name__}, not a list"
            raise InvalidInputError(message_, hint="append(message, part=…) names the list to add to")
        items.append(message)

    def use(
        self,
        *,
        tokens_in: int = 0,
        tokens_out: int = 0,
        cost: float = 0.0,
        tasks_completed: int = 0,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Count what was used since the last boundary; `extra` is for counts of your own."""
        used = check_usage(Usage(tokens_in, tokens_out, cost, tasks_completed, {} if extra is None else extra))
        self._count(used)

    def _count(self, used: Usage) -> None:
        with self._lock:
            self._used += used
            self.usage += used
