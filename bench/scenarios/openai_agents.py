"""The OpenAI Agents SDK: a conversation through its Runner, with BackstaySession and with its own SQLiteSession.

What is told is processor time, of sessions that take turns, and the files as they lie after closing.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import itertools
import sys
from contextlib import ExitStack
from time import process_time
from typing import TYPE_CHECKING, Any

import backstay
from bench.report import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measuring import Settings

TURNS, QUICK_TURNS = 500, 60
SHORT = 50  # turns of a short conversation
MUST = 1.3
KINDS = ("hooks", "plain", "peer")


def openai_agents(settings: Settings) -> list[Figure]:
    """The figures; nothing where the SDK is missing."""
    if importlib.util.find_spec("agents.testing") is None:
        sys.stderr.write("openai: left out (the extra `openai-agents`)\n")
        return []
    turns = settings.scaled(TURNS, QUICK_TURNS)
    texts = [str(one["content"]) for one in settings.messages(4 * turns) if one["role"] != "system" and one["content"]]
    with settings.folder() as folder:
        spent = asyncio.run(_talk(folder, turns, texts))
        size = {kind: sum([file.stat().st_size for file in folder.glob(f"{kind}.db*")]) for kind in KINDS}
    total = {kind: sum(times) for kind, times in spent.items()}
    short = {kind: sum(times[:SHORT]) for kind, times in spent.items()}
    whole = turns == TURNS
    detail: dict[str, object] = {"seconds": total, f"of the first {SHORT} turns": short, "bytes": size}
    figures = [
        Figure("openai", "turn / SQLiteSession's", total["plain"] / total["peer"], must=MUST, detail=detail),
        Figure("openai", "turn with hooks / SQLiteSession's", total["hooks"] / total["peer"], must=MUST),
        Figure("openai", "on disk / SQLiteSession", size["plain"] / size["peer"], must=1.0),
        Figure("openai", "on disk with hooks / SQLiteSession", size["hooks"] / size["peer"], must=1.0),
    ]
    if not whole:
        figures = [Figure("openai", figure.name, figure.measured, detail=figure.detail) for figure in figures]
    return [
        *figures,
        Figure("openai", f"turn, first {SHORT} / SQLiteSession's", short["plain"] / short["peer"]),
        Figure("openai", f"turn with hooks, first {SHORT} / SQLiteSession's", short["hooks"] / short["peer"]),
    ]


async def _talk(folder: Any, turns: int, texts: list[str]) -> dict[str, list[float]]:
    """The same conversation in each session, turn about; what each turn took."""
    sdk: Any = importlib.import_module("agents")
    scripted: Any = importlib.import_module("agents.testing")
    ours: Any = importlib.import_module("backstay.adapters.openai_agents")
    sdk.set_tracing_disabled(disabled=True)
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        stores = {kind: stack.enter_context(backstay.open(folder / f"{kind}.db")) for kind in ("plain", "hooks")}
        sessions = {kind: ours.BackstaySession("chat", store) for kind, store in stores.items()}
        sessions["peer"] = sdk.SQLiteSession("chat", folder / "peer.db")
        stack.callback(sessions["peer"].close)
        said: dict[str, Iterator[str]] = {kind: itertools.cycle(texts) for kind in KINDS}
        for _ in range(turns):
            for kind in KINDS:
                asked, answer = next(said[kind]), scripted.assistant_message(next(said[kind]))
                agent = sdk.Agent(name="support", model=scripted.ScriptedModel([[answer]]))
                hooks = ours.BackstayHooks() if kind == "hooks" else None
                begun = process_time()
                await sdk.Runner.run(agent, asked, session=sessions[kind], hooks=hooks)
                spent[kind].append(process_time() - begun)
    return spent
