"""`backstay demo`: the first thing anyone runs, so all it says must be true, readable and gone afterwards."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import backstay
from backstay.cli.demo import Story
from backstay.cli.screen import Screen


def demo(*args: str, temporary: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "backstay", "demo", *args]
    plain = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR"}}
    temporary.mkdir(exist_ok=True)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=temporary,
        env=plain | {"TMPDIR": str(temporary)} | env,
        timeout=60,
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a demo says."""
    return demo(temporary=tmp_path_factory.mktemp("told"), COLUMNS="80").stdout


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A demo whose store was kept, and where."""
    folder = tmp_path_factory.mktemp("kept")
    return folder, demo("--keep", str(folder / "kept" / "here"), temporary=folder / "tmp")


@pytest.mark.quick
def test_the_demo_tells_its_whole_story_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = demo(temporary=tmp_path / "tmp")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, "")
    for word in (
        "SIGKILL",
        "crashed",
        "in_doubt",
        "resolve",
        "waits for a person",
        "approved by you",
        "completed",
        "fork",
        "diff",
        "restore",
        "verify",
        "stats",
    ):
        assert word in done.stdout, f"the demo shows no {word}"
    assert done.stdout.count("ok  ") >= 10
    assert list((tmp_path / "tmp").iterdir()) == []
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert took < 5, f"the demo took {took:.1f} s of processor time"  # 2 s by the clock are promised


def test_no_line_of_the_demo_is_wider_than_a_terminal(told: str) -> None:
    lines = told.splitlines()
    assert len(lines) > 20
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if line != line.rstrip()] == []


def test_two_demos_read_the_same(tmp_path: Path, told: str) -> None:
    assert demo(temporary=tmp_path / "two", COLUMNS="80").stdout == told


def test_a_kept_store_is_private_and_holds_what_the_demo_said(
    kept: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    tmp_path, done = kept
    folder = tmp_path / "kept" / "here"
    assert done.returncode == 0
    assert f"backstay log ticket-42 --store {folder}/store.db" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o700
    with backstay.open(folder / "store.db") as store:
        session = store.session("ticket-42")
        assert session.load()["last_tool"] == "refund"
        assert session.load("what-if")["last_tool"] == "voucher"
        assert [c.step for c in session.log()][-4:] == [3, 3, 2, 1]
        assert [call.name for call in session.calls("what-if~1")] == ["model"]
        assert store.verify().ok
        wait = store.session("ticket-43").calls()[1]
        assert (wait.name, wait.kind, wait.status, wait.by) == ("refund", "wait", "done", "you")
    deeds = (folder / "world.txt").read_text().splitlines()
    assert [deed.split()[0] for deed in deeds if not deed.startswith("model")] == [
        "look_up",
        "refund",
        "voucher",
        "refund",
    ]


BROKEN = """
import msgspec
from backstay.backends.sqlite import SqliteBackend
from backstay.port import Batch, CallRow
whole = SqliteBackend.write
def forgetful(self, ask, decide):
    def forget(view):
        batch = decide(view)
        if isinstance(batch, Batch):
            puts = tuple([call for call in batch.puts if not (isinstance(call, CallRow) and {condition})])
            batch = msgspec.structs.replace(batch, puts=puts)
        return batch
    return whole(self, ask, forget)
SqliteBackend.write = forgetful
"""


@pytest.mark.parametrize("condition", ["call.kind == 'tool' and call.status == 'started'", "call.kind == 'llm'"])
def test_a_demo_on_a_journal_that_forgets_does_not_say_ok(tmp_path: Path, condition: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN.format(condition=condition))
    done = demo(temporary=tmp_path / "tmp", PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode != 0
    assert "completed, nothing pending" not in done.stdout


def test_a_second_demo_does_not_write_into_a_kept_store(
    kept: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder = kept[0] / "kept" / "here"
    before = (folder / "store.db").read_bytes()
    again = demo("--keep", str(folder), temporary=tmp_path / "tmp")
    assert again.returncode == 1
    assert again.stderr.startswith("backstay: ")
    assert len(again.stderr.splitlines()) == 1
    assert (folder / "store.db").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = demo("--keep", str(tmp_path / "file" / "below"), temporary=tmp_path / "tmp")
    assert (done.returncode, done.stderr) == (1, f"backstay: {tmp_path}/file/below: Not a directory\n")


def test_the_demo_cannot_claim_what_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(Screen())
    story.ok("two and two are four", holds=True)
    with pytest.raises(click.ClickException, match="two and two are five") as failure:
        story.ok("two and two are five", holds=False)
    assert failure.value.exit_code == 1
    assert "five" not in capsys.readouterr().out


def test_the_scene_with_files_finds_the_step_and_gives_all_of_it_back(tmp_path: Path) -> None:
    done = demo("--files", temporary=tmp_path / "tmp", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("step 4 broke it, by bash", "kept (yours) notes.txt", "undo takes even that back"):
        assert word in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert list((tmp_path / "tmp").iterdir()) == []


def has_agent_in_python(pid: int) -> bool:
    """True once a child of a process has Python's own handler of Ctrl-C, which would print a traceback."""
    with contextlib.suppress(OSError):  # one that ends while it is looked at is none
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{child}/status").read_text().splitlines())
            if "SigCgt" in fields and int(fields["SigCgt"], 16) >> (signal.SIGINT - 1) & 1:
                return "backstay.cli.agent" in Path(f"/proc/{child}/cmdline").read_text()
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the agent's process in /proc")
def test_ctrl_c_ends_the_demo_and_its_agent_without_a_traceback(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "backstay", "demo"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "store.run(" in line)  # its agent is about to start
        while process.poll() is None and not has_agent_in_python(process.pid):
            pass
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the group
        _, err = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in err) == (130, False), err
    assert list(tmp_path.iterdir()) == []
