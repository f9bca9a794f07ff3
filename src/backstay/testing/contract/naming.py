"""Branches, tags and every other name: one space per session, no surprise from what a name is made of."""

from __future__ import annotations

import pytest

from backstay.backend import Backend, BranchRow, Deletion, TagRow
from backstay.errors import AlreadyExistsError, NotFoundError
from backstay.testing.author import Author, check_states, read_back
from backstay.testing.contract.hooks import Hooks

HOSTILE = [
    "../../x",
    "..",
    "a/b",
    "/etc/passwd",
    "*",
    "%",
    "_",
    "a",
    "a_b",
    "a%b",
    "A",
    "'",
    '"; DROP TABLE sessions; --',
    "\\",
    "latest",
    "main~1",
    " ",
    "\n",
    "-rf",
    "NULL",
    "0",
    "00",
    "é",
    "e\u0301",
    "名前",
    "\U0001f980",
    "\U0010ffff",
    "x" * 256,
]
NATIVE = "0123456789abcdef01234567"
UUID = "1ef4f797-8335-6428-8001-8a1503f9b875"


class NamingContract(Hooks):
    """What `fork`, `tag` and the ways to find something owe."""

    def test_a_fork_shares_its_history_and_then_goes_its_own_way(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(20)
        other = author.fork(author.rows[9].id, "other")
        other.grow(20)
        author.grow(5)
        check_states(backend, "a session", author.states | other.states)
        down = [row.id for row in backend.line("a session", other.rows[-1].id, limit=99)]
        assert down == [row.id for row in [*author.rows[:10], *other.rows]][::-1]
        assert list(backend.children("a session", author.rows[9].id)) == [author.rows[10].id, other.rows[0].id]

    def test_a_fork_copies_nothing(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(60)
        before = backend.sizes()
        for number in range(10):
            backend.fork("a session", id_=author.rows[5 * number].id, branch=f"what if {number}")
        after = backend.sizes()
        assert (after.checkpoints, after.logical_bytes) == (before.checkpoints, before.logical_bytes)
        assert after.stored_bytes - before.stored_bytes < 10 * 2_000
        line = backend.find_session("a session")
        assert line is not None
        assert line.branches == 11

    def test_branches_and_tags_of_a_session_share_one_space_of_names(self, backend: Backend) -> None:
        author = Author(backend)
        first, second = author.grow(2)
        backend.fork("a session", id_=first.id, branch="b")
        backend.tag("a session", id_=first.id, name="t")
        for taken in ("main", "b", "t"):
            with pytest.raises(AlreadyExistsError):
                backend.fork("a session", id_=second.id, branch=taken)
            with pytest.raises(AlreadyExistsError):
                backend.tag("a session", id_=second.id, name=taken)
        names = backend.names("a session")
        assert names.branches == (BranchRow("b", first.id, None), BranchRow("main", second.id, None))
        assert names.tags == (TagRow("t", first.id),)

    def test_a_name_given_up_can_be_given_again(self, backend: Backend) -> None:
        author = Author(backend)
        first, second = author.grow(2)
        backend.tag("a session", id_=first.id, name="x")
        backend.untag("a session", name="x")
        backend.fork("a session", id_=first.id, branch="x")
        backend.delete_branch("a session", branch="x")
        backend.tag("a session", id_=second.id, name="x")
        assert backend.names("a session").tags == (TagRow("x", second.id),)
        assert backend.find_branch("a session", "x") is None

    def test_a_forgotten_branch_loses_no_checkpoint(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(3)
        backend.delete_branch("a session", branch="main")
        assert backend.names("a session").branches == ()
        line = backend.find_session("a session")
        assert line is not None
        assert (line.branches, line.checkpoints) == (0, 3)
        check_states(backend, "a session", author.states)
        again = author.fork(author.rows[-1].id, "main")
        assert again.commit({"turn": 4}).sequence == 4

    def test_names_in_one_session_leave_those_in_another_alone(self, backend: Backend) -> None:
        ids = [Author(backend, session).commit({"of": session}).id for session in ("one", "two")]
        backend.tag("one", id_=ids[0], name="t")
        backend.fork("one", id_=ids[0], branch="b")
        backend.tag("two", id_=ids[1], name="b")
        backend.fork("two", id_=ids[1], branch="t")
        with pytest.raises(NotFoundError):
            backend.tag("one", id_=ids[1], name="of the other")
        with pytest.raises(NotFoundError):
            backend.fork("one", id_=ids[1], branch="of the other")
        assert backend.find_row("one", ids[1]) is None
        assert backend.find_branch("one", "t") is None

    def test_what_is_not_there_is_said_not_to_be_there(self, backend: Backend) -> None:
        row = Author(backend, "here").commit({"turn": 1})
        for session in ("here", "nowhere"):
            for call in (
                lambda session=session: backend.fork(session, id_="no id", branch="b"),
                lambda session=session: backend.tag(session, id_="no id", name="t"),
                lambda session=session: backend.delete_branch(session, branch="b"),
                lambda session=session: backend.untag(session, name="main"),
                lambda session=session: backend.delete_checkpoints(Deletion(session, ("no id",), ())),
                lambda session=session: backend.line(session, "no id", limit=9),
                lambda session=session: backend.chain(session, "no id"),
                lambda session=session: backend.children(session, "no id"),
            ):
                with pytest.raises(NotFoundError):
                    call()
            assert backend.find_branch(session, "b") is None
            assert backend.find_row(session, "no id") is None
            assert not backend.find_ids(session, "no i", limit=9)
        with pytest.raises(NotFoundError):
            backend.delete_session("nowhere")
        assert backend.find_session("nowhere") is None
        assert not backend.names("nowhere").branches + backend.names("nowhere").tags
        assert not backend.ids("nowhere")
        assert list(backend.ids("here")) == [row.id]

    def test_session_ids_of_any_kind_never_collide_and_never_reach_outside(self, backend: Backend) -> None:
        for name in HOSTILE:
            Author(backend, name).commit({"of": name}, id_="id")
        for name in HOSTILE:
            assert read_back(backend, name, "id") == {"of": name}
            found = backend.find_session(name)
            assert found is not None
            assert (found.id, found.checkpoints) == (name, 1)
        page = backend.sessions(before=None, limit=999, status=None, agent=None)
        assert [row.id for row in page] == HOSTILE[::-1]
        for at, name in enumerate(HOSTILE):
            backend.delete_session(name)
            assert backend.find_session(name) is None
            assert backend.sizes().sessions == len(HOSTILE) - at - 1
        assert not list(backend.check())

    def test_branches_tags_and_ids_of_any_kind_never_collide(self, backend: Backend) -> None:
        author = Author(backend)
        root = author.commit({"turn": 0}, id_="root")
        states = dict(author.states)
        for name in HOSTILE:
            branch = author.fork(root.id, f"{name}b"[-256:])
            branch.commit({"of": name}, id_=name)
            backend.tag("a session", id_=name, name=f"{name}t"[-256:])
            states.update(branch.states)
        check_states(backend, "a session", states)
        names = backend.names("a session")
        assert {tag.name: tag.id for tag in names.tags} == {f"{name}t"[-256:]: name for name in HOSTILE}
        for name in HOSTILE:
            found = backend.find_branch("a session", f"{name}b"[-256:])
            assert found is not None
            assert found.head_id == name
            row = backend.find_row("a session", name)
            assert row is not None
            assert row.id == name

    def test_a_prefix_finds_exactly_the_ids_that_begin_with_it(self, backend: Backend) -> None:
        ids = [
            NATIVE,
            f"{NATIVE[:8]}{'f' * 16}",
            f"{NATIVE[:8]}{'0' * 16}",
            f"f{NATIVE[1:]}",
            NATIVE.upper(),
            f"{NATIVE}0",
            NATIVE[:23],
            NATIVE[:8],
            f"{NATIVE[:8]}-later",
            "turn_1",
            "turn_10",
            "turnX1",
            "turn%",
            "turn\U0010ffff",
            "turn\U0010ffff\U0010ffff",
            "ünïcode",
            "../../x",
            "*",
            *(f"{id_}{more}" for id_ in (UUID, UUID.upper(), UUID[:-1], UUID.replace("-", "")) for more in ("", "+1")),
            *(f"{'f' * 8}-ffff-ffff-ffff-{last}" for last in ("f" * 12, "fe" + "0" * 10, "ff" + "0" * 10, "0" * 12)),
            f"{UUID}\U0010ffff",
            f"{NATIVE[:8]}-{NATIVE[8:12]}-{NATIVE[12:16]}-{NATIVE[16:20]}-{NATIVE[20:]}{NATIVE[:8]}",
        ]
        author = Author(backend)
        for number, id_ in enumerate(ids):
            author.commit({"number": number}, id_=id_)
        Author(backend, "other").commit({"x": 1}, id_=f"{NATIVE[:8]}{'1' * 16}")
        prefixes = {id_[:length] for id_ in ids for length in (1, 4, 7, 8, 9, 13, 14, 23, 24, 25, 35, 36, 37)}
        for prefix in [*prefixes, "turn_", "turn%", "TURN", "....", "0123456789abcdeg", "\U0010ffff"]:
            expected = sorted(id_ for id_ in ids if id_.startswith(prefix))
            assert sorted(backend.find_ids("a session", prefix, limit=99)) == expected, repr(prefix)
            assert len(backend.find_ids("a session", prefix, limit=2)) == min(2, len(expected))
        check_states(backend, "a session", author.states)

    def test_no_prefix_finds_nothing(self, backend: Backend) -> None:
        Author(backend).grow(2)
        assert not backend.find_ids("a session", "", limit=9)
