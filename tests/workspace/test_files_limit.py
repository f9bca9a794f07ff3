"""Disk use has a limit by default: the oldest contents go beside the work, and never what a branch or label needs."""

from __future__ import annotations

import random
from pathlib import Path

import backstay
from backstay.upkeep.files_limit import FilesLimit
from tests.workspace.test_forgetting import files_of, readable, tree_of

MIB = 2**20


def test_g17_contents_of_files_have_a_limit_by_default() -> None:
    assert backstay.Workspace("/tmp").files_bytes == 5 * 1024 * MIB


def test_g17_the_oldest_contents_go_when_a_capture_crosses_the_limit(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=backstay.Workspace(work, files_bytes="900KB"))
    noise, trees = random.Random(5), []
    for step in range(16):
        (work / "data").write_bytes(noise.randbytes(100_000))
        (work / "same").write_text("same")
        made = session.commit({"step": step}, label="kept" if step == 1 else None)
        trees.append((made.id, tree_of(work)))
        store.files_settled()
        assert store.stats().file_stored_bytes < 1.1 * MIB
    whole = [number for number, (id_, tree) in enumerate(trees) if readable(files_of(session, id_)) == tree]
    assert {1, *range(10, 16)} <= set(whole)
    assert not {0, *range(2, 5)} & set(whole)
    assert all([list(files_of(session, id_)) == ["data", "same"] for id_, _ in trees]), "the lists stay"
    assert store.verify().ok


def test_processes_with_one_quick_run_each_keep_the_limit(tmp_path: Path, work: Path) -> None:
    noise = random.Random(7)
    for number in range(3):  # as a script does: open, run, close, with no time between the steps
        folder = backstay.Workspace(work, files_bytes="600KB")
        with backstay.open(tmp_path / "s.db") as store, store.run("s", workspace=folder, restart=True) as run:
            for step in range(12):
                (work / "data").write_bytes(noise.randbytes(100_000))
                run.state["step"] = (number, step)
                run.step()
        with backstay.open(tmp_path / "s.db") as store:
            assert store.stats().file_stored_bytes < 700_000
            assert readable(files_of(store.session("s"))) == tree_of(work)
            assert store.verify().ok


def test_closing_a_store_does_not_wait_for_long(tmp_path: Path, work: Path) -> None:
    with backstay.open(tmp_path / "s.db") as store:
        limit = FilesLimit(store.backend)
        session = store.session("s", workspace=backstay.Workspace(work, files_bytes=None))
        for step in range(4):
            (work / "data").write_bytes(random.Random(step).randbytes(50_000))
            session.commit({"step": step})
        limit.captured("s", 1, 60_000)
        limit.close(finish_s=0)
        limit.captured("s", 200_000, 60_000)  # after the end: nothing begins any more
        limit.wait()
        assert store.verify().ok


def test_no_limit_where_it_is_said(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=backstay.Workspace(work, files_bytes=None))
    for step in range(4):
        (work / "data").write_bytes(random.Random(step).randbytes(50_000))
        session.commit({"step": step})
    store.files_settled()
    assert not store.verify().forgotten


def test_a_limit_below_what_the_heads_need_keeps_the_heads(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=backstay.Workspace(work, files_bytes=1000))
    for step in range(4):
        (work / "data").write_bytes(random.Random(step).randbytes(50_000))
        session.commit({"step": step})
        store.files_settled()
    assert readable(files_of(session)) == tree_of(work)
    assert files_of(session, "main~1").forgotten == ("data",)


def test_a_run_goes_on_while_contents_are_forgotten(store: backstay.Store, work: Path) -> None:
    noise = random.Random(9)
    with store.run("s", workspace=backstay.Workspace(work, files_bytes="200KB")) as run:
        for step in range(12):
            (work / f"f{step % 3}").write_bytes(noise.randbytes(30_000))
            run.call("edit", lambda: add_line(work / "log"), effects="files", key=str(step))
            run.step()
    store.files_settled()
    assert readable(files_of(store.session("s"))) == tree_of(work)
    assert store.stats().file_stored_bytes < 450_000
    assert store.verify().ok


def add_line(path: Path) -> None:
    with path.open("a") as log:
        log.write("more\n" * 20)
