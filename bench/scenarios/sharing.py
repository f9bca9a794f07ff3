"""Small changes in large states, and large values that many sessions share."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from bench.conversations import pack
from bench.measuring import Settings, Step, interleave, stored_bytes
from bench.report import Figure
from bench.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_BYTES = 4096
KEYS = 10_000
SESSIONS = 100
IMAGE_BYTES = 1_000_000
TOOLS_BYTES = 30_000
# 'Once', with room for whole pages and for what names the shared value in each session.
ONCE = 1.1


def _growth(settings: Settings, folder: Path, first: Step, rest: Iterator[Step]) -> tuple[float, dict[str, object]]:
    """What each step after the first adds to the file, on average; and the same of the others."""
    contenders = settings.contenders(folder)
    before = interleave(contenders, [first])
    after = interleave(contenders, rest)
    each = {name: (after[name].stored_bytes - before[name].stored_bytes) / len(after[name].times_ns) for name in after}
    detail: dict[str, object] = {
        "bytes_per_commit": each,
        "median_us": {name: after[name].median_us() for name in after},
        "first_bytes": before["backstay"].stored_bytes,
    }
    return each["backstay"], detail


def keys(settings: Settings) -> list[Figure]:
    state: dict[str, Any] = {f"key-{number:05}": {"count": number, "note": "as set"} for number in range(KEYS)}

    def changes() -> Iterator[Step]:
        rng = random.Random(3)
        for number in range(settings.scaled(300, 60)):
            name = f"key-{rng.randrange(KEYS):05}"
            state[name] = {"count": KEYS + number, "note": "changed"}
            yield Step("keys", state, pack({name: state[name]}))

    with settings.folder() as folder:
        each, detail = _growth(settings, folder, Step("keys", state, pack(state)), changes())
    return [Figure("10,000 keys", "file growth a commit", each, unit="B", must=LIMIT_BYTES, detail=detail)]


def edit(settings: Settings) -> list[Figure]:
    messages = settings.messages(settings.scaled(1000, 400))
    state = {"messages": messages}
    times = settings.scaled(100, 40)

    def changes() -> Iterator[Step]:
        rng = random.Random(5)
        for number in range(times):
            message = messages[rng.randrange(len(messages) // 3, 2 * len(messages) // 3)]
            message["content"] = f"{message['content'] or ''} (edited: {number})"
            yield Step("edit", state, pack(message))

    with settings.folder() as folder:
        each, detail = _growth(settings, folder, Step("edit", state, pack(state)), changes())
        reader = Subject(folder)
        reader.open()
        same = reader.load("edit") == state
        reader.close()
    return [
        Figure("edit", "file growth a commit", each, unit="B", must=LIMIT_BYTES, detail=detail),
        Figure("edit", "changes are there on load (1 = yes)", float(same), unit="", must=1, sense="at least"),
    ]


def _tools(size: int) -> list[dict[str, Any]]:
    rng, tools = random.Random(9), list[dict[str, Any]]()
    while len(json.dumps(tools)) < size:
        name = f"tool_{len(tools)}_{rng.randrange(10**6)}"
        fields = {
            f"field_{rng.randrange(10**6)}": {
                "type": "string",
                "description": f"value number {rng.randrange(10**6)}",
            }
            for _ in range(6)
        }
        tools.append({"type": "function", "function": {"name": name, "parameters": {"properties": fields}}})
    return tools


def _filled(settings: Settings, extra: dict[str, Any], image_bytes: bytes) -> int:
    """The file of a store with that in each of 100 sessions, besides a conversation of its own."""
    said = settings.messages(SESSIONS * 4)
    with settings.folder() as folder:
        subject = Subject(folder)
        subject.open()
        for number in range(SESSIONS):
            content = [{"type": "image", "data": image_bytes}] if image_bytes else []
            asked = {"role": "user", "content": content}
            state = {"messages": [asked, *said[4 * number : 4 * number + 4]], **extra}
            subject.save(f"session-{number}", state, b"")
        subject.close()
        return stored_bytes(subject.path)


def image(settings: Settings) -> list[Figure]:
    """What each value adds to the file when all the sessions hold it: with it, less without it."""
    picture = random.Random(4).randbytes(IMAGE_BYTES)
    tools = _tools(TOOLS_BYTES)
    text = json.dumps(tools)
    without = _filled(settings, {}, b"")
    both = _filled(settings, {"tools": text}, picture) - without
    alone = {
        "image": _filled(settings, {}, picture) - without,
        "tools as text": _filled(settings, {"tools": text}, b"") - without,
        "tools as a list": _filled(settings, {"tools": tools}, b"") - without,
    }
    detail: dict[str, object] = {"without_bytes": without, "both_add_bytes": both, "each_adds_bytes": alone}
    once = {"image": len(picture), "tools as text": len(text), "tools as a list": len(text)}
    label = f"copies kept for {SESSIONS} sessions"
    return [
        Figure("image, tools", label, both / (len(picture) + len(text)), must=ONCE, detail=detail),
        *[Figure("image, tools", f"of the {name} alone", added / once[name]) for name, added in alone.items()],
    ]
