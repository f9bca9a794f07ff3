"""Folders as plain dicts, drawn at random, written to a disk and read from it; and the steps from one to another."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from backstay.listing import FileEntry, PlaceStep
from backstay.workspace.open_root import OpenRoot
from backstay.workspace.placement import Placed, Placement

Thing = tuple[str, int, bytes]  # kind, permissions, content or target
Tree = dict[bytes, Thing]

NAMES = (b"a", b"b.py", b"c d", b"\xff\xfe not text", "zürich".encode(), b"-rf")
MODES = (0o644, 0o755, 0o600)


def file(content: bytes, mode: int = 0o644) -> Thing:
    return "file", mode, content


def link(target: bytes) -> Thing:
    return "link", 0o777, target


FOLDER: Thing = ("folder", 0o755, b"")


def random_tree(rng: random.Random, *, depth: int = 3) -> Tree:
    tree: Tree = {}

    def fill(above: bytes, level: int) -> None:
        for name in rng.sample(NAMES, rng.randrange(4)):
            path = above + name
            kind = rng.choice(("file", "file", "link", "folder" if level else "file"))
            if kind == "folder":
                tree[path] = ("folder", rng.choice((0o755, 0o700)), b"")
                fill(path + b"/", level - 1)
            elif kind == "link":
                tree[path] = link(rng.choice((b"/etc", b"../..", b"a", b"\xff")))
            else:
                tree[path] = file(rng.randbytes(rng.choice((0, 5, 5, 70_000))), rng.choice(MODES))

    fill(b"", depth)
    return tree


def write_tree(root: Path, tree: Tree) -> None:
    for path in sorted(tree):
        write(root, path, tree[path])
    for path in sorted(tree, reverse=True):
        kind, mode, _ = tree[path]
        if kind == "folder":
            (root / os.fsdecode(path)).chmod(mode)


def write(root: Path, path: bytes, thing: Thing) -> None:
    at = root / os.fsdecode(path)
    kind, mode, content = thing
    if kind == "folder":
        at.mkdir()
    elif kind == "link":
        at.symlink_to(os.fsdecode(content))
    else:
        at.write_bytes(content)
        at.chmod(mode)


def read_tree(root: Path) -> Tree:
    """Everything beneath a folder but Backstay's own."""
    tree: Tree = {}

    def walk(folder: Path) -> None:
        for path in folder.iterdir():
            mode = path.lstat().st_mode
            name = os.fsencode(path.relative_to(root))
            if name == b".backstay":
                continue
            if stat.S_ISLNK(mode):
                tree[name] = link(os.fsencode(path.readlink()))
            elif stat.S_ISDIR(mode):
                tree[name] = ("folder", stat.S_IMODE(mode), b"")
                walk(path)
            else:
                tree[name] = file(path.read_bytes(), stat.S_IMODE(mode))

    walk(root)
    return tree


def entry_of(path: bytes, thing: Thing | None) -> FileEntry | None:
    if thing is None:
        return None
    kind, mode, content = thing
    if kind == "folder":
        return FileEntry(path, stat.S_IFDIR | mode)
    if kind == "link":
        return FileEntry(path, stat.S_IFLNK | 0o777, target=content)
    return FileEntry(path, stat.S_IFREG | mode, len(content), sha256(content).digest())


def steps_between(before: Tree, after: Tree) -> list[PlaceStep]:
    return [
        PlaceStep(path, entry_of(path, before.get(path)), entry_of(path, after.get(path)))
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]


def place(root: Path, before: Tree, after: Tree, *, name: str = "p1") -> Placed:
    """Put a folder from one tree to another, as a restore does."""

    def contents(step: PlaceStep) -> Iterable[bytes]:
        return (after[step.path][2],)

    with OpenRoot(root) as opened, opened.locked():
        placement = Placement(opened, name, steps_between(before, after))
        placement.stage(contents)
        placed = placement.apply()
        placement.clear()
    return placed


def leftovers(root: Path) -> list[str]:
    """What lies in Backstay's folder beside its lock, its word to git and its empty folders."""
    own, always = root / ".backstay", {"place.lock", ".gitignore"}
    return [str(path.relative_to(own)) for path in own.rglob("*") if not path.is_dir() and path.name not in always]
