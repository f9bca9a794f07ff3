"""Coding trajectories to measure with: an agent that reads, edits and tests real source files, the standard library's.

One task after another, about 23 steps each: the agent searches a module, opens it in windows of 60 to 100 numbered
lines, scrolls, edits some lines, and is shown the window again after each edit, as coding agents are; then it runs a
test and reads the traceback. No clock and no global randomness: one seed over one Python gives the same bytes.
"""

from __future__ import annotations

import functools
import random
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Message = dict[str, Any]

STEPS_PER_TASK = 23
PROMPT = (
    "You are a programmer who works in a terminal with a special interface. Commands: open <path> [<line>], "
    "goto <line>, scroll_down, scroll_up, search_file <term>, edit <start>:<end> <text> end_of_edit, python <file>, "
    "submit. Edits must be indented as the file is. Say what you are thinking, then give exactly one command and wait "
    "for its output. "
)
THOUGHTS = (
    "The function that builds the result seems to be the culprit. Let me look at it.",
    "This is where the value is normalised; the branch for an empty input is missing.",
    "Let me scroll down to see how the helper is called.",
    "I will change the condition so that it also covers the case from the report.",
    "Now I run the script that reproduces the issue to see whether the fix works.",
    "The indentation was off by one level. I will edit the same lines again.",
)


@functools.cache
def sources() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The modules of the standard library that an agent would open: some hundred lines of ASCII each."""
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text("utf-8", "replace")
        lines = tuple(text.splitlines())
        if text.isascii() and 200 <= len(lines) <= 3000:
            found.append((path.name, lines))
    return tuple(found)


def trajectories(steps: int, *, seed: int = 7) -> Iterator[list[Message]]:
    """That many steps of two messages each: what the agent says, and what it is shown."""
    rng = random.Random(seed)
    made = 0
    while made < steps:
        for pair in _task(rng):
            if made < steps:
                made += 1
                yield pair


def _task(rng: random.Random) -> Iterator[list[Message]]:
    name, lines = rng.choice(sources())
    text, top = list(lines), rng.randrange(len(lines))
    size = rng.randrange(60, 100)
    issue = f"{PROMPT}\n\nISSUE in {name}:\n" + "\n".join(text[1:20])
    yield [{"role": "system", "content": issue}, _shown(name, text, top, size)]
    for number in range(1, STEPS_PER_TASK):
        act = rng.choice(("scroll", "scroll", "edit", "edit", "search", "test"))
        if act == "scroll":
            top = (top + size - 2) % len(text)
            command, seen = "scroll_down", _shown(name, text, top, size)
        elif act == "edit":
            at = min(top + rng.randrange(size), len(text) - 1)
            old = text[at : at + rng.randrange(1, 5)]
            new = [f"{line.rstrip()}  # was too strict, see the report" for line in old] or ["pass"]
            text[at : at + len(old)] = new
            command = f"edit {at}:{at + len(old)}\n" + "\n".join(new) + "\nend_of_edit"
            seen = _shown(name, text, top, size)
        elif act == "search":
            word = rng.choice(("return", "self", "raise", "import", "None", "def "))
            hits = [f"Line {at}: {line}" for at, line in enumerate(text, 1) if word in line][:25]
            command, seen = f'search_file "{word}"', _user("\n".join(hits))
        else:
            at = rng.randrange(len(text))
            trace = [
                f'  File "/repo/{name}", line {at + n}, in step_{n}\n    {text[(at + n) % len(text)].strip()}'
                for n in range(6)
            ]
            command = f"python reproduce_{number % 3}.py"
            seen = _user(
                "Traceback (most recent call last):\n" + "\n".join(trace) + "\nAssertionError: not as expected"
            )
        yield [{"role": "assistant", "content": f"{rng.choice(THOUGHTS)}\n```\n{command}\n```"}, seen]


def _shown(name: str, text: list[str], top: int, size: int) -> Message:
    numbered = [f"{at}:{line}" for at, line in enumerate(text[top : top + size], top + 1)]
    head = f"[File: /repo/{name} ({len(text)} lines total)]\n({top} more lines above)\n"
    return _user(
        head
        + "\n".join(numbered)
        + f"\n({max(0, len(text) - top - size)} more lines below)\n(Current directory: /repo)"
    )


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
