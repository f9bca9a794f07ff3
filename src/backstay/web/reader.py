"""A conversation as a reader wants it: turns, tool calls with their results, long outputs folded, images by name."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay.errors import BackstayError
from backstay.shapes import plain
from backstay.shapes.conversation import QUIET, Asked, answered_by, asked_in, said_in, speaker_of
from backstay.shapes.text import brief
from backstay.web.history import arg_words, seconds_of

if TYPE_CHECKING:
    from backstay.port import CallRow

FOLD_LINES, FOLD_CHARS = 40, 6000
_FOLDED_CHARS = 12_000  # of what is folded; more is a link to a page of its own
_PAGE_CHARS = 80_000  # of all texts of a page
_GLANCE_LINES, _GLANCE_CHARS = 6, 600
_MAX_IMAGE_BYTES = 8 << 20
_IMAGES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF87a": "gif", b"GIF89a": "gif", b"RIFF": "webp"}
_WHO = {"user": "User", "assistant": "Assistant", "system": "System", "developer": "Developer", "tool": "Tool"}


class Folded(NamedTuple):
    """A text: what is shown at once, what a click shows, and how much that is. `left_out`: not on this page at all."""

    shown: str
    rest: str = ""
    rest_lines: int = 0
    rest_size: int = 0
    left_out: bool = False


class Image(NamedTuple):
    """An image that a message holds as data; `data` is set where it was asked for."""

    kind: str
    size: int
    width: int
    height: int
    number: int
    data: str = ""


class Piece(NamedTuple):
    """A part of a turn: text, quiet text (thinking), an image, or anything else in short."""

    kind: str
    text: Folded
    image: Image | None = None


class Box(NamedTuple):
    """A tool call: its arguments in a few words and whole, its result, and how it went."""

    name: str
    words: str
    args: Folded | None
    result: Folded | None
    status: str
    seconds: float | None


class ReaderTurn(NamedTuple):
    """A message with what answers it. `editable` has its text where it can be changed in a fork."""

    number: int
    speaker: str
    who: str
    small: str
    pieces: list[Piece]
    calls: list[Box]
    is_new: bool
    editable: bool


def turns_of(
    messages: Sequence[Any],
    window: range,
    *,
    new_from: int,
    calls: Sequence[CallRow] = (),
    full: int = -1,
    image: int = -1,
    room: Room | None = None,
) -> list[ReaderTurn]:
    """The turns of the messages in a window. `full`: the message that is not folded; `image`: the one to be shown."""
    results = _results(messages)
    fresh = _results(messages[new_from:])
    asked_ids = {call.id for message in messages if isinstance(message, Mapping) for call in asked_in(message)}
    journal = {call.key: call for call in calls if call.key}
    models = [seconds_of(call) for call in calls if call.kind == "llm" and call.parent is None]
    made = iter(models if len(models) == _answers_in(messages[new_from:]) else ())
    images, room = [0], room or Room()
    found = []
    for index in window:
        message = messages[index]
        if isinstance(message, Mapping) and _is_answer(message, asked_ids):
            continue
        here = Unfolded() if index == full else room
        is_new = index >= new_from or (isinstance(message, Mapping) and _is_answered_in(message, fresh))
        if not isinstance(message, Mapping):
            text = message if isinstance(message, str) else brief(message)
            found.append(
                ReaderTurn(index, "message", "Message", "", [Piece("text", here.fold(text))], [], is_new, False)
            )
            continue
        speaker = speaker_of(message)
        seconds = next(made, None) if is_new and speaker == "assistant" else None
        boxes = [_box(each, results.get(each.id), journal.get(each.id), here) for each in asked_in(message)]
        pieces = _pieces(message, here, images, image)
        editable = speaker in ("user", "system", "developer") and any(piece.kind == "text" for piece in pieces)
        who = _WHO.get(speaker, speaker)
        small = "" if seconds is None else f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
        found.append(ReaderTurn(index, speaker, who, small, pieces, boxes, is_new, editable))
    return _joined(found)


def _joined(turns: list[ReaderTurn]) -> list[ReaderTurn]:
    """Neighbouring turns of the assistant that only call tools are one: items of OpenAI's Responses come one by one."""
    found: list[ReaderTurn] = []
    for turn in turns:
        last = found[-1] if found else None
        if (
            last is not None
            and last.speaker == turn.speaker == "assistant"
            and last.is_new == turn.is_new
            and (not turn.pieces or not last.calls)
            and (not turn.pieces or not last.pieces)
        ):
            found[-1] = last._replace(pieces=last.pieces + turn.pieces, calls=last.calls + turn.calls)
        elif turn.pieces or turn.calls or turn.speaker != "assistant":
            found.append(turn)
    return found


def _answers_in(messages: Sequence[Any]) -> int:
    return sum(isinstance(each, Mapping) and speaker_of(each) == "assistant" for each in messages)


def _is_answer(message: Mapping[str, Any], asked: set[str]) -> bool:
    """True for a message that is nothing but results of calls that are shown with theirs."""
    ids = answered_by(message)
    return bool(ids) and speaker_of(message) == "tool" and all(id_ in asked for id_ in ids)


