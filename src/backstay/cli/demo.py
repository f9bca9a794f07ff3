"""`backstay demo`: an agent is killed inside a tool and carries on; then its history is forked, compared, verified.

The agent is a script (see agent: no model, no network), its process and the kill are real. Every line marked `ok` was
tested against the store, or against what the tools did to the world outside, before it was printed; one that does not
hold ends the demo with exit code 1. Nothing random is printed, so two runs read the same.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

import backstay
from backstay.cli import agent
from backstay.cli.command import Command, json_option

if TYPE_CHECKING:
    from backstay.cli.screen import Piece, Screen

FILE, WORLD = "store.db", "world.txt"
WIDTH = 80
_KILLED = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 1
_PATIENCE_S = 60


@click.command("demo", cls=Command, shape="told*", examples=["backstay demo", "backstay demo --files"])
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the store in this folder (made if it is missing) instead of removing it at the end.",
)
@click.option("--files", is_flag=True, help="One more scene: the files of a workspace, a bisection, and a rewind.")
@json_option
def command(keep: Path | None, *, files: bool, as_json: bool) -> None:
    """Run a story: an agent is killed inside a tool, carries on, and its history is forked, compared and verified.

    The demo takes a few seconds, in a temporary folder that is removed at the end.
    """
    from backstay.cli.screen import Screen
    from backstay.cli.text import safe

    screen = Screen()
    with ExitStack() as cleanup:
        if keep is None:
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="backstay-demo-")))
        else:
            folder = keep
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in (FILE, WORLD, "project"):
                if (folder / name).exists():
                    message = f"{folder / name} is there already"
                    raise backstay.AlreadyExistsError(message, hint="give --keep a new folder; nothing was changed")
        story = JsonStory(screen) if as_json else Story(screen)
        tell(story, folder / FILE, agent.World(folder / WORLD))
        if files:
            from backstay.cli.demo_files import tell_files

            with backstay.open(folder / FILE) as store:
                tell_files(story, store, folder / "project")
    if keep is not None and not as_json:
        screen.line(safe(f"The store is kept: backstay log {agent.SESSION} --store {shlex.quote(str(folder / FILE))}"))


class Story:
    """Tells what happens, and swears to it."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._chapters = 0
        self._title = ""

    def say(self, *pieces: Piece) -> None:
        """A line of the story."""
        self.screen.line(*pieces)

    def chapter(self, title: str) -> None:
        """Begin the next part."""
        self._chapters += 1
        self._title = title
        self.say()
        self.say((f"{self._chapters}. {title}", "bold"))

    def code(self, text: str) -> None:
        """Show what is called."""
        self.say("   ", (text, "cyan"))

    def ok(self, text: str, *, holds: bool) -> None:
        """Say that something holds, if it does; otherwise the demo ends here."""
        if not holds:
            message = f"the demo found this not to hold: {text}"
            raise click.ClickException(message)
        self.swear(text)

    def swear(self, text: str) -> None:
        """It holds."""
        self.say("   ", ("ok", "green"), f"  {text}")

    def history(self, checkpoints: list[backstay.Checkpoint], calls: list[list[backstay.Call]]) -> None:
        """A line per checkpoint, oldest first, with the calls that led to it."""
        self.say(("   step  status       tokens  calls            last message", "dim"))
        for each, made in zip(checkpoints, calls, strict=True):
            tokens = each.usage.tokens_in + each.usage.tokens_out
            names = ", ".join(call.name for call in made)
            row = f"   {each.step or '':>4}  {each.status:<11}  {tokens:>6,}  {names:<15}  {each.summary}"
            self.say((row if len(row) <= WIDTH else row[: WIDTH - 1] + "…").rstrip())

    def diff(self, diff: backstay.Diff) -> None:
        """The difference, as `print(diff)` shows it."""
        for line in str(diff).splitlines():
            mark = line.lstrip()[:1]
            style = {"+": "green", "-": "red", "~": "yellow"}.get(mark, "")
            self.say("   ", (line, style))


class JsonStory(Story):
    """Tells only what holds, an object each."""

    def say(self, *pieces: Piece) -> None:
        """Nothing: a program does not read stories."""

    def swear(self, text: str) -> None:
        """It holds."""
        from backstay import shapes

        self.screen.line(shapes.dump({"chapter": self._chapters, "title": self._title, "holds": text}))


