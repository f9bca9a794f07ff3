"""A store whose files are forgotten, for children of the nursery that are killed on the way."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import backstay
from backstay import Retention
from tests.crash.ring.children import shorten_log
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place
from tests.faults import Faults, Posix, mount

SECRET = random.Random(4242).randbytes(48)
_STEPS = 9
Trees = dict[str, dict[str, bytes]]


def _noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def prepare(say: Say, place: Place, work: Path, kept: Path) -> None:
    """A history with whole files, patches and a secret, closed, and a copy of it; says the tree of each checkpoint."""
    place.clear()
    work.mkdir()
    with place.open() as store:
        session = store.session("s", workspace=work)
        for step in range(_STEPS):
            (work / "big").write_bytes(_noise(66_000, step))
            (work / "small").write_bytes(_noise(3000, step))
            (work / f"new-{step}").write_bytes(_noise(500, step))
            secret = SECRET if 2 <= step < 6 else b""
            (work / "config").write_bytes(_noise(800, 99) + secret + _noise(800, 98) + b"%d" % step)
            made = session.commit({"step": step})
            say((made.id, {path.name: path.read_bytes() for path in work.iterdir() if path.is_file()}))
    if place.path.is_dir():
        shutil.copytree(place.path, kept)
    else:
        shutil.copy(place.path, kept)


def forget(say: Say, place: Place, faults: Faults, kept: Path) -> None:
    """Forget by a retention, drop checkpoints, forget a path."""
    shorten_log()
    place.clear()
    if kept.is_dir():
        shutil.copytree(kept, place.path)
    else:
        shutil.copy(kept, place.path)
    with mount(faults), Posix(faults, place.folder), place.open() as store:
        _forget(store)
        say("done")


def _forget(store: backstay.Store) -> None:
    store.prune(Retention(files_last=3))
    store.session("s").forget_files("config", before="main~2")
    store.prune(Retention(keep_last=6))


def inspect(say: Say, place: Place, trees: Trees) -> None:
    """After a kill: all that is not forgotten is there, what is says so; and the same once more comes to its end."""
    with place.open() as store:
        _judge(store, trees)
        _forget(store)
        _judge(store, trees)
        left = [list(point.files.forgotten) for point in store.session("s").log() if point.files is not None]
        assert left == [[], [], [], *[["big", "config", "small"]] * 3], left
    paths = [path for path in place.folder.rglob("*") if path.is_file()] if place.path.is_dir() else [place.path]
    assert not any([SECRET in path.read_bytes() for path in paths])
    say("good")


def _judge(store: backstay.Store, trees: Trees) -> None:
    report = store.verify()
    assert report.ok, report
    for number, point in enumerate(store.session("s").log()):
        files, tree = point.files, trees[point.id]
        assert files is not None
        assert list(files) == sorted(tree)
        for path in files:
            if files[path].mark == "forgotten":
                assert number > 2, f"{path} of a checkpoint that is kept"
                assert path in ("big", "small", "config"), f"{path} is needed by others"
            else:
                assert files[path].read() == tree[path], path
