"""`holdfast demo`: the story of a session, really run in a store of its own.

A scripted support agent (no model, no network) answers a ticket; its history is then forked, compared, restored and
checked. Every line marked `ok` was tested against the store before it was printed, and one that does not hold ends the
demo with exit code 1. Nothing random is printed (checkpoints go by their steps and labels), so two runs read the same.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import holdfast

if TYPE_CHECKING:
    from holdfast.cli.screen import Screen

REFUND_DAYS = 30
FILE = "store.db"
WIDTH = 80

# As long as such things are. It is in every state, and stored once.
SYSTEM = "You are the support agent of a lamp shop. Be kind, be brief, follow the rules.\n" + "\n".join(
    f"Rule {n}. For orders of category {n}: ask for the order, look it up before you answer, refund in full within "
    f"{REFUND_DAYS} days of delivery, offer a voucher afterwards, and never promise what a tool has not confirmed."
    for n in range(1, 61)
)


class Step(NamedTuple):
    """What the agent does next: the name of the step and the message it adds."""

    label: str
    message: dict[str, Any]


@click.command("demo")
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the store in this folder (made if it is missing) instead of removing it at the end.",
)
def command(keep: Path | None) -> None:
    """Run the story of one session: an agent works, and its history is forked, compared, restored, undone, verified.

    Everything happens in a temporary folder that is removed at the end. Takes about a second.
    """
    from holdfast.cli.screen import Screen

    screen = Screen()
    with ExitStack() as cleanup:
        if keep is None:
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-")))
        else:
            folder = keep
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (folder / FILE).exists():
                message = f"{folder / FILE} is there already"
                raise holdfast.AlreadyExistsError(message, hint="give --keep a new folder; nothing was changed")
        tell(Story(screen), folder / FILE)
    if keep is not None:
        screen.line(f"The store is kept: holdfast.open({str(folder / FILE)!r})")


class Story:
    """Tells what happens, and swears to it."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._chapters = 0

    def chapter(self, title: str) -> None:
        """Begin the next part."""
        self._chapters += 1
        self.screen.line()
        self.screen.line((f"{self._chapters}. {title}", "bold"))

    def code(self, text: str) -> None:
        """Show what is called."""
        self.screen.line("   ", (text, "cyan"))

    def ok(self, text: str, *, holds: bool) -> None:
        """Say that something holds, if it does; otherwise the demo ends here."""
        if not holds:
            message = f"the demo found this not to hold: {text}"
            raise click.ClickException(message)
        self.screen.line("   ", ("ok", "green"), f"  {text}")

    def history(self, checkpoints: list[holdfast.Checkpoint]) -> None:
        """A line per checkpoint, oldest first."""
        self.screen.line(("   step  label       tokens  last message", "dim"))
        for each in checkpoints:
            tokens = each.usage.tokens_in + each.usage.tokens_out
            row = f"   {each.step or '':>4}  {each.label or each.trigger:<10}  {tokens:>6,}  {each.summary}"
            self.screen.line(row if len(row) <= WIDTH else row[: WIDTH - 1] + "…")

    def diff(self, diff: holdfast.Diff) -> None:
        """What differs, as `print(diff)` shows it."""
        for line in str(diff).splitlines():
            mark = line.lstrip()[:1]
            style = {"+": "green", "-": "red", "~": "yellow"}.get(mark, "")
            self.screen.line("   ", (line, style))


def tell(story: Story, file: Path) -> None:
    """The whole story, in a store that is closed and opened again between its parts."""
    story.screen.line((f"Holdfast {holdfast.__version__}", "bold"), ": one support ticket, kept step by step.")
    story.screen.line("The agent is a script; the store is real, and so is each line marked ok.")
    with holdfast.open(file) as store:
        last = work(story, store.session("ticket-42", agent="support"))
    with holdfast.open(file) as store:
        session = store.session("ticket-42", agent="support")
        story.ok("closed and opened again: the same head, the same digest", holds=session.head() == last)
        fork(story, store, session)
        go_back(story, session)
    with holdfast.open(file) as store:
        check(story, store)


def work(story: Story, session: holdfast.Session) -> holdfast.Checkpoint:
    """An agent answers a ticket; returns the last checkpoint."""
    story.chapter("An agent works. Every step is a checkpoint, on disk when commit returns.")
    story.code('session.commit(state, step=1, label="asked", usage=...)')
    session.commit({"system": SYSTEM, "messages": [QUESTION], "open": True}, step=1, label="asked")
    last = carry_on(session, "main")
    log = list(reversed(list(session.log())))
    story.history(log)
    linked = all(after.parent_digest == before.digest for before, after in pairwise(log))
    story.ok(f"{len(log)} checkpoints, each sealed with the digest of the one before it", holds=linked and len(log) > 1)
    return last


