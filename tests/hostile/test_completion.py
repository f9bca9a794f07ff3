"""Real shells: a person presses Tab and Enter, and the name of a session is a word on the line, never a command."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import backstay
from tests.faces.cli import shell

NAMES = [
    "$(touch x)",
    "`touch x`",
    "a;touch x",
    "a & touch x #",
    "a|touch x",
    "a'\"; touch x; '\"",
    "> x",
    "*",
    "~root",
    "two words, and a comma",
    "back\\slash\\",
    "!!touch x",
    "{a,b}",
    "$HOME",
]
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(backstay completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -u -D; eval "$(backstay completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "backstay completion fish | source"),
}
READY = "ready>"


class Person:
    """At a terminal, with a shell."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, 200))
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - fish has no shell without it
        )
        os.close(theirs)
        self.seen = ""

    def types(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def sees(self, pattern: str, within_s: float = 60) -> None:
        end = time.monotonic() + within_s
        while not re.search(pattern, self.seen):
            ready, _, _ = select.select([self._ours], [], [], max(end - time.monotonic(), 0))
            assert ready, f"{pattern!r} was not seen in {self.seen!r}"
            try:
                self.seen += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:
                pytest.fail(f"the shell ended: {self.seen!r}")
        self.seen = self.seen[re.search(pattern, self.seen).end() :]  # type: ignore[union-attr]

    def leaves(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


def made(folder: Path, name: str) -> Path:
    place = folder / "here"
    place.mkdir()
    with backstay.open(place / "store.db") as store:
        store.session(name).commit({"messages": [{"role": "user", "content": "the words of this session"}]})
    return place


def environment(folder: Path) -> dict[str, str]:
    """A `backstay` on the path that is this one, and a prompt that can be waited for."""
    root = Path(__file__).parents[2]
    command = folder / "bin" / "backstay"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{root / "src"}" exec "{sys.executable}" -m backstay "$@"\n')
    command.chmod(0o700)
    return shell.plain_environment(
        PATH=f"{command.parent}:{os.environ['PATH']}",
        BACKSTAY_URL="store.db",
        HOME=str(folder),
        TERM="dumb",
        PS1=READY,
        NO_COLOR="1",
        LC_ALL="C.UTF-8",
    )


@pytest.mark.parametrize("name", [NAMES[0], *[pytest.param(name, marks=pytest.mark.exhaustive) for name in NAMES[1:]]])
@pytest.mark.parametrize("kind", SHELLS)
def test_a_completed_name_is_a_word_and_is_never_run(kind: str, name: str, tmp_path: Path) -> None:
    command, setup = SHELLS[kind]
    if kind == "fish" and name.startswith("~"):
        pytest.skip("fish offers ~root and puts it on the line as it is: a home, and no command")
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here")
    place = made(tmp_path, name)
    before = sorted(path.name for path in place.iterdir())
    person = Person(command, place, environment(tmp_path))
    try:
        person.types("function fish_prompt; echo -n ready'>'; end\n" if kind == "fish" else "\n")
        person.sees(READY)
        person.types(f"{setup}; echo set-$((1 + 1))-up\n" if kind != "fish" else f"{setup}; echo set-(math 1 + 1)-up\n")
        person.sees("set-2-up")
        person.types("backstay log \t")
        person.types("\n")
        person.sees("the words of this session")
    finally:
        person.leaves()
    assert sorted(path.name for path in place.iterdir() if not path.name.startswith("store.db-")) == before
