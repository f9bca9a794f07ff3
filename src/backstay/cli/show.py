"""`backstay show`: one checkpoint, its fields and what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from backstay.cli.command import Command, json_option
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Session, Store
    from backstay.model import Checkpoint

_NAMES_WIDTH = 20  # with less room beside the id, names have a line of their own


@click.command(
    "show",
    cls=Command,
    shape="shown",
    examples=[
        "backstay show ticket-42",
        "backstay show ticket-42 asked --state",
        "backstay show ticket-42 main~4 --calls",
        "backstay show ticket-42 asked --raw",
    ],
)
@session_argument()
@ref_argument(default="main")
@click.option("--messages", is_flag=True, help="Only the messages, as a conversation.")
@click.option("--state", "as_tree", is_flag=True, help="Only the state, as a tree.")
@click.option("--calls", is_flag=True, help="Only the calls that led to it, with arguments and results.")
@click.option("--raw", is_flag=True, help="Only the state, as one line of JSON.")
@click.option("--full", is_flag=True, help="Fold nothing.")
@click.option("--salvage", is_flag=True, help="Of a damaged state, show what can be read.")
@json_option
@in_store
def command(
    store: Store,
    session: str,
    ref: str,
    *,
    messages: bool,
    as_tree: bool,
    calls: bool,
    raw: bool,
    full: bool,
    salvage: bool,
    as_json: bool,
) -> None:
    """Show the checkpoint at REF (main) of SESSION: its fields, then its messages, or its state where it has none."""
    from backstay.cli.screen import Screen
    from backstay.store.overview import names_by_checkpoint

    found = session_of(store, session)
    point = found.checkpoint(ref)
    refs = [name for name, _ in names_by_checkpoint(store.backend, found.id).get(point.id, ())]
    with Screen(paged=not (as_json or raw)) as screen:
        if raw or as_json:
            _as_json(screen, found, point, refs, found.load(point, salvage=salvage), raw=raw)
            return
        chosen = messages or as_tree or calls
        if not chosen:
            _fields(screen, found, point, refs)
            screen.line()
        if calls:
            _calls(screen, found, point)
        if messages or as_tree or not chosen:
            state = found.load(point, salvage=salvage)
            _contents(screen, state, messages=messages, as_tree=as_tree, full=full)


def _as_json(
    screen: Screen, session: Session, point: Checkpoint, refs: list[str], state: dict[str, Any], *, raw: bool
) -> None:
    from backstay.cli import shapes

    if raw:
        screen.line(shapes.dump(shapes.plain(state)))
        return
    shape = {
        **shapes.checkpoint(point),
        "refs": refs,
        "state": shapes.plain(state),
        "calls": [shapes.call(call) for call in session.calls(point)],
    }
    screen.line(shapes.dump(shape))


def _fields(screen: Screen, session: Session, point: Checkpoint, refs: list[str]) -> None:
    from backstay.cli.sessions import STYLES
    from backstay.cli.text import age, cut, moment, money, safe, short, width
    from backstay.model import counted

    called = f"({safe(', '.join(refs))})" if refs else ""
    title = f"checkpoint {safe(point.id)}"
    if width(title) > screen.width:  # rather the whole id alone: it may be copied
        title = cut(safe(point.id), screen.width)
    beside = screen.width - width(title) - 2
    if width(called) <= beside or beside >= _NAMES_WIDTH:
        screen.line((title, "yellow"), *([("  " + cut(called, beside), "bold cyan")] if refs else []))
    else:
        screen.line((title, "yellow"))
        screen.line((cut(called, screen.width), "bold cyan"))
    made = session.calls(point)
    used, total = point.usage, point.total_usage

    def usage(tokens_in: int, tokens_out: int, cost: float) -> str:
        words = [f"{tokens_in:,} tokens in, {tokens_out:,} out"] if tokens_in or tokens_out else []
        return ", ".join([*words, f"cost {money(cost)}"] if cost else words)

    facts = [
        ("session", point.session_id + (f", agent {point.agent}" if point.agent else "")),
        (
            "branch",
            f"{point.branch}, checkpoint {point.sequence}" + ("" if point.step is None else f", step {point.step}"),
        ),
        ("label", point.label),
        ("made", f"{moment(point.created_at)} ({age(point.created_at)}), by {point.trigger}"),
        ("restored", point.restored_from and f"from {short(point.restored_from)}"),
        ("used", usage(used.tokens_in, used.tokens_out, used.cost)),
        ("so far", usage(total.tokens_in, total.tokens_out, total.cost)),
        ("parent", point.parent_id and short(point.parent_id)),
        ("hint", point.resume_hint),
        ("metadata", ", ".join(f"{key}={each!r}" for key, each in point.metadata.items())),
        ("calls", made and f"{counted(len(made), 'call')}: {', '.join(f'{each.name} {each.status}' for each in made)}"),
        ("digest", point.digest[:32]),
    ]
    for name, text in facts:
        if text:
            screen.line((f"{name:<11}", "dim"), cut(safe(str(text)), screen.width - 11))
    status = point.status.value
    reason = f"  {safe(point.reason)}" if point.reason else ""
    screen.line((f"{'status':<11}", "dim"), (status, STYLES[status]), cut(reason, screen.width - 11 - len(status)))


def _calls(screen: Screen, session: Session, point: Checkpoint) -> None:
    from backstay.cli.conversation import call_line

    made = session.calls(point)
    for call in made:
        screen.line(*call_line(call, screen.width))
    if not made:
        screen.line("No calls led to this checkpoint.")


def _contents(screen: Screen, state: dict[str, Any], *, messages: bool, as_tree: bool, full: bool) -> None:
    from backstay.cli.conversation import conversation
    from backstay.cli.tree import tree

    spoken = state.get("messages")
    is_talk = isinstance(spoken, list) and bool(spoken)
    if as_tree or (not messages and not is_talk):
        tree(screen, state, full=full)
    elif isinstance(spoken, list) and spoken:
        conversation(screen, spoken, full=full)
        others = [key for key in state if key != "messages"]
        if others and not messages:
            from backstay.cli.text import cut, safe

            screen.line()
            names = cut(safe(", ".join(others)), screen.width - 30)
            screen.line((f"and in its state: {names} (--state)", "dim"))
    else:
        screen.line("No messages.")
