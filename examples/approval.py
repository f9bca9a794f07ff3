"""Human in the loop: a refund waits for an approval, its process ends, and another one goes on with the answer.

    python examples/approval.py                     # left waiting
    backstay waiting                                # what is asked, since when
    backstay answer ticket-44 --yes                 # or --no --reason "…", or --yes --edit '{"order": 7, "euro": 40}'
    python examples/approval.py                     # goes on, once

`python examples/approval.py --worker` stays, and goes on by itself within half a second of the answer.
"""

from __future__ import annotations

import sys
from typing import Any

import backstay


def refund(args: dict[str, Any]) -> str:
    """The tool is given the args as they were approved: a person may have edited them."""
    return f"order {args['order']}: {args['euro']} EUR paid back"


def work(run: backstay.Run) -> None:
    """Ask for an approval of exactly these args, then make the call."""
    run.state.setdefault("messages", [{"role": "user", "content": run.input}])
    try:
        out = run.call("refund", refund, args={"order": 7, "euro": 49}, approve=True)
    except backstay.CallFailedError as error:
        out = f"The refund was refused: {error.text}"  # a rejection is an answer too: tell it to the model
    run.append({"role": "assistant", "content": out})
    run.step()


def main() -> None:
    """Start, resume, or work for others."""
    with backstay.open() as store:
        if "--worker" in sys.argv:
            print(backstay.recover(store, work, wait_s=60))
            return
        with store.run("ticket-44", agent="support", input="refund order 7") as run:
            work(run)
        for wait in store.waiting():
            print(wait)
        if run.head is not None and run.head.status == backstay.Status.COMPLETED:
            print(run.state["messages"][-1]["content"])


if __name__ == "__main__":
    main()
