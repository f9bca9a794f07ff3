"""Files of a workspace on the pages: their list, one of them, what changed, and what a page does not do with them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import NamedTuple

import pytest

import backstay
from backstay.shapes.text import safe
from tests.faces.web.serving import Visitor, served
from tests.faces.web.test_pages import Balance
from tests.store.rows import execute

NAMES = [
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(2)>',
    "' onmouseover='alert(3)",
    "{{ 7*7 }}",
    "javascript:alert(4)",
    "\u202eevil.py",
    "new\nline",
    "?path=x&raw=00#y",
    "%2e%2e",
    "\x1b[31mred",
    " ",
    os.fsdecode(b"no-text-\xff\xfe"),
    "W" * 200,
]


class World(NamedTuple):
    visitor: Visitor
    session: backstay.Session
    folder: Path

    def page(self, path: str) -> str:
        """A page that must be whole."""
        found = self.visitor.get(f"/s/work/{path}")
        assert found.status == 200, found.text
        balance = Balance()
        balance.feed(found.text)
        assert (balance.open, balance.wrong) == ([], [])
        assert len(found.text.encode()) < 160_000
        return found.text

    def commit(self, **state: object) -> str:
        return self.session.commit(state).id


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    folder = tmp_path / "folder"
    folder.mkdir()
    with backstay.open(tmp_path / "s.db", durability="relaxed") as store, served(store) as port:
        yield World(Visitor(port), store.session("work", workspace=folder), folder)


def test_the_list_has_sizes_authors_and_what_was_left_out(world: World) -> None:
    (world.folder / ".gitignore").write_text("*.log\n")
    (world.folder / "noise.log").write_text("x")
    (world.folder / ".env").write_text("TOKEN=never-shown\n")
    with world.session.run() as run:
        run.call("write_it", lambda: (world.folder / "a.py").write_text("print('a')\n"), args={})
        run.step()
        run.call("write_more", lambda: (world.folder / "a.py").write_text("print('b')\n"), args={})
        run.step()
    page = world.page("c/main~1?tab=files")
    assert re.search(r"a\.py</bdi></a></td><td[^>]*>11 B</td><td[^>]*>write_more<", page)
    assert re.search(r"\.gitignore</bdi></a></td><td[^>]*>6 B</td><td[^>]*>outside the agent<", page)
    assert "secret: only a digest" in page
    left_out = page[page.index("Left out") :]
    assert "noise.log" in left_out
    assert "never-shown" not in page + world.page("c/main?tab=files&path=.env")
    assert '<span class="del" data-n="1">-print(&#39;a&#39;)</span>' in page
    assert '<span class="add" data-n="1">+print(&#39;b&#39;)</span>' in page
    assert "Files changed" in world.page("c/main~1")
    listed = world.visitor.get("/s/work/c/main~1?tab=files&format=json").json
    assert [(each["path"], each["mark"]) for each in listed] == [(".env", "secret"), (".gitignore", ""), ("a.py", "")]


def test_the_session_has_the_files_of_its_head_and_all_that_became_of_them(world: World) -> None:
    assert world.visitor.get("/s/work").status == 404
    (world.folder / ".env").write_text("TOKEN=never-shown\n")
    (world.folder / "old.py").write_text("gone = 1\n")
    first = world.commit(n=0)
    assert ">Files<" in world.page("")
    with world.session.run() as run:
        run.call("write_it", lambda: (world.folder / "a.py").write_text("first = 1\n"), args={})
        run.step()
        run.call("remove_it", (world.folder / "old.py").unlink, args={})
        run.step()
    world.session.fork(first, "other")
    page = world.page("files")
    assert "+first = 1" in page
    assert "-gone = 1" in page
    assert re.search(r"a\.py</bdi></a></td><td[^>]*>10 B</td><td[^>]*>write_it<", page)
    assert "old.py</bdi></a></td>" not in page
    other = world.page("files?branch=other")
    assert "first = 1" not in other
    assert "old.py</bdi></a></td>" in other
    assert world.visitor.get("/s/work/files?branch=none").status == 404
    listed = world.visitor.get("/s/work/files?format=json").json
    assert [each["path"] for each in listed] == [".env", "a.py"]
    alone = world.visitor.get("/s/work/export?as=html").text
    assert "+first = 1" in alone
    assert "-gone = 1" in alone
    assert "a.py</bdi></span></td>" in alone
    assert "never-shown" not in page + other + alone


def test_a_session_without_files_has_no_tab_for_them(visitor: Visitor) -> None:
    assert ">Files<" not in visitor.get("/s/fix-login-bug").text
    assert "No files" in visitor.get("/s/fix-login-bug/files").text


def test_one_file_is_text_that_is_folded_or_a_sentence(world: World) -> None:
    (world.folder / "long.txt").write_text("".join(f"line {n} <b>\n" for n in range(100)))
    (world.folder / "longer.txt").write_text("".join(f"line {n} of many\n" for n in range(5000)))
    (world.folder / "huge.txt").write_text("x" * 300_000)
    (world.folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (world.folder / "empty").touch()
    (world.folder / "sub").mkdir()
    (world.folder / "sub" / "inner.txt").write_text("inner\n")
    (world.folder / "link").symlink_to("/etc/passwd")
    world.commit(n=1)
    page = world.page("c/main?tab=files&path=long.txt")
    shown, _, folded = page.partition("Show the other 60 lines")
    assert "line 39 &lt;b&gt;</pre>" in shown
    assert "line 40 &lt;b&gt;\n" in folded
    assert "line 4999" not in world.page("c/main?tab=files&path=longer.txt")
    assert "line 4999" in world.page("c/main?tab=files&path=longer.txt&full=1")
    assert "too large to show" in world.page("c/main?tab=files&path=huge.txt")
    assert "no text" in world.page("c/main?tab=files&path=picture.png")
    assert "The file is empty" in world.page("c/main?tab=files&path=empty")
    assert "A link to /etc/passwd. It is not followed." in world.page("c/main?tab=files&path=link")
    below = world.page("c/main?tab=files&path=sub")
    assert "sub/inner.txt" in below
    assert "long.txt" not in below


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems refuse some of these names")
def test_hostile_names_are_harmless_and_each_leads_to_its_own_file(world: World) -> None:
    for name in NAMES:
        (world.folder / name).write_text(f"contents of {NAMES.index(name)}\n")
    before = world.commit(n=1)
    for name in NAMES:
        (world.folder / name).write_text(f"<script>alert({NAMES.index(name)})</script>\n")
    after = world.commit(n=2)
    tab, diff = world.page("c/main?tab=files"), world.page(f"d/{before}/{after}")
    for page in (tab, diff, world.page("c/main")):
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "\u202e" not in page
        assert "\x1b" not in page
        assert "+++" not in page  # a line break in a name makes no line of a difference
    for page in (tab, diff):
        links = {unescape(link) for link in re.findall(r'href="(/s/work/c/[^"]*(?:path|raw)=[^"]*)"', page)}
        assert len(links) == len(NAMES)
        found = [world.visitor.get(link).text for link in links]
        for name in NAMES:
            text = f"&lt;script&gt;alert({NAMES.index(name)})&lt;/script&gt;"
            assert sum(f'<pre class="out" tabindex="0">{text}</pre>' in each for each in found) == 1
    assert safe(NAMES[5]) in tab


def test_a_difference_has_the_files_that_came_went_and_changed(world: World) -> None:
    for name in ("same", "gone", "changed", "ends", "mode", "blob", "kind"):
        (world.folder / name).write_text(f"{name}\nsecond\n")
    (world.folder / "link").symlink_to("same")
    a = world.commit(n=1)
    (world.folder / "link").unlink()
    (world.folder / "link").symlink_to("../<b>")
    (world.folder / "gone").unlink()
    (world.folder / "changed").write_text("changed\nother\n")
    (world.folder / "ends").write_text("ends\r\nsecond\r\n", newline="")
    (world.folder / "mode").chmod(0o755)
    (world.folder / "blob").write_bytes(b"\0\1\2")
    (world.folder / "came").write_text("came\n")
    (world.folder / "kind").unlink()
    (world.folder / "kind").symlink_to("same")
    b = world.commit(n=1)
    page = world.page(f"d/{a}/{b}")
    assert '<span class="del" data-n="2">-second</span><span class="add" data-n="2">+other</span>' in page
    assert "Differs in line ends alone." in page
    assert "0755." in page
    assert "12 B became 3 B. No text." in page
    assert "A file became a link." in page
    assert "A link to same, then to ../&lt;b&gt;." in page
    assert "Nothing differs" not in page
    assert "Both checkpoints have the same state and the same files." in world.page(f"d/{b}/{b}")
    alone = world.page(f"d/{a}/{b}?path=changed")
    assert ">changed</bdi>" in alone
    assert ">came</bdi>" not in alone
    assert world.visitor.get(f"/s/work/d/{a}/{b}?path=same").status == 404
    listed = world.visitor.get(f"/s/work/d/{a}/{b}?format=json").json["files"]
    assert {each["path"]: each["change"] for each in listed} == {
        "blob": "changed", "came": "added", "changed": "changed", "ends": "changed", "gone": "removed",
        "kind": "changed", "link": "changed", "mode": "mode",
    }  # fmt: skip
    for link in re.findall(r'href="(/s/work/[^"]*path=[^"]*)"', page + world.page("c/main?tab=files")):
        assert world.visitor.get(unescape(link)).status == 200, link


def test_pages_stay_small_however_many_files_there_are_and_however_long(world: World) -> None:
    for number in range(450):
        (world.folder / f"{number:03d}-{'n' * 60}").write_text("a\n" * 30)
    (world.folder / "0-long").write_text("x" * 200_000)
    (world.folder / "0-many").write_text("".join(f"{n % 900}\n" for n in range(50_000)))
    a = world.commit(n=1)
    for number in range(450):
        (world.folder / f"{number:03d}-{'n' * 60}").write_text("b\n" * 30)
    (world.folder / "0-long").write_text("y" * 200_000)
    (world.folder / "0-many").write_text("".join(f"{n % 899}\n" for n in range(50_000)))
    b = world.commit(n=2)
    page = world.page("c/main?tab=files")
    assert "Too many lines to compare on this page." in page
    assert "428 more" in page
    later = re.search(r'href="/s/work/([^"]*from=200)">Later', page)
    assert later is not None
    assert "201 to 400 of 452" in world.page(unescape(later[1]))
    assert "428 more" in world.page(f"d/{a}/{b}")
    world.page(f"d/{a}/{b}?path=0-long")
    world.page("c/main")


def test_a_restore_on_the_page_says_that_files_stay_and_leaves_them(world: World) -> None:
    (world.folder / "a").write_text("one")
    first = world.commit(n=1)
    (world.folder / "a").write_text("two")
    head = world.commit(n=2)
    page = world.page(f"c/{first}?act=restore&branch=main")
    assert "They stay as they are" in page
    assert f"backstay rewind work {first[:8]}" in page
    answer = world.visitor.post("/s/work/do/restore", at=first, branch="main", head=head)
    assert "Files are as they were." in world.visitor.notice(answer)
    assert (world.folder / "a").read_text() == "two"
    assert world.session.load()["n"] == 1


def test_an_undo_that_would_move_files_is_not_offered(world: World) -> None:
    (world.folder / "a").write_text("one")
    first = world.commit(n=1)
    (world.folder / "a").write_text("two")
    world.commit(n=2)
    head = world.session.restore(first, files=True, keep_mine=False)
    assert "Undo</button>" not in world.visitor.get("/s/work").text
    refused = world.visitor.post("/s/work/do/undo", branch="main", head=head.id)
    assert "moved files" in world.visitor.notice(refused)
    assert (world.folder / "a").read_text() == "one"
    now = world.session.head()
    assert now is not None
    assert now.id == head.id


def test_damaged_contents_are_said_and_the_rest_is_shown(world: World, tmp_path: Path) -> None:
    (world.folder / "a").write_text("many words " * 5000)
    world.commit(n=1)
    execute(tmp_path / "s.db", "UPDATE blobs SET data = zeroblob(length(data))")
    page = world.page("c/main?tab=files&path=a")
    assert "damaged" in page[page.index("At this checkpoint") :]
    assert ">a</bdi>" in world.page("c/main?tab=files")
