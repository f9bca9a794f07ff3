"""The agents of the demo: a few days of made-up work, written through the same calls that any agent makes.

    python -m backstay.web.demo_agents STORE

This process lives on a clock of its own, so that hours of work take a second to write; and it ends by being killed
inside a tool, as the story wants.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import backstay

if TYPE_CHECKING:
    from backstay.face import Session
    from backstay.run import Run

_ANSWER_TOKENS = 400


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def passes(self, **amount: float) -> None:
        """So much later."""
        self.at += timedelta(**amount)

    def ns(self) -> int:
        """Nanoseconds of the calendar."""
        return int(self.at.timestamp() * 1_000_000) * 1000


class Tool(NamedTuple):
    """A tool that an answer calls: its arguments, what it gives, how long it takes, and what it does besides."""

    name: str
    args: dict[str, Any]
    out: str
    seconds: float
    work: Callable[[], object] = str


class Agent:
    """Plays steps of a run: an answer of the model, then its tools."""

    def __init__(self, clock: Clock, *, price: float = 4.1e-6) -> None:
        self._clock, self._price, self._count = clock, price, 0

    def step(self, run: Run, text: str, *tools: Tool, think_s: float = 3.0, tokens: int = 2000) -> None:
        """One step, up to its boundary."""
        self._clock.passes(seconds=0.4)
        calls: list[dict[str, Any]] = []
        for tool in tools:
            self._count += 1
            calls.append({"id": f"call_{self._count}", "name": tool.name, "args": tool.args})
        reply: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            reply["tool_calls"] = calls
        run.append(run.call("model", self._taking(think_s, reply), kind="llm"))
        for tool, call in zip(tools, calls, strict=True):
            out = run.call(tool.name, self._taking(tool.seconds, tool.out, tool.work), key=call["id"], args=tool.args)
            run.append({"role": "tool", "tool_call_id": call["id"], "content": out})
        run.use(tokens_in=tokens, tokens_out=_ANSWER_TOKENS, cost=round((tokens + 5 * _ANSWER_TOKENS) * self._price, 4))
        run.step()

    def _taking(self, seconds: float, out: Any, work: Callable[[], object] = str) -> Callable[[], Any]:
        def made() -> Any:
            self._clock.passes(seconds=seconds)
            work()
            return out

        return made


def say(run: Run, text: str) -> None:
    """The first message of a session."""
    run.state.setdefault("messages", [{"role": "user", "content": text}])


def shell(command: str, out: str, seconds: float = 9.8) -> Tool:
    """A command at a shell."""
    return Tool("bash", {"command": command}, out, seconds)


def tests(out: str, seconds: float) -> Tool:
    """The tests of the module that is mended."""
    return shell("pytest tests/auth -q", out, seconds)


def read(path: str, lines: int) -> Tool:
    """A file is read."""
    return Tool("read_file", {"path": path}, f"{lines} lines", 0.2)


def edit(path: str, words: str) -> Tool:
    """An edit of a file."""
    return Tool("edit_file", {"path": path, "change": words}, f"{path} written", 0.3)


FAILED = """......................F
================================= FAILURES =================================
_____________________ test_remember_me_survives_31_days ____________________
    sign_in(client, remember=True)
    travel(days=31)
