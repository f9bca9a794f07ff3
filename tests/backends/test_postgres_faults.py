"""What goes wrong on the way to a server, and in it: nothing is lost, nothing is written twice, later calls work."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from backstay.backend import DONE, SKIPPED, Backend
from backstay.backends.postgres import PostgresBackend, wire
from backstay.errors import BackstayError, ConflictError, FencedError, UnavailableError
from backstay.testing.author import Author, check_states, delete
from backstay.testing.contract.moving import packed_up
from backstay.testing.contract.racing import together
from backstay.testing.runner import SESSION, Runner, new_call, pending
from tests.backends.conftest import Fresh
from tests.backends.proxy import Moment, Proxy
from tests.backends.server import Server

MOMENTS: list[Moment] = ["before", "during", "after"]
Setting = tuple[Proxy, PostgresBackend, PostgresBackend]


@pytest.fixture
def setting(postgres_url: str, fresh_schema: Fresh) -> Iterator[Setting]:
    """A backend behind a proxy, and one that goes straight."""
    schema = fresh_schema()
    with Proxy(postgres_url) as proxy:
        far, near = PostgresBackend(proxy.url, schema=schema), PostgresBackend(postgres_url, schema=schema)
        yield proxy, far, near
        proxy.down = False
        far.close()
        near.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PATIENCE_S", 0.3)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_commit_cut_at_any_moment_is_written_once(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    author = Author(far)
    author.grow(2)
    for number in range(3):
        proxy.cut(b".commit_", moment)
        author.commit({"number": number, "picture": bytes([number]) * 6_000})
        assert proxy.cuts == number + 1
    check_states(near, SESSION, author.states)
    assert [row.sequence for row in near.line(SESSION, author.rows[-1].id, limit=9)] == [5, 4, 3, 2, 1]
    assert not list(near.check())


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_journaled_call_cut_at_any_moment_is_written_once(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    run = Runner(far)
    for number in range(3):
        proxy.cut(b"journal_1", moment)
        begun = run.start(f"call {number}")
        proxy.cut(b"journal_1", moment)
        run.finish(begun)
    assert proxy.cuts == 6
    assert pending(near) == run.seen
    proxy.cut(b".commit_", moment)
    row = run.author.write(*run.draft(ends_run=True))
    assert len(near.calls(SESSION, row.id)) == 3
    assert not near.runs(SESSION)[0].entered


def outcomes(far: Backend, proxy: Proxy, moment: Moment) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each verb that is a transaction of several statements, on a store that is ready for it."""
    author = Author(far)
    author.grow(6)
    ids = [row.id for row in author.rows]
    yield "fork", lambda: far.fork(SESSION, id_=ids[2], branch="other")
    yield "tag", lambda: far.tag(SESSION, id_=ids[2], name="good")
    yield "untag", lambda: far.untag(SESSION, name="good")
    yield "delete_branch", lambda: far.delete_branch(SESSION, branch="other")
    yield "delete_checkpoints", lambda: delete(far, SESSION, ids[1])
    run: list[Runner] = []
    yield "enter", lambda: run.append(Runner(far, input_=b"\xa2go"))
    assert run[0].entered.before is None
    begun = run[0].start("in flight")
    yield "leave", run[0].leave
    decided = replace(begun.call, status=SKIPPED)
    yield "settle", lambda: far.settle(SESSION, "main", before=begun, after=decided)
    yield "abandon", lambda: given_up(far)
    moved, arriving = packed_up(far)
    yield "adopt", lambda: far.adopt(replace(moved, line=replace(moved.line, id="copy")), iter(arriving))
    yield "delete_session", lambda: far.delete_session(SESSION)


