"""Digests: the same state has the same one for ever, whoever computes it and however it was reached."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.digest import EMPTY_LIST, dict_tree, leaf_of, state_digest, tree_of
from backstay.ids import checkpoint_digest
from tests.unit.values import exactly, states, values

BIG = 10**30


def numbered(count: int) -> dict[str, Any]:
    return {f"key-{number}": number for number in range(count)}


# Frozen: version 1 of the recipe. A store written today must verify in ten years, so none of these may ever change.
GOLDEN: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "cf9072c1f2a33a2477e207ceae1d33237ac4c3e7ff40bc49eff65c7e80f994ae"),
    "none": ({"a": None}, "3a8a404a1d74d761ea8819e27c61b52910800bc1679d937c3fcce814e4a28e4d"),
    "bool": ({"a": True}, "0258346ec20f2dea5c38f48eb116c0f676cad233590bccefb94c294ce07ba3f7"),
    "int": ({"a": 1}, "5e6ff3121fe2d05dc9ce2b96b290e8cffb018bcf4f7d065b0688068d22dfbe58"),
    "float": ({"a": 1.0}, "43b88f89a1b70256559502c675ff243fd2ba4731f6c51b300f9b107ff0817b45"),
    "minus zero": ({"a": -0.0}, "17b3cac3789d0c855ca14935b3e350eb8340bc30bb69e55bf8a6285555e1ada2"),
    "bigint": ({"a": [BIG, -BIG, 2**64]}, "6a0dc431980e46f3409ff3d51a84a4098afe9d1111a575740efb24ffdc7c5c88"),
    "text": ({"a": "héllo \U0001f419"}, "5163630db02747dd3565730df2c737e2bacb79bea9ef6a6e74f9fe5078df13f4"),
    "surrogate": ({"\ud800": "\udfff"}, "292dcd53db62106fa4c0e97d21d5cd3623e6ac54917e07d88a9e3b124cca270f"),
    "bytes": ({"a": b"\0\xff"}, "b9fd665e45eb5ec66488995ff40a780c1f88230c7511b45120f3741f41279e6a"),
    "tuple": ({"a": (1, (2,), [3])}, "7075659765a91b0daa1de192d32df668294357875f34b605b7b7c0125dd320bd"),
    "sets": (
        {"a": {1, 2, "x"}, "b": frozenset({(1, 2), None})},
        "0588b0bf4c2e1ff3cd03a1d587cac37f188807cf5d338a381641931642cfc3e1",
    ),
    "odd keys": (
        {"a": {1: "x", "1": "y", (2, None): b"z"}},
        "109eb420dc0f5d6f490110c80e502a247c3493818362c857bb472aad51d18ea2",
    ),
    "times": (
        {"a": [datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), date(2026, 1, 2), time(1, 2, fold=1), timedelta(1, 2, 3)]},
        "f477f23d24771cb9c9d540a49524f0d1b9d18e8d68e41d0b20e5493a1e4bad14",
    ),
    "decimal and uuid": (
        {"a": [Decimal("-1.50"), Decimal("NaN"), UUID(int=5)]},
        "333bb3717209ea2a2c64ce788100093485f3f0f1b0028a32c0d21836e14fb580",
    ),
    "nested": (
        {"agents": {"planner": {"messages": [{"role": "user", "content": "hi"}]}}},
        "b8993f71e8ee8f3f13a87516007edb8dd95486744d8f451b96f0ebb72d997047",
    ),
    "list of 0": ({"a": []}, "e5a800bd1b459ea21010478744de4e3c96371557a075f2f4e8390921356224e1"),
    "list of 1": ({"a": [0]}, "cca844194ed6e573287166a545a679d051ab2785d896808aa997422fb9983179"),
    "list of 64": ({"a": list(range(64))}, "fdf7f6acd1ae186a9388017ba290d6b314c97c148fa7d7216cb21588adc0f8d5"),
    "list of 65": ({"a": list(range(65))}, "18b57b04cc7b4ac3dd9b5d406eb9b86337a1828fc154773ce2a79fca22259154"),
    "list of 1000": ({"a": list(range(1000))}, "a3662cae33a6a86e27aade9cef6692cf38800e3fb20519f2ecf9951d247e6c2d"),
    "dict of 0": ({"a": {}}, "af16ca0feb21901285c382d2400089c701febc0b87b87410d5aec375cf76e4b7"),
    "dict of 64": ({"a": numbered(64)}, "7263da9125a4194015bde0d36118aaf15aea899fb114e66eb885fdc64e608804"),
    "dict of 65": ({"a": numbered(65)}, "5dbfc6bdd0f4ba87a3d51d0eaa320482a6c37666813d20ee66fec483975d105a"),
    "dict of 1000": ({"a": numbered(1000)}, "8598b0b4b05fda7b5a20994d1a14e7568fa1317fa95aae4316d080df42a6dc9a"),
    "state of 65": (numbered(65), "6466ef16cbec4747861f169a49f0a0d82a3859706e4d35a6adecdb147fe67c05"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_digest_written_today_still_verifies_in_ten_years(name: str) -> None:
    state, digest = GOLDEN[name]
    assert state_digest(state).hex() == digest


def test_a_checkpoint_digest_written_today_still_verifies_in_ten_years() -> None:
    first = checkpoint_digest(id_="0a" * 12, parent=None, state=bytes(32), sequence=1, fields=b"fields")
    second = checkpoint_digest(id_="0b" * 12, parent=first, state=b"\1" * 32, sequence=2, fields=b"")
    assert first.hex() == "88e89d91c18f3c1ea419310868718ea8d4d1ad9936c70bc49de5781d8c0ad9e6"
    assert second.hex() == "e66b2e3781ad9694ec29b4e56f69095c0f3c893f5d887f7f19d69de6afa5a2f8"


def test_no_field_of_a_checkpoint_can_be_changed_behind_its_digest() -> None:
    given_: dict[str, Any] = {"id_": "a", "parent": None, "state": bytes(32), "sequence": 1, "fields": b"f"}
    others: dict[str, Any] = {"id_": "b", "parent": b"\1" * 32, "state": b"\1" * 32, "sequence": 2, "fields": b"g"}
    seen = {checkpoint_digest(**given_)}
    for name, value in others.items():
        seen.add(checkpoint_digest(**{**given_, name: value}))
    assert len(seen) == 6


def shuffled(value: Any) -> Any:
    if type(value) is dict:
        return {key: shuffled(item) for key, item in reversed(value.items())}
    return [shuffled(item) for item in value] if type(value) is list else value


@given(states)
def test_the_order_of_keys_does_not_change_a_digest(state: dict[str, Any]) -> None:
    assert state_digest(state) == state_digest(shuffled(state))


@given(states, states)
def test_two_states_share_a_digest_only_if_they_are_exactly_the_same(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert (state_digest(one) == state_digest(other)) == exactly(one, other)


ALIKE: list[Any] = [[], {}, (), "", b"", 0, None, False, [[]], [{}], {"": []}, ["list\0"], set(), frozenset()]


def test_values_of_different_shape_never_share_a_digest() -> None:
    assert len({tree_of(value, ()).digest for value in ALIKE}) == len(ALIKE)


def test_items_cannot_move_between_neighbouring_lists_unseen() -> None:
    digests = {
        state_digest({"a": [1, 2], "b": [3]}),
        state_digest({"a": [1], "b": [2, 3]}),
        state_digest({"a": [[1, 2], [3]], "b": []}),
        state_digest({"a": [1, 2, 3], "b": []}),
        state_digest({"ab": [1, 2, 3]}),
    }
    assert len(digests) == 5


sizes = st.sampled_from([0, 1, 5, 63, 64, 65, 127, 128, 129, 200])


@given(sizes, st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), sizes), max_size=5))
def test_a_list_changed_step_by_step_has_the_digest_of_one_made_at_once(
    count: int, edits: list[tuple[float, float, int]]
) -> None:
    items = [f"item {number}" for number in range(count)]
    tree = EMPTY_LIST.splice(0, 0, [leaf_of(item, ()) for item in items])
    for number, (where, how_many, added) in enumerate(edits):
        start = int(where * len(items))
        drop = int(how_many * (len(items) - start))
        new = [f"edit {number} {at}" for at in range(added)]
        tree = tree.splice(start, drop, [leaf_of(item, ()) for item in new])
        items[start : start + drop] = new
        fresh = tree_of(items, ())
        assert (tree.digest, tree.size) == (fresh.digest, fresh.size)
        assert all(tree.digest_of(at) == leaf_of(item, ()).digest for at, item in enumerate(items))


@given(
    st.dictionaries(st.integers(0, 150), st.integers(0, 3), max_size=150),
    st.lists(
        st.tuples(st.dictionaries(st.integers(0, 150), st.integers(0, 3), max_size=90), st.sets(st.integers(0, 150))),
        max_size=4,
    ),
)
def test_a_dict_changed_step_by_step_has_the_digest_of_one_made_at_once(
    first: dict[int, int], edits: list[tuple[dict[int, int], set[int]]]
) -> None:
    plain = {str(key): value for key, value in first.items()}
    leaf: Callable[[object], Any] = lambda value: leaf_of(value, ())  # noqa: E731
    tree = dict_tree({key: leaf(value) for key, value in plain.items()})
    for changed, gone in edits:
        removed = [str(key) for key in gone if str(key) in plain and key not in changed]
        tree = tree.replace({str(key): leaf(value) for key, value in changed.items()}, removed)
        plain.update({str(key): value for key, value in changed.items()})
        for key in removed:
            del plain[key]
        fresh = tree_of(plain, ())
        assert (tree.digest, tree.size) == (fresh.digest, fresh.size)


@given(values)
def test_the_tree_before_a_change_stays_what_it_was(value: Any) -> None:
    old = EMPTY_LIST.splice(0, 0, [leaf_of(number, ()) for number in range(70)])
    before = old.digest
    old.splice(3, 10, [leaf_of(value, ())])
    assert old.digest == before == tree_of(list(range(70)), ()).digest
