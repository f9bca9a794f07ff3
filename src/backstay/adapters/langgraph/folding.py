"""Finished subgraphs folded away: a namespace that belongs to one task goes when its graph has taken the next step.

LangGraph gives a subgraph a namespace for each task (`agent:<task>`). Once the graph around it has put its next
checkpoint, all tasks of the step before are done, and nothing reads the namespace again but a look back at that step.
An interrupted subgraph keeps its graph from going on; so it stays. A subgraph compiled with `checkpointer=True` has a
namespace without a task, which is its memory: it stays too.
"""

from __future__ import annotations

from backstay.adapters.langgraph.lines import Thread
from backstay.errors import ConflictError, NotFoundError
from backstay.upkeep.deletion import delete_some


def fold(thread: Thread, namespaces: list[str]) -> None:
    """Remove the branches of namespaces, with their rows. Where another process is at it, they stay."""
    gone: set[int] = set()
    for ns in namespaces:
        lines = thread.lines(ns)
        gone |= {row.sequence for row in thread.rows(ns)}
        thread.tails.pop(ns, None)
        for branch in lines:
            try:
                thread.session.delete_branch(branch)
            except (ConflictError, NotFoundError):
                return
    try:
        if gone:
            delete_some(thread.backend, thread.id, gone, spare_names=True)
    except (ConflictError, NotFoundError):
        return
