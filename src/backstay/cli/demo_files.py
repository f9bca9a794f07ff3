"""The scene of `backstay demo --files`: an agent breaks a file by Bash; the step is found and gone back to.

The agent is a script; its files, its Bash, the test and the folder are real.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backstay

if TYPE_CHECKING:
    from backstay.cli.demo import Story

SESSION = "fix-bug"
_CHECK = "from price import price; raise SystemExit(price(3) != 12)"
_BROKEN, _WHOLE = "def price(n):\n    return 4 + n\n", "def price(n):\n    return 4 * n\n"


def tell_files(story: Story, store: backstay.Store, folder: Path) -> None:
    """Five files by tools and by Bash, a sixth by you; one of them is wrong since some step."""
    story.chapter("Files, in the same checkpoints. A step breaks one: find it, go back.")
    folder.mkdir()
    story.code(f'with store.run("{SESSION}", workspace=folder) as run: ...')
    _work(store, folder)
    (folder / "notes.txt").write_text("call the shop\n", encoding="utf-8")
    session = store.session(SESSION, workspace=folder)
    story.ok(
        "five files by tools and by Bash, a sixth by you; 3 pieces cost 7", holds=_text(folder, "price.py") == _BROKEN
    )
    story.code('session.bisect(good="main~5", test=["python", "check.py"])')
    tries: list[str] = []
    first = session.bisect(
        good="main~5", test=[sys.executable, "-c", _CHECK], on_try=lambda _, verdict: tries.append(verdict)
    )
    call = session.calls(first)[0].name
    story.ok(f"step {first.step} broke it, by {call}; {len(tries)} tries", holds=(first.step, call) == (4, "bash"))
    line = session.blame("price.py")[-1]
    story.ok("blame says so of the line, too", holds=line.checkpoint == first)
    story.code('session.restore("main~3", files=True, keep_mine=True, dry_run=True)')
    plan = session.restore("main~3", files=True, keep_mine=True, dry_run=True)
    groups = [[step.path for step in steps] for steps in (plan.put, plan.remove)]
    story.say(f"     put back {_names(groups[0])}; remove {_names(groups[1])}; kept (yours) {_names(list(plan.kept))}")
    expected = [[b"price.py"], [b"README.md", b"vat.py"]]
    story.ok("a preview names every path", holds=groups == expected and plan.kept == (b"notes.txt",))
    session.restore("main~3", files=True, keep_mine=True)
    back = _text(folder, "price.py") == _WHOLE and not (folder / "vat.py").exists()
    story.ok("it is put back, and your file is there", holds=back and (folder / "notes.txt").exists())
    session.undo()
    again = _text(folder, "price.py") == _BROKEN and (folder / "vat.py").exists()
    story.ok("undo takes even that back, files and conversation", holds=again and (folder / "notes.txt").exists())


def _work(store: backstay.Store, folder: Path) -> None:
    def write(name: str, text: str) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    def bash(line: str) -> None:
        subprocess.run(["/bin/sh", "-c", line], cwd=folder, check=True, timeout=60)  # noqa: S603 - ours

    steps: list[tuple[Callable[..., None], list[str]]] = [
        (write, ["price.py", _WHOLE]),
        (bash, ["mkdir docs && echo 'A piece is 4 EUR.' > docs/price.md"]),
        (write, ["order.py", "from price import price\n"]),
        (bash, ["sed -i.old 's/4 [*] n/4 + n/' price.py && rm price.py.old && echo VAT = 0.2 > vat.py"]),
        (write, ["README.md", "# Orders\n"]),
    ]
    with store.run(SESSION, workspace=folder, input="add VAT to the prices") as run:
        run.state["messages"] = [{"role": "user", "content": run.input}]
        for number, (tool, args) in enumerate(steps):
            run.call(tool.__name__, _calls(tool, args), key=str(number), args=args)
            run.append({"role": "assistant", "content": f"{tool.__name__} #{number + 1}"})
            run.step()


def _calls(tool: Callable[..., None], args: list[str]) -> Callable[[], Any]:
    return lambda: tool(*args)


def _text(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def _names(paths: list[bytes]) -> str:
    return ", ".join(path.decode() for path in paths)
