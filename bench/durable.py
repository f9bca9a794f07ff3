"""The peer for runs: DBOS on SQLite, a workflow whose steps are empty functions.

A step of DBOS is recorded once, when it is done; what was in flight at a crash is not. Optional: `installed()` says
whether it is there.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def installed() -> bool:
    """Whether the extra `bench` brought it."""
    return importlib.util.find_spec("dbos") is not None


def inside_a_workflow(folder: Path, body: Callable[[Callable[[], Any]], None]) -> None:
    """Run `body(step)` as a workflow; each call of `step` is one recorded step of an empty function."""
    logging.getLogger("dbos").setLevel(logging.CRITICAL)
    dbos: Any = importlib.import_module("dbos").DBOS
    url = f"sqlite:///{folder}/dbos.sqlite"
    dbos(config={"name": "bench", "system_database_url": url, "run_admin_server": False})
    try:

        def nothing() -> None:
            return None

        step = dbos.step()(nothing)

        def workflow() -> None:
            body(step)

        run = dbos.workflow()(workflow)
        dbos.launch()
        run()
    finally:
        dbos.destroy()
