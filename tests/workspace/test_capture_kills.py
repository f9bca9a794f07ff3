"""kill -9 at any line of a capture, of its contents on their way into the store, or of the commit that names them.

The folder is as it was, the store has the checkpoint whole or not at all, and the next commit is made as if nothing
had been.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

import backstay
from tests.workspace.dying import run_killed
from tests.workspace.trees import Tree, leftovers, read_tree

# From the scan down to the rows: the hall's part of a commit, and the backends'.
MODULES = ("workspace", "grouping", "listing", "run.files", "store", "rules", "port", "backends")
KILLS = 3
SEED = int(os.environ.get("BACKSTAY_SEED", "0")) or random.SystemRandom().randrange(1 << 30)


def url(at: Path, kind: str) -> str:
    return str(at / "s.db") if kind == "sqlite" else f"file://{at / 'store'}"


def build(at: Path, kind: str, edition: str) -> None:
    """A folder that is captured first, or one that was captured before and changed since."""
    shutil.rmtree(at, ignore_errors=True)
    root, noise = at / "project", random.Random(1)
    (root / "src").mkdir(parents=True)
    for number in range(5):  # more than one portion of contents, so that some are put ahead of the commit
        (root / f"{number}.bin").write_bytes(noise.randbytes(600_000))
    for number in range(8):
        (root / "src" / f"{number}.py").write_text(f"print({number})\n" * 40)
    (root / "link").symlink_to("src")
    if edition == "first":
        return
    commit(at, kind, 1)
    (root / "0.bin").write_bytes(noise.randbytes(2_500_000))
    (root / "src" / "1.py").write_text("print(1)\n" * 39 + "print('one')\n")
    (root / "src" / "2.py").unlink()
    (root / "new").mkdir()
    (root / "new" / "\udcff").write_text("no text in its name")


def commit(at: Path, kind: str, number: int) -> None:
    with backstay.open(url(at, kind)) as store:
        store.session("s", workspace=at / "project").commit({"n": number})


def lines_of(at: Path, kind: str, edition: str) -> int:
    for _ in range(2):  # the first imports what the others find there
        build(at, kind, edition)
        commit(at, kind, 2)
    build(at, kind, edition)
    total = run_killed(lambda: commit(at, kind, 2), MODULES, None)
    assert total is not None
    return total


def kill_at(at: Path, kind: str, edition: str, number: int) -> bool:
    """False if it came to its end: waits for locks take a few lines more or less from time to time."""
    build(at, kind, edition)
    before = read_tree(at / "project")
    if run_killed(lambda: commit(at, kind, 2), MODULES, number) is not None:
        return False
    assert read_tree(at / "project") == before
    with backstay.open(url(at, kind)) as store:
        assert not damage(store), f"killed at line {number}"
        session = store.session("s", workspace=at / "project")
        head = session.head()
        if head is not None and session.load() == {"n": 2}:
            has_the_files(session, head, before)
        made = session.commit({"n": 3})
        has_the_files(session, made, before)
        store.verify(repair=True)  # contents that were put ahead of the commit that never came
        assert not store.verify().problems, f"killed at line {number}"
        has_the_files(session, made, before)
    named = [name for name in leftovers(at / "project") if not name.startswith("index/") and name != "clock"]
    assert not named
    assert read_tree(at / "project") == before
    return True


def damage(store: backstay.Store) -> list[object]:
    return [problem for problem in store.verify().problems if problem.cost != "space only"]


def has_the_files(session: backstay.Session, point: backstay.Checkpoint, tree: Tree) -> None:
    files = session.checkpoint(point).files
    assert files is not None
    found = {os.fsencode(path): files[path] for path in files}
    assert found.keys() == tree.keys()
    for path, (kind, mode, content) in tree.items():
        if kind == "file":
            assert (found[path].read(), found[path].mode) == (content, mode)


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_killed_commit_has_its_files_whole_or_never_was(tmp_path: Path, kind: str) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    edition = rng.choice(("first", "later"))
    total = lines_of(tmp_path / "counted", kind, edition)
    kills = [kill_at(tmp_path / "at", kind, edition, number) for number in rng.sample(range(1, total * 9 // 10), KILLS)]
    assert any(kills)


@pytest.mark.exhaustive
@pytest.mark.parametrize("edition", ["first", "later"])
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_in_hundreds_of_kills(tmp_path: Path, kind: str, edition: str) -> None:
    total = lines_of(tmp_path / "counted", kind, edition)
    numbers = range(1, total, max(1, total // 130))
    kills = [kill_at(tmp_path / "at", kind, edition, number) for number in numbers]
    assert kills.count(True) > len(kills) * 9 // 10
