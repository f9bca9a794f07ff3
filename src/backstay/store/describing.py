"""What people say of a session: owner, title, metadata. It is in the session's line, so a listing has it at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from backstay.errors import InvalidInputError
from backstay.model import MAX_NAME_CHARS, SessionInfo
from backstay.names import check_name
from backstay.port import Backend, SessionRow
from backstay.rules import sessions
from backstay.store.fields import check_text, encode_metadata, to_info
from backstay.store.overview import troubled_sessions
from backstay.store.session_filter import MAX_METADATA_BYTES

_MAX_TITLE_CHARS = 1000


def checked(*, owner: object, title: object, metadata: object) -> dict[str, Any]:
    """The columns that these make, those that are given; or an InvalidInputError."""
    change: dict[str, Any] = {}
    if owner is not UNSET:
        change["owner"] = None if owner is None else check_name(owner, "owner")
    if title is not UNSET:
        check_text(title, "title")
        if isinstance(title, str) and len(title) > _MAX_TITLE_CHARS:
            message = f"title must have at most {_MAX_TITLE_CHARS} characters, not {len(title)}"
            raise InvalidInputError(message, hint=f"an owner may have {MAX_NAME_CHARS}; longer texts go into the state")
        change["title"] = title
    if metadata is not UNSET:
        change["metadata"] = _metadata(metadata)
    return change


def _metadata(metadata: object) -> bytes:
    if isinstance(metadata, Mapping):
        for key in metadata:
            check_name(key, "a key of metadata")
        metadata = dict(metadata)
    data = encode_metadata(metadata)
    if len(data) > MAX_METADATA_BYTES:
        message = f"metadata has {len(data):,} bytes, more than the limit of {MAX_METADATA_BYTES:,}"
        raise InvalidInputError(message, hint="it is written with every commit: keep large things in the state")
    return data


def describe(
    backend: Backend,
    session: str,
    *,
    title: str | UnsetType | None,
    owner: str | UnsetType | None,
    metadata: Mapping[str, Any] | UnsetType | None,
) -> SessionInfo:
    """Change what is given of a session's line; the line as it is then."""
    change = checked(owner=owner, title=title, metadata=metadata)
    row: SessionRow = backend.write(sessions.describe_ask(session), sessions.describe(session, change)).answer
    crashed, waiting = troubled_sessions(backend)
    return to_info(row, crashed=session in crashed, waiting=session in waiting)
