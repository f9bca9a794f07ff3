"""What a shell offers when somebody presses Tab: commands, options, sessions, refs; and never an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from click.shell_completion import BashComplete

import backstay
from backstay import cli
from tests.faces.cli import shell


def offered(folder: Path, *words: str) -> list[str]:
    """What comes after these words; the last one may be half of one."""
    completer = BashComplete(cli.commands, {}, "backstay", cli.COMPLETES)
    before = Path.cwd()
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, shell.plain_environment(), clear=True):
            return [item.value for item in completer.get_completions(list(words[:-1]), words[-1])]
    finally:
        os.chdir(before)


def test_commands_options_sessions_and_refs_are_offered(folder: Path) -> None:
    assert offered(folder, "re") == ["restore", "rewind", "recover"]
    assert "--graph" in offered(folder, "log", "--g")
    assert offered(folder, "log", "tick") == ["ticket-43", "ticket-42"]
    with backstay.open(folder / ".backstay" / "store.db") as store:
        first = store.session("ticket-42").checkpoint("asked").id
    assert {"main", "what-if", "asked", first[:8]} <= set(offered(folder, "log", "ticket-42", ""))
    assert offered(folder, "diff", "ticket-42", "main", "wh") == ["what-if"]
    assert offered(folder, "restore", "ticket-42", "asked", "--branch", "m") == ["main"]


def test_where_there_is_no_store_nothing_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    assert offered(tmp_path, "log", "") == []
    assert offered(tmp_path, "log", "x", "") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_every_shell_is_given_what_it_needs(name: str, tmp_path: Path) -> None:
    if name == "bash" and shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    done = shell.run("completion", name, folder=tmp_path)
    assert done.code == 0
    assert "_BACKSTAY_COMPLETE" in done.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_a_real_bash_completes_a_session(folder: Path) -> None:
    script = Path(sys.executable).with_name("backstay")
    if not script.exists():
        pytest.skip("backstay is not installed in this environment")
    code = (
        f'PATH="{script.parent}:$PATH"; eval "$(backstay completion bash)"; '
        'COMP_WORDS=(backstay log ticket-4); COMP_CWORD=2; _backstay_completion backstay; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", code], cwd=folder, env=shell.plain_environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["ticket-43", "ticket-42"], done
