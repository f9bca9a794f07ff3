"""What developers of coding agents try first: each of it as an agent, a person or a machine does it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay.errors import CorruptionError, UnavailableError
from tests.faults.posix import Posix
from tests.faults.switch import Faults
from tests.workspace.trees import leftovers, read_tree

GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b"}
GIT |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print('main')\n")
    (folder / "src" / "deep" / "\udcff.py").write_text("no text in its name\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "latest").symlink_to("src/main.py")
    return folder


OTHERS = [pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("memory", "files")]


@pytest.fixture(params=["sqlite", *OTHERS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[backstay.Store]:
    urls = {"memory": "memory://", "sqlite": str(tmp_path / "s.db"), "files": f"file://{tmp_path / 'files'}"}
    with backstay.open(urls[request.param]) as opened:
        yield opened


def bash(root: Path, line: str) -> None:
    subprocess.run(["sh", "-c", line], cwd=root, check=True, env={**os.environ, **GIT}, capture_output=True)


def turn(store: backstay.Store, root: Path, line: str, **options: Any) -> backstay.Checkpoint:
    """One step of an agent: a command, and its boundary."""
    with store.run("s", workspace=backstay.Workspace(root, **options)) as run:
        run.call("bash", lambda: bash(root, line), args=[line])
    found = store.session("s").head()
    assert found is not None
    return found


def test_rm_rf_src_by_bash_is_undone(store: backstay.Store, root: Path) -> None:
    before = read_tree(root)
    turn(store, root, "true")
    turn(store, root, "rm -rf src run.sh latest && mkdir src && echo oops > src/oops")
    session = store.session("s", workspace=root)
    session.restore("main~1", files=True)
    assert read_tree(root) == before
    session.undo()
    assert sorted(read_tree(root)) == [b"src", b"src/oops"]


def test_the_very_first_call_of_a_run_may_remove_everything(store: backstay.Store, root: Path) -> None:
    before = read_tree(root)
    turn(store, root, "rm -rf src run.sh latest")
    session = store.session("s", workspace=root)
    session.restore("main~1", files=True)
    assert read_tree(root) == before
    assert session.load() == {}


def test_my_version_of_a_file_that_the_next_call_writes_over_is_in_a_checkpoint(
    store: backstay.Store, root: Path
) -> None:
    with store.run("s", workspace=root) as run:
        run.call("bash", lambda: bash(root, "echo one > a"), key="1")
        run.append({"role": "tool", "content": "one"})
        run.step()
        asked = []
        run.call("model", lambda: asked.append(1), kind="llm")
        (root / "a").write_text("mine\n")
        run.call("bash", lambda: bash(root, "echo two > a"), key="2")
        # The calls of this iteration still wait for their boundary.
        assert [call.name for call in run.session.calls(pending=True)] == ["model", "bash"]
        assert run.state == {"messages": [{"role": "tool", "content": "one"}]}
        run.step()
    session = store.session("s")
    versions = [files["a"].read() for point in session.log() if (files := point.files) is not None and "a" in files]
    assert versions == [b"two\n", b"two\n", b"mine\n", b"one\n"]
    assert [call.name for call in session.calls("main~1")] == ["model", "bash"]
    assert store.verify().ok


def test_a_kill_behind_a_checkpoint_of_found_files_repeats_no_call(tmp_path: Path, root: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        """import os, sys, backstay
from pathlib import Path
root, die = Path(sys.argv[1]), sys.argv[2] == "die"
def noted(name):
    with (root.parent / "made").open("a") as made:
        made.write(name + "\\n")
with backstay.open(root.parent / "k.db") as store, store.run("s", workspace=root, on_doubt="retry") as run:
    run.call("plan", lambda: noted("plan"), key="1", args={})
    if die:
        (root / "mine").write_text("mine")
    def edit():
        noted("edit")
        (root / "mine").write_text("agent")
        die and os._exit(9)
    run.call("edit", edit, key="2", args={})
    run.step()
