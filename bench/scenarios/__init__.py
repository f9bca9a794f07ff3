"""What is measured, by name. A scenario takes the settings of a run and gives figures."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from bench.scenarios import (
    append,
    files,
    graph,
    graph_agents,
    growth,
    hooks,
    loads,
    many,
    openai_agents,
    reads,
    runs,
    sharing,
    shell,
    space,
    threads,
    upkeep,
    waiting,
    workspace,
    workspace_load,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measuring import Settings
    from bench.report import Figure


def _on_postgres(name: str) -> Callable[[Settings], list[Figure]]:
    """A scenario that needs a driver which may be absent."""

    def run(settings: Settings) -> list[Figure]:
        try:
            scenarios = importlib.import_module("bench.scenarios.postgres")
        except ModuleNotFoundError:
            sys.stderr.write(f"{name}: left out (the extra `bench` brings psycopg)\n")
            return []
        found: list[Figure] = getattr(scenarios, name)(settings)
        return found

    return run


def _web(settings: Settings) -> list[Figure]:
    """The page needs an extra that may be absent."""
    try:
        scenario = importlib.import_module("bench.scenarios.web")
        importlib.import_module("backstay.web")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"web: left out (the extra `web` brings {error.name})\n")
        return []
    found: list[Figure] = scenario.web(settings)
    return found


SCENARIOS: dict[str, Callable[[Settings], list[Figure]]] = {
    "append": append.append,
    "told": append.told,
    "peer": append.against_peer,
    "space": space.space,
    "window": growth.window,
    "compaction": growth.compaction,
    "nested": growth.nested,
    "scratchpad": growth.scratchpad,
    "keys": sharing.keys,
    "image": sharing.image,
    "edit": sharing.edit,
    "load": loads.load,
    "fork": reads.fork,
    "log": reads.listings,
    "filters": many.filters,
    "branches": many.branches,
    "threads": threads.threads,
    "processes": threads.processes,
    "files": files.files,
    "verify": upkeep.verify,
    "prune": upkeep.prune,
    "calls": runs.calls,
    "resume": runs.resume,
    "journal": runs.journal,
    "graph": lambda settings: [*graph.graph(settings), *graph_agents.graph_agents(settings)],
    "openai": openai_agents.openai_agents,
    "cli": shell.cli,
    "postgres": _on_postgres("postgres"),
    "scale": _on_postgres("scale"),
    "waiting": waiting.waiting,
    "web": _web,
    "workspace": workspace.workspace,
    "hooks": hooks.hooks,
    "workspace-large": workspace.large_workspace,
    "workspace-load": workspace_load.workspace_load,
}
