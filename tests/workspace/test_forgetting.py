"""Contents of files are given up by a retention: list and talk stay, what is needed stays, and all faces say so."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import backstay
from backstay import Retention
from backstay.errors import InvalidInputError, NotFoundError
from backstay.file_model import Files

Tree = dict[str, bytes]


def tree_of(folder: Path) -> Tree:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def files_of(session: backstay.Session, ref: str = "main") -> Files:
    files = session.checkpoint(ref).files
    assert files is not None
    return files


def readable(files: Files) -> Tree:
    """What comes back; what does not says so in every way."""
    found = {}
    for path in files:
        if files[path].mark == "forgotten":
            assert path in files.forgotten
            with pytest.raises(NotFoundError, match="forgotten"):
                files[path].read()
        else:
            found[path] = files[path].read()
    return found


def versions(session: backstay.Session, work: Path, count: int) -> list[tuple[str, Tree]]:
    """Steps that each rewrite one file, patch one, add one and leave one alone."""
    noise = random.Random(7)
    (work / "same.txt").write_text("same\n" * 50)
    (work / "log.txt").write_text("line\n" * 500)
    made: list[tuple[str, Tree]] = []
    for step in range(count):
        (work / "big.bin").write_bytes(noise.randbytes(70_000))
        (work / "small.txt").write_bytes(noise.randbytes(6000))
        (work / f"new-{step}").write_bytes(noise.randbytes(400))
        with (work / "log.txt").open("a") as log:
            log.write(f"step {step}\n")
        point = session.commit({"step": step}, label="kept" if step == 2 else None)
        made.append((point.id, tree_of(work)))
    return made


def test_older_checkpoints_keep_talk_and_list_and_give_up_contents(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    made = versions(session, work, 8)
    digests = {id_: (store.find(id_).digest, store.find(id_).state) for id_, _ in made}
    before = store.stats().file_stored_bytes
    planned = store.prune(Retention(files_last=2), dry_run=True)
    assert store.stats().file_stored_bytes == before
    report = store.prune(Retention(files_last=2))
    assert report.files == planned.files == 10  # big.bin and small.txt of five checkpoints
    assert "contents of 10 file versions gone" in str(report)
    assert store.stats().file_stored_bytes < before / 2
    for number, (id_, tree) in enumerate(made):
        files = files_of(session, id_)
        found = readable(files)
        assert list(files) == sorted(tree), "the list stays"
        assert found == (tree if number in (2, 6, 7) else {k: v for k, v in tree.items() if k in found})
        assert {"same.txt", "log.txt", "new-0"} <= found.keys(), "what later ones need stays"
        assert (store.find(id_).digest, store.find(id_).state) == digests[id_]
    checked = store.verify()
    assert checked.ok, checked
    assert checked.forgotten == 10
    assert str(checked) == "8 checkpoints checked, 0 problems, contents of 10 file versions forgotten"
    assert not store.prune(Retention(files_last=2)).files, "there is nothing more to give up"


def test_a_restore_names_what_cannot_come_back_and_brings_the_rest_when_asked(
    store: backstay.Store, work: Path, tmp_path: Path
) -> None:
    session = store.session("s", workspace=work)
    made = versions(session, work, 6)
    id_, tree = made[0]
    store.prune(Retention(files_last=1, keep_labelled=False))
    now = tree_of(work)
    plan = session.restore(id_, files=True, keep_mine=False, dry_run=True)
    assert plan.forgotten == (b"big.bin", b"small.txt")
    with pytest.raises(NotFoundError, match=r"2 files were forgotten: big.bin, small.txt"):
        session.restore(id_, files=True, keep_mine=False)
    assert tree_of(work) == now
    session.restore(id_, files=True, keep_mine=False, partial=True)
    lost = {name: now[name] for name in ("big.bin", "small.txt")}
    assert tree_of(work) == {**tree, **lost}
    session.undo()
    assert tree_of(work) == now
    with pytest.raises(NotFoundError, match="nothing was written"):
        session.fork(id_, "b", into=tmp_path / "b")
    assert "b" not in session.branches()
    session.fork(id_, "b", into=tmp_path / "b", partial=True)
    assert tree_of(tmp_path / "b") == {name: data for name, data in tree.items() if name not in lost}
    diff = session.diff(id_, "main").files
    assert diff is not None
    assert diff.text("small.txt") == "small.txt: its contents are not kept"


def test_a_file_goes_on_from_forgotten_contents(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    versions(session, work, 4)
    store.prune(Retention(files_last=1, keep_labelled=False))
    for step in range(3):
        for name in ("small.txt", "log.txt", "big.bin"):
            (work / name).write_bytes((work / name).read_bytes() + b"more %d" % step)
        session.commit({"step": step})
        assert readable(files_of(session)) == tree_of(work)
        session = store.session("s", workspace=work)
    shutil.rmtree(work / ".backstay")
    (work / "copy").write_bytes((work / "same.txt").read_bytes())
    session.commit({})
    assert readable(files_of(session)) == tree_of(work)


def test_what_was_forgotten_is_kept_again_when_it_is_captured_again(store: backstay.Store, work: Path) -> None:
    noise = random.Random(1).randbytes(100_000)
    (work / "data").write_bytes(noise)
    one = store.session("one", workspace=work)
    one.commit({})
    (work / "data").unlink()
    one.commit({})
    store.prune(Retention(files_last=1))
    assert files_of(one, "main~1").forgotten == ("data",)
    (work / "data").write_bytes(noise)
    store.session("two", workspace=work).commit({})
    assert readable(files_of(store.session("two"))) == tree_of(work)
    assert files_of(one, "main~1")["data"].read() == noise, "both have the same group"
    assert not store.verify().forgotten


def test_a_capture_that_counted_on_contents_forgotten_meanwhile_brings_them(store: backstay.Store, work: Path) -> None:
    """Another session's retention runs between the capture of a run and its boundary."""
    noise = random.Random(2).randbytes(3_000_000)
    (work / "data").write_bytes(noise)
    old = store.session("old", workspace=work)
    old.commit({})
    (work / "data").unlink()
    old.commit({})
    (work / "data").write_bytes(noise)
    with store.run("new", workspace=work) as run:  # its first capture finds the groups there
        store.prune(Retention(files_last=1), session="old")
        assert files_of(old, "main~1").forgotten == ("data",)
        run.state["seen"] = True
        run.step()
        assert readable(files_of(store.session("new"))) == tree_of(work)


