"""The namespaces of subgraphs and the steps of the graphs around them that they ran in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MANY = 256


class InnerSteps:
    """The namespaces of subgraphs that this process has written to, and the steps they ran in."""

    def __init__(self) -> None:
        self._steps: dict[str, Mapping[str, Any]] = {}  # by namespace: the step of each graph around it

    def note(self, ns: str, metadata: Mapping[str, Any]) -> None:
        """A checkpoint of a namespace was put."""
        parents = metadata.get("parents")
        if ns and isinstance(parents, dict):
            self._steps[ns] = parents
            if len(self._steps) > _MANY:
                del self._steps[next(iter(self._steps))]

    def done(self, ns: str, step: str | None, metadata: Mapping[str, Any]) -> list[str]:
        """The namespaces inside this one that were used in a step which is over; innermost first."""
        if metadata.get("source") != "loop" or step is None:
            return []
        prefix = f"{ns}|" if ns else ""
        over = [
            name
            for name, parents in self._steps.items()
            if name.startswith(prefix) and name != ns and parents.get(ns) == step and _has_task(name[len(prefix) :])
        ]
        for name in over:
            del self._steps[name]
        return sorted(over, key=len, reverse=True)


def _has_task(below: str) -> bool:
    """True if the first graph below belongs to one task."""
    return ":" in below.partition("|")[0]
