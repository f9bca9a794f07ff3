"""Words and figures of the pages: ages, lengths of time, tokens, costs, statuses. All text is made harmless here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from backstay.shapes import text

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_THOUSAND, _MILLION = 1000, 1_000_000
_CENT = 0.01
_TENTHS_BELOW_S = 60
_OWN_ID_CHARS, _KEY_CHARS, _HEX = 32, 16, frozenset("0123456789abcdef")

STATUSES = {
    "in_progress": ("run", "In progress"),
    "waiting": ("wait", "Waiting"),
    "completed": ("done", "Completed"),
    "failed": ("fail", "Failed"),
    "halted": ("off", "Halted"),
    "cancelled": ("off", "Cancelled"),
    "crashed": ("fail", "Crashed"),
    "in_doubt": ("doubt", "In doubt"),
    "damaged": ("damage", "Damaged"),
}
CALL_MARKS = {
    "done": ("done", "done"),
    "failed": ("fail", "failed"),
    "rejected": ("fail", "rejected"),
    "timed_out": ("fail", "timed out"),
    "in_doubt": ("doubt", "in doubt"),
    "started": ("run", "running"),
    "waiting": ("wait", "waiting"),
}


def harmless(value: Any) -> Any:
    """Every text that a template prints: control characters and bidi marks spelled out, line breaks kept."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    if value.isprintable():
        return text.safe(value)  # heaps of marks on one letter are printable
    return "\n".join(["\t".join(map(text.safe, line.split("\t"))) for line in value.replace("\r\n", "\n").split("\n")])


def line(value: Any) -> str:
    """A name on one line: its own line breaks are spelled out too."""
    return text.safe(str(value))


def first_line(value: str) -> str:
    """The first line of a text that says something, without what Markdown puts before a heading."""
    return next((each for each in value.split("\n") if each.strip()), "").strip().lstrip("#").strip()


def age(at: datetime) -> str:
    """How long ago, as a list has it: `now`, `6 min`, `3 h`, `2 d`."""
    seconds = (text.now() - at).total_seconds()
    if seconds < 1:
        return "now"
    for below, unit, word in ((_MINUTE, 1, "s"), (_HOUR, _MINUTE, "min"), (_DAY, _HOUR, "h"), (60 * _DAY, _DAY, "d")):
        if seconds < below:
            return f"{int(seconds // unit)} {word}"
    return f"{int(seconds // (30 * _DAY))} mo" if seconds < 365 * _DAY else f"{seconds / (365 * _DAY):.1f} y"


def age_short(at: datetime) -> str:
    """The same in a narrow column."""
    return age(at).replace(" min", " m")


def ago(at: datetime) -> str:
    """How long ago, at the end of a sentence."""
    word = age(at)
    return "just now" if word == "now" else f"{word} ago"


def length(seconds: float) -> str:
    """A length of time: `400 ms`, `9.8 s`, `1 min 54 s`, `2 h 14 min`, `3 d 4 h`."""
    if seconds < 1:
        return f"{max(0, seconds) * 1000:.0f} ms"
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, small, words in ((_DAY, _HOUR, ("d", "h")), (_HOUR, _MINUTE, ("h", "min")), (_MINUTE, 1, ("min", "s"))):
        if whole >= unit:
            rest = whole % unit // small
            return f"{whole // unit} {words[0]}" + (f" {rest} {words[1]}" if rest else "")
    return f"{whole} s"


def moment(at: datetime) -> str:
    """A time in full, in UTC."""
    return at.astimezone(UTC).strftime("%-d %b %Y, %H:%M:%S UTC")


def clock(at: datetime) -> str:
    """The time of day."""
    return at.astimezone(UTC).strftime("%H:%M:%S")


def iso(at: datetime) -> str:
    """A time for machines."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def tokens(number: int) -> str:
    """Tokens in a list: `944`, `14k`, `1.2M`."""
    if number < 10 * _THOUSAND:
        return f"{number:,}" if number else ""
    return f"{number / _THOUSAND:.0f}k" if number < _MILLION else f"{number / _MILLION:.1f}M"


def money(cost: float) -> str:
    """A cost in a list, to the cent."""
    if not cost:
        return ""
    return "<$0.01" if 0 < cost < _CENT / 2 else f"${cost:,.2f}"


def money_fine(cost: float) -> str:
    """The cost of a step: a tenth of a cent counts."""
    return f"${cost:,.4f}" if 0 < abs(cost) < _CENT else f"${cost:,.3f}" if cost else ""


def status_of(word: str) -> tuple[str, str]:
    """The mark and the word of a status."""
    return STATUSES.get(word, ("off", word.replace("_", " ")))


def key(id_: str) -> str:
    """An id of Backstay's own, short enough to stand in a page many times and long enough to be one alone."""
    return id_[:_KEY_CHARS] if len(id_) == _OWN_ID_CHARS and not set(id_) - _HEX else id_


FILTERS = {
    "key": key,
    "line": line,
    "first_line": first_line,
    "age": age,
    "age_short": age_short,
    "ago": ago,
    "took": length,
    "moment": moment,
    "clock": clock,
    "iso": iso,
    "tokens": tokens,
    "money": money,
    "money_fine": money_fine,
    "size": text.size,
    "short": text.short,
    "brief": text.brief,
}
