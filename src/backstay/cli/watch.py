"""`backstay watch -- CMD`: run any agent, and record the folder while it works.

The command has the terminal, its input and its signals to itself; nothing is printed until it ends. The folder is
looked at again and again, at most a twentieth of the time. Once something changed and then stayed as it is for a moment
it is a checkpoint, with the command as its author: `rewind` puts back what the command did and keeps what you do later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.store_option import is_there, open_store, store_option
from backstay.cli.workspace_option import refuse_folder

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from backstay.face import Store
    from backstay.run import Run
    from backstay.run.calling import Calling
    from backstay.workspace.policy import Workspace

_QUIET_S = 0.2
_PAUSE_S = 0.5
_SHARE = 20  # of the time, at most one part is spent on looking
_MOST_TRIES = 10  # that a folder is given to become quiet before it is recorded as it is
_NOT_FOUND, _NOT_RUNNABLE, _BY_SIGNAL = 127, 126, 128


@click.command(
    "watch",
    cls=Command,
    shape="watched",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples=["backstay watch -- codex", "backstay watch --session fix-bug -- gemini -p 'mend the tests'"],
)
@click.option("--session", metavar="NAME", help="The session; by default the command and the time.")
@click.option("--workspace", metavar="DIR", default=".", help="The folder that is recorded; by default this one.")
@click.argument("words", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@json_option
@store_option
def command(url: str | None, words: tuple[str, ...], *, session: str | None, workspace: str, as_json: bool) -> None:
    """Run CMD and record this folder as it changes; exits as CMD does.

    For agents without hooks of their own (Codex, Gemini, opencode) and for any other command; `backstay rewind` puts
    back all that it changed. The session has failed if CMD cannot be started or a signal ends it. --json prints its
    line when CMD has ended, behind what CMD printed.
    """
    where = backstay.Workspace(workspace)
    if not is_there(url):  # else the run refuses it, and no store is left behind
        refuse_folder(where)
    name = session or f"{Path(words[0]).name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with open_store(url, makes=True) as store:
        code = _run(store, name, words, where, as_json=as_json)
    click.get_current_context().exit(code)


def _run(store: Store, name: str, words: tuple[str, ...], where: Workspace, *, as_json: bool) -> int:
    line = " ".join(words)
    with _ours(), store.run(name, workspace=where, input=line, restart=True) as run:
        if not isinstance(run.state.get("messages"), list):
            run.state["messages"] = []
        run.append({"role": "user", "content": line})
        run.checkpoint()
        code, failure = _watch(run, words)
        run.state["exit_code"] = code
        if failure is not None:
            run.checkpoint()
        problem = None if run.files is None else run.files.problem
        if failure is not None:
            run.fail(failure)
    if as_json:
        from backstay import shapes

        count = sum(1 for _ in store.session(name).log())
        click.echo(shapes.dump({"session": name, "exit_code": code, "checkpoints": count, "problem": problem}))
    elif problem is not None:
        click.echo(f"backstay: the folder could not be captured at the end: {problem}", err=True)
    return code


def _watch(run: Run, words: tuple[str, ...]) -> tuple[int, str | None]:
    """Start the command and record what it changes: its exit code, and why it failed if it had no end of its own."""
    import subprocess

    calling = _begin(run, words, 1)
    try:
        child = subprocess.Popen(words)  # noqa: S603 - it is what the user typed
    except OSError as error:
        with contextlib.suppress(backstay.CallFailedError):
            calling.give_up(error)
        failure = f"{words[0]}: {error.strerror}"
        click.echo(f"backstay: {failure}", err=True)
        return (_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE), failure
    with _passing_on(child):
        try:
            calling = _record(run, words, child, calling)
        except BaseException:
            child.wait()  # whatever is wrong with the store, the command goes on to its end
            raise
        code = child.returncode if child.returncode >= 0 else _BY_SIGNAL - child.returncode
        calling.finish({"exit_code": code})
    return code, f"{words[0]} was ended by signal {-child.returncode}" if child.returncode < 0 else None


def _record(run: Run, words: tuple[str, ...], child: subprocess.Popen[bytes], calling: Calling) -> Calling:
    """Record what the command changes until it has ended; the call that is then in flight."""
    number, pause_s = 1, _PAUSE_S
    while not _has_ended(child, pause_s):
        began = time.monotonic()
        changes = run.files.unrecorded().changes if run.files is not None else ()
        pause_s = max(_PAUSE_S, _SHARE * (time.monotonic() - began))
        if changes:
            _wait_for_quiet(run, child, changes)
            calling.finish(None)
            run.step()
            number += 1
            calling = _begin(run, words, number)
    return calling


def _begin(run: Run, words: tuple[str, ...], number: int) -> Calling:
    """The command is the author of each change from now on, and of those made a moment ago: it does not wait."""
    if number > 1 and run.files is not None:
        run.files.unrecorded(look=False)
    return run.begin(Path(words[0]).name, key=str(number), args={"command": list(words)})


def _wait_for_quiet(run: Run, child: subprocess.Popen[bytes], before: Any) -> None:
    """Wait until what changed has been left alone for a moment, or will not be."""
    assert run.files is not None  # noqa: S101 - something of them changed
    for _ in range(_MOST_TRIES):
        if _has_ended(child, _QUIET_S):
            return
        now = run.files.unrecorded().changes
        if now == before:
            return
        before = now


def _has_ended(child: subprocess.Popen[bytes], seconds: float) -> bool:
    import subprocess

    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """Ctrl-C is the command's: it comes to both, and we stay until the command has ended."""
    # A function, not SIG_IGN: what is ignored stays ignored in the command.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals that end a process come to us alone: the command is given them, and we wait for it."""

    def pass_on(number: int, _: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    names = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, pass_on) for number in names}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
