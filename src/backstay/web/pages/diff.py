"""What differs between two checkpoints: messages side by side, the rest of the state by path."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import RedirectResponse

from backstay import shapes
from backstay.errors import InvalidInputError
from backstay.model import counted
from backstay.shapes.conversation import asked_in, said_in, speaker_of
from backstay.shapes.files import spelled
from backstay.shapes.points import diff_between, names_told, point_at
from backstay.shapes.text import brief, short
from backstay.web.about_session import crumbs_of, info_of
from backstay.web.file_views import DiffAllowance, path_in, text_view, views_of
from backstay.web.history import arg_words
from backstay.web.paths import Links
from backstay.web.view import Shown
from backstay.web.words import length

if TYPE_CHECKING:
    from starlette.responses import Response

    from backstay.difference import Change, Diff, ItemChange, PartDiff
    from backstay.listing import FileDiff
    from backstay.model import Checkpoint
    from backstay.web.view import Visit

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_LARGEST = 48 << 10  # characters of a page that are compared word by word
_SHOWN_ITEMS = 40
_VALUE_CHARS = 240
_MAX_CHANGES = 120
_GLANCE_LINES, _GLANCE_CHARS = 12, 800
_ROW = 7

Marked = list[tuple[bool, str]]  # pieces of a text, and whether the other side lacks it


class Side(NamedTuple):
    """A message on one side of a change: who, and its text with what differs marked."""

    who: str
    number: int
    text: Marked
    more: int = 0  # lines that are not shown


class Pair(NamedTuple):
    """A message on both sides; None where it is not there."""

    kind: str
    a: Side | None
    b: Side | None
    note: str = ""
    is_large: bool = False


def choose(visit: Visit) -> Response:
    """From the two radio buttons of the rows to the address of their difference."""
    a, b = visit.query.get("a", ""), visit.query.get("b", "")
    if not a or not b:
        raise InvalidInputError("pick a checkpoint as A and one as B", hint="in the rows of the history")
    return RedirectResponse(Links().diff(visit.parts[1], a, b), 303)


def show(visit: Visit) -> Shown:
    """The page."""
    session = visit.session()
    info = info_of(visit, session)
    a, b = point_at(session, visit.parts[3]), point_at(session, visit.parts[4])
    named = names_told(visit.store, session)
    names = _called(a, named.get(a.id, [])), _called(b, named.get(b.id, []))
    diff = diff_between(session, a, b, names=names)
    talk = next((part for part in diff.parts if part.name == "messages" and part.items), None)
    pairs = [] if talk is None else _pairs(talk.items[:_SHOWN_ITEMS])
    files = None if diff.files is None else views_of(diff.files, only=path_in(visit.query))
    changes = [(part, change) for part in diff.parts if part is not talk for change in _changes(part)]
    room = DiffAllowance(whole=False)
    rest = [_change(part, change, room) for part, change in changes[:_MAX_CHANGES]]
    runs, seen_files = runs_of(pairs), 0 if files is None else len(files.views)
    data: dict[str, Any] = {
        "info": info,
        "session_id": session.id,
        "a": a,
        "b": b,
        "a_names": named.get(a.id, []),
        "b_names": named.get(b.id, []),
        "pairs": pairs,
        "runs": runs,
        "stops": sum([1 if is_folded else len(row) for is_folded, row in runs]) + len(rest) + seen_files,
        "pairs_more": 0 if talk is None else max(0, len(talk.items) - _SHOWN_ITEMS),
        "same": _same(b, talk),
        "changes": rest,
        "changes_more": len(changes) - len(rest),
        "files": files,
        "only": spelled(path_in(visit.query)),
        "sums": _sums(a, b, talk, [change.kind for _, (_, change) in changes], diff.files),
        "between": _between(a, b),
    }
    title = f"{names[0]} to {names[1]}"
    crumbs = crumbs_of(visit, session, ("difference", None))
    return Shown("diff.html", title, crumbs, data, lambda: shapes.diff(diff))


def _called(point: Checkpoint, names: list[tuple[str, str]]) -> str:
    return names[0][0] if names else short(point.id)


def _between(a: Checkpoint, b: Checkpoint) -> list[str]:
    apart = abs((b.created_at - a.created_at).total_seconds())
    steps = [] if a.step is None or b.step is None or a.step == b.step else [counted(abs(b.step - a.step), "step")]
    where = "same branch" if a.branch == b.branch else f"{a.branch} and {b.branch}"
    return [*steps, f"{length(apart)} apart", where]


def _same(b: Checkpoint, talk: PartDiff | None) -> int:
    """How many messages both have unchanged."""
    messages = b.state.get("messages")
    if not isinstance(messages, list):
        return 0
    touched = 0 if talk is None else sum(item.kind != "removed" for item in talk.items)
    return max(0, len(messages) - touched)


def _sums(
    a: Checkpoint, b: Checkpoint, talk: PartDiff | None, kinds: list[str], files: FileDiff | None
) -> list[tuple[str, str, str]]:
    found = []
    if talk is not None:
        stat = talk.stat()
        words = [f"{number} {word}" for number, word in ((stat.changed, "changed"), (stat.removed, "gone")) if number]
        found.append(
            (
                "Messages",
                f"+{stat.added}" if stat.added else str(stat.changed + stat.removed),
                ", ".join(words) or "added",
            )
        )
    else:
        found.append(("Messages", "0", "all the same"))
    words = [
        f"{kinds.count(kind)} {word}"
        for kind, word in (("changed", "changed"), ("added", "added"), ("removed", "gone"))
    ]
    found.append(
        (
            "State values",
            str(len(kinds)),
            ", ".join([word for word in words if not word.startswith("0")]) or "all the same",
        )
    )
    if files is not None:
        found.append(_files_sum(files))
    before, after = (point.total_usage.tokens_in + point.total_usage.tokens_out for point in (a, b))
    if before or after:
        found.append(("Tokens", f"{after - before:+,}", f"{before:,} to {after:,}"))
    if a.total_usage.cost or b.total_usage.cost:
        change = b.total_usage.cost - a.total_usage.cost
        sign = "+" if change >= 0 else "−"
        found.append(("Cost", f"{sign}${abs(change):.3f}", f"${a.total_usage.cost:.3f} to ${b.total_usage.cost:.3f}"))
    return found


def _files_sum(files: FileDiff) -> tuple[str, str, str]:
    counts = [(len(files.changed), "changed"), (len(files.added), "added"), (len(files.removed), "gone")]
    counts.append((len(files.mode), "in permissions"))
    words = ", ".join([f"{number:,} {word}" for number, word in counts if number])
    return "Files", f"{len(files.changes.changes):,}", words or "all the same"


def _pairs(items: tuple[ItemChange, ...]) -> list[Pair]:
    """The pairs, word by word as far as a page has room."""
    found, left = list[Pair](), _LARGEST
    for item in items:
        found.append(_pair(item, left))
        left -= sum(len(text) for side in (found[-1].a, found[-1].b) if side is not None for _, text in side.text)
    return found


def _pair(item: ItemChange, largest: int) -> Pair:
    before = None if item.kind == "added" else _said(item.before)
    after = None if item.kind == "removed" else _said(item.after)
    sizes = max(len(before[1]) if before else 0, len(after[1]) if after else 0)
    if before is not None and after is not None and sizes <= largest:
        left, right = marked(before[1], after[1])
    else:
        left, right = _alone(before), _alone(after)
    a = None if before is None else Side(before[0], (item.index_before or 0) + 1, left, _hidden(before, left))
    b = None if after is None else Side(after[0], (item.index_after or 0) + 1, right, _hidden(after, right))
    note, is_large = "", item.kind == "changed" and sizes > largest
    if is_large:
        note = f"Changed, {sizes:,} characters: too large to show word by word."
    elif item.kind == "changed" and before == after:
        note = f"Differs in {_places(item)} alone."
    return Pair(item.kind, a, b, note, is_large)


def _places(item: ItemChange) -> str:
    """Where two messages differ that say the same."""
    paths = [change.path[2:] for change in item.changes[:3]]
    return ", ".join(["".join(map(_step, path)).lstrip(".") for path in paths]) or "its form"


def _step(step: Any) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{step}"


def _alone(said: tuple[str, str] | None) -> Marked:
    """A message that only one side has, cut to what is read at a glance."""
    return [] if said is None else [(False, "\n".join(said[1][:_GLANCE_CHARS].split("\n")[:_GLANCE_LINES]))]


def _hidden(said: tuple[str, str], shown: Marked) -> int:
    """How many lines of a message are not shown."""
    return max(0, said[1].count("\n") - sum(text.count("\n") for _, text in shown))


def runs_of(pairs: list[Pair]) -> list[tuple[bool, list[Pair]]]:
    """The pairs in order; the middle of a long row of added or removed ones apart, to be folded."""
    found: list[tuple[bool, list[Pair]]] = []
    for _, group in groupby(pairs, key=lambda pair: pair.kind):
        row = list(group)
        if row[0].kind != "changed" and len(row) > _ROW:
            found += [(False, row[:3]), (True, row[3:-2]), (False, row[-2:])]
        else:
            found.append((False, row))
    return found


def _said(message: Any) -> tuple[str, str]:
    """Who says what, as one text."""
    if not isinstance(message, dict):
        return "Message", message if isinstance(message, str) else brief(message)
    texts = [brief(block) if text is None else text for _, text, block in said_in(message)]
    texts += [f"→ {name} {arg_words(args)}" for _, name, args in asked_in(message)]
    return speaker_of(message).capitalize(), "\n".join(texts)


def marked(a: str, b: str) -> tuple[Marked, Marked]:
    """Both texts, word by word, with what the other lacks marked."""
    before, after = _WORDS.findall(a), _WORDS.findall(b)
    matcher = SequenceMatcher(None, before, after, autojunk=len(before) * len(after) > 4_000_000)  # noqa: PLR2004
    left: Marked = []
    right: Marked = []
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        if i1 != i2:
            left.append((kind != "equal", "".join(before[i1:i2])))
        if j1 != j2:
            right.append((kind != "equal", "".join(after[j1:j2])))
    return left, right


def _changes(part: PartDiff) -> list[tuple[Any, Change | ItemChange]]:
    if part.changes:
        return [(change.path, change) for change in part.changes]
    return [
        ((part.name, item.index_before if item.index_after is None else item.index_after), item) for item in part.items
    ]


def _change(part: PartDiff, found: tuple[Any, Change | ItemChange], room: DiffAllowance) -> dict[str, Any]:
    path, change = found
    words = "".join(map(_step, path)).lstrip(".")
    return {
        "path": words or str(part.name),
        "kind": change.kind,
        "before": _value(change.before),
        "after": _value(change.after),
        "text": text_view(words, change.before, change.after, room) if change.kind == "changed" else None,
    }


def _value(value: Any) -> str:
    text = brief(value, chars=_VALUE_CHARS)
    return text if len(text) <= _VALUE_CHARS else text[:_VALUE_CHARS] + "…"


def stat_words(diff: Diff) -> str:
    """A difference in a few words."""
    stats = diff.stat()
    if not stats:
        return "the same"
    added, removed, changed = (sum(getattr(stat, word) for stat in stats) for word in ("added", "removed", "changed"))
    words = [
        f"{number:,} {word}" for number, word in ((added, "added"), (removed, "gone"), (changed, "changed")) if number
    ]
    return ", ".join(words)