>   assert client.get("/account").status == 200
E   assert 302 == 200
tests/auth/test_remember.py:90: AssertionError
""" + "\n".join(f"tests/auth/test_session.py::test_{n:03d} PASSED" for n in range(60))


def days_ago(store: backstay.Store, clock: Clock) -> None:
    """Sessions of the last days, the oldest first."""
    support, coder = Agent(clock, price=1.1e-6), Agent(clock)
    look = Tool("look_up_order", {"order": "A-20188"}, "1 parcel, sent 12 days ago, no scan since", 0.7)
    with store.session("ticket-8790", agent="support", title="Lost parcel, order A-20188").run() as run:
        say(run, "My parcel has not come in two weeks. Order A-20188.")
        support.step(run, "I look it up.", look, tokens=1900)
        support.step(
            run, "I send a replacement.", Tool("send_again", {"order": "A-20188"}, "sent, DHL 4471", 1.2), tokens=2300
        )
        support.step(run, "A replacement is on its way.", think_s=2.0, tokens=2500)
    clock.passes(hours=22)
    with tempfile.TemporaryDirectory() as folder:
        scheduler(store, coder, Path(folder, "scheduler"))
    clock.passes(hours=14)
    with store.session("search-spike", agent="coder", title="Try the new search index").run() as run:
        say(run, "See whether the new index makes the search faster.")
        for n in range(5):
            coder.step(
                run,
                "I measure again.",
                shell(f"bench search --size {10 ** (n + 2)}", f"{12 * (n + 1)} ms", 14.0 + n),
                tokens=5200 + 500 * n,
            )
        run.cancel("superseded by importer-stream")
    clock.passes(hours=9)


def scheduler(store: backstay.Store, agent: Agent, folder: Path) -> None:
    """A session with files: a test that fails now and then, and its repair."""
    queue, secret = folder / "app" / "queue.py", folder / ".env"
    for path, text in ((queue, QUEUE), (folder / "tests" / "test_order.py", TEST), (secret, "TOKEN=made-up\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "queue.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(2000))
    title = "Flaky test in the scheduler"
    with store.session("flaky-scheduler", agent="coder", title=title, workspace=folder).run() as run:
        say(run, "tests/test_order.py fails once in fifty runs. Find out why.")
        for n, found in enumerate(("1 failed in 50 runs", "the queue is read before it is sorted")):
            runs = shell(f"pytest tests --count {50 * 4**n}", found, 31.0 + 9 * n)
            agent.step(run, f"Attempt {n + 1}.", runs, tokens=6100 + 900 * n)
        mended = QUEUE.replace("items = list(self._items)\n", "items = sorted(self._items, key=_turn)\n")
        mended = mended.replace("        items.sort(key=_turn)\n", "")
        repair = edit("app/queue.py", "+1 −2")._replace(work=lambda: queue.write_text(mended))
        agent.step(run, "The queue is sorted before it is read.", repair, tokens=7900)
        note = edit("CHANGELOG.md", "+3")._replace(work=lambda: (folder / "CHANGELOG.md").write_text(CHANGES))
        agent.step(run, "Fixed.", note, shell("pytest --count 500", "500 runs, 0 failures", 88.0))


QUEUE = """import heapq


def _turn(job):
    return job.due, job.number


class Queue:
    \"\"\"Jobs in the order of their turns.\"\"\"

    def __init__(self):
        self._items = []

    def put(self, job):
        heapq.heappush(self._items, job)

    def ready(self, now):
        items = list(self._items)
        found = [job for job in items if job.due <= now]
        items.sort(key=_turn)
        return found
"""
TEST = """def test_jobs_come_in_order(queue, clock):
    for number in (3, 1, 2):
        queue.put(job(number, due=clock.now))
    assert [job.number for job in queue.ready(clock.now)] == [1, 2, 3]
"""
CHANGES = """# Changes

