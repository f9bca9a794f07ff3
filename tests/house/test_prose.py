"""Prose that a hurried engineer reads once: sentences begin with their noun, and say who acts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.test_docs import blocks
from tests.house.tree import ROOT, markdown_files, name_of, parsed, python_files

PAGES = [page for page in markdown_files() if page.parent == ROOT or page.is_relative_to(ROOT / "docs")]
SPOKEN = python_files("src/backstay/cli")  # every text in it is read by people: help, messages, hints

# The next run, another process, the caller: there is always a word for it.
NO_ONE_IN_PARTICULAR = re.compile(r"\b(?:some|no|any)body(?:'s)?\b|\bwho(?:so)?ever\b", re.IGNORECASE)
# At the start of a sentence, a list item, a cell of a table or bold words.
BEGINS = re.compile(
    r"(?:^|(?<=[.!?:;] )|(?<=\| )|(?<=\*\*)|(?<=- ))(?:Who|Whoever|What|Whatever|That which) [^.?!|]*[.?!|]?"
)


def sentences_without_a_noun(text: str) -> list[str]:
    """Sentences that begin with a riddle; questions and headings may."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    flowing = re.sub(r"\n(?![-|*>\d\n])[ \t]*", " ", "\n".join(lines))
    return [
        found.group().strip()
        for line in flowing.splitlines()
        for found in BEGINS.finditer(line.strip())
        if not found.group().rstrip().endswith("?")
    ]


def prose_of(page: Path) -> str:
    """A page without its examples."""
    text = page.read_text("utf-8")
    for _, _, body in blocks(text):
        text = text.replace(body, "")
    return text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_says_who_acts(page: Path) -> None:
    found = NO_ONE_IN_PARTICULAR.findall(page.read_text("utf-8"))
    assert not found, f"{name_of(page)}: {found}: the next run, another process, the caller, you?"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_sentence_on_a_page_begins_with_what_it_is_about(page: Path) -> None:
    found = sentences_without_a_noun(prose_of(page))
    assert not found, f"{name_of(page)}: " + " | ".join(found)


@pytest.mark.parametrize("path", SPOKEN, ids=name_of)
def test_what_the_command_line_says_says_who_acts(path: Path) -> None:
    texts = [
        node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    found = [text for text in texts if NO_ONE_IN_PARTICULAR.search(text)]
    found += [sentence for text in texts for sentence in sentences_without_a_noun(text) if sentence.endswith(".")]
    assert not found, f"{name_of(path)}: {found}"


@pytest.mark.parametrize(
    "text",
    [
        "Who reads reads it.",
        "It works. What is damaged is listed.",
        "- **What is new** is written.",
        "| What to do then | x |",
        "A line that\nends. Whoever comes\nwaits.",
    ],
)
def test_a_riddle_is_found(text: str) -> None:
    assert sentences_without_a_noun(text)


@pytest.mark.parametrize(
    "text", ["## What is kept", "What is kept? A delta.", "It says what is damaged.", "You see who did it."]
)
def test_a_plain_sentence_is_none(text: str) -> None:
    assert not sentences_without_a_noun(text)
