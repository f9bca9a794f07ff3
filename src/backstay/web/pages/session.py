"""A session: its history as a graph with rows, what needs a person, and what each branch has cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from backstay import shapes
from backstay.errors import CorruptionError
from backstay.graph_layout import Layout, Node, lay_out
from backstay.model import Usage, counted
from backstay.shapes.points import names_told
from backstay.shapes.text import short
from backstay.store.overview import branch_statuses
from backstay.web import drawing
from backstay.web.about_session import crumbs_of, head_of
from backstay.web.drawing import GraphLine, GraphRow, PlotLine
from backstay.web.history import (
    OPEN,
    HistoryStep,
    Page,
    arg_words,
    args_of,
    bars_of,
    described,
    history_page,
    kind_of_call,
    pending_calls,
)
from backstay.web.needs import needs_of_session
from backstay.web.view import Shown
from backstay.web.words import key, length

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from backstay.face import Session, Store
    from backstay.model import Checkpoint
    from backstay.port import CallRow
    from backstay.web.needs import Need
    from backstay.web.view import Visit

_IDLE_S = 600.0
_BRANCHES_LISTED = 12
_PENDING_SHOWN = 3
SHORT_CHARS = 8
_CHIPS = 4


class Row(NamedTuple):
    """A row of the history: a checkpoint, a call that is pending, or an event. `kind` is as in GraphRow, or damaged."""

    kind: str
    lane: int = 0
    tint: int = 0
    point: Checkpoint | None = None
    chips: tuple[tuple[str, str], ...] = ()
    code: str = ""
    what: str = ""
    bars: str = ""
    seconds: float = 0.0
    tone: str = ""
    need: str = ""
    at: datetime | None = None
    is_quiet: bool = False  # it says what the one before it said


def show(visit: Visit) -> Shown:
    """The page."""
    session, store = visit.session(), visit.store
    branch = visit.query.get("branch") or None
    needs = needs_of_session(store, session, None, visit.jobs.problems)
    head = head_of(visit, session, "history", needs)
    needs = [need._replace(agent=need.agent or head["info"].agent) for need in needs]
    page = history_page(store, session, before=visit.query.get("before") or None, branch=branch)
    history = history_data(store, session, page, needs, newest=not visit.query.get("before"))
    a, b = visit.query.get("a", ""), visit.query.get("b", "")
    data = {**head, **history, "needs": needs, "branch": branch or "", "before": visit.query.get("before", "")}
    data |= {"a": a, "b": b, "picked": _picked(page, a, b)}
    named = history["named"]
    return Shown(
        "session.html",
        head["info"].title or session.id,
        crumbs_of(visit, session),
        data,
        lambda: [_logged(step, named) for step in page.steps if step.point is not None],
    )


def history_data(store: Store, session: Session, page: Page, needs: list[Need], *, newest: bool) -> dict[str, Any]:
    """Rows, graph, plot and branches, for the page and for a file."""
    points = page.points
    layout, tints = laid_out(page)
    named = names_told(store, session)
    rows = _rows(store, session, page, layout, tints, named, needs, newest=newest)
    try:
        statuses = branch_statuses(store.backend, session.id)
    except CorruptionError:  # what needs a person says so
        statuses = {}
    statuses |= {need.branch: ("in_doubt", None) for need in needs if need.kind == "doubt" and need.branch in statuses}
    return {
        "rows": rows,
        "graph": _graph(rows, layout, points, tints),
        "lanes_class": drawing.lanes_class(layout.width),
        "folded": layout.folded,
        "named": named,
        "colour": drawing.colour,
        "older": page.older,
        "columns": _columns(rows),
        "left_out": len(page.between),
        "branches": _branches(points, statuses, named, tints),
        "branches_more": max(0, len(statuses) - _BRANCHES_LISTED),
        **_plot(page, layout, tints),
    }


def laid_out(page: Page) -> tuple[Layout, dict[str, int]]:
    """The lanes of a page, and the colour of each branch: the same in every view of it."""
    layout = lay_out([Node(point.id, page.parent_of(point), point.branch) for point in page.points])
    tints: dict[str, int] = {}
    for strand in layout.strands:
        tints.setdefault(strand.branch, len(tints))
    return layout, tints


def _rows(
    store: Store,
    session: Session,
    page: Page,
    layout: Layout,
    tints: dict[str, int],
    named: dict[str, list[tuple[str, str]]],
    needs: list[Need],
    *,
    newest: bool,
) -> list[Row]:
    lanes = {point.id: lane for point, lane in zip(page.points, layout.lanes, strict=True)}
    pending = pending_calls(store, session.id) if newest else {}
    told = {need.ref: need.id for need in needs}
    summaries: dict[str | None, str] = {point.id: point.summary for point in page.points}
    parents = {point.id: page.parent_of(point) for point in page.points}
    rows: list[Row] = []
    later: datetime | None = None
    for step in page.steps:
        point = step.point
        if point is None:
            rows.append(Row("damaged", what=step.damage))
            continue
        lane, tint = lanes[point.id], tints[point.branch]
        rows += [_decided(call, lane) for call in step.calls if call.nonce and call.kind != "wait"][:1]
        idle = 0.0 if later is None else (later - point.created_at).total_seconds() - _worked(rows)
        if idle > _IDLE_S:
            rows.append(Row("idle", lane, tint, what=f"Idle for {length(idle)}"))
        for name, kind in named.get(point.id, ()):
            if kind == "branch" and name in pending:
                rows += _pending(pending[name], lane, tint, told)
        rows += _pending(step.asked, lane, tint, told)
        rows.append(_row(step, point, lane, tint, named.get(point.id, [])))
        if point.summary and summaries.get(parents[point.id]) == point.summary and not rows[-1].chips:
            rows[-1] = rows[-1]._replace(is_quiet=True)
        later = point.created_at
    return rows


def _columns(rows: list[Row]) -> str:
    """The classes of the rows: long ids need room, and what no row has needs no column."""
    long = any(row.point is not None and len(short(row.point.id)) > SHORT_CHARS for row in rows)
    used = any(row.point is not None and row.point.usage != Usage() for row in rows)
    calls = any(row.bars for row in rows)
    return " ".join(filter(None, ["long-ids" if long else "", "" if calls else "no-calls", "" if used else "no-use"]))


def _worked(rows: list[Row]) -> float:
    """How long the calls of the row above took: time that was not idle."""
    return next((row.seconds for row in reversed(rows) if row.point is not None), 0.0)


def _decided(call: CallRow, lane: int) -> Row:
    said = {"done": "it had happened", "failed": "it had failed", "skipped": "it was skipped"}.get(
        call.status, "made again"
    )
    return Row("crash", lane, what=f"A process died inside {call.name}; a person decided: {said}")


def _pending(calls: Sequence[CallRow], lane: int, tint: int, told: dict[str, str]) -> list[Row]:
    found = []
    for call in calls:
        kind = kind_of_call(call)
        if kind is None or call.status not in OPEN:
            continue
        need = told.get(call.id, "")
        tone, chip = (
            ("wait", "waiting") if call.status == "waiting" else ("bad", "in doubt") if need else ("run", "running")
        )
        bars = drawing.bars([("wait" if tone == "wait" else "doubt" if tone == "bad" else kind, 1.6)])
        words = "child session" if kind == "child" else arg_words(args_of(call))
        found.append(
            Row("pending", lane, tint, None, (("chip-" + tone, chip),), call.name, words, bars, 0.0, tone, need)
        )
    return found[-_PENDING_SHOWN:]


def _row(step: HistoryStep, point: Checkpoint, lane: int, tint: int, names: list[tuple[str, str]]) -> Row:
    chips = [(f"chip-branch {drawing.colour(tint)}", name) for name, kind in names if kind == "branch"]
    chips += [("chip-tag", name) for name, kind in names if kind == "tag"]
    if len(chips) > _CHIPS:
        chips[_CHIPS - 1 :] = [("chip-move", f"{len(chips) - _CHIPS + 1} more names")]
    if point.restored_from is not None or point.trigger == "edited":
        chips.append(("chip-move", point.trigger))
    elif point.status.value in ("failed", "halted", "cancelled", "completed"):
        chips.append(("chip-bad" if point.status.value == "failed" else "chip-move", point.status.value))
    code, what = described(point, step.calls)
    if point.status.value == "failed" and point.reason:
        what = point.reason
    if point.label:
        what = f"{point.label}: {what}" if what else point.label
    what = what or ("" if code else point.trigger)
    bars = bars_of(step.calls)
    kind = (
        "moved" if point.restored_from is not None else "tip" if any(kind == "branch" for _, kind in names) else "point"
    )
    seconds = sum(each for _, each in bars)
    return Row(
        kind,
        lane,
        tint,
        point,
        tuple(chips),
        code,
        what,
        drawing.bars(bars) if bars else "",
        seconds,
        at=point.created_at,
    )


def _graph(rows: list[Row], layout: Layout, points: list[Checkpoint], tints: dict[str, int]) -> str:
    at: dict[str, int] = {row.point.id: n for n, row in enumerate(rows) if row.point is not None}
    place = [at[point.id] for point in points]
    drawn = [
        GraphRow(
            "point" if row.kind == "damaged" else row.kind,
            row.lane,
            row.tint,
            at.get(row.point.restored_from or "") if row.point is not None else None,
            row.tone,
        )
        for row in rows
    ]
    drawn = [
        row._replace(back_to=None) if row.back_to is not None and row.back_to <= n else row
        for n, row in enumerate(drawn)
    ]
    lines = [
        GraphLine(
            strand.lane,
            tints[strand.branch],
            place[strand.rows[0]],
            place[strand.rows[-1]],
            None if strand.fork is None else place[strand.fork],
            0 if strand.fork is None else layout.lanes[strand.fork],
            strand.goes_on,
        )
        for strand in layout.strands
        if not strand.folded
    ]
    return drawing.graph(drawn, lines, layout.width)


def _branches(
    points: list[Checkpoint],
    statuses: dict[str, tuple[str, str | None]],
    named: dict[str, list[tuple[str, str]]],
    tints: dict[str, int],
) -> list[dict[str, Any]]:
    """Branches, those with a checkpoint on the page first, by what they have used."""
    known: dict[str, Checkpoint] = {point.id: point for point in points}
    heads = {name: id_ for id_, names in named.items() for name, kind in names if kind == "branch"}
    found: list[dict[str, Any]] = []
    for name, (status, _) in statuses.items():
        head = known.get(heads.get(name, ""))
        used = head.total_usage if head is not None else None
        found.append(
            {
                "name": name,
                "status": status,
                "head": heads.get(name, ""),
                "tint": tints.get(name, 4 if head is None else tints.get(head.branch, 4)),
                "cost": used.cost if used else 0.0,
                "tokens": used.tokens_in + used.tokens_out if used else 0,
                "here": head is not None,
            }
        )
    found.sort(
        key=lambda each: (not each["here"], each["name"] != "main", -each["cost"], -each["tokens"], each["name"])
    )
    return found[:_BRANCHES_LISTED]


def _plot(page: Page, layout: Layout, tints: dict[str, int]) -> dict[str, Any]:
    """The use of each branch, step by step; nothing where nothing was used."""
    points = page.points
    by_cost = any(point.total_usage.cost for point in points)
    depth: dict[str, int] = {}
    for point in reversed(points):
        depth[point.id] = depth.get(page.parent_of(point) or "", 0) + 1

    def used(point: Checkpoint) -> float:
        total = point.total_usage
        return total.cost if by_cost else float(total.tokens_in + total.tokens_out)

    lines = []
    for strand in layout.strands:
        if strand.folded:
            continue
        ids = [points[row] for row in reversed(strand.rows)]
        ids = [points[strand.fork], *ids] if strand.fork is not None else ids
        lines.append(
            PlotLine(
                strand.branch,
                tints[strand.branch],
                [(depth[each.id], used(each)) for each in ids],
                strand.fork is not None,
            )
        )
    if not any(used for line in lines for _, used in line.points) or len(points) < 2:  # noqa: PLR2004 - a dot says nothing
        return {"plot": "", "plot_title": ""}
    first, last = points[-1], max(points, key=lambda point: depth[point.id])
    label = (
        f"{'Cost' if by_cost else 'Tokens'} so far by step, for {counted(len({line.name for line in lines}), 'branch')}"
    )
    words = [f"step {depth[each.id] if each.step is None else each.step}" for each in (first, last)]
    svg = drawing.plot(lines, label, unit="$" if by_cost else "", first=words[0], last=words[1])
    return {"plot": svg, "plot_title": "Cost by branch" if by_cost else "Tokens by branch"}


def _picked(page: Page, a: str, b: str) -> dict[str, Checkpoint | None]:
    known = {key(point.id): point for point in page.points}
    return {"a": known.get(a), "b": known.get(b)}


def _logged(step: HistoryStep, named: dict[str, list[tuple[str, str]]]) -> dict[str, Any]:
    """A checkpoint in the shape that `backstay log --json` has."""
    assert step.point is not None  # noqa: S101 - the others are left out
    calls = [{"id": call.id, "name": call.name, "kind": call.kind, "status": call.status} for call in step.calls]
    refs = [name for name, _ in named.get(step.point.id, ())]
    return {**shapes.checkpoint(step.point), "refs": refs, "calls": calls, "diff": None}
