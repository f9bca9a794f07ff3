"""Someone who meets an error code at night finds what to do about it in docs/errors.md."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import backstay
from tests.house.tree import ROOT

PAGE = ROOT / "docs" / "errors.md"
CODE = re.compile(r"`([a-z][a-z0-9_.-]*)`")


def subclasses(of: type[backstay.BackstayError]) -> Iterator[type[backstay.BackstayError]]:
    for each in of.__subclasses__():
        if each.__module__.partition(".")[0] == "backstay":
            yield each
            yield from subclasses(each)


def every_error() -> list[type[backstay.BackstayError]]:
    # Any module may define one, so all are loaded; those that need an extra that is absent cannot be.
    for module in pkgutil.walk_packages(backstay.__path__, "backstay."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as absent:
                if (absent.name or "").startswith("backstay"):
                    raise
    return sorted(set(subclasses(backstay.BackstayError)), key=lambda error: error.__name__)


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def documented(text: str) -> set[str]:
    """Codes in headings, and in the column headed "code" of any table."""
    found: set[str] = set()
    column: int | None = None
    in_table = False
    for line in text.splitlines():
        if line.startswith("#"):
            found.update(CODE.findall(line))
        if not line.lstrip().startswith("|"):
            in_table, column = False, None
        elif not in_table:
            in_table = True
            heads = [head.lower().strip("`") for head in cells(line)]
            column = heads.index("code") if "code" in heads else None
        elif column is not None and len(row := cells(line)) > column:
            found.update(CODE.findall(row[column]))
    return found


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_every_error_carries_a_code_that_can_be_searched_for(error: type[backstay.BackstayError]) -> None:
    code = getattr(error, "code", None)
    assert isinstance(code, str), f"{error.__name__} has no code"
    assert CODE.fullmatch(f"`{code}`"), f"{error.__name__} has the code {code!r}, which is no plain word"


def test_no_two_errors_that_a_caller_can_name_share_a_code() -> None:
    # A subclass inside a room (BlobsAbsentError) has the code of the error that callers see in it.
    codes = [error.code for error in every_error() if hasattr(backstay, error.__name__)]
    inside = {error for error in every_error() if not hasattr(backstay, error.__name__)}
    assert all(error.code in codes for error in inside), "what is not exported is one of those that are"
    assert len(codes) == len(set(codes)), f"used twice: {sorted({c for c in codes if codes.count(c) > 1})}"


def test_every_code_is_explained_and_every_explanation_has_its_error() -> None:
    if not PAGE.exists():
        pytest.skip("docs/errors.md is not written yet")
    codes = {error.code for error in every_error()}
    pages = documented(PAGE.read_text("utf-8"))
    base = getattr(backstay.BackstayError, "code", None)
    assert not codes - pages, f"docs/errors.md does not explain {sorted(codes - pages)}"
    assert not pages - codes - {base}, f"docs/errors.md explains {sorted(pages - codes)}, which nothing raises"


def test_a_code_is_found_in_a_heading_and_in_a_column_of_that_name() -> None:
    codes = "| error | code |\n|---|---|\n| `E` | `two` |\n"
    words = "| word | is |\n|---|---|\n| `three` | x |\n"
    assert documented(f"## `one`\n\n{codes}\n{words}") == {"one", "two"}
