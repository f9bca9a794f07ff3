"""What the pages show works by paste, where they point there is something, what they promise is tested.

A fenced block whose first word is `python` is run, all blocks of one page in order as one program, in an
empty folder. ` ```python no-run ` marks one that is only to be read, ` ```python needs-langgraph ` one that is skipped
where that is not installed. ` ```python no-run file=agent.py ` is a file that the reader saves, and
` ```console followed ` what the reader then types: both are done in order, and what is printed is compared.
"""

import ast
import functools
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.house.tree import ROOT, markdown_files, name_of, parsed, python_files

PAGES = markdown_files()
GUARANTEES = ROOT / "docs" / "guarantees.md"

FENCE = re.compile(r"^(?P<indent> *)(?P<mark>`{3,}|~{3,})(?P<info>[^`]*)$")
INLINE_CODE = re.compile(r"(`+).+?\1")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:")
TEST_NAME = re.compile(r"((?:tests|src)/[\w./-]+\.py)((?:::\w+)+)")
PROMISE = re.compile(r"^\s*(?:\||#+|[-*])\s*\W*(G\d+)\b")


def blocks(text: str) -> list[tuple[str, int, str]]:
    """Every fenced block: what its fence says, the line its body starts at, and the body."""
    found: list[tuple[str, int, str]] = []
    open_: re.Match[str] | None = None
    body: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if open_ is None:
            if fence:
                open_, body, start = fence, [], number + 1
        elif fence and fence["mark"].startswith(open_["mark"]) and not fence["info"].strip():
            found.append((open_["info"].strip(), start, "\n".join(body)))
            open_ = None
        else:
            body.append(line.removeprefix(open_["indent"]))
    return found


def program(text: str) -> str:
    """The Python of a page as one file, each line where it stands on the page, so that errors point there."""
    lines = [""] * (len(text.splitlines()) + 1)
    for info, start, body in blocks(text):
        words = info.split()
        if words[:1] == ["python"] and "no-run" not in words:
            for offset, line in enumerate(body.splitlines()):
                lines[start - 1 + offset] = line
    return "\n".join(lines)


def outputs(text: str) -> list[tuple[int, str]]:
    """What a page says is printed: the blocks of text right after Python that is run."""
    return [
        (start, body)
        for (before, _, _), (info, start, body) in pairwise(blocks(text))
        if info == "text" and before.split()[:1] == ["python"] and "no-run" not in before.split()
    ]


def needs(text: str) -> set[str]:
    """What has to be installed for the program of a page."""
    words = {word for info, _, _ in blocks(text) for word in info.split()}
    return {word.removeprefix("needs-") for word in words if word.startswith("needs-")}


def prose(text: str) -> str:
    """The page without its code."""
    for _, _, body in blocks(text):
        if body:
            text = text.replace(body, "", 1)
    return INLINE_CODE.sub("", text)


def anchors(text: str) -> set[str]:
    """What a `#` link can point at: headings, in small letters, with dashes for spaces."""
    heads = (line.lstrip("#").strip() for line in text.splitlines() if re.match(r"#{1,6} ", line))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def dead_links(page: Path) -> list[str]:
    dead: list[str] = []
    for link in LINK.findall(prose(page.read_text("utf-8"))):
        if ELSEWHERE.match(link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.is_relative_to(ROOT.resolve())
        if (
            not inside
            or not target.exists()
            or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")))
        ):
            dead.append(link)
    return dead


def exists(file: str, names: list[str]) -> bool:
    """Is there such a test? A test that a class inherits from the shipped contract counts as its own."""
    path = ROOT / file
    if not path.exists():
        return False
    node: ast.AST = parsed(path)
    for name in names:
        inside = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name == name
        ]
        if not inside:
            return isinstance(node, ast.ClassDef) and bool(node.bases) and name in shipped_tests()
        node = inside[0]
    return names[-1].startswith("test_")


@functools.cache
def shipped_tests() -> set[str]:
    paths = [path for path in python_files("src") if "testing" in name_of(path)]
    functions = (node for path in paths for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if node.name.startswith("test_")}


def promises(text: str) -> dict[str, str]:
    """Each guarantee and what is written about it, up to the next one."""
    lines = text.splitlines()
    starts = [(number, found[1]) for number, line in enumerate(lines) if (found := PROMISE.match(line))]
    ends = [*starts, (len(lines), "")]
    written: dict[str, str] = {}
    for (start, name), (end, _) in pairwise(ends):
        written[name] = written.get(name, "") + "\n".join(lines[start:end]) + "\n"
    return written


