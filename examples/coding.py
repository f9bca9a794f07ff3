"""A coding agent: its folder is in every checkpoint, and a step that was cut off in its files is rolled back first.

    python examples/coding.py                       # edits the files of this folder
    backstay diff fix-bug main~2 main --files       # what it did
    backstay rewind fix-bug main~2                  # shows what will change, asks, puts conversation and files back
    backstay undo fix-bug                           # takes even that back

Your own edits between its steps are known as yours, and a rewind keeps them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import backstay

PLAN: list[tuple[str, dict[str, Any]]] = [  # what your model would say, step by step
    ("write", {"path": "price.py", "text": "def price(n):\n    return 4 * n\n"}),
    ("bash", {"command": [sys.executable, "-c", "open('README', 'a').write('see price.py')"]}),
    ("write", {"path": "price.py", "text": "def price(n):\n    return 4 + n\n"}),
]


def write(path: str, text: str) -> str:
    """A tool that edits a file."""
    Path(path).write_text(text, "utf-8")
    return f"wrote {path}"


def bash(command: list[str]) -> str:
    """A tool that may change any file; what it changed is seen by looking, before and after."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout or "done"  # noqa: S603 - the point


TOOLS: dict[str, Callable[..., str]] = {"write": write, "bash": bash}


def work(run: backstay.Run) -> None:
    """`effects="files"`: cut off in the middle, the files go back to what they were, and the call is made again."""
    run.state.setdefault("done", 0)
    for number in range(run.state["done"], len(PLAN)):
        name, args = PLAN[number]
        out = run.call(name, partial(TOOLS[name], **args), args=args, effects="files")
        run.append({"role": "tool", "name": name, "content": out})
        run.state["done"] = number + 1
        run.step()


def main() -> None:
    """Work in this folder."""
    with backstay.open() as store, store.run("fix-bug", agent="coder", workspace=".") as run:
        work(run)
        files = store.session("fix-bug").checkpoint().files
        print(run.state["done"], "steps;", len(files or ()), "files in the checkpoint")


if __name__ == "__main__":
    main()