"""
    )
    for how, code in (("die", 9), ("live", 0)):
        done = subprocess.run([sys.executable, script, root, how], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert (tmp_path / "made").read_text().split() == ["plan", "edit", "edit"]
    with backstay.open(tmp_path / "k.db") as store:
        kept = [
            point.files["mine"].read() for point in store.session("s").log() if point.files and "mine" in point.files
        ]
        assert b"mine" in kept
        assert store.verify().ok


def test_everything_that_a_tool_or_bash_can_do_to_a_file_goes_back(store: backstay.Store, root: Path) -> None:
    before = read_tree(root)
    turn(store, root, "true")
    lines = [
        "echo more >> src/main.py",
        "rm run.sh",
        "echo new > new.txt",
        "mv src/deep moved",
        "chmod 600 src/main.py",
        "ln -sfn run.sh latest",
        "mkdir -p empty/folder",
        "ln -s .. up && mkfifo pipe && rm pipe",
        "printf 'print(1)' > src/main.py",
        "rm -r moved && echo file > moved",
    ]
    for line in lines:
        turn(store, root, line)
    store.session("s", workspace=root).restore(f"main~{len(lines)}", files=True)
    assert read_tree(root) == before


def test_my_edit_between_two_steps_is_kept(store: backstay.Store, root: Path) -> None:
    first = turn(store, root, "true")
    turn(store, root, "echo a > a")
    (root / "src" / "main.py").write_text("mine\n")
    (root / "notes").write_text("mine\n")
    turn(store, root, "echo b > b")
    session = store.session("s", workspace=root)
    plan = session.restore(first, files=True, keep_mine=True, dry_run=True)
    assert (plan.kept, [step.path for step in plan.remove]) == ((b"notes", b"src/main.py"), [b"a", b"b"])
    session.restore(first, files=True, keep_mine=True)
    assert (root / "src" / "main.py").read_text() == (root / "notes").read_text() == "mine\n"
    assert not (root / "a").exists()
    assert not (root / "b").exists()


def test_a_gitignore_that_changes_mid_session_removes_nothing(store: backstay.Store, root: Path) -> None:
    (root / "data").mkdir()
    (root / "data" / "big.csv").write_text("1,2\n")
    first = turn(store, root, "true")
    turn(store, root, "echo data/ > .gitignore && echo 3,4 >> data/big.csv")
    last = turn(store, root, "echo x > x")
    files = last.files
    assert files is not None
    assert "data/big.csv" not in files
    assert "ignored" in files.left_out
    session = store.session("s", workspace=root)
    session.restore(first, files=True)
    assert not (root / ".gitignore").exists()
    assert (root / "data" / "big.csv").read_text() == "1,2\n3,4\n", "it was not captured when it changed: it stays"
    session.undo()
    assert (root / ".gitignore").read_text() == "data/\n"
    assert (root / "data" / "big.csv").read_text() == "1,2\n3,4\n"


def test_a_file_of_3_gb_is_left_out_listed_and_never_touched(store: backstay.Store, root: Path) -> None:
    (root / "grows").write_text("small\n")
    first = turn(store, root, "true")
    last = turn(store, root, "truncate -s 3G core grows && echo x > x")
    files = last.files
    assert files is not None
    assert files.left_out["over max_file"] == (2, 2 * 3 << 30, ("core", "grows"))
    assert "core" not in files
    assert (files["grows"].mark, files["grows"].read()) == ("older", b"small\n")
    store.session("s", workspace=root).restore(first, files=True)
    assert ((root / "core").stat().st_size, (root / "grows").stat().st_size) == (3 << 30, 3 << 30)
    assert not (root / "x").exists()


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_commit_and_a_checkout_by_the_agent_are_said_and_git_is_left_alone(store: backstay.Store, root: Path) -> None:
    bash(root, "git init -q -b main . && git add -A && git commit -qm one")
    first = turn(store, root, "true")
    turn(store, root, "echo two > two && git add two && git commit -qm two")
    turn(store, root, "git checkout -qb other HEAD~1 && git gc -q")
    at = {path: path.read_bytes() for path in sorted((root / ".git").rglob("*")) if path.is_file()}
    session = store.session("s", workspace=root)
    plan = session.restore(first, files=True, dry_run=True)
    assert plan.git_moved is not None
    (then, branch), (now, other) = plan.git_moved
    assert (then, branch, other) == (now, "main", "other"), "the same commit, on another branch"
    session.restore("main~1", files=True)
    assert (root / "two").read_text() == "two\n"
    plan = session.restore(first, files=True, keep_mine=False, dry_run=True)
    assert [step.path for step in plan.steps] == [b"two"]
    session.restore(first, files=True, keep_mine=False)
    assert {path: path.read_bytes() for path in sorted((root / ".git").rglob("*")) if path.is_file()} == at
    status = subprocess.run(["git", "status", "-s"], cwd=root, check=True, capture_output=True, text=True)
    assert status.stdout.strip() == "?? .backstay/" or not status.stdout.strip()


def test_two_branches_in_two_folders_run_at_once(store: backstay.Store, root: Path, tmp_path: Path) -> None:
    first = turn(store, root, "true")
    session = store.session("s", workspace=root)
    folders = {name: tmp_path / name for name in ("try-a", "try-b")}
    for name, folder in folders.items():
        session.fork(first, name, into=folder)
    both = threading.Barrier(2)
    failed: list[BaseException] = []

    def work(name: str, folder: Path) -> None:
        try:
            with store.run("s", branch=name, workspace=folder) as run:
                for number in range(3):
                    both.wait(30)
                    run.call(
                        "bash", lambda n=number: bash(folder, f"echo {name} >> src/main.py; echo {n} > {name}-{n}")
                    )
                    run.step()
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)
            both.abort()

    threads = [threading.Thread(target=work, args=item) for item in folders.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for name, folder in folders.items():
        files = session.checkpoint(name).files
        assert files is not None
        assert files["src/main.py"].read() == f"print('main')\n{f'{name}{chr(10)}' * 3}".encode()
        assert [path for path in files if path.startswith("try-")] == [f"{name}-{n}" for n in range(3)]
        store.session("s", workspace=folder).restore(first, branch=name, files=True)
        assert read_tree(folder) == read_tree(root)


def test_a_session_goes_on_on_another_machine(
    store: backstay.Store, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = turn(store, root, "true")
    turn(store, root, "rm -r src && echo x > x")
    store.export(tmp_path / "out.backstay")
    wanted = {id_: files_at(store, id_) for id_ in ("main", first.id)}
    monkeypatch.setattr("backstay.run.file_restore.machine_id", lambda: "another")
    there = tmp_path / "there"
    there.mkdir()
    with backstay.open(tmp_path / "there.db") as other:
        other.import_(tmp_path / "out.backstay")
        for id_, tree in wanted.items():
            assert files_at(other, id_) == tree
        session = other.session("s", workspace=there)
        session.restore("main", files=True, keep_mine=False)
        assert sorted(read_tree(there)) == [b"latest", b"run.sh", b"x"]
        session.restore(first.id, files=True)  # that the folder was empty at first is no edit of yours
        assert {path: thing[2] for path, thing in read_tree(there).items() if thing[0] == "file"} == wanted[first.id]
        turn(other, there, "echo more > more")
        other.session("s", workspace=there).restore("main~1", files=True)
        assert not (there / "more").exists()
        assert other.verify().ok


def files_at(store: backstay.Store, ref: str) -> dict[bytes, bytes]:
    files = store.session("s").checkpoint(ref).files
    assert files is not None
    return {os.fsencode(file.path): file.read() for file in files.list() if file.kind == "file"}


# a disk that is full


def test_a_full_disk_under_the_store_costs_the_restore_and_not_the_folder(root: Path, tmp_path: Path) -> None:
    """Step 2 of a restore: the folder as it is cannot be recorded."""
    with backstay.open(f"file://{tmp_path / 'store'}") as store:
        first = turn(store, root, "true")
        turn(store, root, "rm -r src")
        (root / "mine").write_bytes(os.urandom(3_000_000))
        before = read_tree(root)
        session = store.session("s", workspace=root)
        faults = Faults(fail_from=1, error=errno.ENOSPC)
        with Posix(faults, tmp_path / "store"), pytest.raises(UnavailableError):
            session.restore(first, files=True, keep_mine=False)
        assert read_tree(root) == before
        assert not session.calls(pending=True)
        session.restore(first, files=True, keep_mine=False)  # there is room again
        assert (root / "src" / "main.py").exists()
        assert not (root / "mine").exists()


@pytest.mark.parametrize("verb", ["write", "mkdir"])
def test_a_full_disk_under_the_folder_costs_the_restore_and_not_the_folder(
    store: backstay.Store, root: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Step 5 of a restore: `write` fails as contents are written aside, `mkdir` when files are put in place."""
    first = turn(store, root, "true")
    wanted = read_tree(root)
    turn(store, root, "rm -r src; echo x > x; chmod 600 run.sh")
    before = read_tree(root)
    session = store.session("s", workspace=root)
    real = getattr(os, verb)

    def full(*args: Any, **options: Any) -> Any:
        if verb == "mkdir" and args[0] not in (b"src", b"deep"):
            return real(*args, **options)
        if verb == "write" and "/.backstay/tmp/" not in os.readlink(f"/proc/self/fd/{args[0]}"):
            return real(*args, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, verb, full)
    with pytest.raises(UnavailableError, match="No space left"):
        session.restore(first, files=True)
    monkeypatch.setattr(os, verb, real)
    assert read_tree(root) == before
    assert not session.calls(pending=True)
    session.restore(first, files=True)  # there is room again
    assert read_tree(root) == wanted
    session.undo()
    assert read_tree(root) == before
    assert not [name for name in leftovers(root) if name.startswith(("tmp", "kept"))]


