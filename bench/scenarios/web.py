"""The page on a large store: time to the first byte, and how much comes. Asked of the site itself, without a network.

Processor time is measured: on a quiet machine it is the time to the first byte, and a busy one does not spoil it.
"""

from __future__ import annotations

import asyncio
import shutil
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Any

import backstay
from bench.report import Figure

if TYPE_CHECKING:
    from pathlib import Path

    from bench.measuring import Settings

SESSIONS, CHECKPOINTS, BRANCHES = 10_000, 10_000, 200
FILES, CAPTURED = 200, 10  # of a session with files: how many, and every which checkpoint captures them
TTFB_MS, HTML_B = 150, 150_000


def web(settings: Settings) -> list[Figure]:
    from backstay.web.door import Door
    from backstay.web.site import Site
    from backstay.web.view import AboutStore

    share = 20 if settings.quick else 1
    folder = settings.root / "web"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _make(folder / "web.db", SESSIONS // share, CHECKPOINTS // share, BRANCHES // share)
    _make_files(folder / "web.db", folder / "work", CHECKPOINTS // share)
    figures = []
    with backstay.open(folder / "web.db") as store:
        door = Door("t" * 24, 80, ["127.0.0.1"])
        site = Site(store, AboutStore("web.db", "SQLite", read_only=False, is_server=False), door)
        cookie = door.set_cookie.partition(";")[0]
        older = store.session("large").checkpoint("main~150").id
        for name, path in {
            f"list of {SESSIONS // share:,} sessions": "/",
            "its next page": f"/?before={list(store.sessions(limit=101))[-1].cursor}",
            f"{CHECKPOINTS // share:,} checkpoints, {BRANCHES // share + 1} branches": "/s/large",
            "older checkpoints": f"/s/large?before={older}",
            "a checkpoint": "/s/large/c/main",
            "a timeline": "/s/large/timeline",
            "compare": "/s/large/compare",
            "preview of a restore": f"/s/large/c/{older}?act=restore&branch=main",
            "search": "/?q=answer",
            f"{CHECKPOINTS // share:,} checkpoints with {FILES} files": "/s/filed",
            "their files": "/s/filed/files",
            "files of a checkpoint": "/s/filed/c/main~100?tab=files",
            "files that differ": f"/s/filed/d/main~{CHECKPOINTS // share // 2}/main",
            "store": "/store",
        }.items():
            times, size = [], 0
            for _ in range(settings.rounds + 1):
                before = process_time()
                status, size, at = asyncio.run(_ask(site, path, cookie))
                times.append((at - before) * 1000)
                assert status == 200, path
            figures.append(Figure("web", f"{name}: first byte", median(times[1:]), "ms", TTFB_MS))
            figures.append(Figure("web", f"{name}: HTML", size, "B", HTML_B))
    shutil.rmtree(folder)
    return figures


async def _ask(site: Any, path: str, cookie: str) -> tuple[int, int, float]:
    """One request of the application: its status, how many bytes came, and when the first of them did."""
    answer: dict[str, Any] = {"status": 0, "size": 0, "at": 0.0}
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1:80"), (b"cookie", cookie.encode())],
    }

    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in asked:
            return message
        return await asyncio.Future()  # who asks stays until the end

    async def send(message: dict[str, Any]) -> None:
        answer["status"] = message.get("status", answer["status"])
        answer["size"] += len(message.get("body", b""))
        answer["at"] = answer["at"] or (process_time() if answer["size"] else 0.0)

    await site(scope, receive, send)
    return answer["status"], answer["size"], answer["at"]


def _make(file: Path, sessions: int, checkpoints: int, branches: int) -> None:
    """Many sessions of three checkpoints, and one with many checkpoints and branches."""
    usage = backstay.Usage(900, 80, 0.004)
    with backstay.open(file, durability="relaxed") as store:
        for number in range(sessions):
            session = store.session(
                f"ticket-{number:05d}", agent=("support", "coder")[number % 2], title=f"Ticket {number}"
            )
            for step in range(3):
                words = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "answer"}]
                session.commit({"messages": words[: step + 1], "step": step}, step=step, usage=usage)
        large = store.session("large", agent="coder", title="A large session")
        own = checkpoints - branches * 4
        for number in range(own):
            role = ("user", "assistant")[number % 2]
            large.append({"role": role, "content": f"message {number} of a long session"}, step=number, usage=usage)
            if number % (own // branches) == own // branches - 1 and number // (own // branches) < branches:
                name = f"try-{number // (own // branches)}"
                large.fork("main", name)
                for step in range(4):
                    large.append({"role": "assistant", "content": f"way {step}"}, branch=name, step=step, usage=usage)


def _make_files(file: Path, folder: Path, checkpoints: int) -> None:
    """One session with many checkpoints of a folder, in which a file changes each time."""
    folder.mkdir()
    for number in range(FILES):
        (folder / f"part{number:03d}.py").write_text("value = 0\n" * 40)
    with backstay.open(file, durability="relaxed") as store:
        session = store.session("filed", agent="coder", title="A session with files", workspace=folder)
        beside = store.session("filed")
        for number in range(checkpoints):
            (folder / f"part{number % FILES:03d}.py").write_text(f"value = {number}\n" * 40)
            words = [{"role": "assistant", "content": f"part {n} is written"} for n in range(number, number + 20)]
            by = beside if number % CAPTURED else session
            by.commit({"messages": words}, step=number, expect=backstay.ANY)
