"""Files from strangers and folders with traps: nothing outside the given place is read, written or run."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay
from backstay import formats
from backstay.formats import source as reading
from tests.faces.formats import made
from tests.faces.formats.test_round_trips import MAKERS


def expected_files(system: str, base: Path) -> list[Path]:
    return [path for path in MAKERS_FILES[system](base) if path.is_file() and not path.is_symlink()]


MAKERS_FILES = {
    "ccswarm": lambda base: sorted((base / "sessions" / "s").glob("*.json")),
    "ares": lambda base: sorted(base.glob("s_[0-9].json")),
    "continuum": lambda base: sorted((base / "s" / "checkpoints").glob("cp_*.json")),
    "smooth": lambda base: sorted((base / "agent-1").glob("*.json")),
}


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """So that a read which waits for ever fails and does not hang."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_a_link_to_a_file_outside_is_not_followed(
    system: str, store: backstay.Store, base: Path, tmp_path: Path
) -> None:
    MAKERS[system](base)
    victim, *others = expected_files(system, base)
    outside = tmp_path / "outside.json"
    victim.rename(outside)
    victim.symlink_to(outside)
    report = formats.import_(store, base, system=system)
    assert any("link" in problem.why for problem in report.problems)
    assert len(others) > 0


@pytest.mark.parametrize("system", ["ccswarm", "continuum", "smooth"])
def test_a_link_to_a_folder_outside_is_not_entered(
    system: str, store: backstay.Store, base: Path, tmp_path: Path
) -> None:
    MAKERS[system](base)
    folder = expected_files(system, base)[0].parent
    folder = folder.parent if system == "continuum" else folder
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    report = formats.import_(store, base, system=system)
    assert not {"s", "agent-1"} & set(report.sessions)


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_a_pipe_in_place_of_a_file_does_not_stop_an_import(system: str, store: backstay.Store, base: Path) -> None:
    MAKERS[system](base)
    victim = expected_files(system, base)[0]
    victim.unlink()
    os.mkfifo(victim)
    with within(10):
        formats.import_(store, base, system=system)


