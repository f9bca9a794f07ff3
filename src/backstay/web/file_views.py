"""Files that differ, as a page shows them: a line for each path, and the lines that changed in it, within limits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from difflib import unified_diff
from typing import TYPE_CHECKING, NamedTuple

from backstay.errors import BackstayError, NotFoundError
from backstay.listing import SECRET, shown
from backstay.shapes.files import spelled
from backstay.shapes.text import size
from backstay.web.reader import FOLD_LINES

if TYPE_CHECKING:
    from backstay.listing import FileChange, FileDiff, FileEntry

SHOWN_BYTES = 256 << 10  # of a file that is shown, or compared line by line
LOOK_BYTES = 8000
_SHOWN_FILES = 24
_PAGE_CHARS = 48_000
_LINE_CHARS = 600
_FOLDED_LINES = 300
_MOST_WORK = 2_000_000  # pairs of equal lines that are looked at for one page
_POPULAR_FROM, _POPULAR_PART = 200, 100  # difflib passes over a line that is one in a hundred of so many
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class DiffLine(NamedTuple):
    """A line of a difference: `at`, `ctx`, `add` or `del`, its number, and its text with the mark in front."""

    kind: str
    number: str
    text: str


class FileView(NamedTuple):
    """A path that differs. `note` says what its lines do not; `is_cut`: the page has no room for all of it."""

    path: str
    address: dict[str, str]
    mark: str
    word: str
    added: int = 0
    removed: int = 0
    lines: tuple[DiffLine, ...] = ()
    rest: tuple[DiffLine, ...] = ()
    note: str = ""
    is_cut: bool = False


class FileViews(NamedTuple):
    """The paths that differ, as far as a page has room for them; how many more there are, and how many in all."""

    views: list[FileView]
    more: int
    total: int

    @property
    def added(self) -> int:
        """Lines that came."""
        return sum([view.added for view in self.views])

    @property
    def removed(self) -> int:
        """Lines that went."""
        return sum([view.removed for view in self.views])


def address_of(path: str) -> dict[str, str]:
    """What names a file in the address of a page: its path; in hexadecimal if it is no text."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return {"raw": path.encode("utf-8", "surrogateescape").hex()}
    return {"path": path}


def seen(name: str) -> str:
    """A name that can be seen: one with spaces at its ends is put in quotes."""
    return name if name == name.strip() else f"'{name}'"


def path_in(query: Mapping[str, str]) -> str:
    """The path that an address names; empty if it names none."""
    raw = query.get("raw", "")
    if not raw:
        return query.get("path", "")
    try:
        return bytes.fromhex(raw).decode("utf-8", "surrogateescape")
    except ValueError:
        return ""


def views_of(diff: FileDiff, *, only: str = "") -> FileViews:
    """The files that differ, as far as a page has room; with `only`, one of them with all its lines."""
    changes = diff.changes.changes
    if only:
        raw = only.encode("utf-8", "surrogateescape")
        changes = tuple([change for change in changes if change.path == raw])
        if not changes:
            raise NotFoundError(f"{spelled(only)!r} is not among the files that differ")
    room = DiffAllowance(whole=bool(only))
    views = [_view(diff, change, room) for change in changes[:_SHOWN_FILES]]
    return FileViews(views, max(0, len(changes) - _SHOWN_FILES), len(changes))


class DiffAllowance:
    """What a page has left for differences: characters to show, and work to find them."""

    def __init__(self, *, whole: bool) -> None:
        self._chars, self._work, self._whole = _PAGE_CHARS * (6 if whole else 1), _MOST_WORK, whole

    def takes(self, old: bytes, new: bytes) -> bool:
        """True if two texts can still be compared: many lines that come many times would take long."""
        before, after = Counter(old.splitlines()), Counter(new.splitlines())
        count = after.total()
        most = count if count < _POPULAR_FROM else count // _POPULAR_PART + 1
        self._work -= sum([before[line] * times for line, times in after.items() if times <= most])
        return self._work >= 0

    def fold(self, lines: list[DiffLine]) -> tuple[list[DiffLine], list[DiffLine], bool]:
        """What is shown at once, what a click shows, and whether there is more than both."""
        most = len(lines) if self._whole else FOLD_LINES + _FOLDED_LINES
        kept: list[DiffLine] = []
        for line in lines[:most]:
            self._chars -= len(line.text) + 40
            if self._chars < 0:
                break
            kept.append(line)
        return kept[:FOLD_LINES], kept[FOLD_LINES:], len(kept) < len(lines)