def test_a_newcomer_finds_a_readme() -> None:
    assert (ROOT / "README.md").is_file()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_shows_works_by_paste(page: Path, tmp_path: Path) -> None:
    text = program(page.read_text("utf-8"))
    if not text.strip():
        return
    for needed in needs(page.read_text("utf-8")):
        pytest.importorskip(needed, reason=f"the page shows what needs {needed}")
    (tmp_path / page.name).write_text(text, "utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(tmp_path / page.name)],
        cwd=empty,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{name_of(page)}\n{done.stdout}\n{done.stderr}"
    printed = alike(done.stdout)
    for start, shown in outputs(page.read_text("utf-8")):
        before, found, printed = printed.partition(alike(shown))
        assert found, f"{name_of(page)}:{start} shows what is not printed there, but:\n{before}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_reader_who_follows_a_page_at_the_shell_sees_what_it_says(page: Path, tmp_path: Path) -> None:
    followed = [block for block in blocks(page.read_text("utf-8")) if "followed" in block[0] or "file=" in block[0]]
    shims, folder = tmp_path / "bin", tmp_path / "empty"
    for name, arguments in {"python": "", "backstay": "-m backstay"}.items() if followed else ():
        shims.mkdir(exist_ok=True)
        (shims / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n', "utf-8")
        (shims / name).chmod(0o700)
        folder.mkdir(exist_ok=True)
    env = {**os.environ, "PATH": f"{shims}:{os.environ['PATH']}", "COLUMNS": "80"}
    env.pop("BACKSTAY_URL", None)
    for info, start, body in followed:
        if "file=" in info:
            (folder / info.partition("file=")[2].split()[0]).write_text(body + "\n", "utf-8")
            continue
        pieces = re.split(r"^\$ (.*)\n", body + "\n", flags=re.MULTILINE)[1:]
        for command, said in zip(pieces[::2], pieces[1::2], strict=True):
            done = subprocess.run(
                ["/bin/sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60
            )
            assert alike(done.stdout + done.stderr) == alike(said), f"{name_of(page)}:{start} {command}"


def alike(text: str) -> str:
    """What a command printed without what differs from time to time: ids, ages, sizes, and what the shell adds."""
    text = re.sub(r"\b[0-9a-f]{8,32}\b", "ID", text)
    text = re.sub(r"\b(just now|now|\d+s( ago)?)(?!\w)", "now", text)
    text = re.sub(r"[\d.]+ kB|[\d.]+x", "SIZE", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME", text)
    return "\n".join([" ".join(line.split()) for line in text.splitlines() if not line.endswith("Killed")]).strip()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_link_leads_a_reader_nowhere(page: Path) -> None:
    dead = dead_links(page)
    assert not dead, f"{name_of(page)} points at {dead}"


def test_every_guarantee_names_a_test_that_breaks_without_it() -> None:
    if not GUARANTEES.exists():
        pytest.skip("docs/guarantees.md is not written yet")
    written = promises(GUARANTEES.read_text("utf-8"))
    assert written, "docs/guarantees.md holds no guarantee (a row, heading or item that starts with G1, G2, ...)"
    bare = [name for name, words in written.items() if not TEST_NAME.search(words)]
    assert not bare, f"no test is named for {bare}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_a_page_names_exists(page: Path) -> None:
    named = TEST_NAME.findall(page.read_text("utf-8"))
    missing = [file + names for file, names in named if not exists(file, names.strip(":").split("::"))]
    assert not missing, f"{name_of(page)} names {missing}"


def test_a_page_runs_as_one_program_and_leaves_out_what_is_marked() -> None:
    page = "# A\n```python\nx = 1\n```\ntext\n```python no-run\nboom()\n```\n~~~python\nprint(x)\n~~~\n"
    assert program(page).splitlines()[2] == "x = 1"
    assert program(page).splitlines()[9] == "print(x)"
    assert "boom" not in program(page)


def test_a_link_in_code_is_not_a_link_and_one_to_nothing_is_found(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    assert LINK.findall(prose("see [a](b.md), `[c](d.md)`\n```\n[e](f.md)\n```\n")) == ["b.md"]
    assert anchors("## What you can rely on?\n") == {"what-you-can-rely-on"}
    assert ELSEWHERE.match("https://example.org")
    assert page.exists()
    lost = tmp_path / "page.md"
    lost.write_text("[x](nowhere.md)\n", "utf-8")
    assert dead_links(lost) == ["nowhere.md"]


def test_a_guarantee_without_a_test_is_noticed() -> None:
    page = "| G1 | kept | tests/house/test_docs.py::test_a_newcomer_finds_a_readme |\n| G2 | kept | |\n"
    written = promises(page)
    assert TEST_NAME.search(written["G1"])
    assert not TEST_NAME.search(written["G2"])
    assert exists("tests/house/test_docs.py", ["test_a_newcomer_finds_a_readme"])
    assert not exists("tests/house/test_docs.py", ["test_that_is_not_there"])
