"""A store that means harm, or does not care: names like options, escapes in messages, letters of all widths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import backstay
from tests.faces.cli import story

ESCAPE = "\x1b[2J\x1b[31mred\x1b]0;title\x07"
BIDI = "safe \u202eevil\u202c \u2066x\u2069"
# Every one of these is somebody's session id.
IDS = [
    "-x",
    "--all",
    "--store",
    "-n",
    "a b/c d",
    "../../etc/passwd",
    "日本語のセッション",
    "👩‍👩‍👧 family",
    "שלום עולם",
    f"esc {ESCAPE}",
    f"bidi {BIDI}",
    "quote'\"`$(id)",
    "new\nline",
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": f"clear {ESCAPE} and\rback\x08\x08\x7f\x9b31m"},
    {
        "role": "assistant",
        "content": "漢字かな交じり文 is wide, 👩‍👩‍👧 is joined, 🇩🇪 a flag, ⚠️ a sign, e\u0301 composed",
    },
    {"role": "user", "content": "עברית וגם العربية are written the other way, " + BIDI},
    {"role": "assistant", "content": "Z" + "\u0334\u0335\u0336" * 40 + "algo climbs"},
    {"role": f"sys{ESCAPE}tem", "content": ["not", {"type": "image", "data": b"\x00" * 50}, 7, None]},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": ESCAPE, "name": f"rm {ESCAPE}", "args": {f"k{ESCAPE}": BIDI}}],
    },
    {"role": "tool", "tool_call_id": ESCAPE, "content": "line one\n\ttabbed\n" + "wide 漢字 " * 60},
    {"role": "user", "content": "last words 🎉 " + ESCAPE},
]


def make(file: Path) -> None:
    """Write the store."""
    with story.fixed(seed="hostile") as clock, backstay.open(file, durability="relaxed") as store:
        for id_ in IDS:
            session = store.session(id_, agent=f"agent {ESCAPE}")
            state: dict[str, Any] = {"messages": [], f"key {ESCAPE}": BIDI, "wide": {"漢字": ["かな"] * 3}}
            for step, message in enumerate(MESSAGES):
                state["messages"].append(message)
                clock.passes(seconds=7)
                session.commit(
                    state,
                    step=step,
                    label=f"label {ESCAPE}" if step == 3 else None,
                    trigger=f"by {ESCAPE}" if step == 4 else "manual",
                    metadata={f"m {ESCAPE}": BIDI},
                    resume_hint=ESCAPE,
                    usage=backstay.Usage(1_234_567, 89, 1234.5),
                )
            session.fork("main~2", f"branch {ESCAPE}")
            session.tag("main~1", f"tag {BIDI}")
            session.commit({**state, "wide": ESCAPE}, branch=f"branch {ESCAPE}", status=backstay.Status.FAILED(ESCAPE))


def make_long(file: Path) -> None:
    """A message of a megabyte, and one without a single space."""
    with story.fixed(seed="long") as _, backstay.open(file, durability="relaxed") as store:
        session = store.session("long")
        session.commit({"messages": [{"role": "user", "content": "word " * 200_000 + "needle"}]})
        session.commit({"messages": [{"role": "tool", "content": "漢" * 300_000}], "x": "y" * 1_000_000})