def tell(story: Story, file: Path, world: agent.World) -> None:
    """The whole story. Each process that works on the ticket is a new one, and so is each look at the store."""
    story.say((f"Backstay {backstay.__version__}", "bold"), ": one support ticket, and a kill.")
    story.say("The agent is a script; its process, the kill and the store are real.")
    die(story, file, world)
    with backstay.open(file) as store:
        call = look(story, store, world)
        decide(story, store, call, world)
    go_on(story, file, world)
    with backstay.open(file) as store:
        what_if(story, store, world)
    ask_a_person(story, file, world)
    with backstay.open(file) as store:
        check(story, store)


def die(story: Story, file: Path, world: agent.World) -> None:
    """A process works on the ticket and is killed inside a tool."""
    story.chapter("An agent works on a ticket, and is killed inside a tool.")
    story.code('with store.run("ticket-42", agent="support", input=...) as run: ...')
    with _process(file, world, "refund") as process:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        inside = process.stdout.readline() == b"inside\n"
        process.kill()
        process.wait(_PATIENCE_S)
    story.ok("SIGKILL, after the refund was paid and before the tool could say so", holds=inside)
    story.ok(
        "the process is gone; the money is too: " + world.deeds("refund")[0],
        holds=process.returncode == _KILLED and len(world.deeds("refund")) == 1,
    )


def look(story: Story, store: backstay.Store, world: agent.World) -> backstay.Call:
    """The same, as the store knows it."""
    story.chapter("Look at what is known afterwards.")
    story.code("store.crashed()")
    crashed = store.crashed()
    story.ok(
        f"session {agent.SESSION!r} is listed as crashed",
        holds=[info.id for info in crashed] == [agent.SESSION],
    )
    story.code("session.calls(pending=True)")
    calls = store.session(agent.SESSION).calls(pending=True)
    for call in calls:
        story.say(f"     {call.kind:<5} {call.name:<8} {call.status:<9} {call.args or ''}".rstrip())
    story.ok(
        "the model's answer is kept; the refund is in doubt, with its arguments",
        holds=[(call.name, call.status) for call in calls] == [("model", "done"), ("refund", "in_doubt")],
    )
    before, asked = world.deeds(), False
    try:
        with store.run(agent.SESSION, agent=agent.AGENT, input=agent.QUESTION) as run:
            agent.work(run, world)
    except backstay.InDoubtError:
        asked = True
    holds = asked and world.deeds() == before
    story.ok("the same line again does nothing behind your back: InDoubtError", holds=holds)
    return calls[-1]


def decide(story: Story, store: backstay.Store, call: backstay.Call, world: agent.World) -> None:
    """The refund is looked up outside, and decided."""
    story.chapter("You look at the bank account, and decide.")
    story.code('session.resolve(call.id, result="refund of 49.90 EUR issued")')
    session = store.session(agent.SESSION)
    paid = len(world.deeds("refund")) == 1
    session.resolve(call.id, result="refund of 49.90 EUR issued")
    now = [each.status for each in session.calls(pending=True)]
    story.ok("it was paid, so it is recorded as done", holds=paid and now == ["done", "done"])


def go_on(story: Story, file: Path, world: agent.World) -> None:
    """Another process carries on with the same line."""
    story.chapter("Another process carries on, with the same line of code.")
    with _process(file, world) as process:
        process.wait(_PATIENCE_S)
    with backstay.open(file) as store:
        session = store.session(agent.SESSION)
        log = list(reversed(list(session.log())))
        story.history(log, [session.calls(each) for each in log])
        info = next(store.sessions())
        story.ok(
            "it resumed and finished: completed, nothing pending, nothing crashed",
            holds=process.returncode == 0
            and info.status == backstay.Status.COMPLETED
            and not (store.crashed() or session.calls(pending=True)),
        )
    counts = [len(world.deeds(tool)) for tool in ("look_up", "refund")]
    story.ok("nothing was done twice: one look-up, one refund", holds=counts == [1, 1])
    asked = world.deeds("model")
    once = len(set(asked)) == len(asked)
    story.ok(f"no answer was paid for twice: the model was asked {len(asked)} times", holds=once)


