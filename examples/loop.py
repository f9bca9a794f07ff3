"""A plain loop: an agent that can be killed at any instruction and goes on with the same line.

    python examples/loop.py --die      # killed inside the refund
    backstay recover                   # says what is in doubt; you say what happened
    python examples/loop.py            # goes on from there

The model is a script, so that this runs offline; put yours into `ask`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import backstay

Message = dict[str, Any]


def ask(messages: list[Message]) -> Message:
    """Your model: it asks for a refund, then says that it is done."""
    if messages[-1]["role"] == "user":
        call = {"id": "t1", "name": "refund", "args": {"order": 7}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"role": "assistant", "content": "Done: " + messages[-1]["content"], "tool_calls": []}


def refund(order: int) -> str:
    """A tool that must not run twice."""
    if "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)  # the money may have moved; nothing can be recorded any more
    return f"refund for order {order} issued"


def work(run: backstay.Run) -> None:
    """The loop. Each call goes to the journal; each step records the state."""
    run.state.setdefault("messages", [{"role": "user", "content": run.input}])
    while run.state.get("open", True):
        reply = run.call("model", lambda: ask(run.state["messages"]), kind="llm")
        run.append(reply)
        for call in reply["tool_calls"]:
            args = call["args"]
            out = run.call(call["name"], lambda order=args["order"]: refund(order), key=call["id"], args=args)
            run.append({"role": "tool", "tool_call_id": call["id"], "content": out})
        run.use(tokens_in=120, tokens_out=15, cost=0.002)
        run.state["open"] = bool(reply["tool_calls"])
        run.step()


def main() -> None:
    """Start the agent, or resume it: the line is the same."""
    try:
        with backstay.open() as store, store.run("ticket-42", agent="support", input="refund order 7") as run:
            work(run)
    except backstay.InDoubtError as error:
        sys.exit(f"{error}\nSay what happened: backstay recover")
    print(run.state["messages"][-1]["content"], f"({run.usage.cost:.3f} EUR)")


if __name__ == "__main__":
    main()
