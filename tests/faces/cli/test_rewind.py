"""rewind, undo and fork --into at the command line: what is shown is what happens to the files."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

import backstay
from tests.faces.cli import shell
from tests.workspace.folders import capture_as, capture_nothing


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An agent's three steps, and an edit of yours."""
    root = tmp_path / "project"
    root.mkdir()
    with backstay.open(root / ".backstay" / "store.db") as store:
        session = store.session("fix-bug", workspace=root)
        (root / "a.py").write_text("one\ntwo\nthree\n")
        (root / "b.py").write_text("b\n")
        capture_as(session, {"messages": [{"role": "user", "content": "fix it"}]}, "outside")
        (root / "a.py").write_text("one\ntwo\nTHREE\n")
        capture_as(session, {"messages": [{"role": "user", "content": "fix it"}], "n": 1}, "call:1")
        (root / "b.py").unlink()
        (root / "new.py").write_text("new\n")
        capture_as(session, {"messages": [{"role": "user", "content": "fix it"}], "n": 2}, "call:2")
    (root / "mine.txt").write_text("mine\n")
    return root


def files(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(root.iterdir()) if path.is_file()}


NOW = {"a.py": "one\ntwo\nTHREE\n", "mine.txt": "mine\n", "new.py": "new\n"}
THEN = {"a.py": "one\ntwo\nthree\n", "b.py": "b\n", "mine.txt": "mine\n"}


def test_a_rewind_says_where_git_was_and_is(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / ".git" / "refs" / "heads").mkdir(parents=True)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git" / "packed-refs").write_text(f"# pack-refs with: peeled\n{'1' * 40} refs/heads/main\n")
    (root / "a.py").write_text("one\n")
    with backstay.open(root / ".backstay" / "store.db") as store:
        session = store.session("fix-bug", workspace=root)
        capture_as(session, {}, "outside")
        (root / "a.py").write_text("two\n")
        (root / ".git" / "refs" / "heads" / "main").write_text("2" * 40 + "\n")
        capture_as(session, {"n": 1}, "call:1")
    shown = shell.run("rewind", "fix-bug", "main~1", "--dry-run", folder=root)
    assert "git has moved since: it was at 11111111 (main) and is at 22222222 (main)." in shown.out
    assert "Only files go back: git will show them as changed." in shown.out
    told = shell.run("rewind", "fix-bug", "main~1", "-y", "--json", folder=root)
    assert json.loads(told.out)["git_moved"] == ["1" * 40 + " main", "2" * 40 + " main"]
    assert (root / ".git" / "refs" / "heads" / "main").read_text() == "2" * 40 + "\n"
    again = shell.run("rewind", "fix-bug", "main", "--dry-run", folder=root)
    assert "git has moved" not in again.out


def test_a_rewind_shows_each_group_and_can_be_undone_by_the_line_it_prints(project: Path) -> None:
    shown = shell.run("rewind", "fix-bug", "main~2", "--dry-run", folder=project)
    assert shown.code == 0, shown.err
    for text in (
        "put back (2)",
        "    a.py",
        "    b.py",
        "remove (1)",
        "    new.py",
        "kept (yours) (1)",
        "    mine.txt",
    ):
        assert text in shown.out
    assert files(project) == NOW
    done = shell.run("rewind", "fix-bug", "main~2", "-y", folder=project)
    assert done.code == 0, done.err
    assert files(project) == THEN
    line = done.out.splitlines()[-1].removeprefix("To take it back: backstay ")
    undone = shell.run(*line.split(), "-y", folder=project)
    assert undone.code == 0, undone.err
    assert files(project) == NOW


def test_without_a_yes_nothing_is_changed(project: Path) -> None:
    done = shell.run("rewind", "fix-bug", "main~2", folder=project)
    assert done.code == 1
    assert "no terminal" in done.err
    assert files(project) == NOW


def test_a_conflict_is_refused_until_it_is_said_which(project: Path) -> None:
    (project / "a.py").write_text("one\ntwo\nMINE\n")
    done = shell.run("rewind", "fix-bug", "main~2", "-y", folder=project)
    assert done.code != 0
    assert "a.py: changed by you and by calls since (--mine keeps yours, --theirs puts all back" in done.err
    assert files(project) == {**NOW, "a.py": "one\ntwo\nMINE\n"}
    assert shell.run("rewind", "fix-bug", "main~2", "-y", "--mine", folder=project).code == 0
    assert files(project) == {**THEN, "a.py": "one\ntwo\nMINE\n"}
    assert shell.run("undo", "fix-bug", "-y", folder=project).code == 0
    assert shell.run("rewind", "fix-bug", "main^2", "-y", "--theirs", folder=project).code == 0
    assert files(project) == {name: text for name, text in THEN.items() if name != "mine.txt"}