- The scheduler runs jobs of one moment in the order of their numbers.
"""


def hours_ago(store: backstay.Store, clock: Clock) -> None:
    """Sessions since yesterday."""
    support, coder, writer = Agent(clock, price=1.1e-6), Agent(clock), Agent(clock, price=2.2e-6)
    with store.session("notes-3.2", agent="writer", title="Draft the 3.2 release notes").run() as run:
        say(run, "Draft the notes for 3.2. Publish on Monday.")
        writer.step(run, "A first draft.", Tool("read_file", {"path": "CHANGELOG.md"}, "41 entries", 0.2), tokens=7200)
        writer.step(run, "Shorter, with the three things people asked for on top.", think_s=12.0, tokens=8100)
        run.sleep(until=datetime.now(UTC) + timedelta(days=3))
    clock.passes(hours=5)
    with store.session("deps-1114", agent="coder", title="Nightly dependency update").run() as run:
        say(run, "Update the dependencies and run the tests.")
        for n in range(3):
            coder.step(
                run,
                "I try again.",
                shell("npm ci", "npm error code ERESOLVE\nexit status 1", 41.0),
                tokens=4100 + 700 * n,
            )
        run.fail("npm ci gave exit status 1, three times")
    clock.passes(hours=6, minutes=40)
    with store.session("ticket-8809", agent="support", title="Double charge on invoice 2026-1107").run() as run:
        say(run, "I was charged twice for invoice 2026-1107.")
        support.step(
            run,
            "I look.",
            Tool("invoices", {"number": "2026-1107"}, "2 payments of 49.00 EUR, 3 min apart", 0.9),
            tokens=1700,
        )
        support.step(
            run,
            "One is paid back.",
            Tool("refund", {"invoice": "2026-1107", "euro": 49}, "refund of 49.00 EUR issued", 1.4),
            tokens=2000,
        )
        support.step(run, "You were charged twice; 49.00 EUR are on their way back.", tokens=2100)
    clock.passes(minutes=50)
    churn = store.session("churn-2026-46", agent="analyst", title="Weekly churn report")
    for n, part in enumerate(("collect", "clean", "join", "model", "plot", "write")):
        clock.passes(seconds=41)
        churn.commit(
            {"phase": part, "rows": 120_400 - 900 * n, "tables": ["accounts", "events"][: n + 1]},
            step=n + 1,
            usage=backstay.Usage(5200 + 800 * n, 300, 0.021 + 0.004 * n),
            summary=f"{part}: {120_400 - 900 * n:,} rows",
        )


def waiting(store: backstay.Store, clock: Clock) -> None:
    """Two sessions that wait for a person."""
    support = Agent(clock, price=1.1e-6)
    with store.session("ticket-8812", agent="support", title="Refund for order A-20417").run() as run:
        say(run, "The lamp of order A-20417 arrived broken. I attach a photo.")
        support.step(
            run,
            "I look at the order.",
            Tool("look_up_order", {"order": "A-20417"}, "lamp, 129.00 EUR, delivered yesterday", 0.8),
            tokens=1800,
        )
        args = {"order": "A-20417", "amount": 129.0, "currency": "EUR", "reason": "arrived broken, photo attached"}
        run.call("refund", lambda args: f"refund of {args['amount']:.2f} EUR issued", args=args, approve=True)
    clock.passes(minutes=2)
    with store.session("onboarding-mail", agent="writer", title="Mail for new customers").run() as run:
        say(run, "Write the mail that new customers get.")
        support.step(run, "Two drafts are ready.", tokens=2600)
        run.wait("tone", ask={"question": "Shall the mail be formal or friendly?", "drafts": 2})


def coder(store: backstay.Store, clock: Clock) -> None:
    """The long one: branches, a restore and its undo, a child session, and a crash at the end."""
    session = store.session("fix-login-bug", agent="coder", title="Fix sign-out after 30 days")
    agent = Agent(clock)
    search(session, agent, clock)
    try_ways(session, agent, clock)
    go_back(session, agent, clock)
    finish(session, agent, clock)


def search(session: Session, agent: Agent, clock: Clock) -> None:
    """The bug is looked for; a branch writes the docs meanwhile."""
    with session.run() as run:
        say(
            run,
            "People are signed out after 30 days although they ticked “remember me”. Find it and fix it, and do not "
            "touch the public API.",
        )
        run.state["plan"] = {"done": 0, "steps": ["find the clamp", "fix it", "test it"]}
        run.checkpoint("asked")
        looks = (
            ("I search for the setting.", Tool("search", {"text": "remember_me"}, "14 hits in 6 files", 0.6), 2.3, 700),
            ("The session first.", read("app/auth/session.py", 204), 1.6, 1500),
            ("Then the cookies.", read("app/auth/cookies.py", 118), 1.4, 2500),
            ("What do the tests say?", tests("2 failed, 41 passed", 12.6), 1.7, 3300),
        )
        for text, tool, think_s, tokens in looks:
            agent.step(run, text, tool, think_s=think_s, tokens=tokens)
        run.pause("for lunch")
    session.tag("main~4", "asked")
    session.fork("main~2", "docs-only")
    with session.run(branch="docs-only") as run:
        agent.step(run, "Only the docs.", edit("docs/sessions.md", "+12"), think_s=4.2, tokens=1900)
    clock.passes(hours=2, minutes=14)
    with session.run() as run:
        agent.step(run, "The cookie outlives the token; max_age is clamped in two places.", think_s=9.3, tokens=3900)
        run.pause("to try two ways")
    session.tag("main", "before-edit")
    clock.passes(minutes=2)


def try_ways(session: Session, agent: Agent, clock: Clock) -> None:
    """One way on a branch, another on main, which goes wrong."""
    session.fork("main", "try-cookie")
    with session.run(branch="try-cookie") as run:
        agent.step(run, "The cookie alone.", edit("app/auth/cookies.py", "+4 −1"), think_s=6.0, tokens=4000)
        agent.step(run, "Does it hold?", tests("1 failed, 42 passed", 9.9), think_s=1.9, tokens=4400)
        run.pause("to look at main")
    with session.run() as run:
        run.state["plan"]["done"] = 1
        agent.step(
            run,
            "I start with the session policy, then the token.",
            edit("app/auth/session.py", "+11 −3"),
            think_s=7.2,
            tokens=4500,
        )
        clock.passes(minutes=3)
        agent.step(run, "Now the token.", edit("app/auth/tokens.py", "+22 −9"), think_s=11.4, tokens=5000)
        agent.step(run, "Now the tests of this module.", tests(FAILED, 10.2), think_s=2.1, tokens=5400)
        run.pause("that went wrong")
    clock.passes(seconds=50)


def go_back(session: Session, agent: Agent, clock: Clock) -> None:
    """A restore, a third way, and the restore undone."""
    session.restore("before-edit")
    session.fork("main~2", "try-token")
    clock.passes(minutes=2)
    with session.run(branch="try-token") as run:
        agent.step(
            run, "Keep the family, change the lifetime.", edit("app/auth/tokens.py", "+9 −2"), think_s=8.8, tokens=5500
        )
        agent.step(run, "Does it hold?", tests("3 failed, 40 passed", 9.4), think_s=2.0, tokens=5900)
        run.pause("to think")
    with session.run(branch="try-cookie") as run:
        agent.step(run, "The cookie alone is not enough, the token still ends on day 30.", think_s=5.1, tokens=5000)
        run.halt("not enough")
    clock.passes(minutes=2)
    session.undo()
    clock.passes(minutes=5)


def finish(session: Session, agent: Agent, clock: Clock) -> None:
    """Both clamps go, a child reviews, and the process dies while it pushes."""
    with session.run() as run:
        run.state["plan"]["done"] = 2
        text = (
            "The restore showed it: with the cookie alone the token still ends on day 30. There is a second clamp in "
            "issue_token. I will let the policy decide and drop both min() calls."
        )
        agent.step(
            run, text, edit("app/auth/tokens.py", "+6 −14"), edit("app/auth/session.py", "+1"), think_s=7.7, tokens=7400
        )
        clock.passes(minutes=2)
        with run.child("review", input={"of": "app/auth"}) as review:
            say(review, "Review the change in app/auth.")
            agent.step(
                review,
                "I read it.",
                read("app/auth/tokens.py", 96),
                think_s=6.0,
                tokens=2100,
            )
            agent.step(review, "Two remarks, no blocker.", think_s=11.0, tokens=2600)
        run.append({"role": "user", "content": "Review: two remarks, no blocker."})
        run.use(tokens_in=300, cost=0.002)
        run.step()
        run.pause("for the review")
    with session.run(branch="try-token") as run:
        agent.step(
            run,
            "With the second clamp gone.",
            tests("43 passed", 9.1),
            think_s=2.2,
            tokens=6600,
        )
    session.tag("try-token", "green")
    clock.passes(minutes=8)
    with session.run() as run:
        run.state["plan"]["done"] = 3
        agent.step(run, "Both remarks are in.", tests("43 passed", 9.8), think_s=2.4, tokens=8400)
        agent.step(run, "Both clamps are gone; 43 tests pass. Pushing the branch now.", think_s=6.2, tokens=8700)
        clock.passes(seconds=2)
        run.call("git_push", _dies, key="push-1", args={"remote": "origin", "ref": "fix/remember-me"})


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(place: str) -> None:
    """Write the store, and die."""
    begun = datetime.now(UTC)
    clock = Clock(begun - timedelta(days=2, hours=15))
    time.time_ns = clock.ns  # this process has no other clock
    with backstay.open(place, durability="relaxed") as store:
        days_ago(store, clock)
        hours_ago(store, clock)
        clock.at = begun - timedelta(minutes=17)
        waiting(store, clock)
        clock.at = begun - timedelta(hours=2, minutes=48)
        coder(store, clock)


if __name__ == "__main__":
    main(sys.argv[1])
