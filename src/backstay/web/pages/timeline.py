"""The timeline of a session: calls over time, a lane for each branch and child, idle time cut out."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from backstay import shapes
from backstay.model import counted
from backstay.shapes.text import now
from backstay.store.fields import to_call
from backstay.store.overview import children_of
from backstay.web import drawing
from backstay.web.about_session import crumbs_of, head_of
from backstay.web.history import (
    Page,
    arg_words,
    args_of,
    history_page,
    kind_of_call,
    pending_calls,
    seconds_of,
    trimmed,
    when,
)
from backstay.web.needs import arg_lines, needs_of_session
from backstay.web.pages.session import laid_out
from backstay.web.paths import Links
from backstay.web.timeline_drawing import Scale, TimeBar, TimeLane, overview, ticks, timeline
from backstay.web.view import Shown
from backstay.web.words import length

if TYPE_CHECKING:
    from backstay.face import Session
    from backstay.model import Checkpoint
    from backstay.port import CallRow
    from backstay.web.view import Visit

MAX_LANES, MAX_CHILDREN, MAX_BARS = 8, 4, 180
_DAY_S = 86_400.0

Made = tuple["CallRow", "Checkpoint | None"]


def show(visit: Visit) -> Shown:
    """The page."""
    session, store = visit.session(), visit.store
    needs = needs_of_session(store, session, None, ())
    before = visit.query.get("before") or None
    page = trimmed(history_page(store, session, before=before), MAX_BARS)
    pending = pending_calls(store, session.id) if before is None else {}
    doubted = {need.ref for need in needs if need.kind == "doubt"}
    chosen = visit.query.get("call", "")
    lanes = _lanes(session, page, pending, doubted, chosen)
    spans = [(bar.start, bar.end) for lane, _ in lanes for bar in lane.bars]
    if spans:
        lanes += _children(visit, session, (min(spans)[0], max(end for _, end in spans)), chosen)
    died = _deaths(page, pending, doubted)
    made = [(call, step.point) for step in page.steps for call in step.calls]
    made += [(call, None) for calls in pending.values() for call in calls]
    data: dict[str, Any] = {
        **head_of(visit, session, "timeline", needs),
        "older": page.older,
        "before": before or "",
        "labels": [label for _, label in lanes],
        "selected": _selected(made, chosen),
        **_drawn([lane for lane, _ in lanes], died),
    }
    crumbs = crumbs_of(visit, session, ("timeline", None))
    return Shown(
        "timeline.html",
        f"Timeline of {session.id}",
        crumbs,
        data,
        lambda: [shapes.call(to_call(call)) for call, _ in made],
    )


def _drawn(lanes: list[TimeLane], died: list[tuple[float, str]]) -> dict[str, Any]:
    spans = [(bar.start, max(bar.end, bar.start + 0.001)) for lane in lanes for bar in lane.bars]
    if not spans:
        return {"timeline": "", "range": "", "said": ""}
    word_s = sum(end - start for start, end in spans) / 13  # as long as a word beside a mark takes
    marks = [(at, at + word_s) for lane in lanes for at, _ in lane.marks] + [(at, at) for at, _ in died]
    scale = Scale(spans, marks)
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    words = "%H:%M:%S" if scale.per_s > 2 else "%H:%M"  # noqa: PLR2004 - pixels for a second
    if last - first > _DAY_S:
        words = "%-d %b %H:%M"
    clock = [datetime.fromtimestamp(at, UTC).strftime(words) for at, _ in ticks(scale)]
    busy = sum(bar.end - bar.start for lane in lanes for bar in lane.bars if not bar.depth and not lane.is_child)
    cut = "; idle time is cut" if scale.cuts else ""
    return {
        "timeline": timeline(lanes, died, clock, scale),
        "range": overview(lanes, died),
        "said": f"{length(last - first)}, of it {length(busy)} in calls{cut}",
    }


def _lanes(
    session: Session, page: Page, pending: dict[str, list[CallRow]], doubted: set[str], chosen: str
) -> list[tuple[TimeLane, dict[str, Any]]]:
    by_branch: OrderedDict[str, list[Made]] = OrderedDict()
    marks: dict[str, list[tuple[float, str]]] = {}
    for step in reversed(page.steps):
        if step.point is None:
            continue
        by_branch.setdefault(step.point.branch, []).extend([(call, step.point) for call in step.calls])
        if step.point.restored_from is not None:
            marks.setdefault(step.point.branch, []).append((step.point.created_at.timestamp(), step.point.trigger))
    for branch, calls in pending.items():
        by_branch.setdefault(branch, []).extend([(call, None) for call in calls])
    tints = laid_out(page)[1]
    branches = sorted(by_branch, key=lambda name: tints.get(name, len(tints)))
    found = []
    for branch in branches[:MAX_LANES]:
        bars = _bars(session.id, by_branch[branch], doubted, chosen)
        if bars or marks.get(branch):
            label = {
                "name": branch,
                "sub": _calls_words(bars),
                "colour": drawing.colour(tints.get(branch, 4)),
                "href": "",
            }
            found.append((TimeLane(bars, marks.get(branch, [])), label))
    return found


def _bars(session: str, made: list[Made], doubted: set[str], chosen: str) -> list[TimeBar]:
    bars = []
    for call, _ in made:
        kind = kind_of_call(call)
        if kind is None:
            continue
        open_ = call.ended_us is None
        if kind == "doubt" and call.id not in doubted and open_:
            kind = "model" if call.kind == "llm" else "tool"  # it runs
        start = call.started_us / 1e6
        end = start + seconds_of(call) if not open_ else start + 2 if kind == "doubt" else now().timestamp()
        words = "" if kind in ("model", "child") else arg_words(args_of(call))
        name = (
            f"{call.name} {words}".strip()
            if kind != "wait"
            else f"waited for {call.name}"
            if not open_
            else f"waits for {call.name}"
        )
        href = Links().session(session, "timeline", call=call.id) + "#call"
        depth = int(call.parent is not None)
        bars.append(TimeBar(start, end, kind, name, href, f"{name}, {length(end - start)}", depth, call.id == chosen))
    return bars


def _calls_words(bars: list[TimeBar]) -> str:
    outer = [bar for bar in bars if not bar.depth]
    return f"{counted(len(outer), 'call')}, {length(sum(bar.end - bar.start for bar in outer))}" if outer else ""


def _children(
    visit: Visit, session: Session, span: tuple[float, float], chosen: str
) -> list[tuple[TimeLane, dict[str, Any]]]:
    found = []
    for row in children_of(visit.store.backend, session.id)[:MAX_CHILDREN]:
        child = visit.store.session(row.id)
        page = trimmed(history_page(visit.store, child), MAX_BARS // MAX_CHILDREN)
        made: list[Made] = [(call, step.point) for step in page.steps for call in step.calls]
        bars = [bar for bar in _bars(child.id, made, set(), chosen) if span[0] - 1 <= bar.start <= span[1] + 1]
        if bars:
            words = f"child, {_calls_words(bars)}"
            label = {"name": row.id, "sub": words, "colour": "l4", "href": Links().session(row.id)}
            found.append((TimeLane(bars, [], is_child=True), label))
    return found


def _deaths(page: Page, pending: dict[str, list[CallRow]], doubted: set[str]) -> list[tuple[float, str]]:
    """When a process died inside a call: those in doubt now, and those that a person decided."""
    found = [
        (call.started_us / 1e6, f"a process died in {call.name}")
        for step in page.steps
        for call in step.calls
        if call.nonce and call.kind != "wait"
    ]
    found += [
        (call.started_us / 1e6 + 2, f"a process died in {call.name}")
        for calls in pending.values()
        for call in calls
        if call.id in doubted
    ]
    return found


def _selected(made: list[Made], chosen: str) -> dict[str, Any] | None:
    for call, point in made:
        if call.id == chosen:
            return {
                "name": call.name,
                "kind": kind_of_call(call),
                "status": call.status,
                "at": when(call),
                "seconds": None if call.ended_us is None else seconds_of(call),
                "args": arg_lines(args_of(call)),
                "error": None if call.error is None else ": ".join(call.error),
                "point": point,
            }
    return None
