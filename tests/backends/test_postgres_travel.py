"""Sessions that move to PostgreSQL and away from it: everything arrives as it was, and what a kill leaves is swept."""

from pathlib import Path

import pytest

import backstay
from backstay.errors import CorruptionError
from backstay.port import SessionQuery
from tests.backends.conftest import Fresh
from tests.store.travel import KINDS, Parts, about, journal_of, live, open_kind, run_for_long


@pytest.fixture
def postgres(postgres_url: str, fresh_schema: Fresh) -> str:
    return f"{postgres_url}{'&' if '?' in postgres_url else '?'}schema={fresh_schema()}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_comes_to_postgres_and_back_as_it_was(kind: str, postgres: str, tmp_path: Path) -> None:
    with open_kind(kind, tmp_path) as here, backstay.open(postgres) as there, backstay.open("memory://") as back:
        live(here, "a")
        run_for_long(here, "b")
        here.export(tmp_path / "out")
        assert there.import_(tmp_path / "out").sessions == ("a", "b")
        there.export(tmp_path / "in")
        back.import_(tmp_path / "in")
        for name in ("a", "b"):
            assert about(there, name) == about(here, name)
            assert about(back, name) == about(here, name)
            assert journal_of(back, name) == journal_of(there, name) == journal_of(here, name)
        assert there.verify().ok
        with there.session("b").run(on_doubt="skip") as run:
            assert run.input == ["the last", 1]
            assert run.call("finished", lambda: None, args={"order": 7}) == {"refund": 7}
            run.call("transfer", lambda: None, args={"amount": 9})
            assert run.call("outside", lambda: None) == 1


def test_what_does_not_get_in_leaves_nothing_in_postgres(postgres: str, tmp_path: Path) -> None:
    with backstay.open("memory://") as here, backstay.open(postgres) as there:
        live(here)
        parts = Parts(here, "ticket-42")
        parts.rows.pop()
        parts.write(tmp_path / "forged")
        with pytest.raises(CorruptionError):
            there.import_(tmp_path / "forged")
        assert not list(there.sessions())
        assert not there.backend.sessions(SessionQuery(hidden=True))
        assert not list(there.backend.check())
