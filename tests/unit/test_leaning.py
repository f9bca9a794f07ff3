"""What becomes of rows that lean on one that goes, where somebody was faster or something went before."""

from __future__ import annotations

import pytest

from backstay import leaning
from backstay.backend import Rewrite
from backstay.delta import Record
from backstay.errors import ConflictError


def shape(number: int, link: int | None, lost: str | None = None) -> leaning.Shape:
    digest = bytes([number]) * 32
    lost_digest = None if lost is None else b"l" * 32
    return leaning.Shape(
        number, number, link, 1, False, True, None, 10, None, None, f"id{number}", digest, digest, lost, lost_digest
    )


def test_a_delta_is_not_put_on_another_state_than_it_was_made_for() -> None:
    delta = Rewrite("id3", None, {}, delta=Record(b"\x90", b""), base_digest=b"\1" * 32)
    leaning.sealed_anew(shape(3, 2), delta, shape(1, None), str)
    for standing in (shape(2, 1), None):
        with pytest.raises(ConflictError, match="another state"):
            leaning.sealed_anew(shape(3, 2), delta, standing, str)


def test_the_parent_that_a_checkpoint_was_committed_on_is_remembered_whatever_goes_later() -> None:
    shapes = {each.number: each for each in (shape(1, None), shape(2, 1), shape(3, 2, lost="first"))}
    assert leaning.committed_on(shapes[2], shapes) == ("id1", b"\1" * 32)
    assert leaning.committed_on(shapes[3], shapes) == ("first", b"l" * 32)