def test_of_a_damaged_group_the_other_files_come_back_and_the_damaged_are_named(root: Path, tmp_path: Path) -> None:
    (root / "a").write_bytes(os.urandom(70_000))
    (root / "b").write_bytes(os.urandom(70_000))
    noise, other = (root / "a").read_bytes(), (root / "b").read_bytes()
    url = f"file://{tmp_path / 'store'}"
    with backstay.open(url) as store:
        first = turn(store, root, "true").id
        turn(store, root, "rm a b src/main.py")
        held = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and noise in path.read_bytes()]
    held[0].write_bytes(held[0].read_bytes().replace(noise[:100], bytes(100)))
    with backstay.open(url) as store:
        session = store.session("s", workspace=root)
        before = read_tree(root)
        with pytest.raises(CorruptionError, match="contents of 1 file are damaged; nothing was changed: a"):
            session.restore(first, files=True)
        assert read_tree(root) == before
        session.restore(first, files=True, partial=True)
        assert not (root / "a").exists()
        assert (root / "b").read_bytes() == other
        assert (root / "src" / "main.py").exists()
        with pytest.raises(CorruptionError, match=r"contents of 1 file are damaged; all others were written.*: a"):
            session.fork(first, "try", into=tmp_path / "try")
        assert (tmp_path / "try" / "b").read_bytes() == other
        assert not (tmp_path / "try" / "a").exists()
        session.fork(first, "again", into=tmp_path / "again", partial=True)
        assert (tmp_path / "again" / "b").read_bytes() == other
        assert "again" in session.branches()


