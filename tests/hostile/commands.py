"""Every command line, and the surroundings that none of them may touch."""

from __future__ import annotations

import contextlib
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from backstay.cli.exit_codes import FAILED
from tests.faces.cli import shell

ENDS_WITHIN_S = 5.0

# By command: the lines to try, on a session `s` with a branch, a tag and a run. Each is run with the store in question.
LINES: dict[str, list[tuple[str, ...]]] = {
    "demo": [("demo", "--keep", ".")],
    "web": [("web", "--host", "0.0.0.0")],  # opens the store, and refuses to serve it to others
    "help": [("help",), ("help", "runs")],
    "init": [("init",)],
    "hook": [("hook", "--help")],  # gives its event to a helper: tests/faces/adapters tries it with odd stores
    "watch": [("watch", "--session", "s", "--", "true")],
    "status": [("status",), ("status", "--json")],
    "doctor": [("doctor", "--json")],
    "sessions": [("sessions",), ("sessions", "--json"), ("sessions", "--crashed")],
    "log": [
        ("log", "s"),
        ("log", "s", "--graph", "--all"),
        ("log", "s", "--calls", "--json"),
        ("log", "s", "--oneline"),
    ],
    "show": [
        ("show", "s"),
        ("show", "s", "--full", "--state", "--calls"),
        ("show", "s", "--raw"),
        ("show", "s", "--json"),
        ("show", "s", "--salvage"),
    ],
    "diff": [("diff", "s", "main~1", "main"), ("diff", "s", "main~1", "main", "--json")],
    "search": [("search", "turn"), ("search", "turn", "--session", "s", "--json")],
    "branches": [("branches", "s"), ("branches", "s", "--json")],
    "fork": [("fork", "s", "main~1", "new")],
    "tag": [("tag", "s", "main", "kept"), ("tag", "s", "--json"), ("tag", "s", "-d", "begin")],
    "restore": [("restore", "s", "main~1", "-y")],
    "undo": [("undo", "s", "-y")],
    "files": [("files", "s"), ("files", "s", "--json")],
    "du": [("du", "s"), ("du", "s", "--json")],
    "rewind": [("rewind", "s", "main~1", "-y"), ("rewind", "s", "main~1", "--dry-run", "--json")],
    "bisect": [("bisect", "s", "--good", "main~1", "--", "true")],
    "blame": [("blame", "s", "notes.txt")],
    "forget-files": [("forget-files", "s", "notes.txt", "-y"), ("forget-files", "s", "notes.txt", "--dry-run")],
    "delete": [("delete", "s", "main~1", "-y"), ("delete", "s", "-y")],
    "recover": [
        ("recover", "--list"),
        ("recover", "s", "--branch", "side", "--retry"),
        ("recover", "s", "--branch", "side", "--abandon", "--reason", "x"),
    ],
    "waiting": [("waiting",), ("waiting", "--json")],
    "answer": [("answer", "s", "--yes", "--branch", "side")],
    "send": [("send", "s", "news", '"hello"')],
    "cancel": [("cancel", "s", "--branch", "side", "--json")],
    "stats": [("stats",), ("stats", "--json", "--top", "3")],
    "verify": [("verify",), ("verify", "s", "--json"), ("verify", "--repair")],
    "prune": [("prune", "--dry-run", "--keep-last", "1"), ("prune", "s", "--keep-last", "1")],
    "export": [("export", "out.backstay"), ("export", "ares", "s", "out-ares")],
    "import": [("import", "in.backstay"), ("import", "in.backstay", "--on-exists", "rename")],
    "completion": [("completion", "zsh")],
}
ONLY_READ = {"status", "sessions", "log", "show", "diff", "search", "branches", "stats", "files", "du", "blame"}


class Left(NamedTuple):
    """What a file, folder, link or pipe is like."""

    mode: int
    size: int
    changed_ns: int
    content: bytes | str | None


def surroundings(folder: Path) -> dict[str, Left]:
    """All that is in a folder, without following anything; contents of regular files, targets of links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content: bytes | str | None = None
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            content = str(path.readlink())
        # A folder changes when SQLite makes its log and its shared memory in it, and removes them again.
        folder_or_not = stat.S_ISDIR(status.st_mode)
        size, changed_ns = (0, 0) if folder_or_not else (status.st_size, status.st_mtime_ns)
        found[str(path.relative_to(folder))] = Left(status.st_mode, size, changed_ns, content)
    return found


class TooLong(BaseException):
    """A command did not end."""


@contextlib.contextmanager
def ends_in_time(line: tuple[str, ...], seconds: float = ENDS_WITHIN_S) -> Iterator[None]:
    """Processor time, so that a busy machine fails nothing; and ten times that on the clock, for what only waits."""

    def late(_number: int, _frame: Any) -> None:
        raise TooLong(" ".join(line))

    before = [signal.signal(number, late) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def run(line: tuple[str, ...], here: Path, url: str | None = None) -> shell.Done:
    """One command line in a folder; it ends in time, and with an error of ours if it does not end well."""
    with ends_in_time(line):
        named = {} if url is None else {"BACKSTAY_URL": url}
        done = shell.run(*line, folder=here, columns=80, **named)
    assert "a bug in Backstay" not in done.err, (line, done)
    assert "Traceback" not in done.err, (line, done)
    assert done.code != FAILED or done.err or done.out or line[0] == "search", (line, done)  # which finds nothing
    assert "\x1b" not in done.out + done.err, (line, done)
    return done
