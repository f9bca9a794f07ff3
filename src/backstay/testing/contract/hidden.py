"""A session that is hidden, renamed, brought in portions or taken away in portions."""

from __future__ import annotations

import msgspec
import pytest

from backstay.errors import ConflictError
from backstay.port import (
    EVERY,
    Ask,
    Backend,
    Batch,
    CallRow,
    CheckpointRow,
    KeyframeRow,
    Kind,
    LaneQuery,
    Row,
    SessionQuery,
    SessionRow,
    Unreadable,
    View,
)
from backstay.rules import deletion
from backstay.testing.author import SESSION, Author, Runner, check_states, every_row, key_in, tag
from backstay.testing.contract.handmade import bare, line, put
from backstay.testing.contract.hooks import Hooks

KINDS = (Kind.CALL, Kind.KEYFRAME, Kind.SEGMENT, Kind.CHECKPOINT, Kind.NAME)


class HiddenContract(Hooks):
    """What holds for sessions that come and go."""

    def test_a_hidden_session_is_seen_only_by_those_who_ask_for_it(self, backend: Backend) -> None:
        author = history(backend)
        row = hide(backend)
        assert backend.read(Ask(SESSION, names=EVERY)).session is None
        assert backend.state(SESSION, "main").session is None
        assert not backend.sessions(SessionQuery())
        assert not backend.lanes(LaneQuery(1))
        assert not backend.scan(SESSION, Kind.NAME, limit=9)
        assert not backend.scan(row.id, Kind.NAME, limit=9)
        assert backend.read(Ask(row.id)).session is None
        assert backend.sessions(SessionQuery(hidden=True)) == [row]
        view = backend.read(Ask(row.id, hidden=True, names=EVERY))
        assert view.session == row
        assert set(view.lanes) == {"main", "other"}
        found = backend.scan(row.id, Kind.CHECKPOINT, limit=99, hidden=True)
        assert [one.sequence for one in found if isinstance(one, CheckpointRow)] == sorted(author.states)

    def test_a_name_is_free_once_its_session_is_hidden(self, backend: Backend) -> None:
        history(backend)
        row = hide(backend)
        again = Author(backend)
        assert again.uid != row.uid
        again.grow(2)
        check_states(backend, SESSION, again.states)
        take_away(backend, row)
        check_states(backend, SESSION, again.states)

    def test_a_renamed_session_brings_all_its_rows(self, backend: Backend) -> None:
        author = history(backend)
        before = all_rows(backend, SESSION)

        def rename(view: View) -> Batch:
            assert view.session is not None
            assert view.beside is None
            return Batch((msgspec.structs.replace(view.session, id="renamed", touched=view.fresh),))

        backend.write(Ask(SESSION, beside="renamed"), rename)
        backend = self.again(backend)
        assert backend.read(Ask(SESSION)).session is None
        assert all_rows(backend, "renamed") == before
        check_states(backend, "renamed", author.states)
        assert [row.id for row in backend.sessions(SessionQuery())] == ["renamed"]
        assert backend.read(Ask("renamed", ids=("a foreign id",))).foreign
        assert not list(backend.check())

    def test_a_session_that_arrives_in_portions_is_shown_at_once(self, backend: Backend) -> None:
        target = self.make()
        try:
            author = history(backend)
            source = backend.read(Ask(SESSION)).session
            assert source is not None
            bring(target, backend, source, name="arrived", seen=lambda: target.read(Ask("arrived")).session)
            assert all_rows(target, "arrived") == all_rows(backend, SESSION)
            check_states(target, "arrived", author.states)
            assert not target.sessions(SessionQuery(hidden=True))
            (row,) = target.sessions(SessionQuery())
            assert (row.id, row.uid, row.checkpoints) == ("arrived", source.uid, source.checkpoints)
            view = target.read(Ask("nobody"))
            calls = target.scan("arrived", Kind.CALL, limit=99)
            assert view.fresh > max([call.run for call in calls if isinstance(call, CallRow)])
            assert not list(target.check())
        finally:
            target.close()

    def test_an_import_that_was_broken_off_can_be_taken_away(self, backend: Backend) -> None:
        history(backend)
        source = backend.read(Ask(SESSION)).session
        assert source is not None
        target = self.make()
        try:
            hidden = msgspec.structs.replace(source, id=source.uid.hex(), hidden=True)
            target.write(Ask(hidden.id, hidden=True), deletion.arrive(hidden))
            rows, blobs = portions(backend, SESSION)[0]
            target.write(Ask(hidden.id, hidden=True), deletion.add_rows("arrived", rows, blobs))
            with pytest.raises(ConflictError):
                target.write(Ask(hidden.id, hidden=True), deletion.arrive(hidden))
            take_away(target, hidden)
            assert target.read(Ask(hidden.id, hidden=True)).session is None
            target.tend()
            assert not target.blobs(list(blobs))
            assert target.sizes().sessions == 0
        finally:
            target.close()

    def test_a_session_that_is_taken_away_in_portions_leaves_nothing(self, backend: Backend) -> None:
        author = history(backend)
        other = Author(backend, "another")
        other.grow(12)
        secret = b"nobody may read this again"
        author.commit({**author.state, "secret": secret})
        row = hide(backend)
        take_away(backend, row)
        assert not backend.sessions(SessionQuery(hidden=True))
        for kind in KINDS:
            assert not backend.scan(row.id, kind, limit=9, hidden=True)
        check_states(backend, "another", other.states)
        backend.tend()
        assert not list(backend.check())
        kept = self.raw_bytes(backend)
        assert kept is None or secret not in kept

    def test_two_copies_of_a_session_can_be_taken_away_at_once(self, backend: Backend) -> None:
        history(backend)
        source = backend.read(Ask(SESSION)).session
        assert source is not None
        bring(backend, backend, source, name="a copy", seen=lambda: backend.read(Ask("a copy")).session)
        hidden = [hide(backend), hide(backend, "a copy")]
        assert list(backend.sessions(SessionQuery(hidden=True))) == hidden[::-1]
        for row in hidden:
            take_away(backend, row)
        assert not backend.sessions(SessionQuery(hidden=True))
        assert not list(backend.check())

    def test_what_hangs_on_a_session_goes_with_its_line(self, backend: Backend) -> None:
        history(backend)
        row = backend.read(Ask(SESSION)).session
        assert row is not None
        backend.write(Ask(SESSION), lambda _view: Batch(drops=((Kind.SESSION, SESSION),)))
        put(backend, uid=row.uid)  # the same name and the same uid: nothing of the old one may be found
        assert not any(all_rows(backend, SESSION).values())
        assert not backend.read(Ask(SESSION, prefix="a foreign")).foreign
        assert not backend.sessions(SessionQuery(foreign="a foreign id"))

    def test_two_sessions_never_see_one_anothers_rows(self, backend: Backend) -> None:
        authors = [history(backend, name) for name in ("one", "two")]
        rows = [all_rows(backend, name) for name in ("one", "two")]
        hidden = line("one", uid=bytes(16), hidden=True)
        backend.write(Ask("one", hidden=True), lambda _view: Batch((hidden,)))
        assert not any(all_rows(backend, "one", hidden=True).values())
        backend.write(Ask("two"), lambda _view: Batch(drops=((Kind.SESSION, "two"),)))
        assert all_rows(backend, "one") == rows[0]
        check_states(backend, "one", authors[0].states)


