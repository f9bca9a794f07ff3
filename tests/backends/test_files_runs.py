"""Runs and calls in the files backend: what a person sees, and that no damage makes a call look as if never made."""

import fcntl
import gc
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from backstay.backend import Backend, Journaled
from backstay.backends.files import FilesBackend
from backstay.errors import BackstayError, CorruptionError, FencedError, LeaseHeldError
from backstay.testing.author import Author, delete, read_back
from backstay.testing.runner import SESSION, SHORT_S, SHORT_US, Runner, pending, took

pack = msgspec.msgpack.encode


def journal_of(store: Path) -> Path:
    (path,) = (store / "sessions").iterdir()
    return path


def lines_of(store: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in journal_of(store).read_bytes().splitlines() if line.strip()]
    assert all(isinstance(line, dict) for line in found)
    return found


def lose(store: Path, which: Callable[[dict[str, Any]], bool]) -> int:
    """Cut all lines out that are like this; how many there were."""
    path = journal_of(store)
    lines = path.read_bytes().splitlines(keepends=True)
    left = [line for line in lines if not line.strip() or not which(json.loads(line))]
    path.write_bytes(b"".join(left))
    return len(lines) - len(left)


def is_call(name: str) -> Callable[[dict[str, Any]], bool]:
    ids: set[str] = set()

    def like(line: dict[str, Any]) -> bool:
        if line.get("what") == "call" and line["name"] == name:
            ids.add(line["call"]["id"])
        return "call" in line and line["call"]["id"] in ids

    return like


