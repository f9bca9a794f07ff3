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

from backstay.backends.postgres import PostgresBackend, pool
from backstay.errors import BackstayError, ConflictError, FencedError, UnavailableError
from backstay.port import Ask, Backend, Kind, SessionQuery
from backstay.port.rows import DONE, SKIPPED
from backstay.rules import branches, deletion, runs
from backstay.rules.commit import commit as commit_rule
from backstay.testing.author import SESSION, Author, Runner, check_states, delete, fork, tag
from backstay.testing.contract.handmade import together
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
    monkeypatch.setattr(pool, "PATIENCE_S", 0.3)


def pending(backend: Backend, session: str = SESSION) -> list[Any]:
    return list(backend.read(Ask(session, names=("main",), pending=("main",))).pending["main"])


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_commit_cut_at_any_moment_is_written_once(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    author = Author(far)
    author.grow(2)
    for number in range(7):  # the first ones as they are, then as statements that the server keeps
        proxy.cut(b"write_2", moment)
        author.commit({"number": number, "picture": bytes([number]) * 6_000})
        assert proxy.cuts == number + 1
    check_states(near, SESSION, author.states)
    last = author.rows[-1].sequence
    assert [row.parent for row in near.ancestors(SESSION, last, limit=99)] == [8, 7, 6, 5, 4, 3, 2, 1, None]
    assert not list(near.check())


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_journaled_call_cut_at_any_moment_is_written_once(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    run = Runner(far)
    seen = []
    for number in range(3):
        proxy.cut(b"write_2", moment)
        begun = run.start(f"call {number}")
        proxy.cut(b"write_2", moment)
        seen.append(run.finish(begun))
    assert proxy.cuts == 6
    assert pending(near) == seen
    proxy.cut(b"write_2", moment)
    row = run.boundary(ends_run=True)
    assert row.took is not None
    assert len(near.read(Ask(SESSION, journals=((row.took.run, row.took.journal),))).journals) == 1
    assert row.took.count == 3


@pytest.mark.parametrize("moment", MOMENTS)
def test_writes_that_share_a_round_trip_are_all_recognised_when_it_is_cut(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    run = Runner(far)
    proxy.delay_s = 0.05  # so that the others wait while the first is on its way

    def act(me: int) -> None:
        time.sleep(me * 0.002)
        if me == 1:
            time.sleep(0.02)
            proxy.cut(b"write_2", moment, 2)
        run.finish(run.start(f"call {me}"))

    together(act, 8)
    proxy.delay_s = 0.0
    assert proxy.cuts
    assert sorted([(call.n, call.status) for call in pending(near)]) == [(n, DONE) for n in range(8)]
    assert len({call.id for call in pending(near)}) == 8


def outcomes(far: Backend) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every other write, on a store that is ready for it."""
    author = Author(far)
    rows = author.grow(6)
    yield "fork", lambda: fork(far, SESSION, rows[2], "other")
    yield "tag", lambda: tag(far, SESSION, rows[2], "good")
    yield "untag", lambda: far.write(branches.name_ask(SESSION, "good"), branches.untag(SESSION, "good"))
    rule = branches.delete_branch(SESSION, "other")
    yield "delete_branch", lambda: far.write(branches.name_ask(SESSION, "other"), rule)
    yield "delete_checkpoints", lambda: delete(far, SESSION, rows[1].sequence)
    run: list[Runner] = []
    yield "enter", lambda: run.append(Runner(far, input_=b"\xa2go"))
    assert run[0].lease.token == 1
    begun = run[0].start("in flight")
    yield "renew", run[0].renew
    yield "leave", run[0].leave
    decided = replace(begun, status=SKIPPED, nonce=b"a nonce")
    settle = runs.settle(SESSION, "main", before=begun, after=decided)
    yield "settle", lambda: far.write(runs.settle_ask(SESSION, "main", begun.at), settle)
    yield "abandon", lambda: given_up(far)
    yield "hide", lambda: far.write(deletion.hide_ask(SESSION), deletion.hide(SESSION))
    (hidden,) = far.sessions(SessionQuery(hidden=True))
    yield "drop_session", lambda: far.write(Ask(hidden.id, hidden=True), deletion.drop_session())


def given_up(far: Backend) -> None:
    rule = runs.abandon(SESSION, "main", reason="no use", at_us=1, nonce="n")
    far.write(runs.abandon_ask(SESSION, "main"), rule)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_every_other_write_that_is_cut_is_done_once(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    for number, (verb, act) in enumerate(outcomes(far), 1):
        proxy.cut(b"write_2", moment)
        act()
        assert proxy.cuts == number, verb
    assert near.read(Ask(SESSION)).session is None
    assert not near.sessions(SessionQuery(hidden=True))
    assert not list(near.check())
    assert near.sizes().sessions == 0


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_refused_is_still_refused_after_a_cut(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    author = Author(far)
    author.grow(2)
    draft = Author(near).stand_on_head().draft({"by": "another"})
    author.grow(1)
    proxy.cut(b"look_2", moment)
    with pytest.raises(ConflictError):
        far.write(draft.ask, commit_rule(draft))
    old = Runner(far, "fenced", lease_s=0.001)
    time.sleep(0.01)
    Runner(near, "fenced")
    for act in (old.start, old.leave):
        proxy.cut(b"look_2", moment)
        with pytest.raises(FencedError):
            act()
    assert proxy.cuts >= 2
    check_states(near, SESSION, author.states)


def test_hundreds_of_cuts_lose_nothing_and_double_nothing(setting: Setting) -> None:
    proxy, far, near = setting
    chance = random.Random(11)
    author = Author(far, keyframe_every=12)
    run = Runner(far, "a run")
    seen: list[Any] = []
    for number in range(110):
        proxy.cut(b"write_2", chance.choice(MOMENTS))
        author.grow(1)
        proxy.cut(b"write_2", chance.choice(MOMENTS), chance.choice([1, 1, 2]))
        seen.append(run.start("tool", key=str(number)))
        if chance.random() < 0.5:
            proxy.cut(b"write_2", chance.choice(MOMENTS))
            seen[-1] = run.finish(seen[-1])
    assert proxy.cuts >= 250
    check_states(near, SESSION, author.states)
    assert pending(near, "a run") == seen
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
            seen = -1
            while not done.wait(0.1):
                made = sum([len(author.rows) for author in authors])
                if made == seen:  # on a busy machine a commit may take longer than that: one gets through
                    continue
                seen = made
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
        far.read(Ask(SESSION))
    proxy.down = False
    author.commit({"back": "again"})
    check_states(near, SESSION, author.states)


def test_an_answer_that_never_comes_is_not_called_a_failure(setting: Setting, impatient: None) -> None:
    proxy, far, near = setting
    author = Author(far)
    author.grow(2)
    proxy.cut(b"write_2", "after")
    proxy.down = True  # no new connection comes through
    with pytest.raises(UnavailableError, match="not known whether it was recorded"):
        author.commit({"was": "recorded"})
    proxy.down = False
    assert len(near.scan(SESSION, Kind.CHECKPOINT, limit=9)) == 3


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
            first.cut(b"write_2", "after")
            author.grow(2)
            check_states(backend, SESSION, author.states)


def test_a_restart_of_the_server_is_survived_without_opening_again() -> None:
    server = Server(f"backstay-restart-{random.randrange(1 << 30):x}")
    try:
        with contextlib.closing(PostgresBackend(server.url, schema="restarted")) as backend:
            author = Author(backend)
            author.grow(3)
            run = Runner(backend, "a run")
            seen = []
            stopping = threading.Thread(target=server.crash)
            stopping.start()
            while stopping.is_alive():
                author.grow(1)
                seen.append(run.call())
            stopping.join()
            author.grow(1)
            check_states(backend, SESSION, author.states)
            assert pending(backend, "a run") == seen
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
    slow = with_options(postgres_url, statement_timeout="100")
    with (
        contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as near,
        contextlib.closing(PostgresBackend(slow, schema=schema)) as backend,
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
        writing = threading.Thread(target=lambda: author.commit({"picture": b"p" * 6_000, "n": 1}, keyframe=True))
        writing.start()
        time.sleep(0.1)
        # Now each waits for the other. The backend is the one that is told, and steps back.
        other.execute(f'SELECT 1 FROM "{schema}".sessions FOR UPDATE')
        other.rollback()
        writing.join(10)
        check_states(backend, SESSION, author.states)
        assert len(author.rows) == 2


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_server_that_is_set_to_another_isolation_keeps_the_same_promises(
    postgres_url: str, fresh_schema: Fresh, isolation: str
) -> None:
    strict = with_options(postgres_url, default_transaction_isolation=isolation.replace(" ", "\\ "))
    schema = fresh_schema()
    with (
        contextlib.closing(PostgresBackend(strict, schema=schema)) as one,
        contextlib.closing(PostgresBackend(strict, schema=schema)) as two,
    ):
        run = Runner(one)
        authors = [Author(backend, f"session {me}") for me, backend in enumerate((one, two))]

        def act(me: int) -> None:
            if me < 2:
                authors[me].grow(15)
            else:
                run.call()

        together(act, 6)
        for author in authors:
            check_states(one, author.session, author.states)
        assert len(pending(two)) == 4


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
            with pytest.raises(UnavailableError, match="only reads"):
                Author(backend).stand_on_head().commit({"n": 1})
            with pytest.raises(UnavailableError, match="only reads"):
                tag(backend, SESSION, author.rows[0], "x")
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
        assert "no space left" not in str(refused.value)
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
            lambda: backend.scan(SESSION, Kind.CHECKPOINT, limit=1),
            lambda: backend.state(SESSION, "main"),
            lambda: Runner(backend).start(),
            lambda: list(backend.check()),
            backend.tend,
        ):
            with pytest.raises(BackstayError) as refused:
                act()
            assert isinstance(refused.value.__cause__, psycopg.Error)


def test_an_interrupt_while_a_connection_changes_hands_does_not_keep_the_store_from_closing(
    postgres_url: str, fresh_schema: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = PostgresBackend(postgres_url, schema=fresh_schema())
    Author(backend).grow(1)
    take = getattr(pool.Pool, "_take")  # noqa: B009 - the moment between its end and the next line cannot be had otherwise

    def struck(self: pool.Pool, deadline: float) -> pool.Wire:
        take(self, deadline)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool.Pool, "_take", struck)
    with pytest.raises(KeyboardInterrupt):
        backend.read(Ask(SESSION))
    backend.close()