def fork(story: Story, store: holdfast.Store, session: holdfast.Session) -> None:
    """The same agent from the middle, with one message changed."""
    story.chapter("What if the lamp had come 45 days ago? Fork step 3, change one message.")
    story.code('session.fork("main~3", "what-if")')
    before, main = store.stats().checkpoints, session.head()
    middle = session.fork("main~3", "what-if").head
    story.ok("the fork copied nothing: no checkpoint was added", holds=store.stats().checkpoints == before)
    story.code('state = session.load("what-if"); state["messages"][-1]["content"] = ...')
    state = session.load("what-if")
    state["messages"][-1]["content"] = state["messages"][-1]["content"].replace("12 days", "45 days")
    session.commit(state, branch="what-if", step=middle.step, label="changed")
    carry_on(session, "what-if")
    branch = [each for each in session.log("what-if") if each.branch == "what-if"]
    story.history(list(reversed(branch)))
    story.ok(
        f"the new branch stands on step {middle.step} of main, and main has not moved",
        holds=branch[-1].parent_id == middle.id and session.head() == main,
    )
    story.screen.line()
    story.code('print(session.diff("main", "what-if"))')
    diff = session.diff("main", "what-if")
    story.diff(diff)
    differ = {part.part for part in diff.stat()}
    story.ok("only what the changed message led to differs", holds=differ == {"messages", "decision"})


def go_back(story: Story, session: holdfast.Session) -> None:
    """Restore, and take it back."""
    story.chapter("Go back. A restore is a new checkpoint, so it can be undone too.")
    end, early = session.checkpoint(), session.checkpoint("main~4")
    length = len(list(session.log()))
    story.code('session.restore("main~4")')
    restored = session.restore("main~4")
    story.ok(
        f"main holds the state of step {early.step} again ({len(session.load()['messages'])} messages)",
        holds=restored.restored_from == early.id and not session.diff(early, "main"),
    )
    story.code("session.undo()")
    session.undo()
    story.ok(
        f"main holds the state of step {end.step} again ({len(session.load()['messages'])} messages)",
        holds=not session.diff(end, "main"),
    )
    log = list(session.log())
    story.ok(
        f"nothing was lost: {length} checkpoints before, {len(log)} now, the old ones among them",
        holds=len(log) == length + 2 and log[2] == end,
    )


def check(story: Story, store: holdfast.Store) -> None:
    """Everything read again, and how much space it takes."""
    story.chapter("Check. Everything is read again and compared with its digests.")
    story.code("store.verify(); store.stats()")
    report, stats = store.verify(), store.stats()
    story.ok(f"{report.checked} checkpoints verified, no problems", holds=report.ok)
    (info,) = store.sessions()
    story.ok(
        f"session {info.id!r}: {info.branches} branches, {info.checkpoints} checkpoints, {info.status}",
        holds=info.checkpoints == report.checked == stats.checkpoints and info.status == holdfast.Status.COMPLETED,
    )
    story.ok(
        f"{_kb(stats.logical_bytes)} as plain copies, {_kb(stats.stored_bytes)} on disk",
        holds=stats.stored_bytes < stats.logical_bytes,
    )


def carry_on(session: holdfast.Session, branch: str) -> holdfast.Checkpoint:
    """Run the agent on a branch to its end, a checkpoint a step; returns the last."""
    head = session.checkpoint(branch)
    state = session.load(branch)
    while (step := decide(state["messages"])) is not None:
        state["messages"].append(step.message)
        state["open"] = step.label != "answered"
        if step.label == "decide":
            state["decision"] = step.message["tool_calls"][0]["name"]
        said = step.message["role"] == "assistant"
        usage = holdfast.Usage(tokens_in=len(str(state)) // 4, tokens_out=len(str(step.message)) // 4)
        head = session.commit(
            state,
            branch=branch,
            step=(head.step or 0) + 1,
            label=step.label,
            usage=usage if said else None,
            status=None if state["open"] else holdfast.Status.COMPLETED,
        )
    return head


QUESTION = {"role": "user", "content": "My lamp (order 7) came broken. Refund?"}


def decide(messages: list[dict[str, Any]]) -> Step | None:
    """The agent and its tools, as a script: what follows depends on the messages alone."""
    last = messages[-1]
    match last["role"]:
        case "user":
            return Step("look up", call("order", "number=7"))
        case "assistant" if last.get("tool_calls"):
            name = last["tool_calls"][0]["name"]
            answers = {
                "order": Step("order", tool("lamp, 49.90 EUR, delivered 12 days ago")),
                "refund": Step("refunded", tool("refund of 49.90 EUR issued")),
                "voucher": Step("vouched", tool("voucher of 10.00 EUR sent")),
            }
            return answers[name]
        case "tool" if "delivered" in last["content"]:
            days = int(last["content"].split()[-3])
            in_time = days <= REFUND_DAYS
            return Step("decide", call("refund", "order=7") if in_time else call("voucher", "order=7, euro=10"))
        case "tool":
            return Step("answered", {"role": "assistant", "content": f"Sorry! Done: {last['content']}."})
    return None


def call(name: str, arguments: str) -> dict[str, Any]:
    """A message in which the agent calls a tool."""
    return {"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": arguments}]}


def tool(content: str) -> dict[str, Any]:
    """A message in which a tool answers."""
    return {"role": "tool", "content": content}


def _kb(size_bytes: int) -> str:
    return f"{size_bytes / 1000:,.0f} kB"