def given_up(far: Backend) -> None:
    assert far.abandon(SESSION, "main", reason="no use") == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_every_other_write_cut_at_its_commit_is_done_once(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    for number, (verb, act) in enumerate(outcomes(far, proxy, moment), 1):
        proxy.cut(b"COMMIT", moment)
        act()
        assert proxy.cuts == number, verb
    assert near.find_session(SESSION) is None
    copy = near.find_session("copy")
    assert copy is not None
    assert copy.checkpoints == 5
    assert not list(near.check())


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_refused_is_still_refused_after_a_cut(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    author = Author(far)
    author.grow(2)
    stale = Author(near).stand_on_head()
    draft = stale.draft({"by": "another"})
    author.grow(1)
    proxy.cut(b".commit_", moment)
    with pytest.raises(ConflictError):
        far.commit(draft)
    old = Runner(far, "fenced", lease_us=1)
    time.sleep(0.002)
    Runner(near, "fenced")
    for word, act in ((b"journal_1", old.start), (b"COMMIT", old.leave)):
        proxy.cut(word, moment)
        with pytest.raises(FencedError):
            act()
    check_states(near, SESSION, author.states)


def test_hundreds_of_cuts_lose_nothing_and_double_nothing(setting: Setting) -> None:
    proxy, far, near = setting
    chance = random.Random(11)
    author = Author(far, whole_every=12)
    run = Runner(far, "a run")
    for _ in range(110):
        proxy.cut(b".commit_", chance.choice(MOMENTS))
        author.grow(1)
        proxy.cut(b"journal_1", chance.choice(MOMENTS), chance.choice([1, 1, 2]))
        begun = run.start("tool", key=str(len(run.seen)))
        if chance.random() < 0.5:
            proxy.cut(b"journal_1", chance.choice(MOMENTS))
            run.finish(begun)
    assert proxy.cuts >= 250
    check_states(near, SESSION, author.states)
    assert pending(near, session="a run") == run.seen
    assert not list(near.check())


def test_terminated_backends_are_replaced_while_many_commit(setting: Setting, postgres_url: str) -> None:
    _, far, near = setting
    done = threading.Event()
    authors = [Author(near, f"session {me}") for me in range(4)]

    def act(me: int) -> None:
        if me < 4:
            try:
                authors[me].grow(40)
            finally:
                if me == 0:
                    done.set()
            return
        with contextlib.closing(psycopg.connect(postgres_url, autocommit=True)) as killer:
            while not done.wait(0.02):
                killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s AND pid <> "
                    "pg_backend_pid()",
                    (f"%{near.schema}%",),
                )

    together(act, 5)
    for author in authors:
        check_states(far, author.session, author.states)
    assert not list(far.check())


def test_a_server_that_is_away_is_unavailable_and_then_works_again(setting: Setting, impatient: None) -> None:
    proxy, far, near = setting
    author = Author(far)
    author.grow(2)
    proxy.down = True
    proxy.cut_all()
    with pytest.raises(UnavailableError) as refused:
        author.commit({"while": "away"})
    assert refused.value.retryable
    assert isinstance(refused.value.__cause__, psycopg.Error)
    with pytest.raises(UnavailableError):
        far.find_session(SESSION)
    proxy.down = False
    author.commit({"back": "again"})
    check_states(near, SESSION, author.states)


def test_a_second_address_takes_over_when_the_first_is_gone(postgres_url: str, fresh_schema: Fresh) -> None:
    with Proxy(postgres_url) as first, Proxy(postgres_url) as second:
        ports = [psycopg.conninfo.conninfo_to_dict(proxy.url)["port"] for proxy in (first, second)]
        both = psycopg.conninfo.make_conninfo(
            first.url, host="127.0.0.1,127.0.0.1", port=f"{ports[0]},{ports[1]}", target_session_attrs="read-write"
        )
        with contextlib.closing(PostgresBackend(both, schema=fresh_schema())) as backend:
            author = Author(backend)
            author.grow(2)
            first.down = True
            first.cut(b".commit_", "after")
            author.grow(2)
            check_states(backend, SESSION, author.states)


def test_a_restart_of_the_server_is_survived_without_opening_again() -> None:
    server = Server(f"backstay-restart-{random.randrange(1 << 30):x}")
    try:
        with contextlib.closing(PostgresBackend(server.url, schema="restarted")) as backend:
            author = Author(backend)
            author.grow(3)
            run = Runner(backend, "a run")
            stopping = threading.Thread(target=server.crash)
            stopping.start()
            while stopping.is_alive():
                author.grow(1)
                run.call()
            stopping.join()
            author.grow(1)
            check_states(backend, SESSION, author.states)
            assert pending(backend, session="a run") == run.seen
            assert not list(backend.check())
    finally:
        server.close()


def with_options(url: str, **options: str) -> str:
    words = " ".join([f"-c {key}={value}" for key, value in options.items()])
    return psycopg.conninfo.make_conninfo(url, options=words)


def test_a_statement_that_takes_too_long_is_unavailable_and_leaves_nothing(
    postgres_url: str, fresh_schema: Fresh
) -> None:
    schema = fresh_schema()
    with (
        contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as near,
        contextlib.closing(
            PostgresBackend(with_options(postgres_url, statement_timeout="100"), schema=schema)
        ) as backend,
    ):
        author = Author(backend)
        author.grow(2)
        with psycopg.connect(postgres_url) as other:
            other.execute(f'SELECT 1 FROM "{schema}".sessions FOR UPDATE')
            with pytest.raises(UnavailableError, match="timeout") as refused:
                author.commit({"too": "slow"})
            assert refused.value.retryable
        author.commit({"in": "time"})
        check_states(near, SESSION, author.states)


def test_a_deadlock_is_tried_again(postgres_url: str, fresh_schema: Fresh) -> None:
    schema = fresh_schema()
    quick = with_options(postgres_url, deadlock_timeout="400ms")
    with (
        contextlib.closing(PostgresBackend(quick, schema=schema)) as backend,
        psycopg.connect(with_options(postgres_url, deadlock_timeout="30s")) as other,
    ):
        author = Author(backend)
        author.commit({"picture": b"p" * 6_000})
        other.execute(f'SELECT 1 FROM "{schema}".blobs FOR UPDATE')
        writing = threading.Thread(target=lambda: author.commit({"picture": b"p" * 6_000, "n": 1}, keep_whole=True))
        writing.start()
        assert writing.is_alive()
        time.sleep(0.1)
        # Now each waits for the other. The backend is the one that is told, and steps back.
        other.execute(f'SELECT 1 FROM "{schema}".sessions FOR UPDATE')
        other.rollback()
        writing.join(10)
        check_states(backend, SESSION, author.states)
        assert len(author.rows) == 2


def test_serialization_failures_are_tried_again(postgres_url: str, fresh_schema: Fresh) -> None:
    strict = with_options(postgres_url, default_transaction_isolation="serializable")
    with contextlib.closing(PostgresBackend(strict, schema=fresh_schema())) as backend:
        authors = [Author(backend, f"session {me}") for me in range(4)]

        def act(me: int) -> None:
            authors[me].grow(15)

        together(act, 4)
        for author in authors:
            check_states(backend, author.session, author.states)


def test_a_server_that_only_reads_is_read_and_refuses_writes(
    postgres_url: str, fresh_schema: Fresh, impatient: None
) -> None:
    schema = fresh_schema()
    with contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as near:
        author = Author(near)
        author.grow(2)
        standby = with_options(postgres_url, default_transaction_read_only="on")
        with contextlib.closing(PostgresBackend(standby, schema=schema)) as backend:
            check_states(backend, SESSION, author.states)
            draft = Author(backend).stand_on_head().draft({"n": 1})
            for act in (lambda: backend.commit(draft), lambda: backend.tag(SESSION, id_=author.rows[0].id, name="x")):
                with pytest.raises(UnavailableError, match="only reads"):
                    act()
        check_states(near, SESSION, author.states)


@pytest.mark.parametrize("state", ["53100", "53200"])
def test_a_full_disk_is_unavailable_and_leaves_nothing(postgres_url: str, fresh_schema: Fresh, state: str) -> None:
    schema = fresh_schema()
    with (
        contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as backend,
        psycopg.connect(postgres_url, autocommit=True) as other,
    ):
        author = Author(backend)
        author.grow(2)
        body = f"'BEGIN RAISE EXCEPTION ''no space left'' USING ERRCODE = ''{state}''; END'"
        other.execute(f'CREATE FUNCTION "{schema}".full() RETURNS trigger LANGUAGE plpgsql AS {body}')
        when = f'BEFORE INSERT ON "{schema}".checkpoints'
        other.execute(f'CREATE TRIGGER full_disk {when} EXECUTE FUNCTION "{schema}".full()')
        with pytest.raises(UnavailableError, match="out of room") as refused:
            author.commit({"picture": b"p" * 6_000})
        assert refused.value.retryable
        other.execute(f'DROP TRIGGER full_disk ON "{schema}".checkpoints')
        author.grow(1)
        check_states(backend, SESSION, author.states)
        assert not list(backend.check())


def test_an_error_nobody_foresaw_is_one_of_ours_with_the_drivers_chained(
    postgres_url: str, fresh_schema: Fresh
) -> None:
    schema = fresh_schema()
    with (
        contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as backend,
        psycopg.connect(postgres_url, autocommit=True) as other,
    ):
        Author(backend).grow(1)
        other.execute(f'DROP TABLE "{schema}".calls, "{schema}".checkpoints')
        for act in (
            lambda: Author(backend, "new").grow(1),
            lambda: backend.ids(SESSION),
            lambda: Runner(backend).start(),
            lambda: list(backend.check()),
            backend.compact,
        ):
            with pytest.raises(BackstayError) as refused:
                act()
            assert isinstance(refused.value.__cause__, psycopg.Error)


def test_calls_begun_before_a_cut_are_not_doubled_by_the_next_run(setting: Setting) -> None:
    proxy, far, near = setting
    run = Runner(far)
    proxy.cut(b"journal_1", "after")
    slot = far.journal(run.lease, new_call("tool", token=run.lease.token), after=0)
    call = near.entries(SESSION)[0].call
    proxy.cut(b"journal_1", "after")
    assert far.journal(run.lease, replace(call, status=DONE, result=b"\x01"), after=0, slot=slot) == slot
    proxy.cut(b"COMMIT", "after")
    run.leave()
    proxy.cut(b"COMMIT", "after")
    again = Runner(far)
    assert again.lease.token == run.lease.token + 1
    assert [each.call.status for each in again.entered.calls] == [DONE]
