"""One transaction for many: what fails in it fails alone. The lead is held until all have come, so that it is one."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import backstay
from backstay.backends.sqlite import SqliteBackend
from backstay.backends.sqlite.connections import connect
from backstay.errors import BackstayError, CorruptionError
from backstay.port import Ask, Batch, BlobsAbsentError, CheckpointRow, Kind, LaneQuery, SessionQuery, View
from backstay.port.rows import ENTERED
from backstay.store.packing import PACK_ROWS
from backstay.testing.author import Author, Runner, call_row, check_states, delete
from tests.backends.test_sqlite_crashes import in_child


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def together(backend: SqliteBackend, *jobs: Callable[[], object]) -> list[object]:
    """Run jobs in threads whose writes share one transaction; what each gave, or raised."""
    results: list[object] = [None] * len(jobs)
    group: Any = backend._group

    def run(number: int) -> None:
        try:
            results[number] = jobs[number]()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            results[number] = error

    assert group.hold(5)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(jobs))]
    for number, thread in enumerate(threads):
        thread.start()
        while group._queue.waiting <= number:
            time.sleep(0.001)
    before = backend.syncs
    group.release()
    for thread in threads:
        thread.join(30)
    assert backend.syncs == before + 1, "they did not share a transaction"
    return results


def misfit(backend: SqliteBackend, session: str, *rows: Any) -> Callable[[], object]:
    """A write that fails in the middle: the session's line is put, and then something that cannot be."""

    def decide(view: View) -> Batch:
        assert view.session is not None
        line = msgspec.structs.replace(view.session, status="half", touched=view.fresh)
        return Batch((line, *rows))

    return lambda: backend.write(Ask(session), decide)


