"""`backstay log`: the history of a session, newest first, as a list or a graph; read as it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any

import click

from backstay.bookkeeping import is_writes, told
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import limit_option, ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store
from backstay.cli.when import since_option

if TYPE_CHECKING:
    from backstay.cli.graph import Drawn
    from backstay.cli.screen import Piece, Screen
    from backstay.face import Session, Store
    from backstay.face.run_status import RunStatus
    from backstay.model import Call, Checkpoint
    from backstay.port import CallRow

_FOLLOWED = 10
_INDENT = " " * 10
_WORTH_TELLING = {
    "completed": "green",
    "failed": "red",
    "halted": "yellow",
    "cancelled": "yellow",
    "waiting": "magenta",
}


@click.command(
    "log",
    cls=Command,
    shape="logged*",
    examples=[
        "backstay log ticket-42",
        "backstay log ticket-42 --graph --all",
        "backstay log ticket-42 --oneline",
        "backstay log ticket-42 main~4 -n 1 --calls",
        "backstay log ticket-42 main~3 -n 2 -p",
        "backstay log ticket-42 --since 110m --oneline",
        "backstay log ticket-43",
    ],
)
@session_argument()
@ref_argument(default="")
@click.option("--graph", is_flag=True, help="Draw branches, forks and restores.")
@click.option("--all", "everything", is_flag=True, help="All branches and tags, not only the line to REF.")
@click.option("--oneline", is_flag=True, help="One line each.")
@limit_option
@since_option("Only checkpoints since then: 30m, 2h, 3d, 2025-06-02 or 2025-06-02T10:00 (UTC).")
@click.option("--writes", is_flag=True, help="Also what only records the writes of a framework's tasks.")
@click.option("--calls", is_flag=True, help="Show the calls of each step, with arguments and results.")
@click.option("-p", "--patch", is_flag=True, help="Show what each changed: messages and values.")
@click.option("-f", "--follow", "following", is_flag=True, help="Wait for new ones, oldest first; Ctrl-C ends it.")
@json_option
@in_store
def command(
    store: Store,
    session: str,
    ref: str,
    *,
    graph: bool,
    everything: bool,
    oneline: bool,
    limit: int | None,
    since: datetime | None,
    writes: bool,
    calls: bool,
    patch: bool,
    following: bool,
    as_json: bool,
) -> None:
    """Show the checkpoints of SESSION that led to REF (main), newest first.

    A checkpoint is shown with its id, step, label, cause, last message, and the tokens and cost of the step. Crashed
    and live runs are marked. With --follow the last 10 (or -n) come first, and the newest at the end.
    """
    from backstay.cli.screen import Screen
    from backstay.face.run_status import run_statuses
    from backstay.shapes.points import names_told
    from backstay.store.overview import names_by_checkpoint

    found = session_of(store, session)
    steps = _ShownCheckpoints(found, writes=writes)
    named = names_by_checkpoint(store.backend, found.id) if writes else names_told(store, found)
    heads = _heads(steps, ref, named, everything=everything)
    if following:
        limit = _FOLLOWED if limit is None else limit
    drawn = islice(_since(_drawn(steps, heads, graph=graph, everything=everything), since, graph=graph), limit)
    if following:
        if graph or (ref and ref not in found.branches()):
            raise click.UsageError("--follow takes the name of a branch, or --all, and draws no graph")
        teller = _Teller(Screen(), store, found, {}, graph=False, oneline=oneline, calls=calls, patch=patch)
        _follow(store, steps, None if everything else ref or "main", teller, list(drawn), as_json=as_json)
        return
    with Screen(paged=not as_json) as screen:
        teller = _Teller(screen, store, found, named, graph=graph, oneline=oneline, calls=calls, patch=patch)
        if as_json:
            for each in drawn:
                teller.as_json(each.point)
            return
        at_heads = {head.id for head in heads}
        runs = [run for run in run_statuses(store.backend, found) if run.head is None or run.head.id in at_heads]
        runs += teller.beside.unfinished()
        ends = _ends(store, found, named, runs)
        if not _tell(teller, drawn, runs, ends) and since is not None:
            screen.line("No checkpoint was made since then.")


def _ends(
    store: Store, session: Session, named: dict[str, list[tuple[str, str]]], runs: list[RunStatus]
) -> dict[str, list[str]]:
    """How branches ended that no checkpoint says it of, by the ids of their heads: a run that failed or was halted."""
    from backstay.store.overview import branch_statuses

    told = {run.branch for run in runs}
    statuses = branch_statuses(store.backend, session.id)
    ends: dict[str, list[str]] = {}
    for id_, names in named.items():
        for name, kind in names:
            status, reason = statuses.get(name, ("", None))
            if kind == "branch" and name not in told and reason and status in _WORTH_TELLING:
                ends.setdefault(id_, []).append(f"{status}: {reason}")
    return ends


def _tell(teller: _Teller, drawn: Iterator[Drawn], runs: list[RunStatus], ends: dict[str, list[str]]) -> int:
    """Print checkpoints, and where a run stands above its head. How many checkpoints there were."""
    count = 0
    for run in runs:
        if run.head is None:
            teller.run(run, None)
    for each in drawn:
        count += 1
        teller.rows(each.before)
        for run in runs:
            if run.head is not None and run.head.id == each.point.id:
                teller.run(run, each)
        if each.point.reason is None:
            for end in ends.get(each.point.id, ()):
                teller.above(each, "!", end, "yellow")
        teller.checkpoint(each)
        teller.rows(each.after)
    return count


def _since(drawn: Iterator[Drawn], since: datetime | None, *, graph: bool) -> Iterator[Drawn]:
    """Those made since then. A graph ends at the first that is older: one with gaps would not hang together."""
    if since is None:
        return drawn
    if graph:
        return takewhile(lambda each: each.point.created_at >= since, drawn)
    return (each for each in drawn if each.point.created_at >= since)


def _follow(
    store: Store, steps: _ShownCheckpoints, branch: str | None, teller: _Teller, drawn: list[Drawn], *, as_json: bool
) -> None:
    """The last ones, the oldest first; then each as it is made."""
    from backstay.cli.follow import follow
    from backstay.cli.graph import Drawn

    heads = steps.session.branches()
    last = max([head.sequence for name, head in heads.items() if branch in (None, name)], default=0)
    coming = filter(steps.shows, follow(store, steps.session, branch, last))
    made = (Drawn(point, [], "", "", [], begins=True) for point in coming)
    for each in chain(reversed(drawn), made):
        if as_json:
            teller.as_json(each.point)
        else:
            teller.checkpoint(each)
        teller.flush()


class _ShownCheckpoints:
    """The checkpoints of a session that are shown."""

    def __init__(self, session: Session, *, writes: bool) -> None:
        self.session = session
        self._writes = writes

    def shows(self, point: Checkpoint) -> bool:
        """False for rows that only record writes, unless those were asked for."""
        return self._writes or not is_writes(point)

    def checkpoint(self, ref: str) -> Checkpoint:
        """The checkpoint at a ref."""
        from backstay.shapes.points import point_at

        return self.session.checkpoint(ref) if self._writes else point_at(self.session, ref)

    def log(self, head: Checkpoint) -> Iterator[Checkpoint]:
        """A checkpoint and those before it; the first as it is given: it may stand otherwise than its row says."""
        line = self.session.log(head)
        return line if self._writes else chain([head], islice(told(line), 1, None))


def _heads(
    session: _ShownCheckpoints, ref: str, named: dict[str, list[tuple[str, str]]], *, everything: bool
) -> list[Checkpoint]:
    if everything:
        heads = [session.checkpoint(id_) for id_ in named]
        return heads + ([session.checkpoint(ref)] if ref else [])
    if not ref and not named:
        return []  # a run was entered and has recorded nothing yet
    return [session.checkpoint(ref or "main")]


def _drawn(session: _ShownCheckpoints, heads: list[Checkpoint], *, graph: bool, everything: bool) -> Iterator[Drawn]:
    from backstay.cli.graph import Drawn, draw

    if graph or everything:
        return draw(session, heads, restores=graph)
    return (Drawn(point, [], "", "", [], begins=True) for head in heads for point in session.log(head))


class _Teller:
    """Writes checkpoints to the screen, each as it comes."""

    def __init__(
        self,
        screen: Screen,
        store: Store,
        session: Session,
        names: dict[str, list[tuple[str, str]]],
        *,
        graph: bool,
        oneline: bool,
        calls: bool,
        patch: bool,
    ) -> None:
        from backstay.face.calls_beside import CallsBeside

        self._screen = screen
        self._store = store
        self._session = session
        self._names = names
        self._graph = graph
        self._oneline = oneline
        self._calls = calls
        self._patch = patch
        self.beside = CallsBeside(store, session)

    def flush(self) -> None:
        """Everything written so far is to be seen now."""
        self._screen.flush()

    def as_json(self, point: Checkpoint) -> None:
        """A checkpoint as one line of JSON."""
        from backstay import shapes

        made = [
            {"id": each.id, "name": each.name, "kind": each.kind, "status": each.status} for each in self._made(point)
        ]
        refs = [name for name, _ in self._names.get(point.id, ())]
        changed = None
        if self._patch:
            from backstay.cli.patch import diff_of

            changed = shapes.diff(diff_of(self._session, point))
        shape = {**shapes.checkpoint(point), "refs": refs, "calls": made, "diff": changed}
        self._screen.line(shapes.dump(shape))

    def run(self, run: RunStatus, drawn: Drawn | None) -> None:
        """Where a run stands that has not ended: above the checkpoint it last recorded."""
        style = "green" if run.live else "bold red"
        text = "a run is alive here" if run.live else "crashed here"
        told = run.in_doubt or run.calls
        if told:
            text += ": " + ", ".join(f"{each.name} {each.status.replace('_', ' ')}" for each in told[-3:])
            text += f" and {len(told) - 3} more" if len(told) > len(told[-3:]) else ""
        else:
            text += " before the first checkpoint" if run.head is None else ", no call pending"
        if not run.live and run.in_doubt:
            text += " (backstay recover)"
        self.above(drawn, "o" if run.live else "x", text, style)

    def above(self, drawn: Drawn | None, mark: str, text: str, style: str) -> None:
        """A line above a checkpoint, about the branch that it is the head of."""
        from backstay.cli.text import cut, safe

        lanes = drawn.mark if self._graph and drawn is not None else "*"
        # A branch that others left from has no end of its own in the graph: the mark stands beside the lane.
        beside = drawn is not None and self._graph and not drawn.begins
        lead = f"{lanes.replace('*', '|')} {mark}  " if beside else f"{lanes.replace('*', mark)}  "
        self._screen.line((lead, style), (cut(safe(text), self._screen.width - len(lead)), style))
        if beside and lanes.endswith("*"):
            self._screen.line((f"{lanes.replace('*', '|')}/", "blue"))

    def rows(self, rows: list[str]) -> None:
        """Where lanes leave and join, if they are drawn."""
        for row in rows if self._graph else ():
            self._screen.line((row, "blue"))

    def checkpoint(self, drawn: Drawn) -> None:
        """A checkpoint and what happened to make it."""
        mark = f"{drawn.mark} " if self._graph else ""
        point = drawn.point
        lanes: list[Piece] = [(mark.partition("*")[0], "blue"), ("*" if mark else "", "bold yellow")]
        lanes += [(mark.partition("*")[2], "blue")]
        if self._oneline:
            self._one_line(lanes, len(mark), point)
        else:
            self._lines(lanes, len(mark), drawn)
        if self._calls:
            self._call_lines(drawn)
        if self._patch:
            from backstay.cli.patch import diff_of, tell_patch

            beside = f"{drawn.beside} ".ljust(len(drawn.mark) + 1) if self._graph else ""
            tell_patch(self._screen, diff_of(self._session, point), beside + _INDENT)
        if not self._oneline and not self._graph:
            self._screen.line()

    def _one_line(self, lanes: list[Piece], used: int, point: Checkpoint) -> None:
        from backstay.cli.text import age, count, cut, money, pad, safe, short

        tokens, cost = count(point.usage.tokens_in + point.usage.tokens_out), money(point.usage.cost)
        end = f"{pad(tokens, 6, right=True)} {pad(cost, 7, right=True)} {pad(age(point.created_at), 4, right=True)}"
        begin: list[Piece] = [(short(point.id), "yellow"), f" {'' if point.step is None else point.step:>3} "]
        titles = [*self._refs(point), *_titles(point)]
        for text, style in titles:
            begin += [(f"{text} ", style)]
        taken = used + sum(_width(piece) for piece in begin)
        room = self._screen.width - taken - len(end) - 1
        text = safe(point.summary)
        if room < 0:
            self._screen.line(*lanes, *_within(begin, self._screen.width - used))
            return
        self._screen.line(*lanes, *begin, pad(cut(text, room), room), " ", (end, "dim"))

    def _lines(self, lanes: list[Piece], used: int, drawn: Drawn) -> None:
        from backstay.cli.text import age, count, cut, money, safe, short

        point = drawn.point
        begin: list[Piece] = [(short(point.id), "yellow")]
        step = [] if point.step is None else [(f"step {point.step}", "")]
        for text, style in [*step, *_titles(point), *self._refs(point)]:
            begin += ["  ", (text, style)]
        tokens, cost = point.usage.tokens_in + point.usage.tokens_out, money(point.usage.cost)
        facts = [f"{count(tokens)} {'token' if tokens == 1 else 'tokens'}"] if tokens else []
        facts += [cost] if cost else []
        end = "  ".join([*facts, age(point.created_at)])
        gap = self._screen.width - used - sum(_width(piece) for piece in begin) - len(end)
        beside = f"{drawn.beside} ".ljust(used) if self._graph else ""
        if gap > 1:
            begin += [" " * gap, (end, "dim")]
        self._screen.line(*lanes, *_within(begin, self._screen.width - used))
        indent = _INDENT
        room = self._screen.width - len(beside) - len(indent)
        if gap <= 1:
            self._screen.line((beside, "blue"), indent, (end, "dim"))
        tools = [each for each in self._made(point) if each.kind == "tool"]
        if tools and not self._calls:
            self._screen.line((beside, "blue"), indent, *_deeds(tools, room))
        if point.summary and not self._patch:
            self._screen.line((beside, "blue"), indent, cut(safe(point.summary), room))
        if point.reason:
            self._screen.line((beside, "blue"), indent, (cut(safe(point.reason), room), "yellow"))

    def _call_lines(self, drawn: Drawn) -> None:
        from backstay.cli.conversation import call_line

        beside = f"{drawn.beside} ".ljust(len(drawn.mark) + 1) if self._graph else ""
        indent = _INDENT
        for call in [*self._session.calls(drawn.point), *self.beside.at(drawn.point.id)]:
            pieces = call_line(call, self._screen.width - len(beside) - len(indent))
            self._screen.line((beside, "blue"), indent, *pieces)

    def _refs(self, point: Checkpoint) -> list[tuple[str, str]]:
        from backstay.cli.text import cut, safe

        names = [
            safe(name) if kind == "branch" else f"tag {safe(name)}" for name, kind in self._names.get(point.id, ())
        ]
        return [(f"({cut(', '.join(names), 40)})", "bold cyan")] if names else []

    def _made(self, point: Checkpoint) -> list[CallRow | Call]:
        from backstay.store.overview import calls_at

        beside = self.beside.at(point.id)
        if point.trigger in ("manual", "restore", "undo"):
            return [*beside]  # only a run's boundary takes calls in
        return [*calls_at(self._store.backend, self._session.id, point.sequence), *beside]


def _deeds(tools: list[CallRow | Call], room: int) -> list[Piece]:
    """`tool search done`, for each tool, as far as there is room."""
    from backstay.cli.text import cut, safe, width

    pieces: list[Piece] = []
    for each in tools:
        text = f"tool {safe(each.name)} {each.status.replace('_', ' ')}"
        room -= width(text) + 2
        if room < 0 and pieces:
            pieces.append(", …")
            break
        style = "" if each.status == "done" else "red" if each.status in ("failed", "in_doubt") else "yellow"
        pieces += [", "] * bool(pieces) + [(cut(text, max(room + width(text) + 2, 8)), style)]
    return pieces


def _titles(point: Checkpoint) -> list[tuple[str, str]]:
    """The marks that set a checkpoint apart: its label, its cause, how it ended."""
    from backstay.cli.text import cut, safe, short

    titles: list[tuple[str, str]] = []
    if point.label:
        titles.append((f'"{cut(safe(point.label), 30)}"', "bold"))
    if point.restored_from is not None:
        titles.append((f"{safe(point.trigger)} of {short(point.restored_from)}", "magenta"))
    elif point.trigger not in ("manual", "iteration", point.status.value):
        titles.append((cut(safe(point.trigger), 24), ""))
    style = _WORTH_TELLING.get(point.status.value)
    if style:
        titles.append((point.status.value, style))
    return titles


def _within(pieces: list[Piece], room: int) -> list[Piece]:
    """As much of the pieces as there is room for."""
    from backstay.cli.text import cut

    kept: list[Piece] = []
    for piece in pieces:
        text, style = (piece, "") if isinstance(piece, str) else piece
        if room > 0:
            kept.append((cut(text, room), style))
        room -= _width(piece)
    return kept


def _width(piece: Any) -> int:
    from backstay.cli.text import width

    return width(piece if isinstance(piece, str) else piece[0])