@pytest.mark.parametrize("system", formats.EXPORTS)
@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, b"\xff\xfe\x00", b"[" * 5000, b'{"a":' * 5000, b"null", b"[]", b"{}", b'"x"', b"1e999"],
)
def test_rubbish_costs_one_file(system: str, content: bytes, store: backstay.Store, base: Path) -> None:
    MAKERS[system](base)
    files = expected_files(system, base)
    files[0].write_bytes(content)
    report = formats.import_(store, base, system=system)
    assert len(report.problems) >= 1
    assert report.checkpoints >= len(files) - 1
    assert store.verify().ok


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_every_cut_of_a_file_is_noticed(system: str, base: Path) -> None:
    MAKERS[system](base)
    victim = expected_files(system, base)[-1]
    content = victim.read_bytes()
    for size in range(0, len(content), max(1, len(content) // 40)):
        victim.write_bytes(content[:size])
        with backstay.open("memory://") as store:
            assert formats.import_(store, base, system=system).problems, size


def test_a_file_too_large_to_be_one_is_not_read(
    store: backstay.Store, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.ares(base, [made.ares_step(0)])
    with (base / "s_1.json").open("wb") as file:
        file.truncate(reading.MAX_FILE_BYTES + 1)
    report = formats.import_(store, base)
    assert (report.checkpoints, "bytes, more than" in str(report)) == (1, True)


def test_a_state_nested_deeper_than_a_state_may_be_costs_its_session_only(store: backstay.Store, base: Path) -> None:
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    made.ccswarm(base, [made.ccswarm_checkpoint(1, session="deep", state={"x": deep}), made.ccswarm_checkpoint(2)])
    report = formats.import_(store, base)
    assert (report.sessions, "nested" in str(report)) == (("s",), True)
    with pytest.raises(backstay.CorruptionError, match="nothing was imported"):
        formats.import_(store, base, strict=True, rename=None)


@pytest.mark.parametrize("name", ["a\n\x1b[31mb", "é" * 50, " ", "-x", "con", "a:b", "ＡＢ", "a/b"])
def test_any_name_is_a_name_and_no_more(name: str, store: backstay.Store, base: Path) -> None:
    made.ares(base, [made.ares_step(0, name), made.ares_step(1, name)])
    formats.import_(store, base, system="ares", strict=True)
    formats.export(store, name, base.parent / "to", system="ares")
    assert made.tree(base.parent / "to") == made.tree(base)


def test_a_name_too_long_or_none_is_reported(store: backstay.Store, base: Path) -> None:
    point = made.ccswarm_checkpoint(1, session="/".join(["x" * 100] * 3))
    made.ccswarm(base, [point, made.ccswarm_checkpoint(2)])
    report = formats.import_(store, base)
    assert (report.sessions, "256 characters" in str(report)) == (("s",), True)


# writing


@pytest.mark.parametrize("system", formats.EXPORTS)
@pytest.mark.parametrize("name", ["../x", "..", "/x", "a/../../x", "a//b", "a\\..\\b", "x" * 256, "."])
def test_06_14_30_42_no_session_is_written_outside_of_the_folder(
    system: str, name: str, store: backstay.Store, tmp_path: Path
) -> None:
    store.session(name).commit({"messages": []})
    if system == "ares" and name in (".", ".."):  # `.._0.json` is a name like any other
        formats.export(store, name, tmp_path / "in" / "to", system=system)
        assert len(made.tree(tmp_path / "in" / "to")) == len(made.tree(tmp_path)) == 2
        return
    with pytest.raises(backstay.InvalidInputError, match="cannot be the name"):
        formats.export(store, name, tmp_path / "in" / "to", system=system)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("system", ["ccswarm", "continuum", "smooth"])
def test_a_link_in_the_target_is_not_written_through(system: str, store: backstay.Store, tmp_path: Path) -> None:
    store.session("s").commit({"messages": []})
    (tmp_path / "outside").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / ("sessions" if system == "ccswarm" else "s")).symlink_to(tmp_path / "outside")
    with pytest.raises(backstay.InvalidInputError, match="link"):
        formats.export(store, "s", tmp_path / "to", system=system)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_in_place_of_a_file_is_replaced_and_not_written_through(store: backstay.Store, tmp_path: Path) -> None:
    store.session("s").commit({"messages": []})
    precious = made.put(tmp_path / "precious", "mine")
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "s_latest.json").symlink_to(precious)
    with pytest.raises(backstay.AlreadyExistsError):
        formats.export(store, "s", tmp_path / "to", system="ares")
    formats.export(store, "s", tmp_path / "to", system="ares", overwrite=True)
    assert precious.read_text() == "mine"
    assert not (tmp_path / "to" / "s_latest.json").is_symlink()


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_what_is_written_is_for_its_owner_only_and_leaves_no_drafts(
    system: str, store: backstay.Store, tmp_path: Path
) -> None:
    store.session("s").commit({"messages": [{"role": "user", "content": "x"}]})
    before = os.umask(0)
    try:
        formats.export(store, "s", tmp_path / "to", system=system)
    finally:
        os.umask(before)
    for path in [tmp_path / "to", *(tmp_path / "to").rglob("*")]:
        if not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        assert not path.name.endswith(".part")


@pytest.mark.parametrize("system", formats.EXPORTS)
@pytest.mark.parametrize("value", [b"bytes", (1, 2), float("nan"), "\ud800", {1: 2}])
def test_a_value_without_a_form_there_is_named_and_nothing_is_written(
    system: str, value: object, store: backstay.Store, tmp_path: Path
) -> None:
    session = store.session("s")
    session.commit({"messages": []})
    session.commit({"messages": [{"role": "user", "content": value}]})
    with pytest.raises(backstay.InvalidInputError, match=r"state\['messages'\]\[0\]\['content'\]"):
        formats.export(store, "s", tmp_path / "to", system=system)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("system", formats.EXPORTS)
def test_what_is_there_is_not_overwritten_unasked(system: str, store: backstay.Store, tmp_path: Path) -> None:
    session = store.session("s")
    session.commit({"messages": []})
    formats.export(store, "s", tmp_path / "to", system=system)
    before = made.tree(tmp_path / "to")
    session.commit({"messages": [{"role": "user", "content": "x"}]})
    with pytest.raises(backstay.AlreadyExistsError):
        formats.export(store, "s", tmp_path / "to", system=system)
    assert made.tree(tmp_path / "to") == before
    formats.export(store, "s", tmp_path / "to", system=system, overwrite=True)
    assert len(made.tree(tmp_path / "to")) > len(before)


def test_a_disk_or_folder_that_cannot_be_written_is_one_clear_error(store: backstay.Store, tmp_path: Path) -> None:
    store.session("s").commit({"messages": []})
    made.put(tmp_path / "file", "x")
    with pytest.raises(backstay.InvalidInputError, match="not a folder"):
        formats.export(store, "s", tmp_path / "file", system="ares")
    with pytest.raises(backstay.BackstayError):
        formats.export(store, "s", tmp_path / "file" / "below", system="ares")
    with pytest.raises(backstay.NotFoundError):
        formats.export(store, "nobody", tmp_path / "to", system="ares")
    with pytest.raises(backstay.NotFoundError, match="no branch"):
        formats.export(store, "s", tmp_path / "to", system="ares", branch="other")
    with pytest.raises(backstay.InvalidInputError, match="not a system"):
        formats.export(store, "s", tmp_path / "to", system="langgraph")


# a place that changes, and imports that are cut off


def test_a_file_that_changes_while_it_is_read_is_noticed(store: backstay.Store, base: Path) -> None:
    made.ares(base, [made.ares_step(step) for step in range(3)])

    def meddle(_: int, total: int | None) -> None:
        if total is not None:
            made.put(base / "s_2.json", made.text(made.ares_step(2, partial_results=["other"])))

    report = formats.import_(store, base, progress=meddle)
    assert (report.sessions, "has changed" in str(report)) == ((), True)
    assert list(store.sessions()) == []
    assert formats.import_(store, base).checkpoints == 3


def test_an_import_that_is_stopped_can_be_run_again(base: Path, tmp_path: Path) -> None:
    made.ares(base, [made.ares_step(step, f"s{number}") for number in range(3) for step in range(5)])

    def stop(done: int, total: int | None) -> None:
        if total is not None and done == 8:
            raise KeyboardInterrupt

    with backstay.open(tmp_path / "store.db") as store:
        with pytest.raises(KeyboardInterrupt):
            formats.import_(store, base, progress=stop)
        assert [info.checkpoints for info in store.sessions()] == [5]
        report = formats.import_(store, base)
        assert (len(report.sessions), len(report.skipped)) == (2, 1)
        assert store.verify().ok


def test_a_kill_in_the_middle_leaves_whole_sessions_only(base: Path, tmp_path: Path) -> None:
    made.ares(base, [made.ares_step(step, f"s{number}") for number in range(4) for step in range(30)])
    code = (
        "import sys, os, signal, backstay\n"
        "def progress(done, total):\n"
        "    if total and done == 70: os.kill(os.getpid(), signal.SIGKILL)\n"
        "with backstay.open(sys.argv[1]) as store:\n"
        "    backstay.formats.import_(store, sys.argv[2], progress=progress)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store.db"), str(base)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with backstay.open(tmp_path / "store.db") as store:
        assert [info.checkpoints for info in store.sessions()] == [30, 30]
        assert store.verify().ok
        assert formats.import_(store, base).checkpoints == 60


def test_two_imports_at_once_take_each_session_once(base: Path, tmp_path: Path) -> None:
    made.ares(base, [made.ares_step(step, f"s{number}") for number in range(6) for step in range(5)])
    reports: list[formats.FormatReport] = []
    with backstay.open(tmp_path / "store.db") as store:
        threads = [threading.Thread(target=lambda: reports.append(formats.import_(store, base))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(len(report.sessions) for report in reports) == 6
        assert all(report.ok for report in reports)
        assert sorted(info.checkpoints for info in store.sessions()) == [5] * 6


def test_progress_is_told_to_the_end(store: backstay.Store, base: Path) -> None:
    made.ares(base, [made.ares_step(step) for step in range(5)])
    told: list[tuple[int, int | None]] = []
    formats.import_(store, base, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (5, 5)
    assert told[0] == (1, None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("system", formats.EXPORTS)
def test_a_thousand_checkpoints_of_50_kb_take_less_than_five_seconds(system: str, base: Path, tmp_path: Path) -> None:
    talk = [f"{number} " + "what was said and why it matters, " * 30 for number in range(1045)]
    for number in range(1000):
        window = talk[number : number + 45]
        if system == "ares":
            messages = [{"role": "user", "content": one} for one in window]
            made.ares(base, [made.ares_step(number, messages=messages)])
        elif system == "ccswarm":
            stamp = f"2026-01-28T{number // 60:02d}:{number % 60:02d}:00Z"
            made.ccswarm(base, [made.ccswarm_checkpoint(number, state={"m": window}, created_at=stamp)], index=False)
        elif system == "continuum":
            made.continuum_file(base, made.continuum_checkpoint(number, messages=window))
        else:
            stamp = f"2026-01-28T{number // 60:02d}:{number % 60:02d}:00Z"
            messages = [made.said(1) | {"content": one} for one in window]
            made.smooth(base, [made.smooth_checkpoint(number, messages=messages, created_at=stamp)])
    with backstay.open(tmp_path / "store.db") as store:
        begun = time.process_time()
        assert formats.import_(store, base, system=system).checkpoints == 1000
        assert time.process_time() - begun < 5


# what it is


def test_a_folder_that_is_nobodys_or_could_be_two_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(backstay.FormatError, match="holds nothing"):
        formats.recognise(tmp_path / "empty")
    made.ares(tmp_path / "both", [made.ares_step(0)])
    made.ccswarm(tmp_path / "both", [made.ccswarm_checkpoint(0)])
    with pytest.raises(backstay.FormatError, match="ccswarm or ares"):
        formats.recognise(tmp_path / "both")
    with pytest.raises(backstay.NotFoundError):
        formats.recognise(tmp_path / "nowhere")
    with backstay.open(tmp_path / "store.db") as store:
        store.session("s").commit({"n": 1})
    with pytest.raises(backstay.FormatError):
        formats.recognise(tmp_path / "store.db")
    with pytest.raises(backstay.InvalidInputError):
        formats.recognise("a\0b")
    with pytest.raises(backstay.InvalidInputError, match="neither"):
        formats.recognise("/dev/null")
