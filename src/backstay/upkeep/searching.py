"""Search for the checkpoint that first said something: a history read from its beginning, only as far as it can matter.

What a checkpoint changed is looked at as it is kept; a state is opened only where the text stands in those bytes, or
where a patch might have completed it. A message that is found is told once, at the first checkpoint that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from backstay.bookkeeping import visible
from backstay.codec import is_held
from backstay.delta import Record
from backstay.delta.record import PATCH, PIECE_BYTES, decode_ops
from backstay.errors import CorruptionError
from backstay.port import Backend, CheckpointRow, Kind
from backstay.sealing import open_blob, peek, spilled
from backstay.store.files import split
from backstay.store.reading import Loaded, load
from backstay.upkeep.pages import Keyframes, pages
from backstay.upkeep.progress import Progress

_KNOWN_BLOBS = 100_000
_BEFORE_CHARS, _AFTER_CHARS = 40, 80
_IDS = ("id", "tool_call_id", "call_id", "tool_use_id")  # of messages: ids are not searched


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a text stands. `row` is the first checkpoint that has it there, `text` the string it stands in."""

    session: str
    row: CheckpointRow
    path: tuple[Any, ...]
    role: str | None
    tool: str | None
    text: str
    at: int


def search(
    backend: Backend,
    session: str,
    text: str,
    *,
    role: str | None = None,
    tool: str | None = None,
    ignore_case: bool = True,
    progress: Progress | None = None,
) -> Iterator[Match]:
    """The checkpoints that first said a text, oldest first; upper and lower case are the same unless told otherwise.

    With a role or a tool, only messages of that role, or calls of that tool and their results.
    """
    hunt = _Hunt(backend, session, text.casefold())
    seen: set[tuple[Any, ...]] = set()
    for row in hunt.candidates(progress):
        state = hunt.state(row)
        names: dict[str, str] | None = None
        for path, item, string in _strings(state):
            at = string.casefold().find(hunt.text) if ignore_case else string.find(text)
            if at < 0:
                continue
            if names is None:
                names = _names_of_calls(state)
            who, used = _speaker(item, names)
            if (role is not None and who != role) or (tool is not None and tool not in used):
                continue
            # A message that moved in its list, after a trim say, is the same message, and is told once.
            mark = (path[0], _mark_of(item)) if item is not None else (*path, string)
            if mark not in seen:
                seen.add(mark)
                name = used[0] if used else None
                yield Match(session=session, row=row, path=path, role=who, tool=name, text=string, at=at)


def excerpt(text: str, at: int, length: int) -> str:
    """The words around a place, on one line."""
    start, end = max(0, at - _BEFORE_CHARS), at + length + _AFTER_CHARS
    around = " ".join(text[start:end].split())
    return ("…" if start else "") + around + ("…" if end < len(text) else "")