def test_single_paths_leave_the_conversation(project: Path) -> None:
    inside = project / "sub"
    inside.mkdir()
    done = shell.run("rewind", "fix-bug", "main~2", "-y", "--json", "--", "../b.py", folder=inside)
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["files"]["put"] == ["b.py"]
    assert files(project) == {**NOW, "b.py": "b\n"}
    with backstay.open(project / ".backstay" / "store.db") as store:
        assert store.session("fix-bug").load()["n"] == 2


def test_a_dry_undo_shows_and_changes_nothing(project: Path) -> None:
    assert shell.run("rewind", "fix-bug", "main~2", "-y", folder=project).code == 0
    then = files(project)
    done = shell.run("undo", "fix-bug", "--dry-run", folder=project)
    assert done.code == 0, done.err
    assert "a.py" in done.out
    told = json.loads(shell.run("undo", "fix-bug", "--dry-run", "--json", folder=project).out)
    assert told["head"] is None
    assert any("a.py" in paths for paths in told["files"].values())
    assert files(project) == then


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mine", "--theirs"), "--mine and --theirs"),
        (("--files-only", "--talk-only"), "--files-only and --talk-only"),
        (("--talk-only", "--", "a.py"), "--talk-only and paths"),
    ],
)
def test_options_that_contradict_one_another_are_named(options: tuple[str, ...], said: str, project: Path) -> None:
    done = shell.run("rewind", "fix-bug", "main~2", "-y", *options, folder=project)
    assert done.code == 2
    assert f"{said} contradict one another" in done.err
    assert files(project) == NOW


def test_talk_alone_leaves_the_files(project: Path) -> None:
    done = shell.run("rewind", "fix-bug", "main~2", "-y", "--talk-only", folder=project)
    assert done.code == 0, done.err
    assert files(project) == NOW
    with backstay.open(project / ".backstay" / "store.db") as store:
        assert "n" not in store.session("fix-bug").load()


def test_files_are_never_put_into_a_folder_that_you_are_not_in(project: Path, tmp_path: Path) -> None:
    store = str(project / ".backstay" / "store.db")
    done = shell.run("rewind", "fix-bug", "main~2", "-y", "--store", store, folder=tmp_path)
    assert done.code != 0
    assert "go there, or name the folder by --workspace DIR" in done.err
    assert files(project) == NOW


def test_a_fork_gets_folders_of_its_own(project: Path, tmp_path: Path) -> None:
    done = shell.run("fork", "fix-bug", "main~2", "try", "--into", str(tmp_path / "try"), "--n", "2", folder=project)
    assert done.code == 0, done.err
    want = {name: text for name, text in THEN.items() if name != "mine.txt"}
    assert files(tmp_path / "try-1") == files(tmp_path / "try-2") == want
    with backstay.open(project / ".backstay" / "store.db") as store:
        assert {"try-1", "try-2"} <= store.session("fix-bug").branches().keys()


