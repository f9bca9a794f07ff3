"""What is measured, by name. A scenario takes the settings of a run and gives figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.scenarios import append, files, growth, postgres, reads, runs, sharing, shell, threads, upkeep

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measuring import Settings
    from bench.report import Figure

SCENARIOS: dict[str, Callable[[Settings], list[Figure]]] = {
    "append": append.append,
    "peer": append.against_peer,
    "window": growth.window,
    "compaction": growth.compaction,
    "nested": growth.nested,
    "scratchpad": growth.scratchpad,
    "keys": sharing.keys,
    "image": sharing.image,
    "edit": sharing.edit,
    "load": reads.load,
    "fork": reads.fork,
    "log": reads.listings,
    "threads": threads.threads,
    "files": files.files,
    "verify": upkeep.verify,
    "prune": upkeep.prune,
    "calls": runs.calls,
    "resume": runs.resume,
    "journal": runs.journal,
    "cli": shell.cli,
    "postgres": postgres.postgres,
    "scale": postgres.scale,
}
