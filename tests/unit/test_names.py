"""Names and refs: what may be one, and what `~N` asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.errors import InvalidInputError
from backstay.names import check_name, parse_steps


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "../../x",
        "a/b",
        "*",
        "latest",
        "a_b",
        "main~1",
        "~",
        "🐙",
        "é" * 256,
        " ",
        "a\nb",
        "-rf",
        "%00",
        "\U0010ffff",
    ],
)
def test_any_text_of_1_to_256_characters_is_a_name(name: str) -> None:
    assert check_name(name, "a name") == name


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0", "\0", "\ud800", "ok\udfff", None, 5, b"main", ["main"]])
def test_what_could_not_be_found_again_is_not_a_name(name: object) -> None:
    with pytest.raises(InvalidInputError, match=r"^a session id "):
        check_name(name, "a session id")


@pytest.mark.parametrize(
    ("ref", "name", "steps"),
    [
        ("main~3", "main", 3),
        ("main~", "main", 1),
        ("main~0", "main", 0),
        ("a~b~2", "a~b", 2),
        ("a~1~2", "a~1", 2),
        ("~~1", "~", 1),
        ("two\nlines~4", "two\nlines", 4),
    ],
)
def test_a_tilde_and_a_number_ask_for_an_ancestor(ref: str, name: str, steps: int) -> None:
    found = parse_steps(ref)
    assert found is not None
    assert (found.name, found.steps) == (name, steps)


@pytest.mark.parametrize("ref", ["main", "~3", "", "main~x", "main~-1", "main~1 ", "main~1234567890", "^", "main^x"])
def test_anything_else_asks_for_no_ancestor(ref: str) -> None:
    assert parse_steps(ref) is None


@given(st.text())
def test_no_ref_breaks_the_reading_of_refs(ref: str) -> None:
    found = parse_steps(ref)
    assert found is None or ref.startswith(found.name + ("^" if found.in_story else "~"))


def test_a_caret_and_a_number_ask_for_a_step_of_the_story() -> None:
    for ref, name, steps in [("main^", "main", 1), ("main^3", "main", 3), ("main~2^", "main~2", 1), ("^^", "^", 1)]:
        found = parse_steps(ref)
        assert found is not None
        assert (found.name, found.steps, found.in_story) == (name, steps, True)
