"""The command line: `backstay COMMAND`. Here are the list of commands, `main`, and what a failure looks like.

A command is one module of this package with a click command called `command`, and one line in `COMMANDS`. It is
imported when it is asked for, and it loads what is heavy (the store's driver, the terminal library) when it runs, so
that `backstay --help` stays quick. The public face of Backstay is used; nothing here knows how anything is stored.
"""

from __future__ import annotations

import importlib
import io
import keyword
import os
import sys
from collections.abc import Callable, Sequence

import click

from backstay import BackstayError, __version__
from backstay.cli.exit_codes import DONE, FAILED, INTERRUPTED, PIPE_CLOSED, code_of, words_of

# By what people come for: name, and what `backstay --help` says about it without loading it.
GROUPS = {
    "Start": {
        "demo": "Watch an agent get killed and carry on; a real run.",
        "web": "Open the store in a browser, on this computer.",
        "init": "Make a store; have Claude Code record here.",
        "watch": "Run any agent or command, and record the folder as it changes.",
        "status": "The store at a glance, and the runs that need a decision.",
        "doctor": "Check this machine and the store; say what is not covered.",
        "help": "Read a guide here, or how a command is used.",
    },
    "Look": {
        "sessions": "List the sessions, the one touched last first.",
        "log": "The history of a session, as a list or a graph.",
        "show": "One checkpoint: its fields, messages, state, calls.",
        "diff": "Compare two checkpoints, their files too.",
        "files": "The files of a checkpoint.",
        "search": "Find the checkpoint that first said something.",
        "branches": "The branches and tags of a session.",
        "bisect": "Find the step that broke the tests.",
        "blame": "Which step wrote each line of a file.",
    },
    "Go back, try something else": {
        "fork": "A new branch at any checkpoint; copies nothing.",
        "tag": "Give a checkpoint a name that does not move.",
        "restore": "Bring a branch back to an earlier state.",
        "rewind": "Bring conversation and files back, with a preview of every path.",
        "undo": "Take back the last restore, rewind or undo.",
        "delete": "Delete a session, a branch or one checkpoint.",
    },
    "After a crash, and while it waits": {
        "recover": "List crashed runs and calls in doubt; decide them.",
        "waiting": "List what waits: for people, times, messages.",
        "answer": "Say yes, no or a value to what a session waits for.",
        "send": "Send a message to a session.",
        "cancel": "Stop the run of a session, wherever it runs.",
    },
    "Upkeep": {
        "stats": "Count sessions, checkpoints and bytes.",
        "du": "Weigh the files of sessions.",
        "verify": "Read everything again; say what is damaged and what to do.",
        "prune": "Forget old checkpoints, or contents of files, and give the space back.",
        "forget-files": "Take contents of files out of the history of a session.",
        "export": "Write sessions into one file, or as another system's files.",
        "import": "Import the sessions of such a file, or of another system.",
        "hook": "Record an event of Claude Code; its hooks run this.",
        "completion": "Have your shell complete commands, sessions and refs.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}

REMOVING = ("delete", "prune", "forget-files")

# Words that people bring along from other tools, and what they are called here.
OTHER_WORDS = {
    "branch": "branches",
    "cat": "show",
    "check": "verify",
    "checkout": "restore",
    "fsck": "verify",
    "gc": "prune",
    "grep": "search",
    "history": "log",
    "info": "status",
    "list": "sessions",
    "load": "import",
    "ls": "sessions",
    "remove": "delete",
    "reset": "restore",
    "resume": "recover",
    "revert": "undo",
    "rm": "delete",
    "rollback": "restore",
    "save": "export",
    "tags": "tag",
    "threads": "sessions",
    "ui": "web",
}

STORE = "BACKSTAY_URL"
COMPLETES = "_BACKSTAY_COMPLETE"  # set by a shell that asks what could come next


class Commands(click.Group):
    """The commands, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name.replace("-", "_")
        found: click.Command = importlib.import_module(f"backstay.cli.{module}").command
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options before the command; those of the command stand behind it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from backstay.cli.command import alike

            likely = alike(error.option_name, ["--help", "--version", "--store"])
            rest = f"; did you mean {' or '.join(likely)}?" if likely else "; those of a command stand behind it."
            message = f"There is no option {error.option_name} before the command{rest}"
            raise click.UsageError(message, ctx=ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that a line begins with; one that is not there is told with those that are like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from backstay.cli.command import alike

            typed, word = args[0], args[0].lower()
            likely = [OTHER_WORDS[word]] if word in OTHER_WORDS else [each for each in COMMANDS if each == word]
            # What removes something is not proposed to a word that only sounds like it.
            safe = [each for each in COMMANDS if each not in REMOVING or each[0] == word[0]]
            likely = likely or alike(word, safe)
            rest = f"Did you mean {' or '.join(likely)}?" if likely else "`backstay --help` lists those there are."
            message = f"There is no command {typed}. {rest}"
            raise click.UsageError(message, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """The list in the help, from the table above: nothing is imported for it."""
        widest = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, text in group.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="backstay %(version)s")
@click.option("--store", "url", metavar="URL", help="The store, for the command that follows; it takes --store too.")
@click.pass_context
def commands(ctx: click.Context, url: str | None) -> None:
    """Backstay keeps the sessions of AI agents: each step a checkpoint to go back to, fork and compare.

    \b
    SESSION is an id or a unique start of one. REF is a branch (main), a tag, a
    checkpoint id or a start of one; REF~2 is two checkpoints before it, REF^2
    two steps back in the story, behind what restores took back.
    """
    if url is not None:
        before = os.environ.get(STORE)
        os.environ[STORE] = url
        ctx.call_on_close(lambda: os.environ.pop(STORE) if before is None else os.environ.update({STORE: before}))


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code. A traceback is shown only where it was asked for."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter still shows the rest
    if args is None and COMPLETES in os.environ:
        from click.shell_completion import shell_complete

        from backstay.cli.completion import register

        register()
        return shell_complete(commands, {}, "backstay", COMPLETES, os.environ[COMPLETES])
    code = _outcome(lambda: _invoke(sys.argv[1:] if args is None else args))
    # Now and not at the end of the interpreter, which would complain of a closed pipe where no code of ours runs.
    unwritten = _outcome(_flush)
    if unwritten:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code or unwritten


def _invoke(args: Sequence[str]) -> int:
    # What click's own `main` would do, without its ways of ending the process.
    try:
        with commands.make_context("backstay", list(args)) as context:
            commands.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return DONE


def _flush() -> int:
    if sys.stdout is not None:
        sys.stdout.flush()
    return DONE


def _outcome(job: Callable[[], int]) -> int:
    """The exit code of a job, after saying on stderr what went wrong and what to do, in one line."""
    try:
        return job()
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            _explain(error)
        else:
            _complain(error.format_message())
        return error.exit_code
    except BackstayError as error:
        _complain(words_of(error))
        return code_of(error)
    except OSError as error:
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
    except Exception as error:  # noqa: BLE001 - the last door: what comes here is a mistake of ours
        if os.environ.get("BACKSTAY_DEBUG") == "1":
            import traceback

            traceback.print_exc()
        else:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            _complain(f"a bug in Backstay: {what} (set BACKSTAY_DEBUG=1 to see where)")
    return FAILED


def _explain(error: click.UsageError) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) or error.ctx is None:
        error.show()
        return
    print(error.ctx.get_usage(), file=sys.stderr)
    print(f"Try '{error.ctx.command_path} --help' for help.\n\nError: {_safe(error.format_message())}", file=sys.stderr)


def _complain(text: str) -> None:
    print("backstay:", _safe(text), file=sys.stderr)


def _safe(text: str) -> str:
    # Names in a message come from anywhere: no line break or escape of theirs reaches the terminal.
    from backstay.cli.text import safe

    return safe(text)
