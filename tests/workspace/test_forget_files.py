"""A secret that slipped into the files of a session is taken out of its history, and is nowhere in the store then."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import backstay
from backstay.errors import InvalidInputError, LeaseHeldError, NotFoundError
from backstay.store import overview
from tests.workspace.test_forgetting import files_of, readable, tree_of

SECRET = random.Random(0).randbytes(48)  # nothing can make it shorter, so it is found as it is


def on_disk(tmp_path: Path) -> bytes:
    """Every byte of the store, as far as it is on the disk."""
    found = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    return b"".join(found)


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size).hex().encode()


def write_history(session: backstay.Session, work: Path, steps: int = 12) -> list[tuple[str, dict[str, bytes]]]:
    """A file gets a secret by an edit, a small patch; it is edited further, and loses it again."""
    made: list[tuple[str, dict[str, bytes]]] = []
    body = noise(3000)
    for step in range(steps):
        middle = SECRET if 2 <= step < 8 else b""
        (work / "config.py").write_bytes(body[:1000] + middle + body[1000:] + b"\nstep %d" % step)
        (work / "other.py").write_bytes(noise(500, 2) + b"\nstep %d" % step)
        (work / "plain.txt").write_bytes(b"whole: " + SECRET if step == 5 else b"nothing")
        made.append((session.commit({"messages": [{"role": "user", "content": f"{step}"}]}).id, tree_of(work)))
    store = work.parent / "store"
    if store.exists():
        files = [path.read_bytes() for path in store.rglob("*") if path.is_file()]
        assert any([SECRET in data for data in files]), "a patch or a group has it as it is"
    return made


def test_a_path_is_forgotten_in_every_checkpoint_and_nowhere_in_the_store(
    store: backstay.Store, work: Path, tmp_path: Path
) -> None:
    session = store.session("s", workspace=work)
    made = write_history(session, work)
    points = {id_: (store.find(id_).digest, store.find(id_).state) for id_, _ in made}
    planned = session.forget_files("config.py", "plain.txt", dry_run=True)
    assert [file.path for file in planned.files] == ["config.py", "plain.txt"]
    assert [file.versions for file in planned.files] == [12, 3]
    assert readable(files_of(session, made[5][0])) == made[5][1]
    report = session.forget_files("config.py", "plain.txt")
    assert (report.files, report.elsewhere) == (planned.files, ())
    assert SECRET not in on_disk(tmp_path)
    for id_, tree in made:
        assert readable(files_of(session, id_)) == {"other.py": tree["other.py"]}
        assert list(files_of(session, id_)) == sorted(tree), "the list stays"
        assert (store.find(id_).digest, store.find(id_).state) == points[id_]
    checked = store.verify()
    assert checked.ok, checked
    assert checked.forgotten
    assert not session.forget_files("config.py").versions, "there is nothing more"
    (work / "config.py").write_bytes(noise(100))
    session.commit({})
    assert readable(files_of(session)) == {name: tree_of(work)[name] for name in ("config.py", "other.py")}
    assert store.verify().ok


def test_later_versions_that_were_patches_on_what_goes_stay(store: backstay.Store, work: Path, tmp_path: Path) -> None:
    session = store.session("s", workspace=work)
    made = write_history(session, work)
    report = session.forget_files("config.py", "plain.txt", before=made[8][0])
    assert [(file.path, file.versions) for file in report.files] == [("config.py", 8), ("plain.txt", 2)]
    assert report.elsewhere == ()
    assert SECRET not in on_disk(tmp_path)
    for number, (id_, tree) in enumerate(made):
        found = readable(files_of(session, id_))
        if number >= 8:
            assert found == tree
        else:
            kept = {"other.py", "plain.txt"} if number > 5 else {"other.py"}
            assert found == {name: tree[name] for name in kept}
    assert store.verify().ok
    with backstay.open("memory://") as other:
        store.export(tmp_path / "out.backstay")
        other.import_(tmp_path / "out.backstay")
        assert other.verify().ok
        assert readable(files_of(other.session("s"), made[9][0])) == made[9][1]
        assert readable(files_of(other.session("s"), made[4][0])) == readable(files_of(session, made[4][0]))
    store.prune(backstay.Retention(keep_last=2))
    assert readable(files_of(session)) == made[-1][1]
    assert store.verify().ok


def test_files_of_older_checkpoints_go_without_a_path(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    for step in range(6):
        (work / "data").write_bytes(noise(40_000, step))
        session.commit({"step": step}, label="kept" if step == 1 else None)
    session.forget_files(before="main~1")
    marks = [files_of(session, f"main~{back}")["data"].mark for back in range(6)]
    assert marks == ["", "", "forgotten", "forgotten", "", "forgotten"]


def test_a_session_that_was_open_does_not_bring_it_back(store: backstay.Store, work: Path, tmp_path: Path) -> None:
    """It has the old state at hand: its next commit, a whole copy even, must not write what was forgotten."""
    session, beside = store.session("s", workspace=work), store.session("s", workspace=work)
    write_history(session, work, 6)
    beside.load("main")
    beside.commit({"messages": []})
    store.session("s").forget_files("config.py", "plain.txt")
    for step in range(12):
        session.load("main")
        (work / "other.py").write_bytes(noise(5000, step))
        session.commit({"step": step})
        beside.load("main")
        beside.commit({"step": noise(9000, step).decode()})
    assert SECRET not in on_disk(tmp_path)
    assert "config.py" in files_of(session).forgotten
    assert store.verify().ok


def test_what_a_call_kept_for_its_rollback_goes_too(store: backstay.Store, work: Path, tmp_path: Path) -> None:
    with store.run("s", workspace=work) as run:
        (work / "config.py").write_bytes(SECRET)
        run.call("edit", lambda: (work / "b").write_bytes(b"b"), effects="files")
        with pytest.raises(LeaseHeldError):
            store.session("s").forget_files("config.py")
        run.step()
    store.session("s").forget_files("config.py")
    assert SECRET not in on_disk(tmp_path)
    assert store.verify().ok


def test_a_file_whose_contents_are_on_the_disk_alone_is_not_removed(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    (work / "a").write_text("a")
    session.commit({})
    (work / "notes").write_bytes(SECRET)
    session.commit({})
    session.forget_files("notes")
    session = store.session("s", workspace=work)
    plan = session.restore("main~1", files=True, keep_mine=False, dry_run=True)
    assert (plan.without_contents, plan.steps) == ((b"notes",), ())
    session.restore("main~1", files=True, keep_mine=False)
    assert (work / "notes").read_bytes() == SECRET, "no undo could have brought it back"


def test_a_restore_to_what_was_forgotten_by_name_changes_nothing_unless_it_is_partial(
    store: backstay.Store, work: Path
) -> None:
    session = store.session("s", workspace=work)
    made = write_history(session, work)
    session.forget_files("config.py")  # in every checkpoint, the one that is on the disk too
    now = tree_of(work)
    plan = session.restore(made[4][0], files=True, keep_mine=False, dry_run=True)
    assert (plan.forgotten, plan.without_contents) == ((b"config.py",), ())
    with pytest.raises(NotFoundError, match=r"the contents of 1 file were forgotten: config\.py"):
        session.restore(made[4][0], files=True, keep_mine=False)
    assert tree_of(work) == now
    session.restore(made[4][0], files=True, keep_mine=False, partial=True)
    assert tree_of(work) == {**made[4][1], "config.py": now["config.py"]}


def test_the_same_contents_elsewhere_are_named_and_stay(store: backstay.Store, work: Path) -> None:
    for name in ("a.env", "b.env"):
        (work / name).write_bytes(SECRET * 3)
    session = store.session("s", workspace=work)
    session.commit({})
    assert session.forget_files("a.env").elsewhere == ("a.env",)
    assert readable(files_of(session)) == tree_of(work)
    assert session.forget_files("*.env").versions == 2
    assert readable(files_of(session)) == {}


def test_packed_history_is_rewritten_too(work: Path, tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store" / "s.db", durability="relaxed") as store:
        forget_packed(store, work, tmp_path)


def forget_packed(store: backstay.Store, work: Path, tmp_path: Path) -> None:
    session = store.session("s", workspace=work)
    made = write_history(session, work, 12)
    for step in range(150):
        session.append({"role": "user", "content": f"step {step}"})
    assert overview.session_row(store.backend, "s").packed > 12  # type: ignore[union-attr]
    session.forget_files("config.py", "plain.txt")
    assert SECRET not in on_disk(tmp_path)
    assert store.verify().ok
    for id_, tree in made:
        assert readable(files_of(session, id_)) == {"other.py": tree["other.py"]}


def test_what_is_to_be_forgotten_must_be_said(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    with pytest.raises(NotFoundError):
        session.forget_files("a")
    session.commit({})
    for paths in ((), ("",), ("/",)):
        with pytest.raises(InvalidInputError):
            session.forget_files(*paths)
    assert not session.forget_files("nothing-there").files


def test_an_export_leaves_captured_secrets_out_unless_it_is_asked_for_them(
    store: backstay.Store, work: Path, tmp_path: Path
) -> None:
    key = b"-----BEGIN PRIVATE KEY-----\n" + SECRET
    session = store.session("s", workspace=backstay.Workspace(work, secrets="capture"))
    for step in range(4):
        (work / ".env").write_bytes(b"TOKEN=" + SECRET + b"%d" % step)
        (work / "notes.txt").write_bytes(noise(400) + (key if step == 2 else b"") + b"%d" % step)
        session.commit({"step": step})
    assert files_of(session, "main~1")["notes.txt"].mark == "private"
    assert readable(files_of(session)) == tree_of(work)
    for with_secrets in (False, True):
        path = tmp_path / f"{with_secrets}.backstay"
        store.export(path, with_secrets=with_secrets)
        assert (SECRET in path.read_bytes()) is with_secrets
        with backstay.open("memory://") as other:
            other.import_(path)
            assert other.verify().ok
            there = other.session("s")
            lost = ((), (), (), ()) if with_secrets else ((".env",), (".env", "notes.txt"), (".env",), (".env",))
            assert tuple([files_of(there, f"main~{back}").forgotten for back in range(4)]) == lost
            assert files_of(there, "main")["notes.txt"].read() == tree_of(work)["notes.txt"]
    assert readable(files_of(session)) == tree_of(work), "here they stay"


def test_the_key_of_secrets_digests_is_in_no_export(store: backstay.Store, work: Path, tmp_path: Path) -> None:
    (work / ".env").write_bytes(SECRET)
    store.session("s", workspace=work).commit({})
    keys = [path.read_bytes() for path in (work / ".backstay").rglob("*") if path.is_file() and "key" in path.name]
    assert keys
    store.export(tmp_path / "out.backstay", with_secrets=True)
    exported = (tmp_path / "out.backstay").read_bytes()
    assert not any([key in exported for key in keys])
    assert SECRET not in exported
