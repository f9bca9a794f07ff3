"""`backstay show`: one checkpoint, its fields and what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Session, Store
    from backstay.model import Call, Checkpoint

_MIN_ID = 4
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
        "backstay show ticket-42 main messages[-1].content",
        "backstay show ticket-42 main messages --out messages.json",
    ],
)
@session_argument(also="CHECKPOINT")
@ref_argument(default="")
@click.argument("path", metavar="[PATH]", required=False)
@click.option("--messages", is_flag=True, help="Only the messages, as a conversation.")
@click.option("--state", "as_tree", is_flag=True, help="Only the state, as a tree.")
@click.option("--calls", is_flag=True, help="Only the calls of its step, with arguments and results.")
@click.option("--raw", is_flag=True, help="Only the state, as one line of JSON.")
@click.option("--full", is_flag=True, help="Fold nothing.")
@click.option("--salvage", is_flag=True, help="Show what can be read of a damaged state.")
@click.option(
    "--out",
    metavar="FILE",
    help="Write the state, or what is at PATH, to a new file that only you can read; - is stdout.",
)
@json_option
@in_store
def command(
    store: Store,
    session: str,
    ref: str,
    path: str | None,
    *,
    messages: bool,
    as_tree: bool,
    calls: bool,
    raw: bool,
    full: bool,
    salvage: bool,
    out: str | None,
    as_json: bool,
) -> None:
    """Show the checkpoint at REF (main) of SESSION: its fields, then its messages, or its state where it has none.

    A CHECKPOINT is found by its id alone, whatever its session. PATH is a place in the state, as `backstay search`
    prints it: only that is shown, whole. Text and bytes go to --out FILE as they are, anything else as JSON.
    """
    from backstay import shapes
    from backstay.bookkeeping import visible
    from backstay.cli.screen import Screen
    from backstay.shapes.points import names_told

    found, point, path = _found(store, session, ref, path)
    if path is not None or out is not None:
        state = found.load(point, salvage=salvage)
        _value(state, path, out, as_json=as_json or raw)
        return
    refs = [name for name, _ in names_told(store, found).get(point.id, ())]
    with Screen(paged=not (as_json or raw)) as screen:
        if raw or as_json:
            state = found.load(point, salvage=salvage)
            if raw:
                screen.line(shapes.dump(shapes.plain(state)))
            else:
                _as_json(screen, point, refs, state, _calls_of(store, found, point))
            return
        chosen = messages or as_tree or calls
        if not chosen:
            _fields(screen, point, refs, _calls_of(store, found, point))
            screen.line()
        if calls:
            _calls(screen, _calls_of(store, found, point))
        if messages or as_tree or not chosen:
            state = found.load(point, salvage=salvage)
            _contents(screen, visible(state), messages=messages, as_tree=as_tree, full=full)


def _found(store: Store, given: str, ref: str, path: str | None) -> tuple[Session, Checkpoint, str | None]:
    """The session and the checkpoint that are meant, and the place in its state."""
    from backstay.shapes.points import point_at, told_as

    try:
        session = session_of(store, given)
    except backstay.NotFoundError as missing:
        try:
            point = store.find(given)
        except (backstay.NotFoundError, backstay.InvalidInputError) as error:
            raise (missing if isinstance(error, backstay.NotFoundError) or len(given) < _MIN_ID else error) from None
        if path is not None:
            message = f"{given!r} is a checkpoint: give a PATH behind it, and no REF"
            raise click.UsageError(message, ctx=click.get_current_context(silent=True)) from None
        session = store.session(point.session_id)
        return session, told_as(session, point), ref or None
    return session, point_at(session, ref or "main"), path


def _value(state: dict[str, Any], path: str | None, out: str | None, *, as_json: bool) -> None:
    """One value of a state, whole: on the screen, or in a file."""
    from backstay.cli.path import value_at
    from backstay.cli.screen import Screen
    from backstay.cli.text import lines_of, safe, size

    value = state if path is None else value_at(state, path)
    if out is not None:
        from backstay.cli.out_file import write_out

        written = write_out(out, value)
        if out != "-":
            Screen().line(f"written: {safe(out)} ({size(written)})")
        return
    from backstay import shapes
    from backstay.cli.conversation import conversation
    from backstay.cli.text import brief
    from backstay.cli.tree import tree

    with Screen(paged=not as_json) as screen:
        if as_json:
            screen.line(shapes.dump(shapes.plain(value)))
        elif isinstance(value, str):
            for line in lines_of(value):
                screen.line(line)
        elif _is_talk(value):
            conversation(screen, value if isinstance(value, list) else [value], full=True)
        elif isinstance(value, dict) and value:
            tree(screen, value, full=True)
        elif isinstance(value, list | tuple) and value:
            tree(screen, dict(enumerate(value)), full=True)
        else:
            screen.line(brief(value))


def _is_talk(value: Any) -> bool:
    """True for a message, and for a list of them."""
    messages = value if isinstance(value, list) and value else [value]
    return all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages)


def _calls_of(store: Store, session: Session, point: Checkpoint) -> list[Call]:
    """The calls that led to a checkpoint, and those beside that were asked for at it."""
    from backstay.face.calls_beside import CallsBeside

    return [*session.calls(point), *CallsBeside(store, session).at(point.id)]


def _as_json(screen: Screen, point: Checkpoint, refs: list[str], state: dict[str, Any], calls: list[Call]) -> None:
    from backstay import shapes

    shape = {
        **shapes.checkpoint(point),
        "refs": refs,
        "state": shapes.plain(state),
        "calls": [shapes.call(call) for call in calls],
    }
    screen.line(shapes.dump(shape))


def _fields(screen: Screen, point: Checkpoint, refs: list[str], made: list[Call]) -> None:
    from backstay.bookkeeping import PART
    from backstay.cli.sessions import STYLES
    from backstay.cli.text import ago, cut, moment, money, safe, short, size, width
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
        ("status", (point.status.value, STYLES[point.status.value])),
        ("label", point.label),
        ("made", f"{moment(point.created_at)} ({ago(point.created_at)}), trigger {point.trigger}"),
        ("restored", point.restored_from and f"from {short(point.restored_from)}"),
        ("used", usage(used.tokens_in, used.tokens_out, used.cost)),
        ("so far", usage(total.tokens_in, total.tokens_out, total.cost)),
        ("parent", point.parent_id and short(point.parent_id)),
        ("size", size(point.size_bytes)),
        ("hint", point.resume_hint),
        ("metadata", ", ".join(f"{key}={each!r}" for key, each in point.metadata.items() if key != PART)),
        ("calls", made and f"{counted(len(made), 'call')}: {', '.join(map(_short_call, made))}"),
        ("digest", point.digest[:32]),
    ]
    for name, fact in facts:
        if isinstance(fact, tuple):
            reason = f"  {safe(point.reason)}" if point.reason else ""
            screen.line((f"{name:<11}", "dim"), fact, cut(reason, screen.width - 11 - len(fact[0])))
        elif fact:
            screen.line((f"{name:<11}", "dim"), cut(safe(str(fact)), screen.width - 11))


def _short_call(call: Call) -> str:
    return f"{call.name} {call.status.replace('_', ' ')}"


def _calls(screen: Screen, made: list[Call]) -> None:
    from backstay.cli.conversation import call_line

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
