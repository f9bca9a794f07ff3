"""Many sessions: listings and their filters, branches that need attention, leases as of now (W9), news, sizes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from backstay.codec import encode_stored
from backstay.port import (
    LOOK_S,
    Ask,
    Backend,
    Batch,
    CallRow,
    Key,
    Kind,
    LaneQuery,
    LaneRow,
    SessionQuery,
    SessionRow,
    TagRow,
    View,
)
from backstay.port.facets import MAX_SCALARS, facet, scalar_facets
from backstay.port.lease import Holder, here
from backstay.port.rows import ENTERED, INBOX, MARK_READY, MARK_WAITING, LaneWait
from backstay.testing.author import SESSION, Author, Runner, call_row
from backstay.testing.contract.handmade import UID, checkpoint, claim_until, line, nothing, put
from backstay.testing.contract.hooks import Hooks

HOUR_US = 1 << 32


class ListingContract(Hooks):
    """What the verbs about many sessions owe."""

    # sessions

    def test_a_listing_has_the_session_touched_last_first_and_is_paged(self, backend: Backend) -> None:
        for number in range(23):
            put(backend, TagRow("t", number), session=f"session {number % 17}")
        expected = [f"session {number % 17}" for number in range(22, 5, -1)]
        for limit in (1, 5, 17, 100):
            assert [row.id for row in listing(backend, limit=limit)] == expected
        assert [row.id for row in listing(self.again(backend), limit=4)] == expected

    def test_a_listing_shows_every_session_that_nobody_touched_meanwhile(self, backend: Backend) -> None:
        for number in range(12):
            put(backend, TagRow("t", 0), session=f"session {number}")
        touched: list[str] = []

        def meanwhile() -> None:
            touched.append(f"session {len(touched)}")
            put(backend, TagRow("t", 1), session=touched[-1])
            put(backend, TagRow("t", 1), session=f"new {len(touched)}")

        found = [row.id for row in listing(backend, limit=3, meanwhile=meanwhile)]
        assert len(found) == len(set(found))
        assert set(found) >= {f"session {number}" for number in range(12)} - set(touched)

    def test_a_renewal_of_a_lease_does_not_move_a_session_in_the_listing(self, backend: Backend) -> None:
        run = Runner(backend, "first")
        Runner(backend, "second")
        run.renew()
        run.start()
        assert [row.id for row in backend.sessions(SessionQuery())] == ["second", "first"]

    def test_a_listing_is_filtered_by_all_that_was_asked_for(self, backend: Backend) -> None:
        agents = [None, "a", "A", "b"]
        ids = ["a_1", "ax1", "a%", "A_1", "b", "a\U0010ffff", "a_\U0010ffffz", "", "日"]
        rows: list[SessionRow] = []
        for number, id_ in enumerate(ids * 2):
            fields: dict[str, Any] = {
                "agent": agents[number % 4],
                "status": ["in_progress", "completed", "failed"][number % 3],
                "owner": f"o-{number % 7}",
                "updated_us": number % 3 * HOUR_US + number,
            }
            uid = bytes([number // 4, number % 4]) + bytes(14)
            name = id_ + "-" * (number // len(ids))
            put(backend, checkpoint(1, id_=f"id {number % 5}", uid=uid), session=name, uid=uid, **fields)
            found = backend.read(Ask(name)).session
            assert found is not None
            rows.append(found)
        hidden = line("a hidden", uid=bytes(16), hidden=True, agent="a")
        backend.write(Ask(hidden.id, hidden=True), lambda _view: Batch((hidden,)))
        queries: list[tuple[dict[str, Any], Callable[[SessionRow], bool]]] = [
            ({}, lambda _row: True),
            (said(agent="a"), lambda row: row.agent == "a"),
            (said(agent="nobody"), lambda _row: False),
            (said(status="failed"), lambda row: row.status == "failed"),
            (said(status="failed", agent="b"), lambda row: (row.status, row.agent) == ("failed", "b")),
            ({"facets": ((facet("agent", "a"), facet("agent", "b")),)}, lambda row: row.agent in ("a", "b")),
            (said(owner="o-1"), lambda row: row.owner == "o-1"),
            ({"since_us": HOUR_US + 5}, lambda row: row.updated_us >= HOUR_US + 5),
            ({"since_us": 9 * HOUR_US}, lambda _row: False),
            (
                {"since_us": HOUR_US, **said(owner="o-1", status="failed")},
                lambda row: row.updated_us >= HOUR_US and (row.owner, row.status) == ("o-1", "failed"),
            ),
            ({"uid_start": b"\0"}, lambda row: row.uid[0] == 0),
            ({"uid_start": b"\1\2"}, lambda row: row.uid[:2] == b"\1\2"),
            ({"foreign": "id 3"}, lambda row: rows.index(row) % 5 == 3),
            ({"foreign": "id"}, lambda _row: False),
            ({"foreign": "id", "foreign_start": True}, lambda _row: True),
            ({"foreign": "id 3", "foreign_start": True}, lambda row: rows.index(row) % 5 == 3),
            ({"foreign": "ie", "foreign_start": True}, lambda _row: False),
            ({"foreign": "id 3", **said(agent="a")}, lambda row: rows.index(row) % 5 == 3 and row.agent == "a"),
            *[({"prefix": start}, prefixed(start)) for start in ("a", "a_", "a%", "A", "a\U0010ffff", "日", "z")],
            ({"prefix": "a", **said(status="completed")}, lambda row: row.id[:1] == "a" and row.status == "completed"),
        ]
        for query, matches in queries:
            for limit in (1, 100):
                expected = [row for row in reversed(rows) if matches(row)]
                assert listing(backend, limit=limit, **query) == expected, query
        assert [row.id for row in backend.sessions(SessionQuery(hidden=True))] == ["a hidden"]

    def test_a_session_is_found_by_what_its_line_says_now(self, backend: Backend) -> None:
        uid = bytes(15) + b"s"
        other: dict[str, Any] = {"metadata": encode_stored({"n": 1, "tags": ["x"]}), "owner": "ana", "status": "failed"}
        put(backend, checkpoint(1, uid=UID), session="other", uid=UID, **other)
        put(backend, checkpoint(1, uid=uid), session="one", uid=uid, updated_us=1)
        many = {f"k{at:02}": at for at in range(MAX_SCALARS + 2)}  # more than have facets
        changes: list[tuple[dict[str, Any], set[str]]] = [
            ({"owner": "ana", "metadata": encode_stored({"n": 1, "tags": ["x"]})}, {"ana", "n"}),
            ({"owner": "bo", "status": "failed"}, {"bo", "failed", "n"}),
            ({"metadata": encode_stored({"n": True})}, {"bo", "failed"}),
            ({"owner": None, "metadata": encode_stored(many)}, {"failed", "n", "k17"}),  # they may be among these
            ({"status": "in_progress", "metadata": b"", "updated_us": 5 * HOUR_US}, {"late"}),
            ({"updated_us": 1}, set()),
        ]
        asked: dict[str, dict[str, Any]] = {
            "ana": said(owner="ana"),
            "bo": said(owner="bo"),
            "failed": said(status="failed"),
            "n": {"facets": (scalar_facets("n", 1),)},
            "k17": {"facets": (scalar_facets("k17", 17),)},
            "late": {"since_us": 5 * HOUR_US},
        }
        for change, expected in changes:
            put(backend, session="one", uid=uid, **change)
            for limit in (1, 9):
                found = {
                    name
                    for name, query in asked.items()
                    if "one" in [row.id for row in backend.sessions(SessionQuery(limit=limit, **query))]
                }
                assert found == expected, change
            assert not list(backend.check())

    # lanes, and W9

    def test_branches_that_were_entered_are_listed_with_their_sessions(self, backend: Backend) -> None:
        for number in range(4):
            put(backend, LaneRow("idle"), LaneRow("b", entered=number != 2), session=f"session {number}")
        put(backend, LaneRow("a", entered=True), session="session 1")
        hidden = line("hidden", uid=bytes(16), hidden=True, lanes=1)
        backend.write(Ask("hidden", hidden=True), lambda _view: Batch((hidden, LaneRow("main", entered=True))))
        found = backend.lanes(LaneQuery(ENTERED))
        names = [("session 1", "a"), ("session 1", "b"), ("session 3", "b"), ("session 0", "b")]
        assert [(one.session.id, one.lane.name) for one in found] == names
        for one in found:
            assert one.session == backend.read(Ask(one.session.id)).session
            assert not one.live
        put(backend, LaneRow("b"), session="session 0")
        assert len(backend.lanes(LaneQuery(ENTERED))) == 3

    def test_branches_that_are_due_are_listed_when_their_time_has_come_by_the_calendar(self, backend: Backend) -> None:
        now_us = backend.read(Ask("none")).wall_us
        waits = {
            "past": LaneWait("a while ago", now_us - 60_000_000),
            "early": LaneWait("in 1970", 1),
            "later": LaneWait("in an hour", now_us + 3_600_000_000),
            "ready": LaneWait("answered", now_us + 3_600_000_000, ready=True),
            "open": LaneWait("an answer"),
        }
        for name, wait in waits.items():
            put(backend, LaneRow("main", status="waiting", wait=wait), session=name)
        put(backend, LaneRow("main"), LaneRow("b", status="waiting", wait=waits["later"]), session="two")
        put(backend, LaneRow("c", status="waiting", wait=waits["past"]), session="two")

        def found(marks: int, *, due: bool = False) -> set[tuple[str, str]]:
            return {(one.session.id, one.lane.name) for one in backend.lanes(LaneQuery(marks, due=due))}

        assert found(0) == set()
        assert found(0, due=True) == {("past", "main"), ("early", "main"), ("two", "c")}
        assert found(MARK_READY) == {("ready", "main")}
        assert found(MARK_READY, due=True) == found(0, due=True) | {("ready", "main")}
        assert found(MARK_WAITING) == {(name, "main") for name in waits} | {("two", "b"), ("two", "c")}
        for name in ("past", "early"):
            put(backend, LaneRow("main"), session=name)
        assert found(ENTERED | MARK_READY, due=True) == {("ready", "main"), ("two", "c")}

    def test_messages_are_kept_apart_and_one_that_is_received_leaves_a_gap_that_is_no_damage(
        self, backend: Backend
    ) -> None:
        rows = [call_row(f"m{n}", at=(5, INBOX, n), kind="message", status="sent") for n in range(4)]
        put(backend, LaneRow("main", run=5, sent=4, inbox=4), call_row("c", at=(5, 0, 0)), *rows)
        gone: tuple[Kind, Key] = (Kind.CALL, (5, INBOX, 1))
        backend.write(Ask(SESSION, names=("main",)), lambda _view: Batch(drops=(gone,)))
        view = backend.read(Ask(SESSION, names=("main",), pending=("main",), journals=((5, INBOX),)))
        assert [row.id for row in view.pending["main"] if isinstance(row, CallRow)] == ["c"]
        assert list(view.journals[5, INBOX]) == [rows[0], rows[2], rows[3]]
        assert list(backend.scan(SESSION, Kind.CALL, after=(5, INBOX, 0), limit=1)) == [rows[2]]
        backend.write(Ask(SESSION, names=("main",)), lambda _view: Batch(drops=((Kind.CALL, (5, INBOX)),)))
        view = backend.read(Ask(SESSION, names=("main",), pending=("main",), journals=((5, INBOX),)))
        assert (list(view.journals[5, INBOX]), len(view.pending["main"])) == ([], 1)

    def test_w9_a_lease_counts_until_it_expires_in_every_view(self, backend: Backend) -> None:
        lives: list[bool] = []

        def take(view: View) -> Batch:
            before = line() if view.session is None else view.session
            lane = LaneRow("main", entered=True, claim=claim_until(view, 1.2))
            after = msgspec.structs.replace(before, lanes=1, touched=view.fresh)
            return Batch((after, lane))

        def look(view: View) -> Batch:
            lives.append("main" in view.live)
            return Batch()

        ask = Ask(SESSION, names=("main",))
        backend.write(ask, take)
        backend.write(ask, look)
        assert lives[-1]  # a rule may be asked more than once: the last view counts
        assert backend.read(ask).live == {"main"}
        assert self.other(backend).read(ask).live == {"main"}
        assert [one.live for one in backend.lanes(LaneQuery(ENTERED))] == [True]
        time.sleep(1.3)
        backend.write(ask, look)
        assert not lives[-1]
        assert not backend.read(ask).live
        assert not self.other(backend).read(Ask(SESSION, names=None)).live
        assert [one.live for one in backend.lanes(LaneQuery(ENTERED))] == [False]

    def test_w9_a_process_is_looked_for_only_where_its_number_means_it(self, backend: Backend) -> None:
        with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
            child.wait()
        ours = here()
        dead = msgspec.structs.replace(ours, pid=child.pid)
        elsewhere = Holder("another host", "another boot", 1, child.pid, 0)
        for holder, lives in [(ours, True), (dead, False), (elsewhere, True)]:

            def take(view: View, holder: Holder = holder) -> Batch:
                before = line() if view.session is None else view.session
                lane = LaneRow("main", claim=claim_until(view, 600, holder))
                return Batch((msgspec.structs.replace(before, lanes=1), lane))

            backend.write(Ask(SESSION), take)
            assert (backend.read(Ask(SESSION, names=("main",))).live == {"main"}) is lives, holder

    def test_the_clocks_of_a_view_go_on(self, backend: Backend) -> None:
        put(backend, LaneRow("main"))
        first = backend.read(Ask(SESSION))
        time.sleep(0.05)
        second = backend.write(Ask(SESSION), nothing)
        assert second.now_us - first.now_us >= 40_000
        assert abs(second.wall_us - time.time_ns() // 1000) < 60_000_000

    # news

    def test_a_write_is_news_for_every_opening(self, backend: Backend) -> None:
        other = self.other(backend)
        before, elsewhere = backend.changes(), other.changes()
        assert not self.alone or backend.changes() == before
        put(backend, LaneRow("main"))
        assert backend.changes() != before
        assert other.changes() != elsewhere
        since = other.changes()
        backend.write(Ask(SESSION), lambda _view: Batch(drops=((Kind.SESSION, SESSION),)))
        assert other.changes() != since

    def test_a_waiting_caller_looks_again_soon_and_not_for_ever(self, backend: Backend) -> None:
        since = backend.changes()
        began = time.monotonic()
        backend.wait(60, since=since)
        assert time.monotonic() - began < LOOK_S + 5
        began = time.monotonic()
        backend.wait(0, since=since)
        backend.wait(-1, since=since)
        put(backend, LaneRow("main"))
        backend.wait(60, since=since)  # it is over already
        assert time.monotonic() - began < LOOK_S

    def test_a_waiting_caller_is_woken_by_a_write_that_wakes(self, backend: Backend) -> None:
        since = backend.changes()
        timer = threading.Timer(0.05, lambda: put(backend, LaneRow("main")))
        timer.start()
        deadline = time.monotonic() + 30
        while backend.changes() == since and time.monotonic() < deadline:
            backend.wait(1, since=since)
        timer.join()
        assert backend.changes() != since

    # upkeep

    def test_sizes_add_up_what_is_kept(self, backend: Backend) -> None:
        assert (backend.sizes().sessions, backend.sizes().checkpoints, backend.sizes().logical_bytes) == (0, 0, 0)
        authors = [Author(backend, f"session {number}") for number in range(3)]
        for number, author in enumerate(authors):
            author.grow(number + 1)
        put(backend, LaneRow("main"), session="empty")
        hidden = line("hidden", uid=bytes(16), hidden=True, checkpoints=50, logical_bytes=9_999)
        backend.write(Ask("hidden", hidden=True), lambda _view: Batch((hidden,)))
        sizes = backend.sizes()
        assert (sizes.sessions, sizes.checkpoints) == (4, 6)
        assert sizes.logical_bytes == sum([row.size_bytes for author in authors for row in author.rows])
        assert sizes.stored_bytes > 0

    def test_a_healthy_store_has_nothing_to_report_or_to_mend(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(15)
        assert not list(backend.check())
        backend.tend()
        backend.tend(repair=True)
        assert not list(backend.check())
        author.grow(1)


def said(**fields: str) -> dict[str, Any]:
    """A query for sessions whose lines say this."""
    return {"facets": tuple([(facet(what, value),) for what, value in fields.items()])}


def prefixed(start: str) -> Callable[[SessionRow], bool]:
    """True for sessions whose id begins so."""
    return lambda row: row.id.startswith(start)


def listing(
    backend: Backend, *, limit: int, meanwhile: Callable[[], None] = lambda: None, **query: Any
) -> list[SessionRow]:
    """A whole listing, read page by page as the hall does."""
    found: list[SessionRow] = []
    before = None
    while True:
        page = backend.sessions(SessionQuery(before=before, limit=limit, **query))
        assert len(page) <= limit
        found += page
        assert len(found) < 1_000, "the listing has no end"
        if len(page) < limit:
            return found
        before = page[-1].touched
        meanwhile()
