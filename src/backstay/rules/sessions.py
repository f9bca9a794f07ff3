"""The rules about a session as a whole: what people say of it. Deletion and import have rules of their own."""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.port import Ask, Batch, Decide, SessionRow, View
from backstay.rules import refusals


class About(msgspec.Struct, frozen=True, gc=False):
    """What a caller said of a session when it was named: it fills what the session does not say of itself yet."""

    owner: str | None = None
    title: str | None = None
    metadata: bytes = b""


def filled(row: SessionRow, about: About | None) -> SessionRow:
    """A session's line with what it did not say before."""
    if about is None:
        return row
    change = {name: getattr(about, name) for name in About.__struct_fields__ if not getattr(row, name)}
    return msgspec.structs.replace(row, **change)


def describe_ask(session: str) -> Ask:
    """The rows that `describe` reads."""
    return Ask(session)


def describe(session: str, change: dict[str, Any]) -> Decide:
    """Say something else of a session: owner, title, metadata. The answer is its line."""

    def decide(view: View) -> Batch:
        if view.session is None:
            raise refusals.no_session(session)[1]
        after = msgspec.structs.replace(view.session, **change)
        if after == view.session:
            return Batch(answer=after)
        after = msgspec.structs.replace(after, touched=view.fresh)
        return Batch((after,), wakes=True, answer=after)

    return decide
