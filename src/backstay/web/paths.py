"""Addresses: every view is a URL. Ids, names and refs are any text; here they become segments of a path, and back."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlencode

_ESCAPED = (".", "~")  # a browser resolves `.` and `..`, however they are written; so they never stand alone


def segment(text: str) -> str:
    """A text as one segment of a path."""
    quoted = quote(text, safe="")
    return f"~{quoted}" if text.startswith(_ESCAPED) else quoted


def segments_of(raw_path: bytes) -> list[str]:
    """The texts that the segments of a path stand for."""
    found = [unquote(each, errors="strict") for each in raw_path.decode("ascii").split("/")[1:]]
    if found and not found[-1]:
        found.pop()
    return [each.removeprefix("~") for each in found]


class Links:
    """Where things are, for the templates."""

    static = False

    def sessions(self, **query: str | None) -> str:
        """The list of sessions."""
        return "/" + _query(query)

    def store(self) -> str:
        """The store."""
        return "/store"

    def session(self, session: str, view: str = "", **query: str | None) -> str:
        """A session, or one of its views."""
        return f"/s/{segment(session)}{'/' if view else ''}{view}{_query(query)}"

    def checkpoint(self, session: str, ref: str, **query: str | None) -> str:
        """A checkpoint, by any ref."""
        return f"/s/{segment(session)}/c/{segment(ref)}{_query(query)}"

    def diff(self, session: str, a: str, b: str, **query: str | None) -> str:
        """The difference between two checkpoints."""
        return f"/s/{segment(session)}/d/{segment(a)}/{segment(b)}{_query(query)}"

    def act(self, session: str, action: str) -> str:
        """The address that an action is posted to."""
        return f"/s/{segment(session)}/do/{action}"


class FileLinks(Links):
    """Where things are in a file that stands alone: further down, or nowhere."""

    static = True

    def __init__(self, shown: frozenset[str]) -> None:
        self._shown = shown  # ids of the checkpoints whose conversation is in the file

    def sessions(self, **_query: str | None) -> str:
        """The top."""
        return "#main"

    def session(self, session: str, view: str = "", **_query: str | None) -> str:  # noqa: ARG002 - there is one
        """The top."""
        return "#main"

    def checkpoint(self, session: str, ref: str, **_query: str | None) -> str:  # noqa: ARG002
        """Its conversation where it is in the file, else its row."""
        return f"#talk-{ref}" if ref in self._shown else f"#c-{ref}"


def _query(query: dict[str, str | None]) -> str:
    given = {key: value for key, value in query.items() if value}
    return f"?{urlencode(given)}" if given else ""
