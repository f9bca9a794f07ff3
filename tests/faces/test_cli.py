"""The command line as a shell sees it: exit codes, what goes to which stream, pipes that close, Ctrl-C."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import backstay
from backstay import cli
from tests.house.tree import ROOT

CLI = [sys.executable, "-m", "backstay"]
PLAIN = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR", "BACKSTAY_DEBUG"}}
ESCAPE = "\x1b["

# A command of the test's own, in a process of its own: `fails` is what it does.
OWN_COMMAND = """
import sys, time, click, backstay
from backstay import cli

@cli.commands.command("own")
def own():
    {body}

sys.exit(cli.main(["own"]))
"""


def run(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *args], capture_output=True, text=True, check=False, cwd=cwd, env=PLAIN | env, timeout=60
    )


def run_own(body: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = OWN_COMMAND.format(body=body)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=PLAIN | env, timeout=60
    )


def on_terminal(*args: str, **env: str) -> str:
    """What a person at a terminal of 80 columns sees."""
    ours, theirs = pty.openpty()
    seen = b""
    terminal = PLAIN | {"TERM": "xterm-256color", "COLUMNS": "80"} | env
    with subprocess.Popen([*CLI, *args], stdin=theirs, stdout=theirs, stderr=theirs, env=terminal) as process:
        os.close(theirs)
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not chunk:
                break
            seen += chunk
        assert process.wait(60) == 0, seen.decode()
    os.close(ours)
    return seen.decode()


def test_help_and_version_can_be_asked_for() -> None:
    assert "demo" in run("--help").stdout
    assert run("--version").stdout == f"backstay {backstay.__version__}\n"
    assert run("--help").returncode == run("-h").returncode == run("--version").returncode == 0


def test_the_installed_script_is_the_same_command() -> None:
    script = Path(sys.executable).with_name("backstay")
    if not script.exists():
        pytest.skip("backstay is not installed in this environment")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"backstay {backstay.__version__}\n")


def test_help_does_not_wait_for_the_driver_or_the_terminal_library() -> None:
    code = "import sys; from backstay.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"apsw", "asyncio", "json", "msgspec", "rich", "sqlite3", "subprocess"}


@pytest.mark.parametrize("args", [["dmeo"], ["demo", "--nonsense"], ["demo", "extra"], []])
def test_a_command_line_that_is_wrong_is_explained_and_is_exit_code_2(args: list[str]) -> None:
    done = run(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: backstay" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_expected_failure_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    done = run_own(f"backstay.open({str(tmp_path)!r} + '/nothing.txt')")
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"backstay: .*nothing\.txt' names no store \(use .*\)\n", done.stderr)


def test_a_name_in_an_error_cannot_write_to_the_terminal() -> None:
    done = run_own("raise backstay.NotFoundError('no session ' + chr(27) + '[2Jx' + chr(10) + 'y')")
    assert done.stderr == "backstay: no session \\x1b[2Jx\\ny\n"


def test_a_file_that_cannot_be_written_is_one_line_too(tmp_path: Path) -> None:
    done = run_own(f"open({str(tmp_path / 'missing' / 'file')!r})")
    assert done.returncode == 1
    assert done.stderr == f"backstay: {tmp_path}/missing/file: No such file or directory\n"


def test_a_bug_is_one_line_and_a_traceback_only_when_asked_for() -> None:
    done = run_own("1 / 0")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "ZeroDivisionError" in done.stderr
    assert "BACKSTAY_DEBUG=1" in done.stderr
    asked = run_own("1 / 0", BACKSTAY_DEBUG="1")
    assert asked.returncode == 1
    assert asked.stderr.startswith("Traceback")


def test_ctrl_c_ends_a_command_without_a_word() -> None:
    code = OWN_COMMAND.format(body="print('ready', flush=True); time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=PLAIN, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == ""


def reading_one_line(code: str) -> tuple[int, str]:
    """The exit code and the complaints of a program whose reader leaves after the first line."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=PLAIN
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        return process.wait(60), process.stderr.read().decode()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("print('line', flush=True); time.sleep(0.3); print('left in the buffer')", id="buffered"),
        pytest.param("print('line', flush=True); time.sleep(0.3); print('x' * 1_000_000)", id="written"),
        pytest.param(
            "from backstay.cli.screen import Screen; s = Screen(); s.line('line'); time.sleep(0.3); s.line('more')",
            id="screen",
        ),
    ],
)
def test_a_reader_who_leaves_early_is_no_error_to_report(body: str) -> None:
    assert reading_one_line(OWN_COMMAND.format(body=body)) == (141, "")


def test_the_head_of_the_demo_can_be_had_through_a_pipe() -> None:
    command = f"{sys.executable} -m backstay demo | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=PLAIN, timeout=60)
    assert done.stdout.startswith("Backstay")
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_output_that_could_not_be_written_is_not_called_done() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*CLI, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=PLAIN, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "backstay: No space left on device\n"


@pytest.fixture
def graph(tmp_path: Path) -> list[str]:
    """A command line that has colours, lines and letters of all kinds to show."""
    with backstay.open(tmp_path / "store.db") as store:
        session = store.session("s")
        for number in range(3):
            session.commit({"n": number}, label=f"größer als {number} …")
        session.fork("main~1", "side")
        session.commit({"n": 9}, branch="side")
    return ["log", "s", "--graph", "--all", "--store", str(tmp_path / "store.db")]


def test_what_is_piped_is_plain(graph: list[str]) -> None:
    assert ESCAPE not in run(*graph).stdout


def test_a_terminal_gets_colour_unless_it_says_no(graph: list[str]) -> None:
    assert ESCAPE in on_terminal(*graph)
    assert ESCAPE not in on_terminal(*graph, NO_COLOR="1")
    assert ESCAPE not in on_terminal(*graph, TERM="dumb")


def test_a_terminal_that_knows_only_ascii_still_gets_every_line(graph: list[str]) -> None:
    done, whole = run(*graph, PYTHONIOENCODING="ascii"), run(*graph)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert not whole.stdout.isascii()
    assert len(done.stdout.splitlines()) == len(whole.stdout.splitlines())


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_and_option_is_on_the_page_about_them(name: str) -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    command = cli.commands.get_command(click.Context(cli.commands), name)
    assert command is not None
    assert f"`backstay {name}" in page
    for parameter in command.params:
        names = parameter.opts if isinstance(parameter, click.Option) else [parameter.human_readable_name.strip("[]")]
        assert all(name in page for name in names), f"docs/cli.md does not know {names}"
