"""Many workers on one store: each session is handled by one of them, and a worker that dies is replaced.

    pip install 'backstay[postgres]'
    export BACKSTAY_URL=postgresql://localhost/agents      # without it: the `.backstay/` here, one machine
    python examples/workers.py add 20
    python examples/workers.py work &
    python examples/workers.py work &                      # on as many machines as you like

`recover` takes up what crashed, what was answered and what is due. `wait_s` is how long a worker looks for more.
"""

from __future__ import annotations

import sys

import backstay


def work(run: backstay.Run) -> None:
    """One job: a call, and a checkpoint."""
    text = run.receive("job") if "text" not in run.state else run.state["text"]
    run.state["text"] = text
    run.state["length"] = run.call("count", lambda: len(text), args={"text": text})
    run.step()


def main(words: list[str]) -> None:
    """Add jobs, or work on them."""
    with backstay.open() as store:
        if words[:1] == ["add"]:
            for number in range(int(words[1])):
                with store.run(f"job-{number}", agent="counter") as run:
                    run.receive("job")  # the run is left waiting: it holds nothing until the job is there
                store.session(f"job-{number}").send("job", "x" * number)
        else:
            report = backstay.recover(store, work, agent="counter", wait_s=float((words[1:] or ["60"])[0]))
            print(report)


if __name__ == "__main__":
    main(sys.argv[1:])