class _Hunt:
    """One session on its way through a search."""

    def __init__(self, backend: Backend, session: str, text: str) -> None:
        self._backend = backend
        self._session = session
        self.text = text
        self._raw = text.encode("utf-8", "surrogatepass")
        self._blobs: dict[bytes, bool] = {}

    def candidates(self, progress: Progress | None) -> Iterator[CheckpointRow]:
        """The checkpoints whose states are worth a look; a row that cannot be read is passed over."""
        keyframes, done = Keyframes(self._backend, self._session), 0
        for page in pages(self._backend, self._session, Kind.CHECKPOINT):
            for row in page:
                if isinstance(row, CheckpointRow) and self._may_hold(row.delta or keyframes.find(row.sequence) or b""):
                    yield row
            done += len(page)
            if progress is not None:
                progress(done, None)

    def state(self, row: CheckpointRow) -> Mapping[str, Any]:
        """The state there; a damaged one is salvaged, because a search wants all that is left."""
        try:
            found = load(self._backend, self._session, row.sequence)
        except CorruptionError:
            found = load(self._backend, self._session, row.sequence, salvage=True)
        return split(found).state if isinstance(found, Loaded) else {}  # deleted since

    def _may_hold(self, data: bytes) -> bool:
        record = None if spilled(data) else peek(data[1:])
        if record is None:
            return bool(data)  # cut into blobs, or damaged: the state says
        return self._is_in(record.body) or self._in_blobs(record.refs) or _patches(record)

    def _in_blobs(self, refs: Sequence[bytes]) -> bool:
        unknown = [ref for ref in refs if ref not in self._blobs and not is_held(ref)]
        found = {ref: self._may_complete(packed, ref) for ref, packed in self._backend.blobs(unknown).items()}
        if len(self._blobs) < _KNOWN_BLOBS:
            self._blobs.update(found)
        return any([found.get(ref, False) or self._blobs.get(ref, False) for ref in refs])

    def _may_complete(self, packed: bytes, ref: bytes) -> bool:
        try:
            content = open_blob(packed, ref)
        except CorruptionError:
            return False
        # A value of several pieces may have the text where two of them meet.
        return len(content) >= PIECE_BYTES or self._is_in(content)

    def _is_in(self, data: bytes) -> bool:
        if self._raw.isascii():
            # Some letters beyond ASCII fold to ASCII ones; they are rare, and bytes that have any are looked at.
            return self._raw in data.lower() or (not data.isascii() and self._folded(data))
        return self._folded(data)

    def _folded(self, data: bytes) -> bool:
        return self.text in data.decode("utf-8", "ignore").casefold()


def _patches(record: Record) -> bool:
    """True if a patch brings the middle of a string: what it completes cannot be seen in its bytes."""
    return any([op[0] == PATCH for op in decode_ops(record.ops)]) if record.ops else False


def _strings(state: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any, str]]:
    """Every string of a state with its path, and the message it is in, if it is in one."""
    for part, value in visible(state).items():
        if isinstance(value, list):
            for index, item in enumerate(value):
                message = (
                    item if isinstance(item, dict) and isinstance(item.get("role", item.get("type")), str) else None
                )
                yield from _below((part, index), message, item)
        else:
            yield from _below((part,), None, value)


def _below(path: tuple[Any, ...], item: Any, value: Any) -> Iterator[tuple[tuple[Any, ...], Any, str]]:
    todo = [(path, value)]
    while todo:
        here, each = todo.pop()
        if isinstance(each, str):
            yield here, item, each
        elif isinstance(each, dict):
            entries = [(key, below) for key, below in each.items() if item is None or key not in _IDS]
            todo += [((*here, key), below) for key, below in reversed(entries)]
        elif isinstance(each, list | tuple):
            todo += [((*here, index), below) for index, below in reversed(list(enumerate(each)))]


def _mark_of(item: Any) -> bytes:
    return sha256(repr(item).encode("utf-8", "surrogatepass")).digest()


def _speaker(item: Any, names: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """The role of a message, and the tools that it calls or answers for."""
    if not isinstance(item, dict):
        return None, []
    role = item.get("role")
    tools = [name for _, name in _calls_in(item)]
    answered = [item.get("tool_call_id"), item.get("call_id")]
    content = item.get("content")
    answered += (
        [block.get("tool_use_id") for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    )
    tools += [names[id_] for id_ in answered if isinstance(id_, str) and id_ in names]
    if role == "tool":
        tools += [item.get("name"), item.get("tool_name")]
    return role if isinstance(role, str) else None, [name for name in tools if isinstance(name, str)]


def _names_of_calls(state: Mapping[str, Any]) -> dict[str, str]:
    """The names of the tools by the ids of their calls."""
    lists = [value for value in state.values() if isinstance(value, list)]
    calls = [call for value in lists for item in value if isinstance(item, dict) for call in _calls_in(item)]
    return {id_: name for id_, name in calls if isinstance(id_, str) and isinstance(name, str)}


def _calls_in(message: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The calls that a message asks for, as (id, name), in any of the shapes in use."""
    calls, content = message.get("tool_calls"), message.get("content")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            function = call.get("function")
            yield call.get("id"), function.get("name") if isinstance(function, dict) else call.get("name")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "tool_use":
            yield block.get("id"), block.get("name")
    if message.get("type") == "function_call":
        yield message.get("call_id"), message.get("name")
