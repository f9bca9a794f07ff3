"""How work that takes a while says how far it is."""

from __future__ import annotations

from collections.abc import Callable

# Called now and then with how much is done and, if that is known, how much there is in all. It may be called while a
# transaction is open, so it must not use the store; what it raises ends the work, and nothing is left half done.
Progress = Callable[[int, int | None], object]
