"""A restore with its files: what calls did is put back, what a person did stays, and an undo takes even that back."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay
from backstay.errors import FilesConflictError, InDoubtError, NotFoundError
from tests.workspace.folders import capture_as, leave_pending, session_in
from tests.workspace.trees import leftovers

CALL = "call:1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture(params=["memory", "sqlite", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[backstay.Store]:
    urls = {"memory": "memory://", "sqlite": str(tmp_path / "s.db"), "files": f"file://{tmp_path / 'files'}"}
    with backstay.open(urls[request.param]) as opened:
        yield opened


@pytest.fixture
def session(store: backstay.Store, root: Path) -> backstay.Session:
    """Two steps: the first leaves a, b and c; the second, by a call, changes a and b, removes c, and makes d."""
    (root / "a").write_text("1\n2\n3\n4\n5\n")
    (root / "b").write_text("old b\n")
    (root / "c").write_text("old c\n")
    made = session_in(store, root)
    capture_as(made, {"step": 1}, "outside")
    (root / "a").write_text("1\n2\n3\n4\nchanged by the call\n")
    (root / "b").write_text("new b\n")
    (root / "c").unlink()
    (root / "d").mkdir()
    (root / "d" / "e").write_text("new\n")
    capture_as(made, {"step": 2}, CALL)
    return made


def contents(root: Path) -> dict[str, str]:
    paths = [path for path in root.rglob("*") if path.is_file() and ".backstay" not in path.parts]
    return {str(path.relative_to(root)): path.read_text() for path in sorted(paths)}


OLD = {"a": "1\n2\n3\n4\n5\n", "b": "old b\n", "c": "old c\n"}
NEW = {"a": "1\n2\n3\n4\nchanged by the call\n", "b": "new b\n", "d/e": "new\n"}


def test_state_and_files_go_back_together_and_come_again(session: backstay.Session, root: Path) -> None:
    first = session.checkpoint("main~1")
    made = session.restore(first, files=True)
    assert contents(root) == OLD
    assert not (root / "d").exists()
    assert session.load() == {"step": 1}
    assert made.restored_from == first.id
    session.undo()
    assert contents(root) == NEW
    assert session.load() == {"step": 2}
    session.undo()
    assert contents(root) == OLD
    assert session.load() == {"step": 1}
    assert not [name for name in leftovers(root) if name.startswith("tmp")]


def test_a_dry_run_says_what_would_be_and_writes_nothing(session: backstay.Session, root: Path) -> None:
    before = session.checkpoint()
    plan = session.restore("main~1", files=True, dry_run=True)
    assert [step.path for step in plan.put] == [b"a", b"b", b"c"]
    assert [step.path for step in plan.remove] == [b"d/e", b"d"]
    assert plan
    assert contents(root) == NEW
    assert session.checkpoint() == before


def test_what_i_changed_is_named_and_nothing_is_done(session: backstay.Session, root: Path) -> None:
    (root / "mine").write_text("mine")
    (root / "b").write_text("mine too")
    with pytest.raises(FilesConflictError, match=r"b, mine") as caught:
        session.restore("main~1", files=True)
    assert caught.value.paths == ("b", "mine")
    assert contents(root) == {**NEW, "mine": "mine", "b": "mine too"}
    assert session.load() == {"step": 2}


def test_mine_is_kept_merged_or_a_conflict(session: backstay.Session, root: Path) -> None:
    (root / "mine").write_text("mine")
    (root / "a").write_text("my first line\n2\n3\n4\nchanged by the call\n")
    plan = session.restore("main~1", files=True, keep_mine=True, dry_run=True)
    assert plan.kept == (b"mine",)
    assert plan.merged == (b"a",)
    session.restore("main~1", files=True, keep_mine=True)
    merged = {**OLD, "a": "my first line\n2\n3\n4\n5\n", "mine": "mine"}
    assert contents(root) == merged
    session.undo()
    assert contents(root) == {**NEW, "a": "my first line\n2\n3\n4\nchanged by the call\n", "mine": "mine"}


def test_a_conflict_is_decided_by_saying_so(session: backstay.Session, root: Path) -> None:
    first = session.checkpoint("main~1")
    (root / "b").write_text("mine\n")
    with pytest.raises(FilesConflictError, match="changed by you and by calls"):
        session.restore("main~1", files=True, keep_mine=True)
    session.restore("main~1", files=True, keep_mine="always")
    assert contents(root) == {**OLD, "b": "mine\n"}
    session.undo()
    session.restore(first, files=True, keep_mine=False)
    assert contents(root) == OLD
    session.undo()
    assert contents(root) == {**NEW, "b": "mine\n"}, "what was there is in a checkpoint first"


def test_only_the_paths_that_are_asked_for(session: backstay.Session, root: Path) -> None:
    (root / "b").write_text("mine\n")
    session.restore("main~1", files="only", paths=["b", root / "c"])
    assert contents(root) == {**NEW, "b": "old b\n", "c": "old c\n"}
    assert session.load() == {"step": 2}, "the conversation stays"


def test_a_path_whose_folder_is_gone_comes_back_with_its_folder(session: backstay.Session, root: Path) -> None:
    shutil.rmtree(root / "d")
    capture_as(session, {"step": 3}, CALL)
    session.restore("main~1", files="only", paths=["d/e"])
    assert contents(root) == NEW


def test_talk_alone_leaves_the_files(session: backstay.Session, root: Path) -> None:
    session.restore("main~1")
    assert contents(root) == NEW
    session.undo()
    assert contents(root) == NEW
    assert session.load() == {"step": 2}


def test_an_edit_that_was_given_up_is_not_asked_about_again(session: backstay.Session, root: Path) -> None:
    (root / "b").write_text("mine\n")
    session.restore("main~1", files=True, keep_mine=False)
    assert contents(root) == OLD
    (root / "c").write_text("by a call\n")
    capture_as(session, {"step": 3}, CALL)
    first = list(session.log(limit=None))[-1]
    session.restore(first, files=True)  # nothing of yours is there any more
    assert contents(root) == OLD


def test_an_edit_that_an_undo_brought_back_is_yours_again(session: backstay.Session, root: Path) -> None:
    (root / "b").write_text("mine\n")
    session.restore("main~1", files=True, keep_mine=False)
    session.undo()
    assert contents(root) == {**NEW, "b": "mine\n"}
    first = list(session.log(limit=None))[-1]
    with pytest.raises(FilesConflictError) as refused:
        session.restore(first, files=True)
    assert refused.value.paths == ("b",)


def test_an_edit_after_the_restore_survives_its_undo(session: backstay.Session, root: Path) -> None:
    session.restore("main~1", files=True)
    (root / "later").write_text("after the restore")
    (root / "c").write_text("old c\nand mine\n")
    with pytest.raises(FilesConflictError):
        session.undo()  # the undo removes c, and c has an edit
    session.undo(keep_mine="always")
    assert contents(root) == {**NEW, "c": "old c\nand mine\n", "later": "after the restore"}


def test_a_checkpoint_without_files_says_so(store: backstay.Store, root: Path) -> None:
    session = session_in(store, root, "plain")
    store.session("plain").commit({"n": 1})
    capture_as(session, {"n": 2}, "outside")
    with pytest.raises(NotFoundError, match="has no files"):
        session.restore("main~1", files=True)


def test_the_safety_checkpoint_keeps_pending_calls_for_the_undo(store: backstay.Store, root: Path) -> None:
    (root / "a").write_text("1")
    session = session_in(store, root, "run")
    capture_as(session, {"step": 1}, "outside")
    (root / "a").write_text("2")
    capture_as(session, {"step": 2}, CALL)
    asked: list[str] = []

    def tool() -> str:
        asked.append("once")
        return "done"

    def crash() -> None:
        with session.run() as run:
            run.call("tool", tool, key="k", args={})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        crash()
    session = session_in(store, root, "run")
    (root / "mine").write_text("mine")
    session.restore("main~1", files=True, keep_mine=True)
    session.undo()
    with session.run() as run:
        assert run.call("tool", tool, key="k", args={}) == "done"
    assert asked == ["once"]


def test_the_journal_of_a_killed_restore_keeps_others_away(session: backstay.Session, root: Path) -> None:
    leave_pending(session, "main~1")
    with pytest.raises(InDoubtError, match=r"backstay\.place"):
        session.commit({"step": 3}, expect=backstay.ANY)
    with session.run() as run:  # it comes to its end first
        assert run.state == {"step": 1}
    assert contents(root) == OLD
    assert not session.calls(pending=True)


def test_a_fork_gets_a_folder_of_its_own(session: backstay.Session, store: backstay.Store, root: Path) -> None:
    other = root.parent / "other"
    session.fork("main~1", "try", into=other)
    assert contents(other) == OLD
    there = store.session("s", workspace=other)
    (other / "a").write_text("tried\n")
    there.commit({"step": "tried"}, branch="try")
    assert contents(root) == NEW
    assert session.load("try") == {"step": "tried"}
    files = session.checkpoint("try").files
    assert files is not None
    assert files["a"].read() == b"tried\n"


def test_a_file_that_was_only_ignored_at_the_target_is_not_removed(store: backstay.Store, root: Path) -> None:
    (root / ".gitignore").write_text("data/\n")
    (root / "data").mkdir()
    (root / "data" / "precious").write_text("was there all the time")
    os.utime(root / "data" / "precious", (10**9, 10**9))
    session = session_in(store, root, "ignored")
    capture_as(session, {"step": 1}, "outside")
    (root / ".gitignore").write_text("")
    (root / "made").write_text("by the call")
    capture_as(session, {"step": 2}, CALL)
    session.restore("main~1", files=True, keep_mine=False)
    assert contents(root) == {".gitignore": "data/\n", "data/precious": "was there all the time"}


def test_a_killed_restore_that_is_skipped_is_forgotten(session: backstay.Session, root: Path) -> None:
    leave_pending(session, "main~1")
    (call,) = session.calls(pending=True)
    assert (call.name, call.status) == ("backstay.place", "in_doubt")
    session.resolve(call.id, "skip")
    with session.run() as run:
        assert run.state == {"step": 2}
    assert contents(root) == NEW
    assert not session.calls(pending=True)


def test_a_killed_restore_of_another_machine_stays_in_doubt_and_says_where(
    session: backstay.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_pending(session, "main~1")
    monkeypatch.setattr("backstay.run.file_restore.machine_id", lambda: "another")
    with pytest.raises(InDoubtError, match="that folder is not here"), session.run():
        pass
    assert session.load() == {"step": 2}
    assert len(session.calls(pending=True)) == 1


def test_an_imported_session_is_put_into_an_empty_folder(session: backstay.Session, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with backstay.open(tmp_path / "from.db") as source:
        there = session_in(source, tmp_path / "project", "moved")
        capture_as(there, {"step": 1}, "outside")
        source.export(tmp_path / "out.backstay")
    with backstay.open("memory://") as target:
        target.import_(tmp_path / "out.backstay")
        session_in(target, elsewhere, "moved").restore("main", files=True, keep_mine=False)
    assert contents(elsewhere) == NEW


async def _awaited(root: Path) -> None:
    from backstay import aio

    async with await aio.open("memory://") as store:
        session = store.session("s", workspace=root)
        (root / "f").write_text("1")
        await session.commit({"n": 1})
        (root / "f").write_text("2")
        await session.commit({"n": 2})
        plan = await session.restore("main~1", files=True, keep_mine=False, dry_run=True)
        assert [step.path for step in plan.put] == [b"f"]
        await session.restore("main~1", files=True, keep_mine=False)
        assert contents(root) == {"f": "1"}
        assert await session.undo_moves_files()
        await session.undo(keep_mine=False)
        assert contents(root) == {"f": "2"}
        assert [line.text for line in await session.blame("f")] == ["2"]
        await session.fork("main", "b", into=root.parent / "into")
        assert contents(root.parent / "into") == {"f": "2"}


def test_all_of_it_can_be_awaited(root: Path) -> None:
    asyncio.run(_awaited(root))


def test_a_link_that_was_seen_by_a_preview_is_still_captured(store: backstay.Store, root: Path) -> None:
    (root / "l").symlink_to("a")
    session = session_in(store, root, "links")
    capture_as(session, {"step": 1}, "outside")
    (root / "l").unlink()
    (root / "l").symlink_to("/etc")
    os.utime(root / "l", (10**9, 10**9), follow_symlinks=False)
    time.sleep(0.05)  # older than a tick of the file system's clock, so that its times are trusted
    assert session.restore("main", files=True, keep_mine=False, dry_run=True).put
    made = session.commit({"step": 2})
    assert made.files is not None
    assert made.files["l"].target == "/etc"


@pytest.mark.parametrize("run_first", [False, True], ids=["restored at once", "after a run there"])
def test_an_import_is_put_whole_into_another_folder_and_what_is_there_stays(
    session: backstay.Session, store: backstay.Store, root: Path, tmp_path: Path, *, run_first: bool
) -> None:
    (root / "a").write_text("1 by me\n2\n3\n4\nchanged by the call\n")
    capture_as(session, {"step": 3}, "outside")
    store.export(tmp_path / "out.backstay")
    here = tmp_path / "elsewhere"
    here.mkdir()
    (here / "b").write_text("a b of this folder\n")
    with backstay.open("memory://") as other:
        other.import_(tmp_path / "out.backstay")
        found = other.session("s", workspace=here)
        first, last = found.checkpoint("main~2"), found.checkpoint("main")
        if run_first:
            with found.run():
                pass
        plan = found.restore(last, files=True, keep_mine=True, dry_run=True)
        assert (plan.kept, plan.conflicts) == ((b"b",), ())
        found.restore(last, files=True, keep_mine=True)
        assert contents(here) == {**contents(root), "b": "a b of this folder\n"}
        found.restore(first, files=True, keep_mine=False)
        assert contents(here) == OLD


def test_a_folder_that_was_emptied_is_filled_again_and_one_file_that_you_removed_stays_away(
    session: backstay.Session, root: Path
) -> None:
    (root / "b").unlink()
    assert session.restore("main", files=True, keep_mine=True, dry_run=True).kept == (b"b",)
    shutil.rmtree(root)
    root.mkdir()
    session.restore("main", files=True)
    assert contents(root) == NEW