def test_a_fork_says_where_its_folder_is_and_its_lines_work_there(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "a try"
    done = shell.run("fork", "fix-bug", "main~2", "try", "--into", "../a try", "--json", folder=project)
    assert Path(json.loads(done.out)["into"]).samefile(there), done
    done = shell.run("fork", "fix-bug", "main~2", "b", "--into", str(tmp_path / "b"), "--n", "1", folder=project)
    assert f"Its files are in {tmp_path / 'b-1'}." in done.out
    shutil.rmtree(there)
    done = shell.run("fork", "fix-bug", "main~2", "c", "--into", str(there), folder=project)
    _, at_shell, in_python = done.out.splitlines()[-3:]
    printed = subprocess.check_output(["sh", "-c", f"{at_shell} && pwd && echo $BACKSTAY_URL"], text=True)
    folder, url = printed.splitlines()
    assert (folder, url) == (str(there), str(project / ".backstay" / "store.db"))
    lost = shell.run("log", "fix-bug", folder=there)
    assert lost.code != 0
    monkeypatch.chdir(there)
    monkeypatch.setenv("BACKSTAY_URL", url)
    assert in_python == "  backstay.open().run('fix-bug', branch='c', workspace='.')"
    with backstay.open() as store, store.run("fix-bug", branch="c", workspace=".") as run:
        (there / "a.py").write_text("of the fork")
        run.step()
    assert "of the fork" not in (project / "a.py").read_text()
    lost = shell.run("log", "fix-bug", folder=there)
    assert "BACKSTAY_URL names" in lost.err
    found = shell.run("files", "fix-bug", "c", "a.py", "--cat", folder=there, BACKSTAY_URL=url)
    assert found.out == "of the fork"


def test_the_disk_is_compared_with_a_checkpoint(project: Path) -> None:
    (project / "a.py").write_text("one\ntwo\nMINE\n")
    done = shell.run("diff", "fix-bug", "main", "--disk", "--files", folder=project)
    assert done.code == 0, done.err
    for text in ("~ a.py", "-THREE", "+MINE", "+ mine.txt"):
        assert text in done.out
    assert shell.run("diff", "fix-bug", "main", folder=project).code == 2
    assert shell.run("diff", "fix-bug", "main", "main~1", "--disk", folder=project).code == 2


def test_a_branch_whose_folder_was_never_captured_is_said_to_have_no_files(tmp_path: Path) -> None:
    with backstay.open(tmp_path / ".backstay" / "store.db") as store:
        capture_nothing(store.session("lost"))
    done = shell.run("rewind", "lost", "main", "-y", folder=tmp_path)
    assert done.code == 1
    assert "branch 'main' has no files (`backstay restore` goes back without files)" in done.err


@pytest.mark.parametrize(
    ("line", "missing"),
    [("rewind fix-bug", "REF"), ("restore fix-bug", "REF"), ("fork fix-bug", "REF"), ("diff fix-bug", "A")],
)
def test_a_ref_that_is_missing_is_asked_for(line: str, missing: str, project: Path) -> None:
    done = shell.run(*line.split(), folder=project)
    assert done.code == 2
    assert f"Missing argument '{missing}'" in done.err


def test_now_and_then_stand_in_columns(project: Path) -> None:
    with backstay.open(project / ".backstay" / "store.db") as store:
        session = store.session("fix-bug", workspace=project)
        capture_as(session, {"messages": [{"role": "user", "content": "a longer word"}]}, "call:3")
    shown = shell.run("rewind", "fix-bug", "main~1", "--dry-run", folder=project).out.splitlines()
    now, then = [line for line in shown if line.startswith(("main now", "main then"))]
    assert "a longer word" in now
    assert len(now) == len(then)


def test_a_call_in_doubt_shows_the_files_it_may_have_changed_and_can_be_rolled_back(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("whole\n")

    def edit() -> None:
        (tmp_path / "a.py").write_text("half\n")
        raise KeyboardInterrupt

    with (
        backstay.open(tmp_path / ".backstay" / "store.db") as store,
        contextlib.suppress(KeyboardInterrupt),
        store.run("s", workspace=tmp_path) as run,
    ):
        run.step()
        run.call("edit", edit, effects="files")
    shown = shell.run("recover", folder=tmp_path)
    assert "files changed since: a.py" in shown.out
    done = shell.run("recover", "s", "--rollback", folder=tmp_path)
    assert done.code == 0, done.err
    assert "rolled back, and to be made again" in done.out
    assert (tmp_path / "a.py").read_text() == "whole\n"


def test_status_says_how_the_folder_differs_and_what_is_not_captured(project: Path) -> None:
    (project / ".env").write_text("SECRET=1\n")
    with backstay.open(project / ".backstay" / "store.db") as store:
        capture_as(store.session("fix-bug", workspace=project), {"messages": []}, "outside")
    (project / "a.py").write_text("again\n")
    shown = shell.run("status", folder=project, columns=120)
    assert "files     1 path changed since main of fix-bug (1 by you), 1 path left out (1 secret" in shown.out
    assert "files " not in shell.run("status", "--store", str(project / ".backstay" / "store.db"), folder=Path("/")).out


def test_a_path_that_no_one_has_is_an_error_and_not_a_rewind(project: Path) -> None:
    done = shell.run("rewind", "fix-bug", "main~2", "-y", "--", "typo.py", folder=project)
    assert done.code == 1
    assert "has no typo.py, nor is it captured here" in done.err
    assert "Rewound" not in done.out
    assert shell.run("rewind", "fix-bug", "main~2", "-y", "--", "new.py", folder=project).code == 0
    assert not (project / "new.py").exists(), "there was none at that checkpoint"


def test_a_preview_tells_what_is_gone_and_was_never_captured(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    with backstay.open(root / ".backstay" / "store.db") as store:
        session = store.session("fix-bug", workspace=root)
        for name in (".env", "stays.pem", "a.py"):
            (root / name).write_text("1\n")
        capture_as(session, {}, "outside")
        (root / ".env").unlink()
        (root / "stays.pem").write_text("2\n")
        (root / "a.py").write_text("2\n")
        capture_as(session, {}, "call:1")
    shown = shell.run("rewind", "fix-bug", "main~1", "--dry-run", folder=root)
    assert "cannot come back, they are gone and their contents were never captured (1)\n    .env\n" in shown.out
    assert "(a secret, or over max_file) (1)\n    stays.pem\n" in shown.out
    assert "The state does not change." in shown.out
    assert "The state changes in:" not in shown.out
