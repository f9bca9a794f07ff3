"""`backstay import` and `backstay export` with the files of other systems, as a shell sees them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import backstay
from backstay import formats
from backstay.cli import main
from tests.faces.formats import made, told
from tests.faces.formats.test_round_trips import MAKERS


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Shell = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A command line in an empty folder, without the price of a new process."""
    monkeypatch.chdir(tmp_path)

    def shell(*args: str) -> Done:
        monkeypatch.setenv("BACKSTAY_URL", "store.db")
        code = main(args)
        return Done(code, *capsys.readouterr())

    return shell


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("system", formats.EXPORTS)
def test_sessions_come_in_and_go_back_by_two_commands(system: str, named: bool, run: Shell, tmp_path: Path) -> None:
    sessions = MAKERS[system](tmp_path / "from")
    done = run("import", *([system] if named else []), "from")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"imported from {system}" in done.stdout
    for session in sessions:
        done = run("export", system, session, "to")
        assert (done.returncode, done.stderr) == (0, "")
    assert made.tree(tmp_path / "to").keys() == made.tree(tmp_path / "from").keys()


def test_damage_is_listed_and_refused_only_when_asked_for(run: Shell, tmp_path: Path) -> None:
    made.ares(tmp_path / "from", [made.ares_step(0), made.ares_step(1)])
    made.put(tmp_path / "from" / "s_1.json", b"{")
    strict = run("import", "ares", "from", "--strict")
    assert (strict.returncode, len(strict.stderr.splitlines())) == (4, 1)
    assert "s_1.json" in strict.stderr
    done = run("import", "ares", "from")
    assert (done.returncode, done.stderr) == (1, "")
    assert "not taken: s_1.json: it is torn" in done.stdout
    assert "'s' was here already" in run("import", "from").stdout


def test_a_single_file_of_another_system_is_recognised_too(run: Shell, tmp_path: Path) -> None:
    made.smooth_database(tmp_path / "c.db", made.smooth_rows([made.smooth_checkpoint(1)])).close()
    assert "1 session with 1 checkpoint imported from smooth" in run("import", "c.db").stdout
    assert run("export", "smooth", "agent-1", "back.db").returncode == 0
    assert run("import", "smooth", "back.db", "--rename", "t").returncode == 0
    with backstay.open(tmp_path / "store.db") as store:
        assert {info.id for info in store.sessions()} == {"agent-1", "t"}


@pytest.mark.parametrize(
    "args",
    [
        ["import", "langgraph", "from"],
        ["import", "ares", "from", "more"],
        ["import"],
        ["export", "ares", "s"],
        ["export", "langgraph", "s", "to"],
        ["export", "ares"],
        ["export", "ares", "s", "to", "--session", "s"],
    ],
)
def test_a_command_that_cannot_be_meant_is_explained(args: list[str], run: Shell, tmp_path: Path) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: backstay" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["import", "ares", "nowhere"], "there is no file or folder 'nowhere'"),
        (["import", "nowhere"], "there is no file or folder 'nowhere'"),
        (["import", "empty"], "holds nothing"),
        (["export", "ares", "nobody", "to"], "there is no session"),
        (["export", "ccswarm", "../up", "to"], "cannot be the name"),
    ],
)
def test_what_cannot_be_done_is_one_line_without_a_traceback(
    args: list[str], said: str, run: Shell, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with backstay.open(tmp_path / "store.db") as store:
        store.session("../up").commit({"n": 1})
    done = run(*args)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert said in done.stderr
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("system", "variable", "folder"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", "projects"),
        ("codex", "CODEX_HOME", "sessions"),
        ("ares", "XDG_DATA_HOME", "ares/checkpoints"),
        ("sh_layer2", "XDG_DATA_HOME", "continuum/checkpoints"),
    ],
)
def test_a_system_is_read_from_its_own_folder_and_a_missing_one_is_said_plainly(
    system: str, variable: str, folder: str, run: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "TMPDIR", variable):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr("tempfile.tempdir", None)
    missing = run("import", system)
    assert (missing.returncode, len(missing.stderr.splitlines())) == (1, 1)
    assert f"{tmp_path / variable / folder}" in missing.stderr
    assert "there is no such folder" in missing.stderr
    if system == "claude-code":
        told.claude(tmp_path / variable, told.claude_talk())
    elif system == "codex":
        told.codex(tmp_path / variable, told.codex_talk())
    else:
        MAKERS["continuum" if system == "sh_layer2" else system](tmp_path / variable / folder)
    done = run("import", system)
    assert (done.returncode, done.stderr) == (0, "")
    assert "imported from" in done.stdout


def test_a_transcript_reads_well_in_log_and_show(run: Shell, tmp_path: Path) -> None:
    path = told.claude(tmp_path / "c", told.claude_talk())
    assert "7 checkpoints would be imported from claude-code" in run("import", str(path), "--dry-run").stdout
    assert run("sessions").stdout.count(told.SESSION) == 0
    assert run("import", str(path)).returncode == 0
    log = run("log", told.SESSION).stdout
    for line in (
        "user: List the files",
        "assistant: I look. -> Bash, Bash",
        "tool_result: a.txt",
        "There is one file.",
    ):
        assert line in log
    shown = run("show", told.SESSION, "--messages").stdout
    assert [line for line in shown.splitlines() if line.startswith("[")] == [
        "[0] user",
        "[1] assistant",
        "[2] tool Bash, Bash",
        "[3] assistant",
    ]
    assert "-> Bash(command='ls')" in shown


def test_a_name_from_a_file_cannot_write_to_the_terminal(run: Shell, tmp_path: Path) -> None:
    made.ares(tmp_path / "from", [made.ares_step(0, "a\x1b[31m")])
    made.put(tmp_path / "from" / "b\x1b[31m_0.json", b"{")
    run("import", "from")
    assert "\x1b" not in run("import", "from").stdout
