"""One walk: which files a commit and a load go through, in order. Run with `-s` to see the list the docs speak of.

A *step* is a change from one file of the package to another between two calls. What a reader has to follow is that
list, so the bounds here are meant to be lowered; whoever raises one makes every later reader pay.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import backstay
from backstay.backends.sqlite.connections import Connection
from backstay.face import Session

COMMIT_FILES, COMMIT_STEPS = 18, 25
LOAD_FILES, LOAD_STEPS = 17, 21
SEGMENT_STEPS = 24  # more, for the three segments between the last keyframe and the head

HOUSE = str(Path(backstay.__file__).parent)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with backstay.open(tmp_path / "store.db") as store:
        session = store.session("ticket-42")
        for count in range(1, 31):  # enough that the next commit is a small delta, too few to be packed
            session.commit({"messages": messages(count)})
        yield session


def messages(count: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"message {at} " * 20} for at in range(count)]


def walk(act: Callable[[], object]) -> list[str]:
    """The files that are entered, each once for every time that the walk comes to it."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(HOUSE):
            here = name[len(HOUSE) + 1 :]
            if files[-1:] != [here]:
                files.append(here)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return files


def told(what: str, files: list[str]) -> str:
    return f"{what}: {len(set(files))} files, {len(files) - 1} steps\n  " + "\n  ".join(files)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The transactions that are begun on any connection from now on."""
    found: list[str] = []
    execute = Connection.execute

    def noted(self: Connection, statement: str, *rest: object) -> object:
        if statement.startswith("BEGIN"):
            found.append(statement)
        return execute(self, statement, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "execute", noted)
    return found


def test_a_commit_is_one_walk_that_can_be_followed(session: Session, begun: list[str]) -> None:
    state = {"messages": messages(31)}
    files = walk(lambda: session.commit(state))
    print(told("commit", files))
    assert len(set(files)) <= COMMIT_FILES, told("commit", files)
    assert len(files) - 1 <= COMMIT_STEPS, told("commit", files)
    assert begun == ["BEGIN IMMEDIATE"]


def test_a_load_is_one_walk_in_one_transaction(session: Session, begun: list[str]) -> None:
    files = walk(session.load)
    print(told("load", files))
    assert len(set(files)) <= LOAD_FILES, told("load", files)
    assert len(files) - 1 <= LOAD_STEPS, told("load", files)
    assert begun == ["BEGIN"]


def test_a_head_that_was_read_before_is_read_in_one_transaction_too(session: Session, begun: list[str]) -> None:
    for _ in range(2):
        session.load()
    begun.clear()
    print(told("load again", walk(session.load)))
    assert begun == ["BEGIN"]


def test_a_long_chain_is_not_a_longer_walk(session: Session) -> None:
    short = walk(session.load)
    many = messages(200)
    for count in range(31, 200):
        session.commit({"messages": many[:count]})
    assert len(walk(session.load)) <= len(short) + SEGMENT_STEPS, "each row of a chain is a step of its own"