def test_prune_writes_groups_anew_of_which_little_is_left(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    noise = random.Random(3)
    for number in range(40):
        (work / f"f{number}").write_bytes(noise.randbytes(5000))
    session.commit({})
    for number in range(1, 40):
        (work / f"f{number}").unlink()
    session.commit({})
    before = store.stats().file_stored_bytes
    report = store.prune(Retention(keep_last=1))
    assert (report.count, report.files) == (1, 0)
    assert store.stats().file_stored_bytes < 8000 < before
    assert readable(files_of(session)) == tree_of(work)
    assert store.verify().ok


def test_a_limit_takes_the_oldest_unlabelled_first(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    made = versions(session, work, 10)
    session.tag(made[4][0], "tagged")
    report = store.prune(Retention(files_bytes="400KB"))
    assert store.stats().file_stored_bytes <= 400_000
    whole = [number for number, (id_, tree) in enumerate(made) if readable(files_of(session, id_)) == tree]
    assert {2, 4, 9} <= set(whole), "labelled, tagged, and the head"
    assert whole == [2, 4, *range(12 - len(whole), 10)], "the rest by age"
    assert report.files == 2 * (10 - len(whole))
    store.prune(Retention(files_bytes=1))
    assert [n for n, (id_, tree) in enumerate(made) if readable(files_of(session, id_)) == tree] == [2, 4, 9]


def test_blame_and_bisect_pass_over_forgotten_contents(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    noise = random.Random(4)
    for step in range(6):
        (work / "data").write_bytes(noise.randbytes(30_000).hex().encode() + b"\nstep %d" % step)
        (work / "good").write_text("yes" if step < 4 else "no")
        session.commit({"step": step}, label="kept" if step in (0, 4) else None)
    store.prune(Retention(files_last=1))
    assert files_of(session, "main~2").forgotten == ("data",)
    assert [line.text for line in session.blame("data")][-1].startswith("step 5")
    told: list[tuple[str, str]] = []
    with pytest.raises(InvalidInputError, match="could not be tested"):
        session.bisect(
            good="main~5", test=["grep", "-q", "yes", "good"], on_try=lambda at, what: told.append((at.id, what))
        )
    assert [what for _, what in told] == ["good", "bad", "bad"], "the ends, and the one that is kept between"


def test_an_export_carries_what_is_left(store: backstay.Store, work: Path, tmp_path: Path) -> None:
    session = store.session("s", workspace=work)
    made = versions(session, work, 5)
    store.prune(Retention(files_last=1))
    store.export(tmp_path / "out.backstay")
    with backstay.open(tmp_path / "other.db") as other:
        other.import_(tmp_path / "out.backstay")
        assert other.verify().ok
        assert other.verify().forgotten == store.verify().forgotten > 0
        for id_, _ in made:
            assert readable(files_of(other.session("s"), id_)) == readable(files_of(session, id_))


def test_what_is_not_forgotten_comes_back_byte_for_byte(store: backstay.Store, work: Path) -> None:
    walk(store, work, random.Random(11), 25)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_what_is_not_forgotten_comes_back_byte_for_byte_at_length(store: backstay.Store, work: Path, seed: int) -> None:
    walk(store, work, random.Random(seed), 250)


def walk(store: backstay.Store, work: Path, chance: random.Random, steps: int) -> None:
    """Random captures, restores, prunes and forgettings of two sessions on one folder, against a dict of trees."""
    trees: dict[tuple[str, str], Tree] = {}
    sessions = {name: store.session(name, workspace=work) for name in ("a", "b")}
    gone: dict[str, set[tuple[str, bytes]]] = {"a": set(), "b": set()}  # what was forgotten by name
    for step in range(steps):
        for _ in range(chance.randrange(4)):
            _change(work, chance)
        name = chance.choice(["a", "a", "b"])
        session, act = sessions[name], chance.random()
        ids = [id_ for where, id_ in trees if where == name]
        if act < 0.65 or not ids:
            point = session.commit({"step": step}, label="label" if chance.random() < 0.1 else None)
            trees[name, point.id] = tree_of(work)
        elif act < 0.75:
            kept = chance.randint(1, 6) if chance.random() < 0.5 else None
            rule = Retention(files_last=kept, files_bytes=60_000 if kept is None else None)
            store.prune(rule, session=name if chance.random() < 0.5 else None)
        elif act < 0.82:
            report = store.prune(Retention(keep_last=chance.randint(1, 8)), session=name)
            for went in [id_ for each in report.checkpoints.values() for id_ in each]:
                trees.pop((name, went), None)
        elif act < 0.88:
            path, before = f"f{chance.randrange(12)}", chance.choice([None, chance.choice(ids)])
            session.forget_files(path, before=before)
            known = [tree for (where, _), tree in trees.items() if where == name and path in tree]
            gone[name] |= set() if before else {(path, tree[path]) for tree in known}
        elif act < 0.94:
            session.load("main")
            made = session.restore(chance.choice(ids), files=True, keep_mine=False, partial=True)
            trees[name, made.id] = tree_of(work)
        else:
            sessions[name] = store.session(name, workspace=work)
        for (where, id_), tree in trees.items() if step % 12 == 11 else ():
            _judge(files_of(sessions[where], id_), tree)
    report_ = store.verify()
    assert report_.ok, report_
    for name, session in sessions.items():
        head = session.head()
        if head is not None and (name, head.id) in trees:
            found, tree = readable(files_of(session)), trees[name, head.id]
            lost = {(path, contents) for path, contents in tree.items() if path not in found}
            assert lost <= gone[name], "a head has all but what was named"


def _judge(files: Files, tree: Tree) -> None:
    found = readable(files)
    assert found == {path: tree[path] for path in found}
    assert sorted(files) == sorted(tree)


def _change(work: Path, chance: random.Random) -> None:
    path = work / f"f{chance.randrange(12)}"
    size = chance.choice([0, 10, 300, 5000, 70_000])
    if chance.random() < 0.2:
        path.unlink(missing_ok=True)
    elif path.exists() and chance.random() < 0.5:
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2] = chance.randbytes(20)
        path.write_bytes(data)
    else:
        path.write_bytes(chance.randbytes(size) if chance.random() < 0.7 else b"the same\n" * (size // 9))
