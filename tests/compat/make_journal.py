"""How the golden store with a journal was made: `python -m tests.compat.make_journal FOLDER`.

Runs came after the first stores of format 1, as tables of their own; so they have a golden store of their own. It was
made once, is kept for ever, and is never written over.
"""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import backstay
from backstay import Call, Run, Session, Store

NAME = "journal-1"
LONG = "a result that is long enough to be kept in the state alone; " * 8


def work(run: Run, made: list[str]) -> None:
    """A loop of three iterations; each call that is really made says so."""

    def make(name: str, value: Any = None) -> Any:
        made.append(name)
        if isinstance(value, BaseException):
            raise value
        return value

    run.state.setdefault("messages", [{"role": "user", "content": run.input}])
    while run.iteration < 3:
        turn = run.iteration
        answer = {"role": "assistant", "content": f"turn {turn}"}
        run.append(run.call("model", partial(make, "model", answer), kind="llm"))
        found = partial(make, "look up", LONG + str(turn))
        run.append(run.call("look up", found, key=f"look-{turn}", args={"turn": turn}))
        with contextlib.suppress(backstay.CallFailedError):
            run.call("fail", partial(make, "fail", ValueError("not today")), key=f"fail-{turn}", args=[turn])
        inside = partial(run.call, "inside", partial(make, "inside", (1, b"\0")), args=turn)
        run.call("agent", inside, key=f"agent-{turn}")
        if turn == 1:
            run.call("pay", partial(make, "pay", KeyboardInterrupt()), key="pay", args={"euro": 7})
        run.use(tokens_in=10, cost=0.25)
        run.step()


def fill(store: Store) -> None:
    """All that a journal may hold."""
    with contextlib.suppress(KeyboardInterrupt), store.run("crashed", agent="scribe", input={"ask": ("x", 1)}) as run:
        work(run, [])
    with contextlib.suppress(KeyboardInterrupt), store.run("given up") as run:
        run.step()
        run.call("pay", lambda: _raise(KeyboardInterrupt()), args=1)
    store.session("given up").abandon(reason="nobody knows")
    with store.run("given up") as run:
        run.state["on"] = True
    with store.run("done", input="once") as run:
        run.append(run.call("model", lambda: {"role": "assistant", "content": "done"}, kind="llm"))
    session = store.session("done")
    session.fork("main", "what-if")
    with session.run(branch="what-if") as run:
        run.call("tried", lambda: 1, args=None)
        run.state["tried"] = True
    session.tag("what-if", "kept")
    session.delete_branch("what-if")


def _raise(error: BaseException) -> None:
    raise error


def seen(store: Store) -> dict[str, Any]:
    """What everybody can see of the calls, as JSON holds it."""
    return {name: _seen(store.session(name)) for name in sorted(info.id for info in store.sessions())}


def _seen(session: Session) -> dict[str, Any]:
    def shown(calls: list[Call]) -> list[str]:
        return [repr(call) for call in calls]

    branches = list(session.branches())
    lines = {ref: list(session.log(ref)) for ref in (*branches, *session.tags())}
    return {
        "taken in": {ref: [shown(session.calls(each)) for each in line] for ref, line in lines.items()},
        "pending": {branch: shown(session.calls(branch, pending=True)) for branch in branches},
    }


def main(folder: Path) -> int:
    """Make both files, unless one is there."""
    store_file, facts = folder / f"{NAME}.db", folder / f"{NAME}.json"
    if store_file.exists() or facts.exists():
        sys.stderr.write(f"{NAME} is there, and is made only once\n")
        return 1
    with backstay.open(store_file) as store:
        fill(store)
        facts.write_text(json.dumps(seen(store), indent=1, ensure_ascii=True) + "\n", "ascii")
    store_file.with_name(f"{NAME}.db-tail").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
