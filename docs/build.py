"""`python -m docs.build`: the site, from these pages, into site/. Needs `pip install -e '.[docs]'`.

The pages are written for readers of the repository. A site cannot follow their links out of docs/, and does not know
the words behind `python` in a fence that the tests read. Both are changed in a copy, and the site is built from that.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "build" / "docs"
# Pages that lie elsewhere, and what they are called on the site.
MORE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "bench/README.md": "bench.md",
    "examples/README.md": "examples.md",
}
_FENCE = re.compile(r"^( *)(`{3,}|~{3,})(\w+)[^\n]*$", re.MULTILINE)
_LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(\))")


def names() -> dict[str, str]:
    """Every page of the repository that is on the site, and its name there."""
    pages = {f"docs/{path.relative_to(ROOT / 'docs').as_posix()}" for path in (ROOT / "docs").rglob("*.md")}
    there = {page: page.removeprefix("docs/") for page in pages} | MORE
    there["docs/README.md"] = "contents.md"
    return there | {f"examples/{path.name}": f"example-{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}


def page(source: str, known: dict[str, str]) -> str:
    """A page of the site: its fences plain, its links those of the site."""
    text = (ROOT / source).read_text("utf-8")
    if source.endswith(".py"):
        return f"# {source}\n\n```python\n{text}```\n"
    text = _FENCE.sub(r"\1\2\3", text)
    depth = known[source].count("/")

    def link(found: re.Match[str]) -> str:
        target = ((ROOT / source).parent / found[2]).resolve().relative_to(ROOT).as_posix()
        target = f"{target}/README.md" if (ROOT / target).is_dir() else target
        if target in known:
            return f"{found[1]}{'../' * depth}{known[target]}{found[3] or ''}{found[4]}"
        picture = target.removeprefix("docs/")
        return f"{found[1]}{'../' * depth}{picture}{found[4]}" if target.startswith("docs/") else "]" + "(#)"

    parts = text.split("```")  # every second one is code, where nothing is a link
    return "```".join([part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts)])


def write() -> None:
    """Make the copy anew."""
    shutil.rmtree(COPY, ignore_errors=True)
    known = names()
    for source, name in known.items():
        if not (ROOT / source).exists():
            continue
        (COPY / name).parent.mkdir(parents=True, exist_ok=True)
        (COPY / name).write_text(page(source, known), "utf-8")
    for picture in [*(ROOT / "docs").rglob("*.svg"), *(ROOT / "docs").rglob("*.png")]:
        target = COPY / picture.relative_to(ROOT / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, target)


def main() -> int:
    """Build; a page, link or anchor that is not there is an error."""
    write()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", str(ROOT / "mkdocs.yml")]
    return subprocess.run(command, cwd=ROOT, check=False).returncode  # noqa: S603 - a fixed command


if __name__ == "__main__":
    sys.exit(main())
