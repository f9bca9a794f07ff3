"""The file of a store: what is refused before it is touched, what lies beside it, exports, and what a commit writes."""

import hashlib
import os
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from backstay.backends.sqlite import SqliteBackend, file_system, store_file
from backstay.backends.sqlite.connections import connect
from backstay.errors import (
    BackstayError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    UnavailableError,
    UnsupportedError,
)
from backstay.port import Ask, Batch, SessionQuery
from backstay.testing.author import Author, Runner, check_states, read_back
from backstay.testing.contract.hidden import bring
from backstay.testing.exact import exactly_equal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def made(path: Path) -> Author:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        author.grow(5)
    return author


def fingerprints(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir() if file.is_file()}


def refused(path: Path, kind: type[BackstayError], match: str) -> None:
    """It is refused, and everything in its folder is as it was."""
    before = fingerprints(path.parent), sorted(file.name for file in path.parent.iterdir())
    with pytest.raises(kind, match=match):
        SqliteBackend(path)
    assert (fingerprints(path.parent), sorted(file.name for file in path.parent.iterdir())) == before


def change(path: Path, sql: str) -> None:
    with closing(connect(path, durability="full")) as connection:
        connection.execute(sql)


# making


def test_a_store_is_private_and_alone_once_it_is_closed(path: Path) -> None:
    mask = os.umask(0)
    try:
        with closing(SqliteBackend(path)) as backend:
            Author(backend).grow(1)
            for file in path.parent.iterdir():
                assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    finally:
        os.umask(mask)
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


def test_makers_at_once_get_one_store(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from backstay.backends.sqlite import SqliteBackend\n"
        "from backstay.testing.author import Author\n"
        "backend = SqliteBackend(Path(sys.argv[1])); Author(backend, sys.argv[2]).grow(2); backend.close()"
    )
    place = str(Path(store_file.__file__).parents[3])
    command = [sys.executable, "-c", program, str(path)]
    children = [
        subprocess.Popen([*command, f"s{number}"], env={**os.environ, "PYTHONPATH": place}) for number in range(4)
    ]
    assert [child.wait(60) for child in children] == [0] * 4
    with closing(SqliteBackend(path)) as backend:
        assert len(backend.sessions(SessionQuery())) == 4
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


def test_what_a_killed_maker_left_is_swept_and_nothing_else(path: Path) -> None:
    ours = path.with_name(".store.db.new-0123abcd-wal")
    theirs = [path.with_name(name) for name in (".store.db.new-notes", ".store.db.new-0123abcd.txt", "store.db.bak")]
    for file in (ours, *theirs):
        file.write_text("x")
    made(path)
    assert not ours.exists()
    assert all(file.read_text() == "x" for file in theirs)


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    author = made(path)
    with closing(SqliteBackend(path)) as backend:
        check_states(backend, author.session, author.states)


