"""`backstay init --claude-code`: the hooks stand beside what was in the settings, and can be taken out again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faces.cli import shell

EVENTS = [
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "Stop",
    "SubagentStop",
    "SessionEnd",
]
THEIRS = {"matcher": "Bash", "hooks": [{"type": "command", "command": "mine.sh --of backstay", "timeout": 3}]}


def settings(folder: Path) -> Path:
    return folder / ".claude" / "settings.local.json"


def put(folder: Path, text: str) -> None:
    settings(folder).parent.mkdir()
    settings(folder).write_text(text)


def loaded(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(settings(folder).read_text())
    return found


def test_a_new_project_gets_a_store_and_a_hook_for_every_event(tmp_path: Path) -> None:
    done = shell.run("init", "--claude-code", folder=tmp_path)
    assert done.code == 0, done.err
    assert (tmp_path / ".backstay" / "store.db").exists()
    hooks = loaded(tmp_path)["hooks"]
    assert list(hooks) == EVENTS
    for event, groups in hooks.items():
        ((hook,),) = [group["hooks"] for group in groups]
        assert hook["command"].endswith(" hook")
        assert ("matcher" in groups[0]) is ("Tool" in event)
    assert hooks["PreToolUse"][0]["matcher"] == "*"


def test_what_is_in_the_settings_stays_as_it_is_and_a_second_time_changes_nothing(tmp_path: Path) -> None:
    before = {"permissions": {"allow": ["Bash(ls)"]}, "hooks": {"Stop": [THEIRS], "Notification": []}, "neu": "ä"}
    put(tmp_path, json.dumps(before, indent=4, ensure_ascii=False))
    settings(tmp_path).chmod(0o640)
    assert shell.run("init", "--claude-code", folder=tmp_path).code == 0
    once = settings(tmp_path).read_text()
    found = loaded(tmp_path)
    assert (found["permissions"], found["neu"]) == (before["permissions"], "ä")
    assert found["hooks"]["Stop"][0] == THEIRS
    assert '\n    "permissions"' in once
    assert settings(tmp_path).stat().st_mode & 0o777 == 0o640
    assert shell.run("init", "--claude-code", folder=tmp_path).code == 0
    assert settings(tmp_path).read_text() == once
    assert shell.run("init", "--claude-code", "--remove", folder=tmp_path).code == 0
    assert loaded(tmp_path) == before
    assert [path.name for path in settings(tmp_path).parent.iterdir()] == ["settings.local.json"]


def test_hooks_of_another_installation_are_replaced_not_doubled(tmp_path: Path) -> None:
    old = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "/old/bin/backstay hook", "timeout": 60}]}]}}
    put(tmp_path, json.dumps(old))
    assert shell.run("init", "--claude-code", folder=tmp_path).code == 0
    ((hook,),) = [group["hooks"] for group in loaded(tmp_path)["hooks"]["Stop"]]
    assert (hook["command"].startswith("/old"), hook["timeout"]) == (False, 60)


def test_showing_writes_nothing(tmp_path: Path) -> None:
    done = shell.run("init", "--claude-code", "--print", folder=tmp_path)
    assert list(json.loads(done.out)["hooks"]) == EVENTS
    assert list(tmp_path.iterdir()) == []
    assert shell.run("init", "--claude-code", "--remove", folder=tmp_path).code == 0
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_named_is_named_to_the_hooks(tmp_path: Path) -> None:
    done = shell.run("init", "sqlite:///a b.db", "--claude-code", folder=tmp_path)
    assert done.code == 0, done.err
    (group,) = loaded(tmp_path)["hooks"]["Stop"]
    assert group["hooks"][0]["command"].endswith("hook --store 'sqlite:///a b.db'")


@pytest.mark.parametrize(
    "text", ["{,}", "[]", '{"hooks": []}', '{"hooks": {"Stop": {}}}', '{"hooks": {"Stop": [1]}}', "// no\n{}"]
)
def test_settings_that_cannot_be_understood_are_left_alone(tmp_path: Path, text: str) -> None:
    put(tmp_path, text)
    done = shell.run("init", "--claude-code", folder=tmp_path)
    assert done.code != 0
    assert "settings.local.json" in done.err
    assert settings(tmp_path).read_text() == text
    assert not (tmp_path / ".backstay").exists()


@pytest.mark.parametrize("line", [["--print"], ["--remove"], ["--claude-code", "--print", "--remove"]])
def test_options_that_go_with_nothing_are_refused(tmp_path: Path, line: list[str]) -> None:
    assert shell.run("init", *line, folder=tmp_path).code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("link", [".claude", ".claude/settings.local.json"])
def test_a_link_to_settings_elsewhere_is_not_followed(tmp_path: Path, link: str) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (elsewhere / "settings.local.json").write_text("{}")
    if link == ".claude":
        (project / link).symlink_to(elsewhere)
    else:
        (project / ".claude").mkdir()
        (project / link).symlink_to(elsewhere / "settings.local.json")
    assert shell.run("init", "--claude-code", folder=project).code != 0
    assert (elsewhere / "settings.local.json").read_text() == "{}"


def test_a_home_gets_no_hooks_and_nothing_is_written(tmp_path: Path) -> None:
    done = shell.run("init", "--claude-code", folder=tmp_path, HOME=str(tmp_path))
    assert (done.code, "it is your home" in done.err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_git_passes_the_folder_of_the_hooks_by(tmp_path: Path) -> None:
    assert shell.run("init", "--claude-code", folder=tmp_path).code == 0
    assert (tmp_path / ".backstay" / ".gitignore").read_text() == "*\n"