def test_none_of_it_needs_git(root: Path, tmp_path: Path) -> None:
    """A machine without git: nothing is looked for on the way, and .gitignore means what it means."""
    agent = (
        "import sys, backstay\n"
        "from pathlib import Path\n"
        "root = Path(sys.argv[1])\n"
        "(root / '.gitignore').write_text('*.log\\n')\n"
        "(root / 'a.log').write_text('x')\n"
        "with backstay.open(sys.argv[2]) as store:\n"
        "    session = store.session('s', workspace=root)\n"
        "    session.commit({})\n"
        "    (root / 'src' / 'main.py').unlink()\n"
        "    session.commit({'n': 1})\n"
        "    session.restore('main~1', files=True, keep_mine=False)\n"
        "    print(sorted(session.checkpoint().files.listing.about.why), (root / 'src' / 'main.py').exists())\n"
    )
    env = {"PATH": str(tmp_path / "nowhere"), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", agent, str(root), str(tmp_path / "s.db")]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "['ignored'] True"


def test_no_checkpoint_of_found_files_hides_what_a_call_in_doubt_left(tmp_path: Path, root: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        """import os, sys, backstay
from pathlib import Path
root, die = Path(sys.argv[1]), sys.argv[2] == "die"
with backstay.open(root.parent / "k.db") as store, store.run("s", workspace=root) as run:
    def edit():
        with (root / "run.sh").open("a") as file:
            file.write("edited\\n")
        die and os._exit(9)
    if not die:
        (root / "mine").write_text("mine")
        run.call("look", lambda: "seen", key="1", args={})
    run.call("edit", edit, key="2", args={}, effects="files")
"""
    )
    for how, code in (("die", 9), ("live", 0)):
        done = subprocess.run([sys.executable, script, root, how], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert (root / "run.sh").read_text() == "#!/bin/sh\nedited\n"