def _view(diff: FileDiff, change: FileChange, room: DiffAllowance) -> FileView:
    path = change.path.decode("utf-8", "surrogateescape")
    mark, word = _word(change)
    view = FileView(seen(spelled(path)), address_of(path), mark, word)
    note = _note(change)
    if note or change.only_mode:
        return view._replace(note=note)
    try:
        lines = _lines(diff, path, change, room)
    except BackstayError as error:
        return view._replace(note=error.message)
    if isinstance(lines, str):
        return view._replace(note=lines)
    first, rest, is_cut = room.fold(lines)
    kinds = [line.kind for line in lines]
    return view._replace(
        added=kinds.count("add"),
        removed=kinds.count("del"),
        lines=tuple(first),
        rest=tuple(rest),
        note="" if lines else "Differs in line ends alone." if change.before and change.after else "It is empty.",
        is_cut=is_cut,
    )


def text_view(name: str, before: object, after: object, room: DiffAllowance) -> FileView | None:
    """Two texts of several lines, line by line, like files; None for anything else, or where the page has no room."""
    if not isinstance(before, str) or not isinstance(after, str) or "\n" not in before + after:
        return None
    old, new = before.encode("utf-8", "replace"), after.encode("utf-8", "replace")
    if max(len(old), len(new)) > SHOWN_BYTES or not room.takes(old, new):
        return None
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="")
    found = numbered(list(lines)[2:])
    first, rest, is_cut = room.fold(found)
    kinds = [line.kind for line in found]
    return FileView(
        name, {}, "~", "changed", kinds.count("add"), kinds.count("del"), tuple(first), tuple(rest), is_cut=is_cut
    )


def _word(change: FileChange) -> tuple[str, str]:
    if change.before is None:
        return "+", "added"
    if change.after is None:
        return "−", "removed"
    return ("~", "permissions") if change.only_mode else ("~", "changed")


def _note(change: FileChange) -> str:
    """What is said in place of lines; empty if there are lines to show."""
    before, after = change.before, change.after
    sides = [each for each in (before, after) if each is not None]
    if change.only_mode and before is not None and after is not None:
        return f"Permissions {before.mode & 0o7777:04o} became {after.mode & 0o7777:04o}."
    if before is not None and after is not None and before.kind != after.kind:
        return f"A {before.kind} became a {after.kind}."
    if any([each.kind == "folder" for each in sides]):
        return "A folder."
    if any([each.mark == SECRET for each in sides]):
        return "A secret: only a digest of its contents is kept."
    if any([each.kind == "link" for each in sides]):
        return f"A link to {', then to '.join([shown(each.target) for each in sides])}."
    if max([each.size for each in sides]) > SHOWN_BYTES:
        return f"{_sizes(before, after)}. Too large to show line by line."
    return ""


def _sizes(before: FileEntry | None, after: FileEntry | None) -> str:
    return " became ".join([size(each.size) for each in (before, after) if each is not None])


def _lines(diff: FileDiff, path: str, change: FileChange, room: DiffAllowance) -> list[DiffLine] | str:
    """The lines that differ; or why there are none to show."""
    old, new = diff.contents(change)
    if old is None or new is None:
        return "Its contents are not kept."
    if is_binary(old) or is_binary(new):
        return f"{_sizes(change.before, change.after)}. No text."
    if not room.takes(old, new):
        return f"{_sizes(change.before, change.after)}. Too many lines to compare on this page."
    return numbered(diff.text(path).split("\n")[2:])


def is_binary(contents: bytes) -> bool:
    """True for contents that are no text."""
    return b"\0" in contents[:LOOK_BYTES]


def numbered(lines: list[str]) -> list[DiffLine]:
    """Lines of a unified difference with their numbers: of the old file where a line went, else of the new one."""
    found: list[DiffLine] = []
    before = after = 0
    for line in lines:
        hunk = _HUNK.match(line)
        if hunk is not None:
            before, after = int(hunk[1]), int(hunk[2])
            found.append(DiffLine("at", "", line))
            continue
        text = line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"
        if line.startswith("-"):
            found.append(DiffLine("del", str(before), text))
            before += 1
        elif line.startswith("+"):
            found.append(DiffLine("add", str(after), text))
            after += 1
        else:
            found.append(DiffLine("ctx", str(after), text))
            before, after = before + 1, after + 1
    return found
