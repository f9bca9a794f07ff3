"""Ignore files mean here what they mean to git: trees and patterns of every kind, decided by both.

git is asked by `git ls-files --others --exclude-standard`. Without git these are skipped, and
`tests/unit/test_ignoring.py` has the cases by themselves.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backstay.workspace.open_root import OpenRoot
from backstay.workspace.policy import Workspace
from backstay.workspace.scanning import Scan

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git to compare with")

ENV = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "HOME": "/nonexistent", "LC_ALL": "C"}
# Every kind of name and pattern meets every other; few letters, so that they do meet.
_NAMES = [*rb"a|b|ab|a.b|A|a b|a |#a|!a|[a]|a]|\a|*|-".split(b"|"), b"\xff", "ü".encode()]
NAMES = st.sampled_from(_NAMES)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
LITERALS = [*rb"a|b|A|.|-|/|#|!|]| |\ |\a|\*|\#|\!".split(b"|"), b"\xff", "ü".encode()]
ODD = [b"\t", b"\r", b"\x0b", b"\x0c", b"\x1c", "\u2028".encode(), "\x85".encode(), b"\\", b"["]
STARS = rb"*|**|***|?|/**|**/|/**/".split(b"|")
SETS = rb"[ab]|[!a]|[^a]|[a-b]|[]a]|[!]a]|[b-a]|[a-\c]|[\]a]|[a|[a/b]|[[:al]|[[:nope:]]|[[:alpha:]]|[[:upper:]a]".split(
    b"|"
)
CLASSES = [b"[[:%b:]b]" % name for name in b"space punct cntrl graph alnum blank digit lower print xdigit".split()]
WORDS = st.sampled_from(LITERALS + ODD + STARS + SETS + CLASSES)
LINES = st.one_of(
    st.lists(WORDS, min_size=1, max_size=5).map(b"".join),
    PATHS,
    PATHS.map(b"!".__add__),
    PATHS.map(lambda path: path + b"/"),
    PATHS.map(b"/".__add__),
)
TEXTS = st.tuples(
    st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf"]),
    st.lists(LINES, max_size=5).map(b"\n".join),
    st.sampled_from([b"", b"\n"]),
).map(b"".join)
TREES = st.lists(PATHS, min_size=1, max_size=12)
FOLDERS = st.lists(NAMES, min_size=1, max_size=2).map(b"/".join)


def _repository(folder: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(folder)], env={**os.environ, **ENV}, check=True)
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _repository(tmp_path_factory.mktemp("trees"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _repository(tmp_path_factory.mktemp("patterns"))


def fill(root: Path, tree: list[bytes], ignores: dict[bytes, bytes]) -> None:
    for old in root.iterdir():
        if old.is_dir() and old.name != ".git":
            shutil.rmtree(old)
        elif old.name != ".git":
            old.unlink()
    for path in tree:
        _write(root, path, b"")
    for folder, text in ignores.items():
        _write(root, (folder + b"/" if folder else b"") + b".gitignore", text)


def _write(root: Path, path: bytes, text: bytes) -> None:
    """A file, unless a file is where a folder is needed, or the other way about."""
    at = root / os.fsdecode(path)
    try:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(text)
    except (NotADirectoryError, FileExistsError, IsADirectoryError):
        return


def taken_by_git(root: Path) -> set[bytes]:
    words = ["git", "-C", str(root), "ls-files", "-z", "--others", "--exclude-standard"]
    done = subprocess.run(words, env={**os.environ, **ENV}, check=True, capture_output=True)
    return set(done.stdout.split(b"\0")) - {b""}


def taken_here(root: Path) -> set[bytes]:
    workspace = Workspace(root, ignore=[".gitignore"])
    with OpenRoot(root) as opened:
        scan = Scan(opened, workspace, {})
        scan.run()
    starts = {folder.path: folder.path + b"/" if folder.path else b"" for folder in scan.folders}
    return {starts[folder.path] + os.fsencode(name) for folder in scan.folders for name in folder.files}


def decided_alike(root: Path) -> None:
    theirs, ours = taken_by_git(root), taken_here(root)
    texts = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob(".gitignore")}
    assert ours == theirs, f"taken here only: {ours - theirs}, by git only: {theirs - ours}; {texts}"


def trees(root: Path, tree: list[bytes], ignores: dict[bytes, bytes]) -> None:
    fill(root, tree, {b"": b"", **ignores})  # without any ignore file a list of our own decides
    decided_alike(root)


def patterns(root: Path, text: bytes) -> None:
    """One ignore file over a tree in which every name meets every other."""
    if not (root / "ab" / "d").exists():
        names = [name for name in _NAMES if name not in (b"ab", b"b")]
        fill(root, [*names, *[b"/".join(above) for above in itertools.product((b"ab", b"b"), _NAMES)]], {})
        for name in _NAMES:
            _write(root, b"ab/d/e/" + name, b"")
    (root / ".gitignore").write_bytes(text)
    decided_alike(root)


MANY = settings(suppress_health_check=list(HealthCheck), max_examples=2_000, deadline=None)
FEW = settings(MANY, max_examples=40)
IGNORES = st.dictionaries(st.one_of(st.just(b""), FOLDERS), TEXTS, max_size=3)


@FEW
@given(TREES, IGNORES)
def test_every_path_is_decided_as_git_decides_it(
    repository: Path, tree: list[bytes], ignores: dict[bytes, bytes]
) -> None:
    trees(repository, tree, ignores)


@FEW
@given(TEXTS)
def test_every_pattern_means_what_git_says(dense: Path, text: bytes) -> None:
    patterns(dense, text)


@pytest.mark.exhaustive
@MANY
@given(TREES, IGNORES)
def test_in_thousands_of_trees(repository: Path, tree: list[bytes], ignores: dict[bytes, bytes]) -> None:
    trees(repository, tree, ignores)


@pytest.mark.exhaustive
@MANY
@given(TEXTS)
def test_in_thousands_of_patterns(dense: Path, text: bytes) -> None:
    patterns(dense, text)
