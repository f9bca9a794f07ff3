"""A folder captured step by step, its contents put ahead of the commits that name them: what a power cut may meet."""

from __future__ import annotations

import random
from pathlib import Path

import backstay
from backstay.store import file_contents
from tests.crash.ring.children import beneath
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place
from tests.faults import Crash, Faults

Contents = dict[str, bytes]


def folder_at(step: int) -> Contents:
    """The files of a folder after a step: some new, some changed, some gone."""
    noise = random.Random(step)
    made = {f"{n}.bin": random.Random(n * step).randbytes(3_000) for n in range(4)}
    made["log"] = b"".join([b"%d %d\n" % (n, random.Random(n).randrange(10**9)) for n in range(40 * step)])
    made[f"only-{step}"] = noise.randbytes(200)
    return made


def write(work: Path, step: int) -> None:
    for path in work.iterdir():
        if path.is_file():
            path.unlink()
    for name, data in folder_at(step).items():
        (work / name).write_bytes(data)


def record(say: Say, place: Place, faults: Faults, work: Path, steps: int) -> None:
    """The steps with every storage call of the store written down, acknowledgements among them."""
    file_contents._PORTION_BYTES = 4_000  # so that contents of each step are put ahead of its commit, in portions
    with beneath(place, faults), place.open("full") as store:
        session = store.session("s", workspace=work)
        faults.mark(0)
        for step in range(1, steps + 1):
            write(work, step)
            session.commit({"step": step})
            faults.mark(step)
    say(faults.trace)


def survive(crash: Crash, place: Place) -> bool:
    """Open one state: every checkpoint that was acknowledged has its files whole. True if there is one more."""
    crash.put(place.folder)
    with place.open() as store:
        session = store.session("s")
        head = session.head()
        if head is None:
            assert crash.marks == 0, f"{crash!r}: step {crash.marks} was acknowledged"
            return False
        kept = list(session.log())
        assert len(kept) in (crash.marks, crash.marks + 1), f"{crash!r}: {len(kept)} steps are there"
        for point in kept:
            step = point.state["step"]
            files = point.files
            assert files is not None
            assert {name: files[name].read() for name in files} == folder_at(step), f"{crash!r}: step {step}"
        damage = [problem for problem in store.verify().problems if problem.cost != "space only"]
        assert not damage, f"{crash!r}: {damage}"
        store.session("s").commit({"step": 0}, expect=backstay.ANY)
        return len(kept) > crash.marks