def _is_answered_in(message: Mapping[str, Any], results: Mapping[str, tuple[str, bool]]) -> bool:
    """True for a message with a call whose result is among these."""
    return any([call.id in results for call in asked_in(message)])


def _results(messages: Sequence[Any]) -> dict[str, tuple[str, bool]]:
    """By the id of a call: its result as text, and whether it is an error."""
    found: dict[str, tuple[str, bool]] = {}
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        for block in blocks:
            if (
                isinstance(block, Mapping)
                and block.get("type") == "tool_result"
                and isinstance(block.get("tool_use_id"), str)
            ):
                found.setdefault(block["tool_use_id"], (_text(block), bool(block.get("is_error"))))
        for id_ in answered_by(message):
            found.setdefault(id_, (_text(message), message.get("status") == "error"))
    return found


def _text(message: Mapping[str, Any]) -> str:
    return "\n".join([brief(block) if text is None else text for _, text, block in said_in(message)])


def _box(asked: Asked, result: tuple[str, bool] | None, call: CallRow | None, room: Room) -> Box:
    args = asked.args
    if isinstance(args, str):
        try:
            args = json.loads(args)
        except ValueError:
            args = asked.args
    whole = args if isinstance(args, str) else pretty(args) if args not in (None, {}) else ""
    status = "done" if result is not None else "open"
    if result is not None and result[1]:
        status = "failed"
    if call is not None:
        status = call.status
    seconds = None if call is None or call.ended_us is None else seconds_of(call)
    out = None if result is None else room.fold(result[0])
    return Box(asked.name, arg_words(args), room.fold(whole) if whole else None, out, status, seconds)


def _pieces(message: Mapping[str, Any], room: Room, images: list[int], wanted: int) -> list[Piece]:
    found = []
    for kind, text, block in said_in(message):
        if text is not None:
            found.append(Piece("quiet" if kind in QUIET else "text", room.fold(text)))
            continue
        picture = image_in(block, images[0], show=images[0] == wanted)
        if picture is not None:
            images[0] += 1
            found.append(Piece("image", Folded(""), picture))
        else:
            found.append(Piece("other", room.fold(brief(block))))
    return found


class Room:
    """How much text a page has room for: once it is used up, texts are cut to a glance and the rest is a click away."""

    def __init__(self, chars: int = _PAGE_CHARS, *, folded_chars: int = _FOLDED_CHARS) -> None:
        self._left, self._folded_chars = chars, folded_chars

    def fold(self, text: str) -> Folded:
        """A text with at most so many lines shown at once."""
        text = text.replace("\r\n", "\n").rstrip("\n")
        lines, chars = (FOLD_LINES, FOLD_CHARS) if self._left > 0 else (_GLANCE_LINES, _GLANCE_CHARS)
        shown = "\n".join(text[:chars].split("\n")[:lines])
        rest = text[len(shown) :]
        if not rest.strip():
            self._left -= len(text)
            return Folded(text)
        rest = rest.removeprefix("\n")
        size, count = len(rest.encode("utf-8", "replace")), rest.count("\n") + 1
        left_out = len(rest) > min(self._folded_chars, self._left)
        self._left -= len(shown) + (0 if left_out else len(rest))
        return Folded(shown, "" if left_out else rest, count, size, left_out)


class Unfolded(Room):
    """Room for a message that was asked for whole."""

    def fold(self, text: str) -> Folded:
        """All of it."""
        return Folded(text.replace("\r\n", "\n").rstrip("\n"))


def pretty(value: Any) -> str:
    """A value as indented JSON."""
    try:
        return json.dumps(plain(value), indent=2, ensure_ascii=False)
    except (BackstayError, ValueError, RecursionError):
        return brief(value)


def image_in(block: Any, number: int, *, show: bool) -> Image | None:
    """An image that stands in a block as data, in the ways of OpenAI and Anthropic; one behind an address is none."""
    if not isinstance(block, Mapping):
        return None
    source = block.get("source")
    url = block.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    raw: Any = None
    if isinstance(source, Mapping) and source.get("type") == "base64":
        raw = source.get("data")
    elif isinstance(url, str) and url.startswith("data:image/"):
        raw = url.partition(",")[2]
    elif isinstance(block.get("data"), bytes):
        raw = block["data"]
    data = _decoded(raw)
    kind = next((kind for magic, kind in _IMAGES.items() if data.startswith(magic)), None)
    if kind is None:
        return None
    width, height = _png_size(data) if kind == "png" else (0, 0)
    shown = f"data:image/{kind};base64,{base64.b64encode(data).decode()}" if show else ""
    return Image(kind, len(data), width, height, number, shown)


def _decoded(raw: Any) -> bytes:
    if isinstance(raw, bytes):
        return raw[:_MAX_IMAGE_BYTES]
    if not isinstance(raw, str) or len(raw) > 2 * _MAX_IMAGE_BYTES:
        return b""
    try:
        return base64.b64decode(raw, validate=False)
    except ValueError:
        return b""


def _png_size(data: bytes) -> tuple[int, int]:
    return struct.unpack(">II", data[16:24]) if len(data) >= 24 else (0, 0)  # noqa: PLR2004 - its first chunk
