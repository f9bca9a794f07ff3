"""States that change in other ways than by growing at the end: what they cost in bytes.

Sizes do not depend on the noise of the machine, so one round tells; the times of
that round are in the details.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.conversations import pack
from bench.measuring import Settings, Step, Taken, interleave
from bench.report import Figure
from bench.scenarios.append import PER_STEP, step_count, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = 50
COMPACT_EVERY = 100
AGENTS = ("planner", "researcher", "coder", "tester", "writer")
SCRATCH_PER_STEP = 500


def _pairs(settings: Settings) -> Iterator[list[Any]]:
    messages = settings.messages(PER_STEP * step_count(settings))
    return (messages[at : at + PER_STEP] for at in range(0, len(messages), PER_STEP))


def _window_steps(settings: Settings) -> Iterator[Step]:
    messages: list[Any] = []
    for added in _pairs(settings):
        messages = [*messages, *added][-WINDOW:]
        yield Step("window", {"messages": messages}, pack(added))


def _compaction_steps(settings: Settings) -> Iterator[Step]:
    messages: list[Any] = []
    for number, added in enumerate(_pairs(settings), 1):
        messages += added
        new = added
        if number % COMPACT_EVERY == 0:
            half = len(messages) // 2
            opening = " ".join(str(message["content"])[:40] for message in messages[1:half:8])
            summary = {"role": "system", "content": f"Summary of {half} messages: {opening}"}
            messages = [summary, *messages[half:]]
            new = [summary, *added]
        yield Step("compaction", {"messages": messages}, pack(new))


def _nested_steps(settings: Settings) -> Iterator[Step]:
    agents: dict[str, dict[str, list[Any]]] = {name: {"messages": []} for name in AGENTS}
    for number, added in enumerate(_pairs(settings)):
        agents[AGENTS[number % len(AGENTS)]]["messages"] += added
        yield Step("nested", {"agents": agents}, pack(added))


def _scratchpad_steps(settings: Settings) -> Iterator[Step]:
    count = settings.scaled(1000, 200)
    text = _prose(settings, count * SCRATCH_PER_STEP)
    for end in range(SCRATCH_PER_STEP, len(text) + 1, SCRATCH_PER_STEP):
        yield Step("scratchpad", {"scratchpad": text[:end]}, text[end - SCRATCH_PER_STEP : end].encode())


def _prose(settings: Settings, size: int) -> str:
    """That many characters of what was said in conversations; plain ASCII, so that characters are bytes."""
    said: list[str] = []
    while (have := sum(map(len, said))) < size:
        more = settings.messages(4000, seed=len(said) + 11)
        said += [str(m["content"]).encode("ascii", "replace").decode() for m in more if m["role"] != "system"]
        if sum(map(len, said)) == have:
            msg = "the conversations hold no text"
            raise ValueError(msg)
    return "\n".join(said)[:size]


def _run(settings: Settings, steps: Iterator[Step]) -> tuple[dict[str, Taken], dict[str, object]]:
    with settings.folder() as folder:
        taken = interleave(settings.contenders(folder), steps)
    detail: dict[str, object] = {
        name: {"stored_bytes": one.stored_bytes, "median_us": one.median_us(), "steps": len(one.times_ns)}
        for name, one in taken.items()
    }
    return taken, detail


def _against_append(settings: Settings, name: str, steps: Iterator[Step]) -> list[Figure]:
    taken, detail = _run(settings, steps)
    yardstick = stored(settings)
    detail["append_bytes"] = yardstick
    cost = taken["backstay"].median_us() / taken["floor"].median_us()
    return [
        Figure(name, "bytes / append's", taken["backstay"].stored_bytes / yardstick, must=1.5, detail=detail),
        Figure(name, "median commit / floor", cost),
    ]


def window(settings: Settings) -> list[Figure]:
    return _against_append(settings, "window", _window_steps(settings))


def compaction(settings: Settings) -> list[Figure]:
    return _against_append(settings, "compaction", _compaction_steps(settings))


def nested(settings: Settings) -> list[Figure]:
    return _against_append(settings, "nested", _nested_steps(settings))


def scratchpad(settings: Settings) -> list[Figure]:
    taken, detail = _run(settings, _scratchpad_steps(settings))
    final = len(taken["backstay"].times_ns) * SCRATCH_PER_STEP
    cost = taken["backstay"].median_us() / taken["floor"].median_us()
    return [
        Figure(
            "scratchpad",
            "stored / final string",
            taken["backstay"].stored_bytes / final,
            must=3.0,
            detail=detail,
        ),
        Figure("scratchpad", "median commit / floor", cost),
    ]
