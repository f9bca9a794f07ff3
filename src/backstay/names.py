"""Names and how they are read: what may be a name, and what a ref like `main~3` or `main^` asks for. Pure."""

from __future__ import annotations

import re

import msgspec

from backstay.errors import InvalidInputError
from backstay.model import MAX_NAME_CHARS

_STEPS = re.compile(r"(?P<name>.+)(?P<way>[~^])(?P<steps>\d{1,9})?", re.DOTALL)


class Ref(msgspec.Struct, frozen=True, gc=False):
    """A ref and how many steps to go back from it: along parents, or (`in_story`) past what a restore took back."""

    name: str
    steps: int
    in_story: bool = False


def parse_steps(ref: str) -> Ref | None:
    """`main~3` as (main, 3), `main^` as (main, 1) in the story; None if there is no such ending."""
    found = _STEPS.fullmatch(ref)
    if found is None:
        return None
    return Ref(found["name"], int(found["steps"] or 1), found["way"] == "^")


def check_name(value: object, what: str) -> str:
    """A session id, branch or tag: any text of 1 to 256 characters without NUL. It never becomes a path."""
    if not isinstance(value, str):
        message = f"{what} must be text, not {type(value).__name__}"
        raise InvalidInputError(message)
    if not value or len(value) > MAX_NAME_CHARS:
        message = f"{what} must have 1 to {MAX_NAME_CHARS} characters, not {len(value)}"
        raise InvalidInputError(message)
    if "\0" in value:
        message = f"{what} must not contain NUL"
        raise InvalidInputError(message)
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{what} contains a lone surrogate"
        raise InvalidInputError(message, hint="use text that can be written as UTF-8") from None
    return str(value)