def test_a_folder_that_is_not_there_is_one_clear_error(path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not a folder"):
        SqliteBackend(path / "deeper" / "store.db")


def test_a_store_whose_folder_is_a_link_is_opened(path: Path) -> None:
    (path.parent / "real").mkdir()
    (path.parent / "link").symlink_to("real")
    made(path.parent / "link" / "store.db")
    made(path.parent / "real" / "other.db")
    with closing(SqliteBackend(path.parent / "real" / "store.db")) as backend:
        assert backend.sizes().checkpoints == 5


# what is not a store


def test_a_stranger_in_the_place_of_a_store_is_left_as_it_was(path: Path) -> None:
    path.write_text("a letter, and long enough to be one " * 9)
    refused(path, FormatError, "not a Backstay store")
    path.unlink()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE theirs(x); INSERT INTO theirs VALUES(1)")
    refused(path, FormatError, "not a Backstay store")


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-tail", "-journal"])
@pytest.mark.parametrize("what", ["link", "dangling link", "pipe", "folder"])
@pytest.mark.parametrize("new", [True, False])
def test_nothing_but_plain_files_is_followed_waited_for_or_written(
    path: Path, ending: str, what: str, new: bool
) -> None:
    if not new:
        made(path)
        if not ending:
            path.unlink()
    target = path.parent / "elsewhere"
    if what == "link":
        target.write_text("mine")
    odd = path.with_name(path.name + ending)
    if "link" in what:
        odd.symlink_to(target)
    elif what == "pipe":
        os.mkfifo(odd)
    else:
        odd.mkdir()
    with pytest.raises(FormatError):
        SqliteBackend(path)
    assert target.exists() == (what == "link")
    if what == "link":
        assert target.read_text() == "mine"


def test_a_note_that_became_a_pipe_or_a_link_meanwhile_harms_nobody(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        note = path.with_name("store.db-tail")
        target = path.parent / "elsewhere"
        target.write_text("mine")
        note.symlink_to(target)
        author.grow(2)
        assert target.read_text() == "mine"
        note.unlink()
    with closing(SqliteBackend(path)) as backend:
        os.mkfifo(note)
        Author(backend, author.session).stand_on_head().grow(1)
        note.unlink()


def test_a_journal_of_another_database_is_not_played_into_a_new_store(path: Path) -> None:
    path.with_name("store.db-journal").write_bytes(b"\xd9\xd5\x05\xf9 \xa1c\xd7" + bytes(2000))
    refused(path, FormatError, "another database")


def test_a_read_only_file_is_an_error_before_anything_is_made(path: Path) -> None:
    made(path)
    path.chmod(0o400)
    refused(path, UnavailableError, "read-only")


STRANGE = [
    "CREATE VIEW meta2 AS SELECT 1",
    "CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM checkpoints; END",
    "CREATE TABLE theirs(x)",
    "CREATE INDEX theirs ON rows(body)",
    "ALTER TABLE checkpoints ADD COLUMN more",
    "DROP TABLE keyframes",
    "CREATE TABLE calls(sid, run, journal, n, body)",
]


@pytest.mark.parametrize("sql", STRANGE)
def test_a_store_with_other_tables_than_ours_is_refused(path: Path, sql: str) -> None:
    made(path)
    change(path, sql)
    refused(path, FormatError, "other tables")


@pytest.mark.parametrize(("key", "read", "write"), [("read", True, True), ("write", False, True)])
def test_a_store_that_uses_unknown_features_is_not_misread(path: Path, key: str, read: bool, write: bool) -> None:
    author = made(path)
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend, author.session).stand_on_head()
        change(path, f"UPDATE meta SET value = 8 WHERE key = '{key}'")
        for act, fails in ((lambda: author.grow(1), write), (lambda: backend.state(author.session, "main"), read)):
            if fails:
                with pytest.raises(FormatError, match="features"):
                    act()
            else:
                act()
        assert backend.commits == 0
    if read:
        refused(path, FormatError, "features")


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "filesystem_of", lambda _folder: "nfs4")
    refused(path, UnsupportedError, r"network file system \(nfs4\)")


@pytest.mark.parametrize(
    ("version", "safe"),
    [("3.51.2", False), ("3.51.3", True), ("3.50.6", False), ("3.50.7", True), ("3.44.6", True), ("3.45.0", False)],
)
def test_a_sqlite_that_can_lose_rows_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: str, safe: bool
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    if safe:
        made(path)
    else:
        refused(path, UnsupportedError, "WAL-reset")


MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /home rw - nfs4 server:/home rw
31 30 0:27 / /home/me/local rw - xfs /dev/sdb rw
32 22 0:28 / /mnt/with\\040space rw master:2 - cifs //server/share rw
33 22 0:29 / /mnt/twice rw - ext4 /dev/sdc rw
34 22 0:30 / /mnt/twice rw - fuse.sshfs me@host: rw
garbage
"""
MOUNT = """\
/dev/disk3s1 on / (apfs, sealed, local, read-only)
//me@server/share on /Volumes/share (smbfs, nodev, nosuid)
/dev/disk4 on /Volumes/a (b) (apfs, local)
"""


@pytest.mark.parametrize(
    ("place", "kind", "network"),
    [
        ("/", "ext4", False),
        ("/homework", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/me/agent", "nfs4", True),
        ("/home/me/local/deep", "xfs", False),
        ("/mnt/with space/x", "cifs", True),
        ("/mnt/twice/x", "fuse.sshfs", True),
    ],
)
def test_the_mount_nearest_to_a_folder_decides(place: str, kind: str, network: bool) -> None:
    found = file_system._longest(file_system._parse_mountinfo(MOUNTINFO), place)
    assert (found, file_system.is_network(found)) == (kind, network)


@pytest.mark.parametrize(("place", "kind"), [("/x", "apfs"), ("/Volumes/share/x", "smbfs"), ("/Volumes/a (b)", "apfs")])
def test_the_mounts_of_macos_are_read_too(place: str, kind: str) -> None:
    assert file_system._longest(file_system._parse_mount(MOUNT), place) == kind


# exports


def export(backend: SqliteBackend, session: str, target: SqliteBackend) -> None:
    """A session moved through the port, as the hall does it."""
    line = backend.read(Ask(session)).session
    assert line is not None
    bring(target, backend, line, name=session, seen=lambda: target.read(Ask(session)).session)


def test_an_export_is_one_private_file_that_says_the_same_and_cannot_be_written(path: Path) -> None:
    target = path.with_name("export.db")
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        author.grow(9)
        run = Runner(backend)
        run.call()
        run.boundary()
        run.leave("completed")
        with closing(SqliteBackend.make_export(target)) as writing:
            export(backend, author.session, writing)
            with pytest.raises(FormatError):
                SqliteBackend.open_export(target)
            writing.finish_export()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    before = fingerprints(path.parent)
    assert set(before) == {"store.db", "export.db"}
    with closing(SqliteBackend.open_export(target)) as reading:
        check_states(reading, author.session, author.states | run.author.states)
        assert list(reading.check()) == []
        assert reading.changes() == reading.changes()
        assert reading.sizes().sessions == 1
        for act in (
            lambda: reading.write(Ask("x"), lambda _: Batch()),
            lambda: reading.put_blobs({}),
            reading.tend,
            reading.finish_export,
        ):
            with pytest.raises(UnsupportedError, match="backstay import"):
                act()
        assert fingerprints(path.parent) == before
    refused(target, FormatError, "is an export")


def test_an_export_that_was_not_finished_or_is_damaged_is_refused(path: Path) -> None:
    SqliteBackend.make_export(path).close()
    with pytest.raises(FormatError, match="not a whole one"):
        SqliteBackend.open_export(path)
    with pytest.raises(UnavailableError, match="cannot be made"):
        SqliteBackend.make_export(path)
    with pytest.raises(FormatError):
        SqliteBackend.open_export(path.with_name("nothing.db"))
    with pytest.raises(FormatError):
        SqliteBackend.open_export(made_path(path.with_name("store2.db")))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises((FormatError, CorruptionError)):
        SqliteBackend.open_export(path)


def made_path(path: Path) -> Path:
    made(path)
    return path


# what a write costs


class Frames:
    """Counts the pages that writes put into the log."""

    def __init__(self, backend: SqliteBackend) -> None:
        assert backend._group is not None
        self._group, self._last, self.total = backend._group, 0, 0
        backend._group.connection.set_wal_hook(self._note)

    def _note(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self.total += pages - self._last if pages >= self._last else pages
        self._last = pages
        return self._group._note_wal(connection, name, pages)


def test_a_commit_writes_two_or_three_pages_and_a_call_little_more_than_one(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend, keyframe_every=1_000)
        author.commit({"n": 0})
        frames = Frames(backend)
        for number in range(100):
            author.commit({"n": number})
        assert frames.total <= 300
        run = Runner(backend)
        before = frames.total
        for _ in range(100):
            run.call()
        assert frames.total - before <= 300


def test_the_log_is_grown_once_and_reused(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        author.grow(1)
        log = path.with_name("store.db-wal")
        size = log.stat().st_size
        assert size == 1024 * 1024
        author.grow(400)
        assert log.stat().st_size < 2 * size


def test_a_relaxed_store_is_the_same_store(path: Path) -> None:
    with closing(SqliteBackend(path, durability="relaxed")) as backend:
        author = Author(backend)
        author.grow(20)
    with closing(SqliteBackend(path)) as backend:
        check_states(backend, author.session, author.states)


def test_ten_thousand_sessions_are_listed_by_the_page(path: Path) -> None:
    """Through many eras, with sessions that are touched again and again."""
    with closing(SqliteBackend(path, durability="relaxed")) as backend:
        authors = [Author(backend, f"s{number}") for number in range(700)]
        order: list[str] = []
        for number in [*range(700), *range(0, 700, 3), 5, 5, 5, 699, 0]:
            authors[number].commit({"n": len(order)})
            order.append(f"s{number}")
        expected = list(dict.fromkeys(reversed(order)))
        found: list[str] = []
        before: int | None = None
        while page := backend.sessions(SessionQuery(before=before, limit=97)):
            found += [row.id for row in page]
            before = page[-1].touched
        assert found == expected
        assert list(backend.check()) == []
        fresh = backend.read(Ask("s1")).fresh
        with closing(SqliteBackend(path)) as other:
            assert other.read(Ask("s1")).fresh == fresh


def test_a_watcher_hears_of_every_commit_and_of_no_read(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend, closing(SqliteBackend(path)) as other:
        author = Author(backend)
        seen = [backend.changes()]
        for _ in range(3):
            author.grow(1)
            seen.append(backend.changes())
        Author(other, "other").grow(1)
        seen.append(backend.changes())
        assert len(set(seen)) == 5
        read_back(backend, author.session, "main")
        assert backend.changes() == seen[-1]
        waited = threading.Thread(target=lambda: backend.wait(5, since=seen[-1]))
        waited.start()
        author.grow(1)
        waited.join(0.4)
        assert not waited.is_alive()


def test_states_survive_a_store_that_is_written_anew(path: Path) -> None:
    author = made(path)
    change(path, "INSERT INTO meta VALUES('scrub', 1)")
    with closing(SqliteBackend(path)) as backend:
        backend.tend()
        check_states(backend, author.session, author.states)
        assert exactly_equal(read_back(backend, author.session, "main"), author.states[5])
        backend.tend()