def history(backend: Backend, session: str = SESSION) -> Author:
    """A session with every kind of row: two branches, a tag, a foreign id, keyframes, pictures, calls."""
    author = Author(backend, session, keyframe_every=5)
    rows = author.grow(9)
    tag(backend, session, rows[3], "a tag")
    other = author.fork(rows[5], "other")
    other.commit({**other.state, "more": 1}, id_="a foreign id")
    run = Runner(backend, session)
    run.call("taken in")
    run.boundary()
    run.call("pending")
    run.leave(status="completed")
    author.states |= other.states | run.author.states
    return author.stand_on_head()


def all_rows(backend: Backend, session: str, *, hidden: bool = False) -> dict[Kind, list[Row | Unreadable]]:
    """All rows of a session but its line."""
    found = {kind: every_row(backend, session, kind, hidden=hidden) for kind in KINDS}
    return {kind: [bare(row) for row in rows] for kind, rows in found.items()}


def portions(backend: Backend, session: str) -> list[tuple[list[Row], dict[bytes, bytes]]]:
    """A session's rows in portions, with their references and blobs, as an import brings them."""
    rows: list[tuple[Row, dict[bytes, bytes]]] = []
    for kind in KINDS:
        for row in every_row(backend, session, kind):
            assert not isinstance(row, Unreadable)
            blobs: dict[bytes, bytes] = {}
            if isinstance(row, CheckpointRow | KeyframeRow):
                blobs = dict(backend.state(session, row.sequence).blobs)
                row = msgspec.structs.replace(row, refs=tuple(blobs))  # noqa: PLW2901
            rows.append((row, blobs))
    found = []
    for at in range(0, len(rows), 7):
        portion = rows[at : at + 7]
        found.append(([row for row, _ in portion], {d: data for _, blobs in portion for d, data in blobs.items()}))
    return found


def bring(target: Backend, source: Backend, row: SessionRow, *, name: str, seen: object) -> None:
    """Import a session as the hall does."""
    shown = msgspec.structs.replace(row, id=name)
    hidden = msgspec.structs.replace(row, id=row.uid.hex(), hidden=True)
    ask = Ask(hidden.id, hidden=True)
    target.write(ask, deletion.arrive(hidden))
    runs = [0]
    for rows, blobs in portions(source, row.id):
        target.write(ask, deletion.add_rows(name, rows, blobs))
        assert callable(seen)
        assert seen() is None, "nobody sees a session before all of it has come"
        runs += [one.run for one in rows if isinstance(one, CallRow)]
    target.write(deletion.show_ask(shown), deletion.show(shown, last_run=max(runs)))


def hide(backend: Backend, session: str = SESSION) -> SessionRow:
    """Begin to delete a session. Its row, hidden."""
    row = backend.write(deletion.hide_ask(session), deletion.hide(session)).answer
    assert isinstance(row, SessionRow)
    return row


def take_away(backend: Backend, row: SessionRow) -> None:
    """Delete a hidden session in portions, as the hall does."""
    ask = Ask(row.id, hidden=True)
    for kind in KINDS:
        while True:
            rows = backend.scan(row.id, kind, limit=3, hidden=True)
            keys = [(kind, key_in(one)) for one in rows]
            if not keys:
                break
            backend.write(ask, deletion.drop_rows(keys))
    backend.write(ask, deletion.drop_session())
