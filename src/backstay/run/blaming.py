"""Which step wrote each line of a file: its versions are compared from the oldest on."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

import msgspec

from backstay.errors import NotFoundError
from backstay.hints import Hint
from backstay.listing import CALL, OUTSIDE, shown
from backstay.model import Checkpoint
from backstay.port import CheckpointRow
from backstay.store.history import History
from backstay.store.refs import readable

_PAGE_ROWS = 100
_PROMPT_CHARS = 120
_PEOPLE = ("user", "human")
_NAMES = Hint("checkpoint.files.listing names those it has", "`backstay files SESSION` names those it has")


class BlamedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a file: the checkpoint that first had it, and who wrote it.

    `author` is `outside` for you and others, or `call:` and an id; `call` is the name of that call, where it is known,
    and `prompt` the first line of the last words of a person before it.
    """

    number: int
    text: str
    checkpoint: Checkpoint
    author: str
    call: str | None = None
    prompt: str | None = None

    @property
    def is_yours(self) -> bool:
        """True if no call of this session wrote it."""
        return self.author == OUTSIDE


def blame(history: History, row: CheckpointRow, path: bytes) -> list[BlamedLine]:
    """The lines of a file at a checkpoint, each with the step that wrote it."""
    lines: list[bytes] = []
    owners: list[tuple[CheckpointRow, str]] = []
    digest, since, there = b"", 0, False
    for at in _line(history, row):
        files = history.files_of(at)
        if files is None:
            continue
        entry, now = files.listing.find(path), files.listing.about.capture
        there = entry is not None and entry.kind == "file"
        if entry is not None and at.sequence != row.sequence and files.is_forgotten(entry):
            continue  # the next version that can be read has its lines
        if entry is not None and there and entry.digest != digest and entry.has_contents:
            new = files.contents(entry).splitlines(keepends=True)
            authors = [who for capture, who in files.listing.changes_of(path) if since < capture <= now]
            owners = _owned(lines, new, owners, (at, authors[-1] if authors else OUTSIDE))
            lines, digest = new, entry.digest
        since = now
    if not there:
        where = f"session {history.id!r}: checkpoint {row.id[:12]}"
        if history.files_of(row) is None:
            raise NotFoundError(f"{where} has no files", hint="files are recorded where a session has a workspace")
        raise NotFoundError(f"{where} has no file {shown(path)}", hint=_NAMES)
    points: dict[str, tuple[Checkpoint, str | None, dict[str, str]]] = {}
    return [_blamed(history, points, n, *line) for n, line in enumerate(zip(lines, owners, strict=True), 1)]


def _line(history: History, row: CheckpointRow) -> list[CheckpointRow]:
    found: list[CheckpointRow] = []
    at: int | None = row.sequence
    while at is not None:
        page = history.backend.ancestors(history.id, at, limit=_PAGE_ROWS)
        if not page:
            break
        found += [readable(history.id, above) for above in page]
        at = found[-1].parent
    return found[::-1]


def _owned(
    old: list[bytes], new: list[bytes], owners: list[tuple[CheckpointRow, str]], by: tuple[CheckpointRow, str]
) -> list[tuple[CheckpointRow, str]]:
    found = [by] * len(new)
    for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        found[block.b : block.b + block.size] = owners[block.a : block.a + block.size]
    return found


def _blamed(
    history: History,
    points: dict[str, tuple[Checkpoint, str | None, dict[str, str]]],
    number: int,
    text: bytes,
    owner: tuple[CheckpointRow, str],
) -> BlamedLine:
    row, author = owner
    if row.id not in points:
        from backstay.run.deciding import calls  # noqa: PLC0415 - it is asked for few checkpoints

        point = history.checkpoint(row)
        names = {call.id: call.name for call in calls(history, point, pending=False)}
        points[row.id] = point, prompt_of(point.state), names
    point, prompt, names = points[row.id]
    call = names.get(author.removeprefix(CALL)) if author.startswith(CALL) else None
    shown_text = text.decode("utf-8", "replace").rstrip("\r\n")
    return BlamedLine(number=number, text=shown_text, checkpoint=point, author=author, call=call, prompt=prompt)


def prompt_of(state: dict[str, Any]) -> str | None:
    """The first line of the last words of a person in a conversation."""
    messages = state.get("messages")
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role", message.get("type")) in _PEOPLE:
            content = message.get("content")
            if isinstance(content, list):
                content = next(
                    (part.get("text") for part in content if isinstance(part, dict) and "text" in part), None
                )
            if isinstance(content, str) and content.strip():
                return content.strip().splitlines()[0][:_PROMPT_CHARS]
    return None
