"""The timeline of a session: calls over time, a lane for each branch and child, idle time cut out."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay import shapes
from backstay.model import counted
from backstay.shapes.text import now
from backstay.store.fields import to_call
from backstay.store.overview import children_of
from backstay.web import drawing
from backstay.web.about_session import crumbs_of, head_of
from backstay.web.history import (
    MadeCall,
    Page,
    arg_words,
    args_of,
    calls_page,
    kind_of_call,
    seconds_of,
    sort_of_call,
    when,
)
from backstay.web.needs import arg_lines, doubts_in, needs_of_session
from backstay.web.pages.session import laid_out
from backstay.web.paths import Links
from backstay.web.timeline_drawing import Scale, TimeBar, TimeLane, overview, ticks, timeline
from backstay.web.view import Shown
from backstay.web.words import length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backstay.face import Session
    from backstay.port import CallRow
    from backstay.web.view import Visit

MAX_LANES, MAX_CHILDREN, MAX_BARS = 8, 4, 180
_DAY_S, _HOUR_S, _AROUND_S, _DOUBT_S = 86_400.0, 3600.0, 300.0, 2.0


class TimeSpan(NamedTuple):
    """A part of the time that can be chosen: its name in the address, its words, and from when to when."""

    value: str
    word: str
    start: float
    end: float

    def has(self, start: float, end: float) -> bool:
        """True if something that lasts so long is seen in it."""
        return end >= self.start and start <= self.end


class TimelineAddress(NamedTuple):
    """The page that bars lead back to: its session, the call that is selected, and the rest of its address."""

    session: str
    chosen: str
    query: dict[str, str | None]


def show(visit: Visit) -> Shown:
    """The page."""
    session, store = visit.session(), visit.store
    needs = needs_of_session(store, session, None, ())
    before, chosen = visit.query.get("before") or None, visit.query.get("call", "")
    page, made = calls_page(store, session, before=before, most=MAX_BARS)
    doubted = doubts_in(needs)
    times = {call.row.id: _time(call.row, doubted) for call in made}
    died = _deaths(made, doubted)
    spans = _spans(times, died, chosen)
    span = next((each for each in spans if each.value == visit.query.get("range")), None)
    here = TimelineAddress(session.id, chosen, {"before": before, "range": None if span is None else span.value})
    lanes = _lanes(here, page, made, doubted, span)
    drawn = [(bar.start, bar.end) for lane, _ in lanes for bar in lane.bars]
    if drawn:
        lanes += _children(visit, session, (min(drawn)[0], max(end for _, end in drawn)), here)
    seen = [death for death in died if span is None or span.has(death[0], death[0])]
    data: dict[str, Any] = {
        **head_of(visit, session, "timeline", needs),
        "older": page.older,
        "before": before or "",
        "labels": [label for _, label in lanes],
        "selected": _selected(made, chosen),
        "call": chosen,
        "spans": spans,
        "span": "" if span is None else span.value,
        **_drawn([lane for lane, _ in lanes], seen),
    }
    if data["timeline"]:
        data["range"] = overview(list(times.values()), [at for at, _ in died], drawn if span else [])
    crumbs = crumbs_of(visit, session, ("timeline", None))
    return Shown(
        "timeline.html",
        f"Timeline of {session.id}",
        crumbs,
        data,
        lambda: [shapes.call(to_call(call.row)) for call in made],
    )


def _time(row: CallRow, doubted: set[str]) -> tuple[float, float]:
    """From when to when a call is drawn: one that runs up to now, one in doubt for a moment."""
    start = row.started_us / 1e6
    if row.ended_us is not None:
        return start, start + seconds_of(row)
    return start, start + _DOUBT_S if row.id in doubted else now().timestamp()


def _spans(times: dict[str, tuple[float, float]], died: list[tuple[float, str]], chosen: str) -> list[TimeSpan]:
    """The parts of the time that are worth choosing: those that are less than all of it, and not empty."""
    if not times:
        return []
    first, last = min(times.values())[0], max(end for _, end in times.values())
    found = [TimeSpan("hour", "Last hour", last - _HOUR_S, last)]
    if died:
        found.append(TimeSpan("crash", "Since the crash", max(at for at, _ in died) - 1, last))
    around = times.get(chosen)
    if around is not None:
        found.append(TimeSpan("around", "Around the selected call", around[0] - _AROUND_S, around[1] + _AROUND_S))
    return [span for span in found if span.start > first or span.end < last]


def _drawn(lanes: list[TimeLane], died: list[tuple[float, str]]) -> dict[str, Any]:
    spans = [(bar.start, max(bar.end, bar.start + 0.001)) for lane in lanes for bar in lane.bars]
    if not spans:
        return {"timeline": "", "said": ""}
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
        "said": f"{length(last - first)}, of it {length(busy)} in calls{cut}",
    }


def _lanes(
    here: TimelineAddress, page: Page, made: Sequence[MadeCall], doubted: set[str], span: TimeSpan | None
) -> list[tuple[TimeLane, dict[str, Any]]]:
    by_branch: OrderedDict[str, list[MadeCall]] = OrderedDict()
    marks: dict[str, list[tuple[float, str]]] = {}
    for step in reversed(page.steps):
        if step.point is None:
            continue
        by_branch.setdefault(step.point.branch, [])
        at = step.point.created_at.timestamp()
        if step.point.restored_from is not None and (span is None or span.has(at, at)):
            marks.setdefault(step.point.branch, []).append((at, step.point.trigger))
    for call in reversed(made):
        if span is None or span.has(*_time(call.row, doubted)):
            by_branch.setdefault(call.branch, []).append(call)
    tints = laid_out(page)[1]
    branches = sorted(by_branch, key=lambda name: tints.get(name, len(tints)))
    found = []
    for branch in branches:
        bars = _bars(here, by_branch[branch], doubted)
        if bars or marks.get(branch):
            label = {
                "name": branch,
                "sub": _calls_words(bars),
                "colour": drawing.colour(tints.get(branch, 4)),
                "href": "",
            }
            found.append((TimeLane(bars, marks.get(branch, [])), label))
    return found[:MAX_LANES]


def _bars(here: TimelineAddress, made: Sequence[MadeCall], doubted: set[str]) -> list[TimeBar]:
    bars = []
    for call in [each.row for each in made]:
        kind = kind_of_call(call) or "tool"
        is_open = call.ended_us is None
        if kind == "doubt" and call.id not in doubted and is_open:
            kind = sort_of_call(call)  # it runs
        start, end = _time(call, doubted)
        words = "" if kind in ("model", "child") else arg_words(args_of(call))
        name = f"{call.name} {words}".strip()
        if kind == "wait":
            name = f"{'waits' if is_open else 'waited'} for {call.name}"
        href = Links().session(here.session, "timeline", call=call.id, **here.query) + "#call"
        depth, is_chosen = int(call.parent is not None), call.id == here.chosen
        bars.append(TimeBar(start, end, kind, name, href, f"{name}, {length(end - start)}", depth, is_chosen))
    return bars


def _calls_words(bars: list[TimeBar]) -> str:
    outer = [bar for bar in bars if not bar.depth]
    return f"{counted(len(outer), 'call')}, {length(sum(bar.end - bar.start for bar in outer))}" if outer else ""


def _children(
    visit: Visit, session: Session, span: tuple[float, float], here: TimelineAddress
) -> list[tuple[TimeLane, dict[str, Any]]]:
    found = []
    for row in children_of(visit.store.backend, session.id)[:MAX_CHILDREN]:
        child = visit.store.session(row.id)
        _, made = calls_page(visit.store, child, before=None, most=MAX_BARS // MAX_CHILDREN)
        bars = [
            bar
            for bar in _bars(here._replace(session=child.id, query={}), made, set())
            if span[0] - 1 <= bar.start <= span[1] + 1
        ]
        if bars:
            words = f"child, {_calls_words(bars)}"
            label = {"name": row.id, "sub": words, "colour": "l4", "href": Links().session(row.id)}
            found.append((TimeLane(bars, [], is_child=True), label))
    return found


def _deaths(made: Sequence[MadeCall], doubted: set[str]) -> list[tuple[float, str]]:
    """When a process died inside a call: those in doubt now, and those that a person decided."""
    found = []
    for row in [call.row for call in made]:
        if row.id in doubted:
            found.append((row.started_us / 1e6 + _DOUBT_S, f"a process died in {row.name}"))
        elif row.nonce and row.kind != "wait":
            found.append((row.started_us / 1e6, f"a process died in {row.name}"))
    return found


def _selected(made: Sequence[MadeCall], chosen: str) -> dict[str, Any] | None:
    for row, point, _ in made:
        if row.id == chosen:
            return {
                "name": row.name,
                "kind": sort_of_call(row),
                "status": row.status,
                "at": when(row),
                "seconds": None if row.ended_us is None else seconds_of(row),
                "args": arg_lines(args_of(row)),
                "error": None if row.error is None else ": ".join(row.error),
                "point": point,
            }
    return None
