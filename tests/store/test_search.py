"""Searching: a text is told once, at the first checkpoint that said it, whatever became of the others."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay
from backstay import Retention, Store
from backstay.port import Kind
from backstay.upkeep.searching import search
from tests.store.rows import harm, ids_of, rows_of, spoil
from tests.store.travel import KINDS, open_kind

WORDS = ("anchor", "Backstay", "cleat", "ÜBERLAUF", "davit", "é", "forestay")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_kind(request.param, tmp_path) as opened:
        yield opened


def first_saying(store: Store, text: str) -> list[str]:
    """The truth: every state read, oldest first; messages are told once."""
    session, told, found = store.session("s"), set[str](), []
    for id_ in ids_of(store):
        state = session.load(id_)
        for content in [message["content"] for message in state["messages"]]:
            if text.casefold() in content.casefold() and content not in told:
                told.add(content)
                found.append(id_)
    return found


def grow(store: Store, steps: int) -> None:
    session, dice = store.session("s"), random.Random(steps)
    messages: list[dict[str, str]] = []
    for number in range(steps):
        length = 5000 if number % 17 == 0 else 3
        content = f"{number} " + " ".join(dice.choices(WORDS, k=length))
        messages = [*messages[-dice.randrange(1, 30) :], {"role": "user", "content": content}]
        session.commit({"messages": messages}, label="kept" if number % 5 == 0 else None)


def test_what_is_found_is_what_reading_every_state_would_find(store: Store) -> None:
    grow(store, 120)
    for _ in range(2):
        for text in (*WORDS, "stay 1", "nowhere", "7 "):
            assert [match.row.id for match in search(store.backend, "s", text)] == first_saying(store, text)
        store.prune(Retention(keep_last=5))


def test_damage_hides_what_it_took_and_no_more(store: Store) -> None:
    session = store.session("s")
    made = []
    for number in range(8):
        messages = [{"role": "user", "content": f"{word} in step {at}"} for at, word in enumerate(WORDS[: number + 1])]
        made.append(session.commit({"messages": messages}))
    spoil(store, "delta", made[3])
    assert [match.row.id for match in search(store.backend, "s", "davit")] == [made[4].id]
    assert [match.row.id for match in search(store.backend, "s", "cleat")] == [made[2].id]


def test_a_row_that_cannot_be_read_is_passed_over(path: Path) -> None:
    with backstay.open(path) as store:
        grow(store, 30)
        rows = rows_of(store, Kind.CHECKPOINT)
    harm(path, "s", Kind.CHECKPOINT, rows[9].sequence, lambda body: b"\0" + body[1:])
    with backstay.open(path) as store:
        found = [match.row.sequence for match in search(store.backend, "s", "stay")]
        assert found
        assert rows[9].sequence not in found
