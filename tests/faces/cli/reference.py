"""`python -m tests.faces.cli.reference` writes docs/cli.md from the commands themselves.

Usage, options, exit codes and shapes are asked of the command line; every example is run, on the store of the story,
and what it printed is on the page. A test makes the page again and compares.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import re
import shlex
import sys
import tempfile
from pathlib import Path

import click

from backstay import cli
from backstay.cli.command import Command
from backstay.cli.exit_codes import MEANINGS
from backstay.shapes import SHAPES
from tests.faces.cli import shell, story
from tests.faces.formats import made as foreign
from tests.house.test_docs import blocks
from tests.house.tree import ROOT, markdown_files

PAGE = ROOT / "docs" / "cli.md"
# What these print is about the machine; they are run by tests of their own.
NOT_SHOWN = {
    "backstay doctor",
    "backstay demo",
    "backstay demo --files",
    "backstay completion fish",
    "backstay web",
    "backstay web --demo",
    "backstay web --read-only --port 8080 --no-browser",
}
# The story has no workspace; docs/workspace.md has one that does, and runs it.
NOT_SHOWN |= {
    "backstay fork fix-bug main~2 try-b --into ../try-b",
    "backstay rewind fix-bug main~3",
    "backstay rewind fix-bug main~3 --files-only -y -- src/main.py",
    "backstay bisect fix-bug --good main~9 --bad main -- pytest -q",
    "backstay blame fix-bug src/main.py",
    "backstay files fix-bug",
    "backstay files fix-bug main~3 src --left-out",
    "backstay files fix-bug main~3 src/main.py --cat",
    "backstay forget-files fix-bug notes.txt --dry-run",
    "backstay forget-files fix-bug 'secrets/*.txt' -y",
    "backstay forget-files fix-bug --before main~2 --dry-run",
    "backstay du",
    "backstay du fix-bug --top 20",
}
# docs/claude-code.md has a session of these, and runs it.
NOT_SHOWN |= {
    "backstay init --claude-code",
    "backstay hook < event.json",
    "backstay watch -- codex",
    "backstay watch --session fix-bug -- gemini -p 'mend the tests'",
}
SEE = {
    "web": "[web.md](web.md)",
    "verify": "[upkeep.md](upkeep.md)",
    "prune": "[upkeep.md](upkeep.md)",
    "recover": "[runs.md](runs.md)",
    "hook": "[claude-code.md](claude-code.md)",
    "watch": "[claude-code.md](claude-code.md#other-agents)",
    "export": "[export.md](export.md) and [formats.md](formats.md)",
    "import": "[export.md](export.md) and [formats.md](formats.md)",
}
HOME = "/home/you/project"

_HEAD = """# The command line

An agent's history in your hands: see it, compare, go back, decide calls in doubt, clean up. `backstay COMMAND`, or
`python -m backstay COMMAND`; `-h` or `--help` after any command explains it, `backstay --version` says which version
this is.

This page is made from the commands themselves by `python -m tests.faces.cli.reference`, and a test compares the two.
All examples are run on one small store, at one moment.

## What commands have in common

- **The store** is the one of `--store URL`, else of the variable `BACKSTAY_URL`, else the `.backstay/` in this folder
  or the nearest one above, as git finds `.git`. Commands that look make none by looking; `backstay init` makes one.
  `--store FILE` with an export looks into that: it is only read, and `backstay import` takes it in.
- **SESSION** is a session's id, or any start of it that only one session has. An id with spaces or a slash needs the
  shell's quotes, and one that begins with a dash `--` before it.
- **REF** is a branch (`main`), a tag, a checkpoint id or the first four or more letters of one. `main~3` is the third
  checkpoint before `main`; `main^3` is three steps back in the story, where a restore counts as the checkpoint it
  brought back. A start that fits several is an error that lists them.
- **`--json`** gives every command a stable shape, see [JSON](#json): one object, or one a line for lists.
- **Before a change** `restore`, `undo`, `delete` and `prune` show it, and ask. `-y` is yes. Where stdin is not a
  terminal there is no question: without `-y` that is an error, and nothing is done.
- **A typo** in a command or an option is an error that names the likely ones. A word that begins with a dash is never
  taken for a name.
- **At a terminal** there is colour, and output longer than a screen goes through `PAGER` (`less` by default; none if it
  is empty or `cat`). In a pipe everything is plain text.
- **Text from a store cannot act on your terminal**: control characters, escapes and marks that turn the direction of
  writing are spelled out wherever they are shown.
- **A failure** is one line that says what to do, never a traceback. A mistake of Backstay says that it is one, and
  `BACKSTAY_DEBUG=1` shows where.

| variable | |
|---|---|
| `BACKSTAY_URL` | the store, where `--store` is not given |
| `BACKSTAY_DEBUG` | `1` shows the traceback of a mistake in Backstay |
| `NO_COLOR` | if it is set, no colour; `FORCE_COLOR` has it in pipes too |
| `COLUMNS` | how wide lines may be, otherwise as wide as the terminal, otherwise 80 and names are never cut |
| `PAGER` | the program that long output goes through |
"""


def page() -> str:
    """The whole page."""
    codes = "\n".join(f"| {code} | {text.replace('|', chr(92) + '|')} |" for code, text in MEANINGS.items())
    parts = [_HEAD, f"## Exit codes\n\n| exit code | means |\n|---|---|\n{codes}\n"]
    for title, group in cli.GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_command(name) for name in group]
    return "\n".join([*parts, _shapes()])


def command_of(name: str) -> Command:
    found = cli.commands.get_command(click.Context(cli.commands), name)
    assert isinstance(found, Command), f"{name} is not a Command"
    return found


def _command(name: str) -> str:
    command = command_of(name)
    context = click.Context(command, info_name=f"backstay {name}")
    usage = command.get_usage(context).removeprefix("Usage: ").replace("[OPTIONS] ", "").replace("[OPTIONS]", "")
    lines = [f"### `{' '.join(usage.split())}`\n", _words(command.help or ""), ""]
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        lines += ["| option | |", "|---|---|"]
    for option in options:
        record = option.get_help_record(context)
        assert record is not None, f"{name} {option.opts} has no help"
        form = record[0].replace("|", "\\|")
        lines.append(f"| `{form}` | {' '.join(record[1].split())} |")
    if command.shape:
        how = "one object a line, each" if command.shape.endswith("*") else "one object,"
        lines += ["", f"`--json`: {how} [{command.shape.strip('*')}](#{command.shape.strip('*')})."]
    if name in SEE:
        lines += ["", f"See {SEE[name]}."]
    for example in command.examples:
        lines += ["", "```console", f"$ {example}"]
        lines += [] if example in NOT_SHOWN else [printed(example)]
        lines += ["```"]
    return "\n".join(lines) + "\n"


def _words(text: str) -> str:
    """A command's help as Markdown: paragraphs stay, and what is laid out in lines stays laid out."""
    out = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            out.append("```text\n" + paragraph.removeprefix("\b\n").rstrip() + "\n```")
        else:
            out.append(" ".join(paragraph.split()))
    return "\n\n".join(out)


@functools.cache
def _made() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="backstay-story-")
    atexit.register(folder.cleanup)
    story.make(Path(folder.name) / "store.db")
    return Path(folder.name) / "store.db"


