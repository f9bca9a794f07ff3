"""Whatever is typed: an exit code that the page tells, one line that explains it, and never a traceback."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import click
import pytest

from backstay import cli
from backstay.cli.exit_codes import MEANINGS
from tests.faces.cli import shell, story
from tests.faces.cli.reference import command_of

WORDS = [
    *("ticket-42", "ticket-43", "ticket-44", "nightly", "tick", "main", "asked", "what-if", "d98b", "d98b1396", "zzzz"),
    *("main~1", "main~99", "main^", "main^2", "main~x", "main~-1", "main~1~1", "~1", "^", "@", "main:messages"),
    *("", "-", "--", "-1", "0", "3", "1e9", "nan", "inf", "2h", "2025-01-01", "9999-12-31"),
    *("messages", "messages[0].content", "messages[", "a.b.c", "{}", "[1", "null", '"a"', "%s", "${x}"),
    *("x" * 300, "\x1b[31m", "\udcff", "日本", "new\nline"),
    *("store.db", "/nonexistent/x", "/dev/null", "/dev/full", ".", "..", "~", "~no-such-user", "file:", "sqlite://"),
    *("memory://", "http://x", "ares", "sh_layer2", "bash"),
]
PYTHON = re.compile(r"\b(?:session|store|run|backstay|Retention)\.?\w*\(|\b\w+=(?:True|False|None|\")")
EXPLAINED_ON_STDOUT = {"search", "verify", "doctor", "import"}


def lines(seed: int, count: int) -> list[list[str]]:
    """Lines of commands with options and words that may or may not belong to them."""
    chance = random.Random(seed)
    found = []
    for name in chance.choices(
        [name for name in cli.COMMANDS if name not in ("demo", "web", "hook", "watch")], k=count
    ):
        options = [opt for each in command_of(name).params if isinstance(each, click.Option) for opt in each.opts]
        options = [*[opt for opt in options if opt not in ("-f", "--follow")], "--nope", "-q"]
        words = [chance.choice(options if chance.random() < 0.4 else WORDS) for _ in range(chance.randint(0, 5))]
        found.append([name, *words])
    return found


def check(line: list[str], folder: Path, columns: int | None) -> None:
    done = shell.run(*line, folder=folder, columns=columns)
    assert done.code in MEANINGS, (line, done)
    assert "Traceback" not in done.out + done.err, (line, done)
    assert "a bug in Backstay" not in done.err, (line, done)
    assert not set("\x1b\x07") & set(done.out + done.err), (line, done)
    assert done.code or not done.err, (line, done)
    assert not done.code or done.err or line[0] in EXPLAINED_ON_STDOUT, (line, done)
    assert not PYTHON.search(done.err), (line, done.err)


def try_all(made: Path, folder: Path, count: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for number, line in enumerate(lines(seed, count)):
        here = folder / str(number % 2)
        shutil.rmtree(here, ignore_errors=True)
        (here / ".backstay").mkdir(parents=True, mode=0o700)
        story.copy(made, here / ".backstay" / "store.db")
        check(line, here, random.Random(seed + number).choice([None, 40, 80, 120]))


def test_whatever_is_typed_is_answered_and_never_with_a_traceback(made: Path, tmp_path: Path) -> None:
    try_all(made, tmp_path, 100)


@pytest.mark.exhaustive
def test_thousands_of_lines_are_answered_and_none_with_a_traceback(made: Path, tmp_path: Path) -> None:
    try_all(made, tmp_path, 5000)


@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_no_command_trips_over_a_word(word: str, folder: Path) -> None:
    for name in ("show", "log", "import", "search", "fork"):
        check([name, word], folder, 80)
