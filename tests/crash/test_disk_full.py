"""A disk that is full: an error that says so, everything kept that was, and work goes on when there is room again."""

from pathlib import Path

import backstay
from tests.store.children import run

# A limit on how large a file may grow is a full disk that can be had without being root.
FILL = """
import os, resource, signal, sys, backstay
path, where = sys.argv[1], sys.argv[2]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = backstay.open(path)
session = store.session("s")
kept = []
if where == "later":
    for number in range(50):
        kept.append(session.commit({"n": number, "noise": os.urandom(3000)}).id)
limit = max(os.path.getsize(path + "-wal"), 0) if where == "at once" else os.path.getsize(path + "-wal") + 200_000
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (max(limit, 40_000), before[1]))
failed = 0
for number in range(600):
    try:
        kept.append(session.commit({"n": number, "noise": os.urandom(30_000)}).id)
    except backstay.UnavailableError as error:
        failed += 1
        assert error.__cause__ is not None
        if failed == 5:
            break
assert failed == 5, failed
reader = store.session("s")
for id_ in kept:
    reader.load(id_)
head = reader.head()
assert (head.id if head else None) == (kept[-1] if kept else None)
resource.setrlimit(resource.RLIMIT_FSIZE, before)
before_room = len(kept)
# What could not be moved from the log while there was no room is reported once, by the next write.
late = 0
while len(kept) < 20 + before_room:
    try:
        kept.append(session.commit({"n": len(kept), "noise": os.urandom(30_000)}).id)
    except backstay.UnavailableError:
        late += 1
assert late <= 1, late
report = store.verify()
assert report.ok, str(report)
store.close()
print(*kept)
"""


def full(path: Path, where: str) -> None:
    (line,) = run(FILL, path, where)
    with backstay.open(path) as store:
        assert [point.id for point in store.session("s").log()] == line.split()[::-1]
        assert store.verify().ok


def test_a_disk_that_fills_up_costs_only_the_commit_that_did_not_fit(path: Path) -> None:
    full(path, "later")


def test_a_disk_that_is_full_from_the_start_leaves_a_store_to_go_on_with(path: Path) -> None:
    full(path, "at once")


MAKE = """
import resource, signal, sys, backstay
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), before[1]))
try:
    backstay.open(sys.argv[1])
except backstay.UnavailableError as error:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, before)
with backstay.open(sys.argv[1]) as store:
    store.session("s").commit({"n": 1})
    assert store.verify().ok
"""


def test_a_store_that_could_not_be_made_for_lack_of_room_can_be_made_later(path: Path) -> None:
    for limit in (0, 5000, 20_000):
        assert run(MAKE, path, limit) == ["refused"]
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        path.unlink()
