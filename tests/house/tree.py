"""Where things are in the checkout, for the tests that read the project itself."""

import ast
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "backstay"


def name_of(path: Path) -> str:
    """The path as a reader would type it from the top of the checkout."""
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    """Every Python file under the given folders of the checkout, in order."""
    return sorted(
        path for folder in folders for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts
    )


def markdown_files() -> list[Path]:
    """The pages people read: those at the top of the checkout and all of docs/."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def checkout_files() -> list[Path]:
    """Every file that git keeps or would add; none where this is not a checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
