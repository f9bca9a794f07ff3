"""Patterns of ignore files as regular expressions, with git's meaning of every character, byte by byte.

git's own matcher has corners that its manual leaves out, and people's ignore files stand on them: the text before the
first wildcard is compared by itself, so `a**/b` crosses folders though only a whole `**` is said to; a set that is not
closed matches nothing; `[!a]` never matches a slash. `tests/workspace/test_ignoring_as_git.py` compares the two.

An expression never tries a text in exponentially many ways, whatever the pattern: what is fixed between two stars is
matched where it is found first, and not elsewhere.
"""

from __future__ import annotations

import re
import string

import msgspec

_STAR, _ANY, _SET, _ESCAPE, _SLASH = b"*?[\\/"
_SPECIAL = re.compile(rb"[*?\[\\]")
_PRINTED = bytes(range(0x20, 0x7F))
_CLASSES = {
    b"alnum": (string.ascii_letters + string.digits).encode(),
    b"alpha": string.ascii_letters.encode(),
    b"blank": b" \t",
    b"cntrl": bytes(set(range(128)) - set(_PRINTED)),
    b"digit": string.digits.encode(),
    b"graph": _PRINTED[1:],
    b"lower": string.ascii_lowercase.encode(),
    b"print": _PRINTED,
    b"punct": string.punctuation.encode(),
    b"space": b" \t\n\r",
    b"upper": string.ascii_uppercase.encode(),
    b"xdigit": string.hexdigits.encode(),
}
_ONE, _SOME = b"[^/]", b"[^/]*"


class _NeverError(Exception):
    """A pattern that matches nothing: a set that is not closed, an unknown class, a lone backslash at the end."""


class IgnorePattern(msgspec.Struct, frozen=True):
    """One line of an ignore file. `of_name`: its expression is for a name alone, else for a path below its folder."""

    expression: bytes
    of_name: bool
    is_negated: bool
    folders_only: bool


def pattern_of(line: bytes) -> IgnorePattern | None:
    """A line of an ignore file; None for one that says nothing."""
    line = _without_spaces(line.split(b"\0")[0])
    if line.startswith(b"#"):
        return None
    negated = line.startswith(b"!")
    pattern = line[1:] if negated else line
    folders = pattern.endswith(b"/")
    pattern = pattern[:-1] if folders else pattern
    of_name = b"/" not in pattern
    if not pattern:
        return None
    try:
        if of_name:
            expression = _translated(pattern, crossing=False)
        else:
            pattern = pattern.removeprefix(b"/")
            special = _SPECIAL.search(pattern)
            fixed = len(pattern) if special is None else special.start()
            expression = re.escape(pattern[:fixed]) + _translated(pattern[fixed:], crossing=True)
    except _NeverError:
        return None
    return IgnorePattern(expression, of_name, negated, folders)


def _without_spaces(line: bytes) -> bytes:
    """A line without the spaces at its end; a backslash keeps the one behind it, and one at the very end keeps all."""
    end, at = 0, 0
    while at < len(line):
        if line[at] == _ESCAPE:
            at += 1
            if at == len(line):
                return line
            end = at + 1
        elif line[at : at + 1] != b" ":
            end = at + 1
        at += 1
    return line[:end]


def _translated(pattern: bytes, *, crossing: bool) -> bytes:
    """The expression of a pattern. `crossing`: a whole `**` stands for any folders."""
    parts: list[bytes] = []  # one for each `**` and what follows it, the first without
    fixed: list[bytes] = []  # what follows the last star
    part: list[bytes] = []  # what comes before that
    star, ways = b"", b""
    at = 0

    def end_star(*, last: bool) -> None:
        nonlocal star, fixed
        text = b"".join(fixed)
        # Between two stars the first place will do: what comes after it has the more room.
        part.append(text if not star else star + text if last else b"(?>" + _SOME + b"?" + text + b")")
        star, fixed = b"", []

    def end_part(*, last: bool) -> None:
        nonlocal ways, part
        end_star(last=True)
        text = b"".join(part)
        parts.append(text if not ways else ways + text if last else b"(?>" + ways + text + b")")
        ways, part = b"", []

    while at < len(pattern):
        byte = pattern[at]
        if byte == _STAR:
            begun, at = at, _after_stars(pattern, at)
            whole = crossing and at - begun > 1 and (begun == 0 or pattern[begun - 1] == _SLASH)
            if whole and at == len(pattern):
                end_part(last=False)
                return b"".join([*parts, b".*"])
            if whole and pattern.startswith((b"/", b"\\/"), at):
                end_part(last=False)
                ways = b"(?:.*?/)??" if pattern[at] == _SLASH else b".*?/"
                at += 1 if pattern[at] == _SLASH else 2
            else:
                end_star(last=False)
                star = _SOME
        elif byte == _SET:
            found, at = _set_at(pattern, at + 1)
            fixed.append(found)
        elif byte == _ESCAPE:
            if at + 1 == len(pattern):
                raise _NeverError
            fixed.append(re.escape(pattern[at + 1 : at + 2]))
            at += 2
        else:
            fixed.append(_ONE if byte == _ANY else re.escape(pattern[at : at + 1]))
            at += 1
    end_part(last=True)
    return b"".join(parts)


def _after_stars(pattern: bytes, at: int) -> int:
    while at < len(pattern) and pattern[at] == _STAR:
        at += 1
    return at


def _set_at(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The expression of a set whose bracket is open, and where the pattern goes on."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    before: int | None = None  # a range may begin with it
    begun = at
    while pattern[at : at + 1] != b"]" or at == begun:
        byte = _byte(pattern, at)
        if byte == _ESCAPE:
            at += 1
            before = _byte(pattern, at)
            members.add(before)
        elif byte == ord("-") and before is not None and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 2 if pattern[at + 1] == _ESCAPE else 1
            members.update(range(before, _byte(pattern, at) + 1))
            before = None
        elif pattern.startswith(b"[:", at):
            end = pattern.find(b"]", at + 2)
            if end < 0:
                raise _NeverError
            if end > at + 2 and pattern[end - 1] == ord(":"):
                members.update(_class_of(pattern[at + 2 : end - 1]))
                at, before = end, None
            else:  # no class: a bracket as any other byte
                members.add(byte)
                before = byte
        else:
            members.add(byte)
            before = byte
        at += 1
    matching = [byte for byte in range(1, 256) if (byte in members) != negated and byte != _SLASH]
    return (b"[" + b"".join([b"\\x%02x" % byte for byte in matching]) + b"]" if matching else b"(?!)"), at + 1


def _byte(pattern: bytes, at: int) -> int:
    if at >= len(pattern):
        raise _NeverError
    return pattern[at]


def _class_of(name: bytes) -> bytes:
    if name not in _CLASSES:
        raise _NeverError
    return _CLASSES[name]
