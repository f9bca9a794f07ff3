"""What the pages bring along, and what their templates print unescaped."""

from __future__ import annotations

import hashlib
import re

from tests.house.tree import SRC

STATIC, TEMPLATES = SRC / "web" / "static", SRC / "web" / "templates"
# Drawings and the sheet of a file that stands alone: text that this project makes itself.
DRAWN = {"graph", "plot", "range", "timeline", "r.bars", "l.spark", "style"}


def test_what_was_brought_along_is_what_its_authors_published() -> None:
    said = (STATIC / "VENDORED").read_text("utf-8")
    found = re.search(r"^idiomorph\.js\n(?:  .*\n)*?  sha256   ([0-9a-f]{64})$", said, re.MULTILINE)
    assert found is not None
    assert hashlib.sha256((STATIC / "idiomorph.js").read_bytes()).hexdigest() == found[1]
    assert "Zero-Clause BSD" in said


def test_nothing_else_was_brought_along() -> None:
    assert {file.name for file in STATIC.iterdir()} == {"VENDORED", "idiomorph.js", "live.js", "mark.svg", "style.css"}


def test_only_drawings_are_printed_as_they_are() -> None:
    for template in TEMPLATES.iterdir():
        text = template.read_text("utf-8")
        assert set(re.findall(r"\{\{ *([\w.]+) *\| *safe", text)) <= DRAWN, template.name
        assert text.count("|safe") + text.count("| safe") == len(re.findall(r"\{\{ *[\w.]+ *\| *safe", text))
        assert "autoescape" not in text


def test_no_page_needs_anything_from_elsewhere() -> None:
    for file in [*TEMPLATES.iterdir(), STATIC / "style.css", STATIC / "live.js"]:
        text = file.read_text("utf-8")
        assert not re.search(r"""(?:src|href|url|action)\s*[=(]\s*["']?(?:https?:)?//""", text), file.name
        assert "@import" not in text
        if file.suffix == ".html" and file.name != "file.html":
            assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=", text), file.name
