"""The hooks in `.claude/settings.local.json`: put there, and taken out again. What else is in that file stays.

Claude Code reads this file beside those that people share; it is of one machine, so the command may be a path.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shlex
import sys
from pathlib import Path
from typing import Any

from backstay.errors import InvalidInputError

PATH = Path(".claude", "settings.local.json")
TIMEOUT_S = 10  # a hook leaves after 2 seconds by itself
_OF_TOOLS = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
EVENTS = ("SessionStart", "UserPromptSubmit", *_OF_TOOLS, "Stop", "SubagentStop", "SessionEnd")
_OURS = re.compile(r"\bbackstay['\"]?\s+hook\b")
_LEAVE = "mend it or move it away first; nothing was written"


def hook_command(url: str | None = None) -> str:
    """The line that a hook runs: this very installation, by its path."""
    script = Path(sys.prefix, "Scripts" if sys.platform == "win32" else "bin", "backstay")
    words = [str(script)] if script.is_file() else [sys.executable, "-m", "backstay"]
    return shlex.join([*words, "hook", *(["--store", url] if url else [])])


def with_hooks(text: str | None, command: str) -> str:
    """The text of the settings with our hooks; the same text if they are there as they should be."""
    settings = _parsed(text)
    hooks = _object(settings, "hooks")
    for event in EVENTS:
        ours = [hook for group in _groups(hooks, event) for hook in _hooks(group) if _is_ours(hook)]
        if not ours:
            hook = {"type": "command", "command": command, "timeout": TIMEOUT_S}
            group = {"matcher": "*", "hooks": [hook]} if event in _OF_TOOLS else {"hooks": [hook]}
            hooks[event] = [*_groups(hooks, event), group]
        for hook in ours:
            hook["command"] = command
    settings["hooks"] = hooks
    return _written(settings, text)


def without_hooks(text: str | None) -> str:
    """The text of the settings without our hooks."""
    settings = _parsed(text)
    hooks = _object(settings, "hooks")
    for event in list(hooks):
        kept = []
        for group in _groups(hooks, event):
            rest = [hook for hook in _hooks(group) if not _is_ours(hook)]
            if rest or len(rest) == len(_hooks(group)):
                kept.append({**group, "hooks": rest} if "hooks" in group else group)
        if kept or not _groups(hooks, event):
            hooks[event] = kept
        else:
            del hooks[event]
    if not hooks:
        settings.pop("hooks", None)
    return _written(settings, text)


def read(project: Path) -> str | None:
    """The text of a project's settings; None if there are none. A link is refused: it may lead out of the project."""
    target = project / PATH
    if target.is_symlink() or target.parent.is_symlink():
        raise InvalidInputError(f"{PATH} is a link, or in one", hint="put the hooks into the file itself: --print")
    try:
        return target.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{PATH} is not UTF-8", hint=_LEAVE) from None


def write(project: Path, text: str) -> None:
    """Write a project's settings, whole or not at all."""
    target = project / PATH
    target.parent.mkdir(exist_ok=True)
    made = target.with_name(f".{target.name}.{secrets.token_hex(4)}.backstay")
    try:
        made.write_text(text, encoding="utf-8")
        if target.exists():
            made.chmod(target.stat().st_mode & 0o777)
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)


def remove(project: Path) -> None:
    """Remove settings that say nothing any more, and their folder if it holds nothing else."""
    target = project / PATH
    target.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else is in it
        target.parent.rmdir()


def say_nothing(text: str) -> bool:
    """True for settings without a single one, as they are where a file was made for the hooks alone."""
    return not _parsed(text)


def _parsed(text: str | None) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    try:
        found = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{PATH} is not JSON: {error}", hint=_LEAVE) from None
    if not isinstance(found, dict):
        raise InvalidInputError(f"{PATH} is no JSON object", hint=_LEAVE)
    return found


def _object(settings: dict[str, Any], key: str) -> dict[str, Any]:
    found = settings.get(key, {})
    if not isinstance(found, dict):
        raise InvalidInputError(f"{PATH}: {key!r} is no object", hint=_LEAVE)
    return found


def _groups(hooks: dict[str, Any], event: str) -> list[dict[str, Any]]:
    found = hooks.get(event, [])
    if not isinstance(found, list) or not all([isinstance(group, dict) for group in found]):
        raise InvalidInputError(f"{PATH}: 'hooks.{event}' is no list of objects", hint=_LEAVE)
    return found


def _hooks(group: dict[str, Any]) -> list[Any]:
    found = group.get("hooks", [])
    return found if isinstance(found, list) else []


def _is_ours(hook: Any) -> bool:
    return isinstance(hook, dict) and isinstance(hook.get("command"), str) and _OURS.search(hook["command"]) is not None


def _written(settings: dict[str, Any], before: str | None) -> str:
    """Settings as text, indented as they were; that very text if they mean the same."""
    if before is not None and before.strip() and _parsed(before) == settings:
        return before
    indent = re.search(r"\n([ \t]+)\S", before or "")
    end = "" if before and before.strip() and not before.endswith("\n") else "\n"
    return json.dumps(settings, indent=indent[1] if indent else 2, ensure_ascii=False) + end
