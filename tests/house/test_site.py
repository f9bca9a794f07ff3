"""The site: every page is on it, every public name is in its reference, and it asks no other server for anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import backstay
from tests.house.tree import ROOT, markdown_files, name_of

NAV = (ROOT / "mkdocs.yml").read_text("utf-8").partition("nav:")[2]
CALLS_OUT = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["'](?:https?:)?//[^"']+""")


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    named = set(re.findall(r"^::: backstay\.(\w+)$", page, re.MULTILINE))
    assert named == set(backstay.__all__)


def test_every_page_is_in_the_contents_and_on_the_site() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = [page for page in markdown_files() if page.parent == ROOT / "docs" and page.name != "README.md"]
    assert pages
    lost = [name_of(page) for page in pages if f"({page.name}" not in index or f"- {page.name}" not in NAV]
    assert not lost, "pages that a reader does not find"


@pytest.mark.exhaustive
def test_the_site_is_built_without_a_warning_and_asks_no_other_server() -> None:
    pytest.importorskip("zensical", reason="zensical is not installed: pip install -e '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "docs.build"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((ROOT / "site").rglob("*.html"))
    assert len(pages) > 30
    calls = {found for page in pages for found in CALLS_OUT.findall(Path(page).read_text("utf-8"))}
    assert not calls
