"""Messages as a conversation, and calls as lines: in the shapes of OpenAI, Anthropic and plain roles.

Everything is made harmless and folded to fit; what was folded says how much there is more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from backstay.cli.text import brief, cut, lines_of, safe, width, wrapped
from backstay.shapes.conversation import QUIET, answered_by, asked_in, role_of, said_in

if TYPE_CHECKING:
    from backstay.cli.screen import Piece, Screen
    from backstay.model import Call

ROLES = {"user": "green", "assistant": "cyan", "tool": "magenta", "system": "yellow", "developer": "yellow"}

_FOLD_LINES = {"tool": 4, "system": 4, "developer": 4}
_FOLD_TO = 12
_STATUSES = {"done": "green", "failed": "red", "in_doubt": "bold red", "abandoned": "yellow", "skipped": "yellow"}
_STATUSES |= {"unknown": "bold red"}
_MAX_TEXT = 4000  # of an argument or a result, before it is measured


def conversation(screen: Screen, messages: list[Any], *, full: bool, start: int = 0) -> None:
    """Messages, each under who said it."""
    names: dict[str, str] = {}
    for index, message in enumerate(messages, start):
        if not isinstance(message, Mapping):
            screen.line((f"[{index}] ", "dim"), cut(value(message), screen.width - 8))
            continue
        role = role_of(message)
        title = role
        answered = [names[id_] for id_ in answered_by(message) if id_ in names]
        if answered:
            title = f"{role} {', '.join(answered)}"
        screen.line((f"[{index}] ", "dim"), (cut(safe(title), screen.width - 8), f"bold {ROLES.get(role, 'blue')}"))
        limit = None if full else _FOLD_LINES.get(role, _FOLD_TO)
        for text, style in _body(message):
            _folded(screen, text, style, limit)
        for id_, name, args in calls_of(message):
            names[id_] = name
            line = f"-> {safe(name)}({args})"
            lines = wrapped(line, screen.width - 4) if full else [cut(line, screen.width - 4)]
            for each in lines:
                screen.line("    ", (each, "bold"))


def _folded(screen: Screen, text: str, style: str, limit: int | None) -> None:
    room = screen.width - 4
    # A message of a megabyte is not wrapped to show twelve lines of it.
    seen = text if limit is None else text[: room * (limit + 1) * 2]
    lines = [piece for line in lines_of(seen) for piece in wrapped(line, room)]
    while lines and not lines[-1].strip():
        lines.pop()
    if limit is None or (len(lines) <= limit and len(seen) == len(text)):
        shown, more = lines, 0
    else:
        shown = lines[:limit]
        more = max(1, len(text) - sum(len(line) + 1 for line in shown))
    for line in shown:
        screen.line("    " if line.strip() else "", (line.rstrip(), style))
    if more:
        screen.line("    ", (f"… {more:,} more characters (--full)", "dim"))


def _body(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The text of a message, piece by piece, each with its style."""
    for kind, text, block in said_in(message):
        if text is not None:
            yield text, "dim" if kind in QUIET else ""
        elif kind == "value":
            yield value(block), ""
        else:
            yield f"[{kind}: {cut(value(dict(block)), 60)}]", "dim"


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The calls that a message asks for: id, name, arguments as text."""
    return [(id_, name, arguments(args)) for id_, name, args in asked_in(message)]


def arguments(given: Any) -> str:
    """Arguments as they are written in a call; JSON text is read first."""
    if isinstance(given, str):
        import json

        try:
            given = json.loads(given[:_MAX_TEXT])
        except ValueError:
            return safe(given[:_MAX_TEXT])
    if isinstance(given, Mapping):
        return ", ".join(f"{safe(str(key))}={value(each)}" for key, each in list(given.items())[:20])
    return "" if given is None else value(given)


def value(given: Any) -> str:
    """Any value on one line; not longer than anyone would read."""
    return brief(given)


def one_line(message: Any) -> str:
    """A message on one line: who, what, and which tools it calls."""
    if not isinstance(message, Mapping):
        return value(message)
    said = " ".join(text for text, _ in _body(message))[:_MAX_TEXT]
    calls = " ".join(f"-> {name}({args})" for _, name, args in calls_of(message))
    return safe(" ".join(filter(None, [f"{role_of(message)}:", *said.split(), calls])))


def call_line(call: Call, room: int) -> list[Piece]:
    """A journaled call: what it is, how it stands, its arguments, and what came of it."""
    begin: list[Piece] = [(call.kind, "dim"), " ", (cut(safe(call.name), 30), "bold")]
    args = "" if call.args is None else f"({arguments(call.args)})"
    style = _STATUSES.get(call.status, "")
    status = call.status.replace("_", " ")
    outcome = ""
    if call.error is not None:
        outcome = safe(call.error[:_MAX_TEXT])
    elif call.status == "done":
        outcome = (
            one_line(call.result) if isinstance(call.result, Mapping) and "role" in call.result else value(call.result)
        )
    room -= len(call.kind) + width(cut(safe(call.name), 30)) + len(status) + 3
    head = cut(args, max(12, room // 2) if outcome else max(12, room))
    pieces: list[Piece] = [*begin, head, " ", (status, style)]
    room -= width(head) + 2
    if outcome and room > len("…: "):
        pieces += [": ", cut(outcome, room)]
    return pieces
