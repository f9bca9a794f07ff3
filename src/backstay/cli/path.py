"""Places in a state, as they are written: `messages[3].content`, `plan["due date"]`, and `messages[-1]` for the last.

`search` prints them, `show` takes them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import backstay
from backstay.cli.text import safe

_STEP = re.compile(
    r"""\.?(?P<word>[^.\[\]"']+)|\[(?P<index>-?\d+)\]|\[(?P<quote>["'])(?P<key>.*?)(?P=quote)\]""", re.DOTALL
)
_PLAIN = re.compile(r"[^\W\d][\w-]*")
_KEYS = 8


def written(path: Iterable[Hashable]) -> str:
    """A place as it can be typed again."""
    steps = [f".{step}" if isinstance(step, str) and _PLAIN.fullmatch(step) else f"[{_quoted(step)}]" for step in path]
    return "".join(steps).removeprefix(".")


def _quoted(step: Hashable) -> str:
    return f'"{step}"' if isinstance(step, str) and '"' not in step else repr(step)


def parse(text: str) -> list[str | int]:
    """The steps of a place: keys, and numbers of items."""
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or (at == 0 and text[0] == "."):
            message = f"{text!r} is no place in a state"
            raise backstay.InvalidInputError(message, hint="write it like messages[3].content, messages[-1] or a.b")
        at = found.end()
        if found["index"] is not None:
            steps.append(int(found["index"]))
        else:
            steps.append(found["word"] if found["word"] is not None else found["key"])
    return steps


def value_at(state: Any, text: str) -> Any:
    """The value at a place of a state; NotFoundError that says what is there instead."""
    value, walked = state, ""
    for step in parse(text):
        value = _inside(value, step, walked)
        walked = written([*parse(walked), step]) if walked else written([step])
    return value


def _inside(value: Any, step: str | int, walked: str) -> Any:
    where = f"{walked} " if walked else "the state "
    if isinstance(value, Mapping):
        for key in (step, *([int(step)] if isinstance(step, str) and step.isdecimal() else [str(step)])):
            if key in value:
                return value[key]
        keys = [str(key) for key in value]
        listed = ", ".join(safe(key) for key in keys[:_KEYS]) + (", …" if len(keys) > _KEYS else "")
        raise backstay.NotFoundError(f"{where}has no {step!r}", hint=_likely(str(step), keys) + f"it has {listed}")
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        number = int(step) if isinstance(step, int) or step.lstrip("-").isdecimal() else None
        if number is None:
            raise backstay.NotFoundError(f"{where}is a list, and has no {step!r}", hint=f"write {walked}[0]")
        if -len(value) <= number < len(value):
            return value[number]
        rest = f"0 to {len(value) - 1}" if value else "none at all"
        raise backstay.NotFoundError(f"{where}has no item {number}", hint=f"it has {rest}")
    raise backstay.NotFoundError(f"{where}is a {type(value).__name__}, with nothing inside")


def _likely(typed: str, keys: list[str]) -> str:
    from backstay.cli.command import alike

    found = alike(typed, keys)
    return f"did you mean {safe(found[0])}? " if found else ""
