"""What `import backstay` gives: everything promised, explained, and nothing heavy."""

import contextlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import backstay
from tests.house.test_docs import blocks

ERRORS = [
    "AlreadyExistsError",
    "BackstayError",
    "CallFailedError",
    "ClosedError",
    "ConflictError",
    "CorruptionError",
    "FencedError",
    "FormatError",
    "InDoubtError",
    "InvalidInputError",
    "LeaseHeldError",
    "MismatchError",
    "NotFoundError",
    "UnavailableError",
    "UnsupportedError",
]

HEAVY = {
    "agents",
    "apsw",
    "click",
    "langchain_core",
    "langgraph",
    "openai",
    "psycopg",
    "pydantic",
    "pydantic_ai",
    "rich",
    "sqlite3",
}


def order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, each by the alphabet: the order ruff keeps too."""
    if name.isupper():
        return 0, name
    return (1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("name", backstay.__all__)
def test_every_promised_name_can_be_imported(name: str) -> None:
    assert getattr(backstay, name, None) is not None, f"backstay.__all__ lists {name}, which is not there"


@pytest.mark.parametrize("name", [n for n in backstay.__all__ if not n.startswith("__")])
def test_help_on_every_promised_name_says_something(name: str) -> None:
    thing = getattr(backstay, name)
    if inspect.isclass(thing):
        # A class without words of its own would show its parent's, or a dataclass's signature.
        said = vars(thing).get("__doc__") or ""
        assert not said.startswith(f"{name}("), f"backstay.{name} has only a generated docstring"
    elif inspect.ismodule(thing) or callable(thing):
        said = thing.__doc__ or ""
    else:
        return
    assert said.strip(), f"backstay.{name} has no docstring"


def examples() -> Iterator[tuple[str, str]]:
    """The examples in docstrings of public names and their methods."""
    for name in backstay.__all__:
        thing = getattr(backstay, name)
        members = vars(thing).items() if inspect.isclass(thing) else ()
        for where, member in [(name, thing), *[(f"{name}.{each}", member) for each, member in members]]:
            for _, _, body in blocks(inspect.cleandoc(getattr(member, "__doc__", None) or "")):
                yield where, body


def test_the_example_in_a_docstring_works_by_paste(tmp_path: Path) -> None:
    found = list(examples())
    assert len(found) >= 8
    for number, (where, body) in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        with contextlib.chdir(folder):
            exec(compile(body, where, "exec"), {"__name__": "example"})


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_can_be_caught_by_its_name(name: str) -> None:
    assert name in backstay.__all__
    assert issubclass(getattr(backstay, name), backstay.BackstayError)


def test_an_error_can_be_caught_by_the_builtin_people_already_catch() -> None:
    assert issubclass(backstay.NotFoundError, LookupError)
    assert issubclass(backstay.InvalidInputError, ValueError)


def test_the_list_of_names_can_be_searched_by_eye() -> None:
    names = list(backstay.__all__)
    assert names == sorted(set(names), key=order)


def test_the_version_shown_is_the_version_installed() -> None:
    assert getattr(backstay, "__version__", version("backstay")) == version("backstay")


def test_importing_backstay_does_not_make_a_program_pay_for_drivers_or_terminals() -> None:
    code = "import sys; before = set(sys.modules); import backstay; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & HEAVY, f"`import backstay` loads {sorted(loaded & HEAVY)}"