def is_run(event: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line.get("what") == "run" and line["event"] == event


# what a person sees


def test_a_person_can_read_what_was_called_and_what_came_of_it(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        run = Runner(backend, agent="support", input_=pack("refund order 7"))
        run.call("refund", pack({"ok": True}), key="k", args=pack({"order": 7, "amount": 12.5}))
        row = run.boundary()
        run.finish(run.start("mail", args=None), None, status="failed", error=("TimeoutError", "no answer"))
        run.leave("failed", "no answer")
    lines = lines_of(tmp_path / "s")
    entered = next(line for line in lines if is_run("entered")(line))
    assert (entered["name"], entered["agent"], entered["input"]) == ("main", "support", {"value": "refund order 7"})
    begun, done, failing, failed = [line for line in lines if line.get("what") == "call"]
    assert (begun["name"], begun["key"], begun["call"]["status"]) == ("refund", "k", "started")
    assert begun["args"] == {"value": {"order": 7, "amount": 12.5}}
    assert begun["started"].startswith("20")
    assert (done["call"]["status"], done["result"]) == ("done", {"value": {"ok": True}})
    assert "args" not in done
    assert done["ended"].startswith("20")
    assert failing["args"] is None
    assert failed["error"] == ["TimeoutError", "no answer"]
    (about,) = [line["about"] for line in lines if line.get("what") == "checkpoint"]
    assert (about["id"], about["took"]) == (row.id, [1, 0, 1])
    assert [line["reason"] for line in lines if is_run("ended")(line)] == ["no answer"] * 2


def test_holding_on_to_a_lease_does_not_make_anything_longer(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        run = Runner(backend)
        run.call()
        sizes = {path: path.stat().st_size for path in (tmp_path / "s").rglob("*") if path.is_file()}
        for _ in range(100):
            backend.renew(run.lease)
        assert {path: path.stat().st_size for path in (tmp_path / "s").rglob("*") if path.is_file()} == sizes
        (claims,) = (tmp_path / "s" / "leases").iterdir()
        assert json.loads(claims.read_bytes())["token"] == run.lease.token


def test_a_store_without_runs_has_nothing_that_earlier_ones_had_not(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        author = Author(backend)
        author.grow(4)
        delete(backend, SESSION, author.rows[1].id)
    assert not (tmp_path / "s" / "leases").exists()
    text = journal_of(tmp_path / "s").read_text()
    assert not [word for word in ("took", '"run', "input", "places", "last_slot") if word in text]


# a claim that cannot be read


def test_a_damaged_claim_claims_nothing_and_its_run_is_fenced_once_another_is_entered(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        old = Runner(backend)
        (claims,) = (tmp_path / "s" / "leases").iterdir()
        true = claims.read_bytes()
        chance = random.Random(3)
        length = len(true.rstrip())
        for _ in range(60):
            damaged = bytearray(true)
            damaged[chance.randrange(length)] ^= 1 << chance.randrange(8)
            claims.write_bytes(damaged)
            row = backend.pending(SESSION, "main").run
            assert row is not None
            assert (row.entered, row.live, row.token) == (True, False, old.lease.token)
        backend.renew(old.lease)  # nobody came: it goes on
        with pytest.raises(LeaseHeldError):
            Runner(backend)
        for wrong in (b"", true[:100], b"\0" * 5_000):
            claims.write_bytes(wrong)
            new = Runner(backend)
            with pytest.raises(FencedError):
                old.start()
            old = new


def test_a_claim_of_an_earlier_token_is_none(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        first = Runner(backend)
        (claims,) = (tmp_path / "s" / "leases").iterdir()
        stale = claims.read_bytes()
        first.leave()
        Runner(backend, lease_us=SHORT_US)
        time.sleep(SHORT_S * 1.5)
        claims.write_bytes(stale)
        assert not backend.pending(SESSION, "main").run.live  # type: ignore[union-attr]
        Runner(backend)


# lost lines


def refuses(backend: Backend, *acts: Callable[[], object]) -> None:
    for act in acts:
        with pytest.raises(CorruptionError):
            act()


def lived_in(backend: Backend) -> tuple[Runner, list[Journaled]]:
    """A run with one boundary that took a call in, and two calls since; it is left."""
    run = Runner(backend, input_=pack("go"))
    run.call("taken in")
    run.boundary()
    calls = [run.call("lost"), run.call("kept")]
    run.leave()
    return run, calls


@pytest.mark.parametrize("which", [is_call("lost"), is_run("left"), is_run("entered")], ids=["call", "end", "entry"])
def test_where_a_call_may_be_lost_nothing_runs_until_somebody_has_given_it_up(
    tmp_path: Path, which: Callable[[dict[str, Any]], bool]
) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        run, _ = lived_in(backend)
        again = Runner(backend)
    assert lose(tmp_path / "s", which)
    with closing(FilesBackend(tmp_path / "s")) as backend:
        again.backend = again.author.backend = backend
        refuses(
            backend,
            lambda: backend.pending(SESSION, "main"),
            lambda: Runner(backend),
            again.start,
            again.boundary,
            lambda: Author(backend).stand_on_head().grow(1),
            lambda: backend.entries(SESSION),
            lambda: backend.runs(SESSION),
            backend.crashed,
        )
        assert read_back(backend, SESSION, run.author.rows[0].id) == run.author.state
        assert list(backend.check())
        said = backend.repair()
        assert any("session.abandon" in what for what in said)
        refuses(
            backend,
            lambda: backend.pending(SESSION, "main"),
            lambda: Runner(backend),
            lambda: Author(backend).stand_on_head().grow(1),
        )
        (problem,) = backend.check()
        assert "abandon" in problem.remedy
        assert backend.abandon(SESSION, "main", reason="looked: it was not sent") >= 1
        assert not list(backend.check())
        new = Runner(backend)
        assert new.lease.token > again.lease.token
        assert new.entered.calls == ()
        with pytest.raises(FencedError):
            again.start()
        new.call()
        new.boundary()
        assert not list(backend.check())


def test_a_loss_before_the_head_costs_no_pending_call_and_a_repair_is_enough(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        run = Runner(backend, input_=pack("go"))
        run.call("taken in")
        first = run.boundary()
        run.call("another")
        second = run.boundary()
        done = run.call("pending")
        run.leave()
    assert lose(tmp_path / "s", is_call("taken in")) == 4
    with closing(FilesBackend(tmp_path / "s")) as backend:
        refuses(backend, lambda: backend.calls(SESSION, first.id))
        assert [each.call.name for each in backend.calls(SESSION, second.id)] == ["another"]
        assert pending(backend) == [done]  # the line of its end says all there is to say
        assert Runner(backend).entered.calls == (done,)
        assert list(backend.check())
        assert backend.repair()
        refuses(backend, lambda: backend.calls(SESSION, first.id))  # nothing can bring it back
        assert pending(backend) == [done]


def test_a_run_that_may_have_been_followed_by_another_gets_a_token_beyond_it(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        Runner(backend, input_=pack("go")).leave("failed", "no")
        lost = Runner(backend, lease_us=1)
        time.sleep(0.001)
        lost.boundary()
        Author(backend, branch="main")
    path = journal_of(tmp_path / "s")
    lines = path.read_bytes().splitlines(keepends=True)
    second = [n for n, line in enumerate(lines) if line.strip() and is_run("entered")(json.loads(line))][2:]
    path.write_bytes(b"".join([line for n, line in enumerate(lines) if n not in second]))
    with closing(FilesBackend(tmp_path / "s")) as backend:
        refuses(backend, lambda: Runner(backend), lambda: backend.renew(lost.lease))
        Author(backend).stand_on_head().grow(1)  # nothing is pending at the head, that is certain
        backend.repair()
        assert not list(backend.check())
        new = Runner(backend)
        assert new.lease.token > lost.lease.token
        with pytest.raises(FencedError):
            backend.renew(lost.lease)


def test_a_session_that_never_ran_can_be_run_once_it_is_repaired(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        author = Author(backend)
        author.grow(4)
        gone = author.rows[-1].id
    assert lose(tmp_path / "s", lambda line: line.get("about", {}).get("id") == gone)
    with closing(FilesBackend(tmp_path / "s")) as backend:
        refuses(backend, lambda: Runner(backend))
        backend.repair()
        run = Runner(backend)
        run.call()
        run.boundary()
        assert not list(backend.check())


def test_damage_to_a_call_stays_damage_when_its_journal_is_written_anew(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as backend:
        run = Runner(backend)
        run.call("first")
        rows = [run.boundary(), run.boundary()]
        for name in ("second", "third"):
            run.call(name)
        run.leave()
        path = journal_of(tmp_path / "s")
        lines = path.read_bytes().splitlines(keepends=True)
        at = next(n for n, line in enumerate(lines) if b'"name":"second"' in line)
        lines[at] = lines[at].replace(b'"name":"second"', b'"name":"sekond"')
        path.write_bytes(b"".join(lines))
    with closing(FilesBackend(tmp_path / "s")) as backend:
        for _ in range(2):
            refuses(backend, lambda: pending(backend), lambda: Runner(backend), lambda: backend.entries(SESSION))
            assert [each.call.name for each in backend.calls(SESSION, rows[0].id)] == ["first"]
            other = Author(backend, branch="other")
            backend.fork(SESSION, id_=rows[1].id, branch="other")
            (row,) = other.stand_on_head().grow(1)
            backend.delete_branch(SESSION, branch="other")
            delete(backend, SESSION, row.id)
        assert list(backend.check())
        assert backend.abandon(SESSION, "main", reason="looked") == 2
        run = Runner(backend)
        run.boundary()


# a bit anywhere


def portrait(backend: Backend) -> list[Callable[[], object]]:
    """All that can be asked about runs and calls."""
    return [
        lambda: [replace(row, live=False) for row in backend.runs(SESSION)],
        lambda: backend.entries(SESSION),
        lambda: pending(backend),
        lambda: pending(backend, "other"),
        lambda: [(id_, backend.calls(SESSION, id_), took(backend, id_)) for id_ in backend.ids(SESSION)],
        lambda: backend.find_session(SESSION),
        lambda: [run.branch for _, run in backend.crashed()],
    ]


def write_runs(store: Path) -> list[object]:
    with closing(FilesBackend(store, durability="relaxed")) as backend:
        run = Runner(backend, agent="support", input_=pack("go"))
        run.call("one", args=pack({"a": 1}))
        row = run.boundary(kept_in_state={run.seen[0].call.id: b"place"})
        backend.fork(SESSION, id_=row.id, branch="other")
        other = Runner(backend, branch="other")
        other.call("two")
        other.leave("failed", "no")
        run.call("three")
        run.boundary()
        run.call("four")
        run.start("five")
        run.leave()
        return [ask() for ask in portrait(backend)]


def told(store: Path, truth: list[object]) -> int:
    """How many of the questions were refused; the others must be answered with the truth."""
    with closing(FilesBackend(store, durability="relaxed")) as backend:
        refused = 0
        for ask, true in zip(portrait(backend), truth, strict=True):
            try:
                assert ask() == true
            except CorruptionError:
                refused += 1
        if refused:
            assert list(backend.check())
            backend.repair()
        for branch, true in (("main", truth[2]), ("other", truth[3])):
            try:  # a repair gives up lines, even a branch of which nothing is left, but never without a word a call
                if backend.find_branch(SESSION, branch) is None:
                    assert refused
                    continue
                assert pending(backend, branch) == true
                assert list(Runner(backend, branch=branch).entered.calls) == true
            except BackstayError:
                assert refused
    return refused


def test_a_flipped_bit_anywhere_never_hides_a_call_nor_an_entry(tmp_path: Path) -> None:
    truth = write_runs(tmp_path / "true")
    chance = random.Random(5)
    size = journal_of(tmp_path / "true").stat().st_size
    noticed = 0
    for _ in range(40):
        shutil.copytree(tmp_path / "true", tmp_path / "s")
        path = journal_of(tmp_path / "s")
        damaged = bytearray(path.read_bytes())
        damaged[chance.randrange(size)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        noticed += told(tmp_path / "s", truth) > 0
        shutil.rmtree(tmp_path / "s")
    assert noticed > 20


@pytest.mark.parametrize("filler", [b"\0", b" "])
def test_a_wiped_stretch_never_hides_a_call_nor_an_entry(tmp_path: Path, filler: bytes) -> None:
    truth = write_runs(tmp_path / "true")
    true = journal_of(tmp_path / "true").read_bytes()
    noticed = 0
    for at in range(0, len(true), 512):
        shutil.copytree(tmp_path / "true", tmp_path / "s")
        length = min(700, len(true) - at)
        journal_of(tmp_path / "s").write_bytes(true[:at] + filler * length + true[at + length :])
        noticed += told(tmp_path / "s", truth) > 0
        shutil.rmtree(tmp_path / "s")
    assert noticed > len(true) // 512 - 4


def test_a_call_whose_line_never_came_to_its_end_was_never_made(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path / "true")
    run = Runner(backend)
    first = run.call("first")
    before = len(journal_of(tmp_path / "true").read_bytes().rstrip())
    (claims,) = (tmp_path / "true" / "leases").iterdir()
    claimed = claims.read_bytes()
    run.start("second")
    true = journal_of(tmp_path / "true").read_bytes().rstrip()
    claims.write_bytes(claimed)  # as it was while the line was being written
    for length in range(before + 2, len(true) - 2, 23):
        shutil.copytree(tmp_path / "true", tmp_path / "s")
        journal_of(tmp_path / "s").write_bytes(true[:length] + b" " * 900)
        with closing(FilesBackend(tmp_path / "s")) as again:
            assert pending(again) == [first]
            assert not list(again.check())
            again.leave(run.lease, status=None, reason=None)
            assert Runner(again).start("second").slot == first.slot + 1
        shutil.rmtree(tmp_path / "s")
    backend.close()


@pytest.mark.parametrize("filler", [b"\0", b" ", b""])
def test_a_call_at_the_end_that_was_acknowledged_is_missed_when_it_is_gone(tmp_path: Path, filler: bytes) -> None:
    backend = FilesBackend(tmp_path / "true")  # not closed: whoever had it was killed
    run = Runner(backend)
    run.boundary()
    before = len(journal_of(tmp_path / "true").read_bytes().rstrip())
    run.call("sent")
    true = journal_of(tmp_path / "true").read_bytes()
    for at in (before + 1, before + 300, len(true.rstrip()) - 400):
        shutil.copytree(tmp_path / "true", tmp_path / "s")
        journal_of(tmp_path / "s").write_bytes(true[:at] + filler * (len(true) - at))
        with closing(FilesBackend(tmp_path / "s")) as again:
            refuses(again, lambda: pending(again), lambda: Runner(again), lambda: again.renew(run.lease))
            assert list(again.check())
            assert again.repair()
            refuses(again, lambda: pending(again), lambda: Runner(again))
            again.abandon(SESSION, "main", reason="looked")
            assert Runner(again).entered.calls == ()
            assert not list(again.check())
        shutil.rmtree(tmp_path / "s")
    backend.close()


def test_a_witness_of_an_earlier_journal_says_nothing_about_this_one(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path / "s")
    run = Runner(backend)
    for _ in range(9):
        run.call()
        run.boundary()
    run.leave()
    for row in run.author.rows[:-1]:
        delete(backend, SESSION, row.id)
    with closing(FilesBackend(tmp_path / "s")) as again:
        assert not list(again.check())
        assert Runner(again).entered.calls == ()
    (claims,) = (tmp_path / "s" / "leases").iterdir()
    kept = claims.read_bytes()
    with closing(FilesBackend(tmp_path / "s")) as again:
        again.leave(replace(run.lease, token=run.lease.token + 1), status="completed", reason=None)
        again.delete_session(SESSION)
        claims.write_bytes(kept)
        Author(again).grow(1)
    with closing(FilesBackend(tmp_path / "s")) as again:
        assert not list(again.check())
    backend.close()


def in_time(job: Callable[[], object]) -> None:
    """Do it in a thread of its own, which may hang: then it is left behind, and this fails."""
    troubles: list[BaseException] = []

    def work() -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            troubles.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it hangs"
    if troubles:
        raise troubles[0]


def test_who_was_interrupted_while_beginning_to_write_can_write_and_lets_others(tmp_path: Path) -> None:
    """As an interrupt leaves it: entered, and known to nobody but the traceback that is being dealt with."""
    with closing(FilesBackend(tmp_path / "store")) as backend, closing(FilesBackend(tmp_path / "store")) as beside:
        author = Author(backend)
        author.grow(1)

        def interrupted() -> None:
            forgotten: Any = backend._writing(SESSION)
            forgotten.__enter__()
            author.grow(1)
            with backend._writing(SESSION):
                del forgotten  # the traceback goes, while the thread is writing again
                gc.collect()
                other = os.open(tmp_path / "store" / "lock", os.O_RDWR)
                with closing(os.fdopen(other, "rb+")), pytest.raises(BlockingIOError):
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

        in_time(interrupted)
        in_time(lambda: author.grow(1))
        in_time(lambda: Author(beside, "another").grow(1))
        assert len(beside.ids(SESSION)) == 3