def what_if(story: Story, store: backstay.Store, world: agent.World) -> None:
    """The same agent from the middle, with one message changed."""
    story.chapter("What if the lamp had come 45 days ago? Fork step 1, change one message.")
    session = store.session(agent.SESSION, agent=agent.AGENT)
    first, main, count = session.checkpoint("main~3"), session.head(), store.stats().checkpoints
    story.code('session.fork("main~3", "what-if")')
    session.fork(first, "what-if")
    story.ok("the fork copied nothing: no checkpoint was added", holds=store.stats().checkpoints == count)
    with session.run(branch="what-if") as run:
        told = run.state["messages"][-1]
        told["content"] = told["content"].replace("12 days", "45 days")
        agent.work(run, world)
    story.ok(
        f"its tools were really called: {world.deeds('voucher')[0]}",
        holds=len(world.deeds("voucher")) == 1 and len(world.deeds("refund")) == 1,
    )
    story.ok("and main has not moved", holds=session.head() == main)
    story.code('print(session.diff("main", "what-if"))')
    diff = session.diff("main", "what-if")
    story.diff(diff)
    story.ok(
        "only what the changed message led to differs",
        holds={part.part for part in diff.stat()} == {"messages", "last_tool"},
    )


def ask_a_person(story: Story, file: Path, world: agent.World) -> None:
    """Another ticket waits for an approval; its process ends, an answer comes, and a third process carries on."""
    story.chapter("A large refund waits for a person. No process stays for that.")
    story.code('run.call("refund", fn, args={"order": 8, "euro": 490}, approve=True)')
    with _process(file, world, "approval") as process:
        process.wait(_PATIENCE_S)
    with backstay.open(file) as store:
        waits = store.waiting()
        info = next(info for info in store.sessions() if info.id == agent.LARGE)
        story.ok(
            f"its process has ended; the session waits {waits[0].reason if waits else ''}",
            holds=len(waits) == 1 and info.status == backstay.Status.WAITING and not store.crashed(),
        )
    approved = _answer(story, file)
    with backstay.open(file) as store:
        call = store.session(agent.LARGE).calls(pending=True)[-1]
        story.ok(
            f"the answer is recorded: {'approved' if approved else 'rejected'} by {call.by}",
            holds=call.status == ("done" if approved else "rejected") and not store.waiting(),
        )
    with _process(file, world, "approval") as process:
        process.wait(_PATIENCE_S)
    made = world.deeds("refund order 8")
    with backstay.open(file) as store:
        done = next(info for info in store.sessions() if info.id == agent.LARGE).status == backstay.Status.COMPLETED
    what = "one refund, made once it was approved" if approved else "no refund, and the model knows why"
    story.ok(f"another process carried on with it: {what}", holds=done and len(made) == approved)
    asked = world.deeds("model asked about order 8")
    story.ok("and the model was not asked again", holds=len(asked) == 1)


def _answer(story: Story, file: Path) -> bool:
    """The person at the terminal answers; without one the demo does, from another process."""
    approved = True
    if sys.stdin is not None and sys.stdin.isatty() and not isinstance(story, JsonStory):
        approved = click.confirm("   Refund 490 EUR for order 8?", default=True, err=True)
    words = ["answer", agent.LARGE, "refund", "--by", "you", "--store", str(file), "--yes" if approved else "--no"]
    story.code(f"$ backstay answer {agent.LARGE} {words[-1]} --by you")
    subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "backstay", *words],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=_PATIENCE_S,
        process_group=0,
    )
    return approved


def check(story: Story, store: backstay.Store) -> None:
    """Go back and forth, then read everything again."""
    story.chapter("Go back, and check. A restore can be undone; everything is read again.")
    session = store.session(agent.SESSION)
    end = session.checkpoint()
    story.code('session.restore("main~3"); session.undo()')
    session.restore("main~3")
    went_back = bool(session.diff(end, "main"))
    session.undo()
    story.ok("main went back to step 1 and forward again", holds=went_back and not session.diff(end, "main"))
    story.code("store.verify(); store.stats()")
    report, stats = store.verify(), store.stats()
    story.ok(f"{report.checked} checkpoints verified, no problems", holds=report.ok)
    story.ok(
        f"{_kb(stats.logical_bytes)} as plain copies, {_kb(stats.stored_bytes)} on disk",
        holds=stats.checkpoints == report.checked and stats.stored_bytes < stats.logical_bytes,
    )


@contextmanager
def _process(file: Path, world: agent.World, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """An agent's process. Ctrl-C reaches the demo alone, which ends it."""
    command = [sys.executable, "-m", "backstay.cli.agent", str(file), str(world.path), *more]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=0) as process:  # noqa: S603 - our own module
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _kb(size_bytes: int) -> str:
    return f"{size_bytes / 1000:,.0f} kB"
