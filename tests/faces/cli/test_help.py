"""`backstay help`: every guide is there, and every page for users is a guide."""

from pathlib import Path

import pytest

from backstay.cli import COMMANDS
from backstay.cli.help import PAGES, TOPICS, page_of
from tests.faces.cli import shell
from tests.house.tree import ROOT


@pytest.mark.parametrize("topic", TOPICS)
def test_a_guide_is_shown_whole_and_fits_the_terminal(topic: str, tmp_path: Path) -> None:
    said = shell.run("help", topic, folder=tmp_path)
    assert said.code == 0
    last = [line for line in page_of(topic).splitlines() if line.startswith("#")][-1].strip("# ")
    assert last in said.out
    assert "](" not in "".join(page_of(topic).split("```")[::2])


def test_a_topic_is_no_command_and_has_a_page() -> None:
    assert not set(TOPICS) & set(COMMANDS)
    assert all((ROOT / "docs" / f"{PAGES.get(topic, topic)}.md").exists() for topic in TOPICS)


def test_the_list_names_every_topic_and_a_misspelt_one_is_told(tmp_path: Path) -> None:
    listed = shell.run("help", folder=tmp_path).out
    assert all(f"  {topic} " in listed for topic in TOPICS)
    wrong = shell.run("help", "time-travle", folder=tmp_path)
    assert wrong.code == 2
    assert "time-travel" in wrong.err


def test_every_guide_that_the_index_lists_is_a_topic() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    guides = index.partition("## Guides")[2].partition("## Reference")[0]
    pages = {word.partition(".md")[0] for word in guides.split("](")[1:]}
    assert pages <= {PAGES.get(topic, topic) for topic in TOPICS}


def test_what_removes_something_is_not_proposed_for_another_word(tmp_path: Path) -> None:
    assert "prune" not in shell.run("run", folder=tmp_path).err
    assert "Did you mean prune?" in shell.run("prun", folder=tmp_path).err
