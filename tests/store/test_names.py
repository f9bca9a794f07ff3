"""Names from outside: any text is one, none of them is a path, and no two of them are the same."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backstay
from backstay import InvalidInputError, Store

ODD = [
    "../../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "*",
    "%",
    "_",
    "a",
    "A",
    "a_b",
    "a b",
    "a ",
    "latest",
    "main",
    "head",
    "None",
    "main~1",
    "🐙",
    "é",
    "e\u0301",
    "\u200b",
    "\u202emain",
    "a\nb",
    "';DROP TABLE sessions;--",
    "x" * 256,
    "🐙" * 256,
    ".",
    "..",
    "con",
    "-rf",
    "\x1b[31m",
    "0",
    "00",
    "1e3",
    "sqlite_master",
    "\ufeff",
    "\uffff",
]
REFUSED: list[Any] = ["", "x" * 257, "a\0", "\0", "\ud800", "x\udfffy", None, 5, b"main", True, ["a"]]


def everything_under(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if not path.is_dir()}


def test_odd_names_are_kept_apart_and_never_touch_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    with backstay.open("store.db") as store:
        store.session("plain").commit({})  # the first commit makes what lies beside a store
        store.delete("plain")
        before = everything_under(tmp_path)
        for name in ODD:
            session = store.session(name, agent=name)
            session.commit({"is": name}, label=name)
            if name != "main":
                session.fork("main", name)
                session.commit({"is": [name]}, branch=name)
            session.tag("main", f"{name[:250]}-tag")
        assert everything_under(tmp_path) == before
        for name in ODD:
            session = store.session(name)
            assert session.load() == {"is": name}
            assert session.load(name) == ({"is": [name]} if name != "main" else {"is": name})
            assert set(session.branches()) == {"main", name}
            assert set(session.tags()) == {f"{name[:250]}-tag"}
            assert session.checkpoint("main").label == name
            assert [info.id for info in store.sessions(agent=name)] == [name]
        assert {info.id for info in store.sessions()} == set(ODD)
        assert store.verify().ok
        for name in ODD[::2]:
            store.delete(name)
        assert {info.id for info in store.sessions()} == set(ODD[1::2])
        assert everything_under(tmp_path) == before
    assert everything_under(tmp_path) == {str(home / "store.db")}


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: f"{name!r:.12}")
def test_what_is_no_name_is_refused_everywhere(store: Store, name: Any) -> None:
    session = store.session("s")
    point = session.commit({"n": 1})
    with pytest.raises(InvalidInputError):
        store.session(name)
    with pytest.raises(InvalidInputError):
        store.delete(name)
    if name is not None:
        with pytest.raises(InvalidInputError):
            store.verify(name)
    for use in (
        lambda: session.commit({}, branch=name),
        lambda: session.fork(point, name),
        lambda: session.tag(point, name),
        lambda: session.untag(name),
        lambda: session.delete_branch(name),
        lambda: session.head(name),
        lambda: session.restore(point, branch=name),
        lambda: session.undo(branch=name),
        lambda: session.newest_intact(name),
    ):
        with pytest.raises(InvalidInputError):
            use()
    assert list(session.log()) == [point]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), max_size=8))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_two_names_collide(store: Store, names: list[str]) -> None:
    for info in list(store.sessions()):
        store.delete(info.id)
    for name in names:
        store.session(name).commit({"is": name})
    assert {info.id for info in store.sessions()} == set(names)
    for name in names:
        assert store.session(name).load() == {"is": name}
