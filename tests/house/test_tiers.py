"""The tiers of the test command: what is listed for one of them is there."""

import pytest

from tests.conftest import LONGEST, QUICK
from tests.house.tree import name_of, python_files

FILES = [name_of(path) for path in python_files("tests")]


@pytest.mark.parametrize("beginning", [*QUICK, *LONGEST])
def test_no_file_leaves_its_tier_by_being_renamed(beginning: str) -> None:
    assert any(name.startswith(beginning) for name in FILES), f"tests/conftest.py lists {beginning}, which is not there"
