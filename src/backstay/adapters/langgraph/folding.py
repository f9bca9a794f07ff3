"""Finished subgraphs folded away: a namespace that belongs to one task goes when its graph has taken the next step.

LangGraph gives a subgraph a namespace for each task (`agent:<task>`). Once the graph around it has put its next
checkpoint, all tasks of the step before are done, and nothing reads the namespace again but a look back at that step.
An interrupted subgraph keeps its graph from going on; so it stays. A subgraph compiled with `checkpointer=True` has a
namespace without a task, which is its memory: it stays too.

A process that died after a subgraph had finished leaves its namespace behind. The next process looks for those once,
when it puts its first checkpoint of the thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstay.adapters.langgraph.lines import Thread
from backstay.errors import ConflictError, NotFoundError
from backstay.upkeep.deletion import delete_some


def fold_finished(thread: Thread, ns: str, before: str | None, metadata: Mapping[str, Any]) -> None:
    """Fold the subgraphs of the step that a checkpoint, which was just put, has left."""
    thread.inner.note(ns, metadata)
    finished = set(thread.inner.done(ns, before, metadata))
    if not ns and not thread.is_swept:
        thread.is_swept = True
        finished |= _left_behind(thread)
    _fold(thread, sorted(finished, key=len, reverse=True))  # innermost first


def _fold(thread: Thread, namespaces: list[str]) -> None:
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


def _left_behind(thread: Thread) -> set[str]:
    """The namespaces of subgraphs that belong to steps which the thread has left."""
    inner = thread.inner_heads()
    ends = {head.of for head in thread.heads("").values()} if inner else set()
    gone: set[str] = set()
    for row in inner:
        parents = thread.about(row).metadata.get("parents")
        step = parents.get("") if isinstance(parents, dict) else None
        is_left = isinstance(step, str) and step not in ends and thread.find(step) is not None  # it may be on its way
        if is_left and row.ns and ":" in row.ns.partition("|")[0]:
            gone.add(row.ns)
    return gone