def test_what_a_failing_write_had_put_is_taken_back_and_the_others_stay(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        authors = [Author(backend, f"s{number}") for number in range(3)]
        first = [author.grow(2)[0] for author in authors]
        nowhere = msgspec.structs.replace(first[1], sequence=0)
        lost = msgspec.structs.replace(first[1], sequence=9, refs=(b"x" * 32,))
        results = together(
            backend,
            lambda: authors[0].grow(1),
            misfit(backend, "s1", nowhere),
            misfit(backend, "s1", lost),
            lambda: authors[2].grow(1),
        )
        assert [type(result) for result in results] == [list, CorruptionError, BlobsAbsentError, list]
        view = backend.read(Ask("s1"))
        assert view.session is not None
        assert view.session.status == "in_progress"
        for author in authors:
            check_states(backend, author.session, author.states)
        assert list(backend.check()) == []


@pytest.mark.parametrize("shared", [True, False])
def test_tables_whose_making_was_taken_back_are_made_again(path: Path, shared: bool) -> None:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        author.grow(1, delta=False)
        run = Runner(backend, "other")
        bad = misfit(backend, author.session, call_row("x", at=(1, 1, 0)), call_row("y", at=(1, 1, 2**40)))
        if shared:
            results = together(backend, bad, run.start, bad, run.start)
            assert [isinstance(result, CorruptionError) for result in results] == [True, False, True, False]
            results = together(backend, bad, run.start)
        else:
            for _ in range(2):
                with pytest.raises(CorruptionError):
                    bad()
                backend.read(Ask("other", names=None, pending=None))
        run.call()
        assert list(backend.check()) == []


def test_a_damaged_page_fails_the_write_that_needs_it_and_no_other(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        Author(backend, "bad", keyframe_every=100).grow(40)
        Author(backend, "good", keyframe_every=100).grow(40)
    with closing(connect(path, durability="full")) as connection:
        pages: Any = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'checkpoints' AND pagetype = 'leaf' ORDER BY path"
        ).fetchall()
    content = bytearray(path.read_bytes())
    for (page,) in pages[2 * len(pages) // 5 : 3 * len(pages) // 5]:  # where the first ends and the other begins
        content[4096 * (page - 1) + 1000] ^= 1
    path.write_bytes(content)
    with closing(SqliteBackend(path)) as backend:
        # What it writes lands in a page that cannot be read.
        row = CheckpointRow(41, "x", b"7 bytes", 40, "y", b"", b"", b"", 0, False, None, b"")
        bad = misfit(backend, "bad", row)
        good = Author(backend, "new").draft({"n": 1})
        author = Author(backend, "new")
        author.uid = good.uid
        results = together(backend, bad, lambda: author.write(good, {"n": 1}), bad)
        assert [type(result) for result in results] == [CorruptionError, CheckpointRow, CorruptionError]
        check_states(backend, "new", author.states)


def test_an_index_column_that_does_not_agree_is_damage(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        Author(backend).grow(1)
        Runner(backend)
        session = "a session"
        looks: list[Callable[[], object]] = [
            lambda: backend.read(Ask(session)),
            lambda: backend.sessions(SessionQuery()),
            lambda: backend.read(Ask(session, names=("main",))),
            lambda: backend.lanes(LaneQuery(ENTERED)),
        ]
        for sql, first in (("marks = marks + 1 WHERE kind = 0", 0), ("marks = 0 WHERE kind = 1", 2)):
            with closing(connect(path, durability="full")) as connection:
                connection.execute("BEGIN")
                before: Any = connection.execute("SELECT sid, kind, name, marks FROM rows").fetchall()
                connection.execute(f"UPDATE rows SET {sql}")
                connection.execute("COMMIT")
            for look in looks[first : first + 2] if first == 0 else looks[2:3]:
                with pytest.raises(CorruptionError):
                    look()
            with closing(connect(path, durability="full")) as connection:
                for sid, kind, name, marks in before:
                    bindings = (marks, sid, kind, name)
                    connection.execute("UPDATE rows SET marks = ? WHERE sid = ? AND kind = ? AND name = ?", bindings)
            for look in looks:
                look()


@pytest.mark.parametrize(("sql", "kind"), [("checkpoints WHERE key & 255 = 3", 2), ("rows WHERE kind = 1", 1)])
def test_a_page_of_rows_that_comes_to_its_end_too_soon_is_damage(path: Path, sql: str, kind: int) -> None:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        author.grow(5)
        with closing(connect(path, durability="full")) as connection:
            connection.execute(f"DELETE FROM {sql}")
        for ends in ({}, {"after": 2 if kind == 2 else "a"}, {"before": 9 if kind == 2 else "z"}):
            with pytest.raises(CorruptionError):
                backend.scan(author.session, Kind(kind), limit=99, **ends)  # type: ignore[arg-type]


def test_deleted_checkpoints_are_nowhere_on_the_disk(path: Path) -> None:
    import subprocess

    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        for number in range(6):
            author.commit({"n": number, "text": f"secret number {number}, long enough to be told from others"})
        delete(backend, author.session, 3, 4)
        backend.tend()
        files = [str(file) for file in path.parent.iterdir()]
        kept = subprocess.run(["cat", *files], capture_output=True, check=True).stdout
        assert b"secret number 2" not in kept
        assert b"secret number 3" not in kept
        assert b"secret number 4" in kept


def test_a_store_is_written_anew_once_after_a_session_was_deleted(path: Path) -> None:
    from backstay.rules.deletion import drop_session, hide, hide_ask

    def wanted() -> object:
        sql = "SELECT count(*) FROM meta WHERE key = 'scrub'"
        return backend._read(lambda connection: connection.execute(sql).fetchall()[0][0])

    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        author.grow(3)
        row = backend.write(hide_ask(author.session), hide(author.session)).answer
        backend.write(Ask(row.id, hidden=True), drop_session())
        assert wanted() == 1
        backend.tend()
        assert wanted() == 0


def test_a_fork_waits_for_those_who_are_inside_sqlite(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        Author(backend).grow(1)
        for use in (backend._read, backend._write):
            inside = threading.Event()
            left: list[bool] = []

            def linger(_: Any, inside: threading.Event = inside, left: list[bool] = left) -> None:
                inside.set()
                time.sleep(0.2)
                left.append(True)

            thread = threading.Thread(target=use, args=(linger,))
            thread.start()
            inside.wait(5)

            def child(left: list[bool] = left) -> None:
                assert left, "the fork came while a thread was inside"

            assert in_child(child) == 0
            thread.join()


def test_errors_of_sqlite_are_never_shown_to_a_caller(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        author.grow(1)
        with closing(connect(path, durability="full")) as connection:
            connection.execute("DROP TABLE keyframes")
        for act in (lambda: backend.state(author.session, "main"), lambda: author.grow(1, keyframe=True)):
            with pytest.raises(BackstayError) as caught:
                act()
            assert "keyframes" not in str(caught.value)
            assert caught.value.__cause__ is not None


def test_a_packing_waits_for_no_sync_of_its_own_and_the_commit_behind_it_does(path: Path) -> None:
    with backstay.open(path) as store:
        backend, session = store.backend, store.session("a")
        assert isinstance(backend, SqliteBackend)
        for number in range(PACK_ROWS):
            session.commit({"n": number})
        assert backend.read(Ask("a")).session.packed == PACK_ROWS  # type: ignore[union-attr]
        assert (backend.commits, backend.syncs) == (PACK_ROWS + 1, PACK_ROWS)
        session.commit({"n": PACK_ROWS})
        assert (backend.commits, backend.syncs) == (PACK_ROWS + 2, PACK_ROWS + 1)