def printed(example: str) -> str:
    """What an example prints, made the same for every machine."""
    with tempfile.TemporaryDirectory() as where:
        return run(example, Path(where)).rstrip("\n")


def run(example: str, where: Path) -> str:
    """Run an example in a folder of its own, with the store of the story."""
    folder = where / "project"
    (folder / ".backstay").mkdir(parents=True, mode=0o700)
    if example != "backstay init":
        story.copy(_made(), folder / ".backstay" / "store.db")
    if example.split()[1] in ("waiting", "answer"):
        story.wait_too(folder / ".backstay" / "store.db")
    if "./checkpoints" in example:
        foreign.ares(folder / "checkpoints", [foreign.ares_step(0), foreign.ares_step(1)])
    words = shlex.split(example)
    assert words[0] == "backstay"
    with story.fixed(story.NOW, seed="later"):
        done = shell.run(*words[1:], folder=folder)
    assert done.code == 0, f"{example}: {done}"
    return mask(done.out, folder)


def mask(text: str, folder: Path) -> str:
    """Without what differs from machine to machine: where it was run, and how large files are."""
    text = text.replace(str(folder.resolve()), HOME).replace(str(folder), HOME)
    text = re.sub(r"\d+\.\d [kM]B on disk(, [\d.]+x smaller than plain copies)?", "77.8 kB on disk", text)
    text = re.sub(r"(on disk +)\d+\.\d [kM]B", r"\g<1>77.8 kB", text)
    text = re.sub(r"(ratio +)[\d.]+x", r"\g<1>0.05x", text)
    text = re.sub(r'"stored_bytes": \d+', '"stored_bytes": 77824', text)
    text = re.sub(r'"ratio": [\d.]+', '"ratio": 0.05', text)
    text = re.sub(r"(would go|went|Deleted .*): [\d.]+ k?B\.", r"\g<1>: 2.0 kB.", text)
    return re.sub(r"(?m)^  [\d.]+ k?B$", "  2.0 kB", text)


def _shapes() -> str:
    lines = [
        "## JSON",
        "",
        "All of it is ASCII. A *time* is text like `2025-06-02T10:37:25Z`. New keys may come; none goes or changes",
        "its meaning. A value that JSON has no form for is an object with one key: `$bytes` (base64), `$datetime`,",
        "`$date`, `$time`, `$timedelta`, `$decimal`, `$uuid`, `$set`, `$float` (not a number, infinite), `$int`",
        "(beyond 64 bits), `$dict` (pairs, where keys are not text), `$damaged` (what could not be read). Tuples",
        "are lists.",
        "",
    ]
    for name, keys in SHAPES.items():
        lines += [f"### {name}", "", "| key | |", "|---|---|"]
        lines += [f"| `{key}` | {_linked(kind)} |" for key, kind in keys.items()]
        lines += [""]
    return "\n".join(lines)


def _linked(kind: str) -> str:
    return " ".join(f"[{word}](#{word})" if word in SHAPES else word for word in kind.split())


def examples_in(text: str) -> list[tuple[str, str]]:
    """The commands that a page shows at the shell, and what it says they print."""
    found = []
    for info, _, body in blocks(text):
        pieces = re.split(r"^\$ (backstay .*)\n", body + "\n", flags=re.MULTILINE)[1:] if info == "console" else []
        found += [(example, said.rstrip()) for example, said in zip(pieces[::2], pieces[1::2], strict=True)]
    return found


def main() -> int:
    """Write the page anew, and what other pages show at the shell."""
    PAGE.write_text(page(), "utf-8")
    for other in markdown_files():
        text = other.read_text("utf-8")
        for example, said in [] if other == PAGE else examples_in(text):
            text = text.replace(f"$ {example}\n{said}", f"$ {example}\n{printed(example)}")
        other.write_text(text, "utf-8")
    sys.stdout.write(f"written: {PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
