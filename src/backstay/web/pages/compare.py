"""Branches beside one another: steps, tokens, cost, time, and how much their states differ from the first."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from backstay import shapes
from backstay.bookkeeping import told
from backstay.errors import BackstayError, NotFoundError
from backstay.model import Usage
from backstay.shapes.points import diff_between, told_as
from backstay.shapes.text import short
from backstay.store.overview import branch_statuses
from backstay.web.about_session import crumbs_of, head_of
from backstay.web.needs import needs_of_session
from backstay.web.pages.diff import stat_words
from backstay.web.pages.session import SHORT_CHARS
from backstay.web.view import Shown

if TYPE_CHECKING:
    from backstay.face import Session
    from backstay.model import Checkpoint
    from backstay.web.view import Visit

MAX_COMPARED = 6
_LISTED = 60
_LOOKED_AT = 300
_COMPARED_BYTES = 1_000_000  # of all states together; beyond, what differs is a click away


def show(visit: Visit) -> Shown:
    """The page."""
    session = visit.session()
    heads = session.branches()
    needs = needs_of_session(visit.store, session, None, ())
    statuses = branch_statuses(visit.store.backend, session.id)
    shown = statuses | {
        need.branch: ("in_doubt", None) for need in needs if need.kind == "doubt" and need.branch in heads
    }
    ordered = sorted(heads, key=lambda name: (name != "main", -heads[name].sequence))
    wanted = [name for name in visit.several("b") if name]
    unknown = [name for name in wanted if name not in heads]
    if unknown:
        raise NotFoundError(f"session {session.id!r} has no branch {unknown[0]!r}")
    chosen = (wanted or ordered)[:MAX_COMPARED]
    heads |= {name: told_as(session, heads[name]) for name in chosen}
    logs = {name: list(islice(told(session.log(name)), _LOOKED_AT)) for name in chosen}
    compares = sum(heads[name].size_bytes for name in chosen) <= _COMPARED_BYTES
    data: dict[str, Any] = {
        **head_of(visit, session, "compare", needs),
        "chosen": chosen,
        "rows": [_row(session, name, heads[name], logs, chosen[0], shown, compares=compares) for name in chosen],
        "others": [name for name in ordered if name not in chosen][:_LISTED],
        "hidden": max(0, len(ordered) - len(chosen) - _LISTED),
        "most": MAX_COMPARED,
        "long_ids": any(len(short(heads[name].id)) > SHORT_CHARS for name in chosen),
        "has_use": any(heads[name].total_usage != Usage() for name in chosen),
    }
    crumbs = crumbs_of(visit, session, ("compare", None))
    return Shown(
        "compare.html",
        f"Branches of {session.id}",
        crumbs,
        data,
        lambda: [_shape(name, heads, statuses) for name in chosen],
    )


def _row(
    session: Session,
    name: str,
    head: Checkpoint,
    logs: dict[str, list[Checkpoint]],
    first: str,
    statuses: dict[str, tuple[str, str | None]],
    *,
    compares: bool,
) -> dict[str, Any]:
    log = logs[name]
    shared = {point.id for point in logs[first]} if name != first else set()
    fork = next((point for point in log if point.id in shared), None)
    own = [point for point in log if point.id not in shared]
    used = head.total_usage
    row: dict[str, Any] = {
        "name": name,
        "head": head,
        "status": statuses.get(name, ("", None))[0],
        "steps": len(log),
        "own": len(own),
        "more": len(log) == _LOOKED_AT,
        "fork": fork,
        "tokens": used.tokens_in + used.tokens_out,
        "cost": used.cost,
        "own_cost": sum(point.usage.cost for point in own),
        "wall": (head.created_at - log[-1].created_at).total_seconds() if log else 0.0,
        "differs": "",
    }
    if name != first and not compares:
        row["differs"] = "show"
    elif name != first:
        try:
            row["differs"] = stat_words(diff_between(session, logs[first][0], head, names=(first, name)))
        except BackstayError as error:
            row["differs"] = error.message
    return row


def _shape(name: str, heads: dict[str, Checkpoint], statuses: dict[str, tuple[str, str | None]]) -> dict[str, Any]:
    """A branch in the shape that `backstay branches --json` has."""
    status, reason = statuses.get(name, (None, None))
    head = shapes.checkpoint(heads[name])
    return {"name": name, "is_tag": False, "status": status, "reason": reason, "run": None, "head": head}
