"""Foreign ids as PostgreSQL keeps them come back as they were, and are found by how they begin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.backends.postgres.foreign_ids import open_id, pack_id, ranges

UUID = "1f1e1c5b-08cd-674e-bfff-0ab754828900"
uuids = st.uuids().map(str)
ids = st.one_of(
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=40),
    uuids,
    st.builds(lambda uuid, rest: uuid + rest, uuids, st.text("+!0af-é", max_size=6)),
    uuids.map(lambda uuid: uuid[:20]),
    uuids.map(str.upper),
)


@given(ids)
def test_an_id_comes_back_as_it_was(id_: str) -> None:
    assert open_id(pack_id(id_)) == id_


@pytest.mark.parametrize(("id_", "size"), [(UUID, 17), (f"{UUID}+1", 19), (UUID.upper(), 36), (UUID[:35], 35)])
def test_one_that_begins_with_a_uuid_is_short(id_: str, size: int) -> None:
    assert len(pack_id(id_)) == size


@given(ids, ids, st.integers(1, 40))
def test_an_id_is_in_the_ranges_of_how_it_begins_and_in_no_others(id_: str, other: str, cut: int) -> None:
    for start in (id_[:cut], other[:cut]):
        kept = pack_id(id_)
        assert any([low <= kept < high for low, high in ranges(start)]) == id_.startswith(start)
