"""The linters and the type checker, run by the one test command so that nobody has to remember them."""

import os
import subprocess
import sys

from tests.house.tree import ROOT


def run(*command: str) -> None:
    """Run a checker at the top of the checkout; what it says is what the test says."""
    plain = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "160"}
    plain.pop("FORCE_COLOR", None)
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def test_ruff_finds_no_mistake() -> None:
    run("-m", "ruff", "check", "--output-format=concise", ".")


def test_ruff_finds_every_file_formatted() -> None:
    run("-m", "ruff", "format", "--check", ".")


def test_every_import_goes_down_the_stairs() -> None:
    run("-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-logo", "--no-cache")


def test_mypy_finds_no_value_used_as_what_it_is_not() -> None:
    run("-m", "mypy", "--no-error-summary")
