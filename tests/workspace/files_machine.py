"""Random work in a folder, against a dict of trees: every checkpoint has its files, and going back brings them all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import backstay
from backstay.errors import FilesConflictError
from tests.workspace.folders import capture_as
from tests.workspace.trees import FOLDER, Thing, Tree, file, leftovers, link, read_tree, write

NAMES = st.sampled_from([b"a", b"\xff", "-ü".encode()])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
TEXTS = (b"", b"one\n", b"one\ntwo\nthree\n", b"one\nTWO\nthree\n", b"\0" * 70_000, b"x" * 5000)


def text(number: int, mode: int) -> Thing:
    return file(TEXTS[number], mode)


THINGS = st.one_of(
    st.builds(text, st.integers(0, len(TEXTS) - 1), st.sampled_from([0o644, 0o755])),
    st.builds(link, st.sampled_from([b"a", b"/etc", b"nowhere"])),
    st.just(FOLDER),
)
AUTHORS = st.sampled_from(["outside", "call:1", "call:2"])
Opener = Callable[[Path], backstay.Store]
LONG = settings(stateful_step_count=50, max_examples=200, deadline=None)  # 10,000 steps


def machine_with_files(open_store: Opener, *, lasting: bool = True) -> Any:
    """A machine whose stores come from this function, each in a folder of its own; `lasting`: they can be reopened."""

    class FilesMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.where = Path(tempfile.mkdtemp(prefix="files-machine-"))
            self.root = self.where / "project"
            self.root.mkdir()
            self.house = self.where / "store-0"  # the folder of the store, as it moves
            self.house.mkdir()
            self.store = open_store(self.house)
            self.session = self.store.session("s", workspace=self.root)
            self.disk: Tree = {}
            self.trees: dict[str, Tree] = {}  # by checkpoint
            self.undo_to: Tree | None = None
            self.step = 0
            self.touched: set[bytes] = set()  # paths changed since the last capture
            self.captured: Tree = {}  # the folder as the head has it

        def teardown(self) -> None:
            self.store.close()
            shutil.rmtree(self.where, ignore_errors=True)

        @initialize(things=st.lists(st.tuples(PATHS, THINGS), max_size=8))
        def begin(self, things: list[tuple[bytes, Thing]]) -> None:
            self.put_several(things)
            self._commit("outside")

        def _commit(self, author: str) -> None:
            self.step += 1
            made = capture_as(self.session, {"step": self.step}, author)
            self.trees[made.id] = dict(self.disk)
            self.captured = dict(self.disk)
            self.touched.clear()

        # the folder

        @rule(things=st.lists(st.tuples(PATHS, THINGS), min_size=1, max_size=5))
        def put_several(self, things: list[tuple[bytes, Thing]]) -> None:
            for path, thing in things:
                self._put(path, thing)

        @rule(things=st.lists(st.tuples(PATHS, THINGS), min_size=1, max_size=5), author=AUTHORS)
        def put_and_commit(self, things: list[tuple[bytes, Thing]], author: str) -> None:
            self.put_several(things)
            self._commit(author)

        @rule(author=AUTHORS)
        def clear_and_commit(self, author: str) -> None:
            for path in [path for path in self.disk if b"/" not in path]:
                self._take(path)
            self._commit(author)

        def _put(self, path: bytes, thing: Thing) -> None:
            parts = path.split(b"/")
            for depth in range(1, len(parts)):
                above = b"/".join(parts[:depth])
                if self.disk.get(above, FOLDER)[0] != "folder":
                    self._take(above)
                if above not in self.disk:
                    self._make(above, FOLDER)
            self._take(path)
            self._make(path, thing)

        @precondition(lambda self: self.disk)
        @rule(which=st.integers(0, 10**6))
        def take(self, which: int) -> None:
            self._take(sorted(self.disk)[which % len(self.disk)])

        @precondition(lambda self: self.disk)
        @rule(which=st.integers(0, 10**6), thing=THINGS)
        def change(self, which: int, thing: Thing) -> None:
            path = sorted(self.disk)[which % len(self.disk)]
            self._take(path)
            self._make(path, thing)

        def _make(self, path: bytes, thing: Thing) -> None:
            write(self.root, path, thing)
            self.disk[path] = thing
            self.touched.add(path)

        def _take(self, path: bytes) -> None:
            gone = [at for at in self.disk if at == path or at.startswith(path + b"/")]
            for at in sorted(gone, reverse=True):
                target = self.root / os.fsdecode(at)
                if self.disk.pop(at)[0] == "folder":
                    target.rmdir()
                else:
                    target.unlink()
                self.touched.add(at)

        # the history

        @rule(author=AUTHORS)
        def commit(self, author: str) -> None:
            self._commit(author)

        @rule(at=st.integers(0, 10**6))
        def restore_all(self, at: int) -> None:
            id_ = list(self.trees)[at % len(self.trees)]
            before = dict(self.disk)
            made = self.session.restore(id_, files=True, keep_mine=False)
            self.disk = dict(self.trees[id_])
            self.undo_to = before
            self._noted(made, before)

        @rule(at=st.integers(0, 10**6))
        def restore_and_keep(self, at: int) -> None:
            id_ = list(self.trees)[at % len(self.trees)]
            before = dict(self.disk)
            try:
                made = self.session.restore(id_, files=True, keep_mine=True)
            except FilesConflictError:
                assert read_tree(self.root) == before
                return
            now = read_tree(self.root)
            head = self.captured
            mine = [path for path in self.touched if before.get(path) != head.get(path)]
            for path in mine:  # a person's, since the last capture: kept, or put together line by line
                if now.get(path) != before.get(path) and before.get(path, FOLDER)[0] != "folder":
                    assert now[path][0] == "file", path
            for path in set(now) | set(before) | set(self.trees[id_]):
                assert now.get(path) in (before.get(path), self.trees[id_].get(path)) or now[path][0] == "file", path
            self.disk = now
            self.undo_to = before
            self._noted(made, before)

        def _noted(self, made: backstay.Checkpoint, before: Tree) -> None:
            self.touched.clear()
            self.captured = dict(self.disk)
            self.trees[made.id] = dict(self.disk)
            parent = made.parent_id
            if parent is not None and parent not in self.trees:  # the folder as it was before
                self.trees[parent] = before

        @precondition(lambda self: self.undo_to is not None)
        @rule()
        def undo(self) -> None:
            before = dict(self.disk)
            if not self.session.undo_moves_files():
                return
            made = self.session.undo(keep_mine=False)
            assert self.undo_to is not None
            self.disk, self.undo_to = dict(self.undo_to), before
            self._noted(made, before)

        @rule(at=st.integers(0, 10**6))
        def fork_into(self, at: int) -> None:
            id_ = list(self.trees)[at % len(self.trees)]
            self.step += 1
            into = self.where / f"fork-{self.step}"
            self.session.fork(id_, f"fork-{self.step}", into=into)
            assert read_tree(into) == self.trees[id_]
            self.session.delete_branch(f"fork-{self.step}")

        @rule(keep=st.integers(1, 4))
        def prune(self, keep: int) -> None:
            self.session.prune(backstay.Retention(keep_last=keep))
            left = {point.id for point in self.session.history()}
            self.trees = {id_: tree for id_, tree in self.trees.items() if id_ in left}

        @rule(at=st.integers(0, 10**6))
        def files_of_a_checkpoint(self, at: int) -> None:
            self._is_kept(self.store, list(self.trees)[at % len(self.trees)])

        @rule()
        def export_and_import(self) -> None:
            """The work goes on with the import, in another store."""
            path = self.where / "out.backstay"
            path.unlink(missing_ok=True)
            self.store.export(path)
            self.step += 1
            self.house = self.where / f"store-{self.step}"
            self.house.mkdir()
            other = open_store(self.house)
            other.import_(path)
            self._move_to(other)
            self.undo_to = None  # an import begins a history of its own: what was undone there is not taken along
            for id_ in self.trees:
                self._is_kept(other, id_)

        @precondition(lambda _self: lasting)
        @rule()
        def reopen(self) -> None:
            """As another process does, which knows of the folder only what lies in it."""
            self.store.close()
            self._move_to(open_store(self.house))

        def _move_to(self, store: backstay.Store) -> None:
            self.store.close()
            self.store = store
            self.session = store.session("s", workspace=self.root)

        @rule(at=st.integers(0, 10**6), which=st.integers(0, 10**6))
        def restore_one_path(self, at: int, which: int) -> None:
            id_ = list(self.trees)[at % len(self.trees)]
            before, wanted = dict(self.disk), self.trees[id_]
            paths = sorted({**before, **wanted, b"nothing": FOLDER})
            path = paths[which % len(paths)]
            if path not in {**before, **wanted}:
                with pytest.raises(backstay.NotFoundError):
                    self.session.restore(id_, files="only", keep_mine=False, paths=[os.fsdecode(path)])
                return
            made = self.session.restore(id_, files="only", keep_mine=False, paths=[os.fsdecode(path)])
            self.disk = read_tree(self.root)
            ways = [path[:at] for at in range(len(path)) if path[at : at + 1] == b"/"]
            blocked = any(before.get(way, FOLDER)[0] != "folder" for way in ways)
            for other in {**before, **wanted, **self.disk}:
                if other == path or other.startswith(path + b"/"):
                    assert self.disk.get(other) == (before if blocked else wanted).get(other), other
                elif other not in ways or other in before:
                    assert self.disk.get(other) == before.get(other), other
            self.undo_to = before
            self._noted(made, before)

        def _is_kept(self, store: backstay.Store, id_: str) -> None:
            files = store.session("s").checkpoint(id_).files
            assert files is not None
            found = {os.fsencode(path): files[path] for path in files}
            tree = self.trees[id_]
            assert {path: made.kind for path, made in found.items()} == {path: thing[0] for path, thing in tree.items()}
            for path, (kind, mode, content) in tree.items():
                if kind == "file":
                    assert (found[path].read(), found[path].mode) == (content, mode)
                elif kind == "link":
                    assert found[path].target == os.fsdecode(content)

        @invariant()
        def nothing_else_is_in_the_folder(self) -> None:
            assert read_tree(self.root) == self.disk
            assert not [name for name in leftovers(self.root) if name.startswith(("tmp", "kept"))]

    return FilesMachine
