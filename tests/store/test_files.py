"""Files of a workspace are in the same checkpoint as the conversation, on every backend, and nothing loses them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay
from backstay import aio
from backstay.errors import CorruptionError, InvalidInputError
from backstay.store.files import KEY
from tests.house.tree import python_files


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print('hello')\n" * 40)
    (folder / "README").write_text("read me")
    return folder


@pytest.fixture(params=["memory://", "sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[backstay.Store]:
    urls = {"sqlite": f"sqlite:///{tmp_path}/store.db", "file": f"file://{tmp_path}/store"}
    with backstay.open(urls.get(request.param, request.param)) as opened:
        yield opened


def files_of(checkpoint: backstay.Checkpoint) -> dict[str, bytes]:
    assert checkpoint.files is not None
    return {file.path: file.read() for file in checkpoint.files.list() if file.kind == "file"}


def test_every_checkpoint_has_its_files_as_they_were(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    first = session.commit({"n": 1})
    (work / "src" / "main.py").write_text("print('bye')\n" * 40)
    (work / "new").write_bytes(b"\0" * 100)
    (work / "README").unlink()
    second = session.commit({"n": 2})
    assert files_of(first) == {"src/main.py": b"print('hello')\n" * 40, "README": b"read me"}
    assert files_of(second) == {"src/main.py": b"print('bye')\n" * 40, "new": b"\0" * 100}
    assert session.load() == {"n": 2}
    assert first.state == {"n": 1}
    assert store.verify().ok


def test_a_session_without_a_workspace_has_no_files(store: backstay.Store) -> None:
    assert store.session("s").commit({"n": 1}).files is None


def test_a_commit_that_captured_nothing_carries_the_list_and_says_so(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    session.commit({"n": 1})
    (work / "README").write_text("other")
    carried = [
        session.commit({"n": 2}, files=False),
        store.session("s").append({"role": "user", "content": "hi"}),
        store.session("s").commit({"n": 3}, expect=backstay.ANY),
        store.session("s").restore("main~2"),
    ]
    for checkpoint in carried:
        assert checkpoint.files is not None
        assert (checkpoint.files.author, checkpoint.files.exact) == ("carried", False)
        assert checkpoint.files["README"].read() == b"read me"
    again = session.commit(session.load())
    assert again.files is not None
    assert (again.files.author, again.files.exact) == ("outside", True)
    assert again.files["README"].read() == b"other"


def test_a_fork_starts_with_the_files_of_its_fork_point(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    first = session.commit({"n": 1})
    (work / "README").write_text("other")
    session.commit({"n": 2})
    assert files_of(session.fork(first, "b").head)["README"] == b"read me"
    assert files_of(store.session("s").commit({"n": 9}, branch="b"))["README"] == b"read me"


def test_export_import_and_prune_keep_the_files_of_what_stays(
    store: backstay.Store, work: Path, tmp_path: Path
) -> None:
    session = store.session("s", workspace=work)
    for step in range(40):
        (work / "src" / "main.py").write_text(f"print({step})\n" * 40)
        (work / f"f{step % 7}").write_text(f"{step}" * 300)
        session.commit({"n": step})
    before = files_of(session.checkpoint())
    middle = files_of(session.checkpoint("main~20"))
    store.export(tmp_path / "out.backstay")
    with backstay.open("memory://") as other:
        other.import_(tmp_path / "out.backstay")
        assert other.verify().ok
        assert files_of(other.session("s").checkpoint("main~20")) == middle
    session.tag("main~20", "kept")
    store.prune(backstay.Retention(keep_last=2))
    assert files_of(store.session("s").checkpoint()) == before
    assert files_of(store.session("s").checkpoint("kept")) == middle
    report = store.verify()
    assert report.ok, report.problems


def test_a_deleted_session_takes_its_contents_with_it(tmp_path: Path, work: Path) -> None:
    (work / "noise").write_bytes(os.urandom(3_000_000))
    with backstay.open(tmp_path / "store.db") as store:
        store.session("s", workspace=work).commit({})
        assert store.stats().stored_bytes > 3_000_000
        store.delete("s")
        assert store.stats().stored_bytes < 1_000_000


def test_two_sessions_on_one_checkout_share_their_contents(tmp_path: Path, work: Path) -> None:
    (work / "noise").write_bytes(os.urandom(3_000_000))
    with backstay.open(tmp_path / "store.db") as store:
        store.session("a", workspace=work).commit({})
        store.session("b", workspace=work).commit({})
        assert store.stats().stored_bytes < 4_000_000


def test_keys_that_begin_with_nul_are_refused(store: backstay.Store) -> None:
    with pytest.raises(InvalidInputError, match="reserved"):
        store.session("s").commit({KEY: 1})
    with pytest.raises(InvalidInputError, match="reserved"):
        store.session("s").commit({"\0other": 1, "a": 2})
    assert store.session("s").commit({"": 1, "a\0": 2}).state == {"": 1, "a\0": 2}


def test_only_one_module_knows_the_reserved_key() -> None:
    knowing = [path.name for path in python_files("src") if re.search(r"\\0files\b", path.read_text())]
    assert knowing == ["files.py"]


def test_a_load_reads_no_contents(store: backstay.Store, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "noise").write_bytes(os.urandom(300_000))
    session = store.session("s", workspace=work)
    session.commit({"n": 1})
    records = store.backend.state("s", "main")
    assert sum(map(len, records.blobs.values())) < 100_000


def test_search_and_diff_do_not_see_the_list(store: backstay.Store, work: Path) -> None:
    session = store.session("s", workspace=work)
    session.commit({"messages": [{"role": "user", "content": "main.py"}]})
    (work / "src" / "other.py").write_text("x")
    session.commit({"messages": [{"role": "user", "content": "main.py"}], "k": 1})
    assert [hit.path for hit in store.search("main.py")] == [("messages", 0, "content")]
    assert "\0" not in str(session.diff("main~1", "main"))


def test_contents_swept_before_their_commit_are_put_again(store: backstay.Store, work: Path) -> None:
    (work / "noise").write_bytes(os.urandom(5_000_000))  # more than waits for the commit itself
    session = store.session("s", workspace=work)
    put = store.backend.put_blobs
    swept: list[object] = []

    def put_and_lose(blobs: dict[bytes, bytes]) -> None:
        put(blobs)
        if not swept:
            swept.append(store.backend.tend(repair=True))

    store.backend.put_blobs = put_and_lose  # type: ignore[method-assign, assignment]
    point = session.commit({"n": 1})
    assert swept
    assert files_of(point)["noise"] == (work / "noise").read_bytes()


def test_a_damaged_group_costs_its_own_files_and_verify_names_them(tmp_path: Path, work: Path) -> None:
    (work / "a").write_bytes(os.urandom(70_000))
    (work / "b").write_bytes(os.urandom(70_000))
    with backstay.open(f"file://{tmp_path}/store") as store:
        point = store.session("s", workspace=work).commit({"n": 1})
        noise = (work / "a").read_bytes()
        (held,) = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and noise in path.read_bytes()]
        held.write_bytes(held.read_bytes().replace(noise[:100], bytes(100)))
    with backstay.open(f"file://{tmp_path}/store") as store:
        point = store.session("s").checkpoint()
        assert point.state == {"n": 1}
        assert point.files is not None
        assert point.files["b"].read() == (work / "b").read_bytes()
        with pytest.raises(CorruptionError):
            point.files["a"].read()
        report = store.verify()
        assert not report.ok
        assert "a" in str(report.problems[0].cost)


def test_files_of_a_run_are_recorded_at_its_boundaries_each_with_its_author(store: backstay.Store, work: Path) -> None:
    def edit() -> str:
        (work / "src" / "main.py").write_text("print('edited by a tool')\n" * 10)
        return "done"

    with store.run("s", workspace=work) as run:
        run.call("edit", edit)
        (work / "README").write_text("mine")
        run.call("look", lambda: 1)
        run.state["n"] = 1
        run.step()
        assert run.files is not None
        assert [change.path for change in run.files.changed().changes] == [b"README", b"src/main.py"]
    head = store.session("s").checkpoint()
    assert head.files is not None
    calls = {call.name: call.id for call in store.session("s").calls("main~1")}
    assert head.files["src/main.py"].author == f"call:{calls['edit']}"
    assert head.files["README"].author == "outside"
    assert head.files.exact


def test_calls_in_flight_at_once_share_what_was_found_meanwhile(store: backstay.Store, work: Path) -> None:
    with store.run("s", workspace=work) as run:
        with run.calling("outer", key="1") as one:
            with run.calling("inner", key="2") as two:
                (work / "inner").write_text("x")
                two.finish(1)
            one.finish(1)
        begun = [run.begin("a", key="a"), run.begin("b", key="b")]
        (work / "both").write_text("x")
        for call in begun:
            call.finish(None)
        run.step()
    head = store.session("s").checkpoint()
    assert head.files is not None
    assert head.files["inner"].author == f"call:{two.id}"
    assert head.files["both"].author == "calls:" + ",".join(sorted([call.id for call in begun]))


def test_a_run_goes_on_when_its_folder_is_gone_and_the_list_stays(store: backstay.Store, work: Path) -> None:
    with store.run("s", workspace=work) as run:
        run.step()
        work.rename(work.with_name("moved"))
        run.state["n"] = 2
        run.step()
        assert run.files is not None
        assert run.files.problem
        work.with_name("moved").rename(work)
    first = store.session("s").checkpoint("main~1")
    assert first.files is not None
    assert (first.files.author, first.files["README"].read()) == ("carried", b"read me")


def test_files_are_written_out_as_they_were(store: backstay.Store, work: Path, tmp_path: Path) -> None:
    (work / "src" / "main.py").chmod(0o755)
    (work / "link").symlink_to("README")
    (work / "empty").mkdir()
    point = store.session("s", workspace=work).commit({})
    assert point.files is not None
    assert point.files.export_to(str(tmp_path / "out")) == 3
    assert (tmp_path / "out" / "src" / "main.py").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out" / "link").readlink() == Path("README")
    assert (tmp_path / "out" / "empty").is_dir()
    with pytest.raises(backstay.AlreadyExistsError):
        point.files.export_to(str(tmp_path / "out"))


def test_the_async_face_records_files_too(work: Path) -> None:
    async def main() -> dict[str, bytes]:
        async with aio.open("memory://") as store:
            await store.session("s", workspace=work).commit({"n": 1})
            async with store.run("s", workspace=work) as run:
                await run.call("edit", lambda: (work / "README").write_text("async"))
                await run.step()
            return await asyncio.to_thread(files_of, await store.session("s").checkpoint())

    assert asyncio.run(main())["README"] == b"async"


def test_a_store_with_files_says_that_older_versions_cannot_read_it(tmp_path: Path, work: Path) -> None:
    import apsw

    with backstay.open(tmp_path / "store.db") as store:
        store.session("plain").commit({})
    assert _features(apsw.Connection(str(tmp_path / "store.db"))) & 4 == 0
    with backstay.open(tmp_path / "store.db") as store:
        store.session("s", workspace=work).commit({})
    assert _features(apsw.Connection(str(tmp_path / "store.db"))) & 4 == 4


def _features(connection: object) -> int:
    rows = connection.execute("SELECT value FROM meta WHERE key = 'read'").fetchall()  # type: ignore[attr-defined]
    return int(rows[0][0])


PLAIN = """
import sys, backstay
seen = set()
store = backstay.open(sys.argv[1])
session = store.session("s")
session.commit({"n": 0})
sys.setprofile(lambda frame, event, arg: seen.add(frame.f_code.co_filename) if event == "call" else None)
session.commit({"n": 1})
sys.setprofile(None)
rooms = ("workspace", "listing", "grouping.py", "ignoring.py", "store/files.py", "store/file_contents.py")
print([name for name in sorted(seen) if any(f"backstay/{room}" in name for room in rooms)])
print([name for name in sys.modules if name.startswith(("backstay.workspace", "backstay.listing"))])
"""


def test_a_commit_without_a_workspace_costs_what_it_cost(tmp_path: Path) -> None:
    """Nothing of the workspace is loaded for it, and nothing of it is called."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", PLAIN, str(tmp_path / "s.db")]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=env)
    assert done.stdout == "[]\n[]\n"


def test_a_session_whose_branch_another_one_moved_captures_on_the_new_head(store: backstay.Store, work: Path) -> None:
    session, beside = store.session("s", workspace=work), store.session("s")
    for number in range(3):
        (work / "README").write_text(f"read me {number}")
        session.commit({"n": number}, expect=backstay.ANY)
        beside.commit({"beside": number}, expect=backstay.ANY)
    (work / "README").write_text("last")
    made = session.commit({"n": 3}, expect=backstay.ANY)
    assert made.files is not None
    assert made.files["README"].read() == b"last"
    assert len(list(session.log())) == 7
