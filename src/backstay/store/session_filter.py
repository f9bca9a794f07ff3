"""Which sessions a listing is about: what a backend is asked for, and what is compared here, line by line.

A backend is asked for facets (status, agent, owner, scalars of the metadata), a time and the start of the id. It may
keep indexes of them (docs/scale.md has the figures). A facet is a short number: whether a line says what was asked for
is compared here, with each line that came.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from backstay.codec import Root, decode, encode_canonical
from backstay.errors import InvalidInputError
from backstay.model import Status
from backstay.names import check_name
from backstay.port import SessionQuery, SessionRow
from backstay.port.facets import facet, scalar_facets
from backstay.store.fields import check_text

MAX_METADATA_BYTES = 16 * 1024  # a session's line is read and written with every commit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller of `store.sessions` wants, checked."""

    status: str | None = None
    agent: str | None = None
    owner: str | None = None
    prefix: str = ""
    metadata: Mapping[str, bytes] = {}
    facets: tuple[tuple[int, ...], ...] = ()
    since_us: int | None = None
    crashed: bool | None = None
    waiting: bool | None = None

    @property
    def is_backends_own(self) -> bool:
        """True if all that is asked for is asked of the backend."""
        return self.crashed is None and self.waiting is None

    def query(self, *, before: int | None, limit: int) -> SessionQuery:
        """The question that a backend answers."""
        return SessionQuery(before=before, limit=limit, facets=self.facets, since_us=self.since_us, prefix=self.prefix)

    def wants(self, row: SessionRow) -> bool:
        """True for a line that says all that was asked for."""
        asked = (self.status, row.status), (self.agent, row.agent), (self.owner, row.owner)
        return (
            all([want in (None, has) for want, has in asked])
            and row.id.startswith(self.prefix)
            and (self.since_us is None or row.updated_us >= self.since_us)
            and (not self.metadata or self._has_metadata(row))
        )

    def _has_metadata(self, row: SessionRow) -> bool:
        decoded = decode(row.metadata) if row.metadata else {}
        kept: dict[str, Any] = decoded if isinstance(decoded, dict) else {}
        for key, wanted in self.metadata.items():
            if key not in kept or encode_canonical(kept[key]) != wanted:
                return False
        return True


def check_filter(
    *,
    status: object,
    agent: str | None,
    owner: str | None,
    prefix: str | None,
    metadata: object,
    since: object,
    crashed: bool | None,
    waiting: bool | None,
) -> SessionFilter:
    """The filters that a caller gave, checked; or an InvalidInputError."""
    check_text(agent, "agent")
    check_text(owner, "owner")
    check_text(prefix, "prefix")
    try:
        wanted = None if status is None else Status(status).value  # type: ignore[arg-type]
    except ValueError:
        raise InvalidInputError(f"{status!r} is not a status", hint=f"one of {', '.join(Status)}") from None
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidInputError(f"metadata must be a dict, not {type(metadata).__name__}")
    said: dict[str, Any] = {"status": wanted, "agent": agent, "owner": owner}
    facets = [(facet(what, value),) for what, value in said.items() if value is not None]
    scalars = [scalar_facets(key, value) for key, value in (metadata or {}).items()]
    return SessionFilter(
        status=wanted,
        agent=agent,
        owner=owner,
        prefix=prefix or "",
        metadata={check_name(key, "a key of metadata"): _value(key, value) for key, value in (metadata or {}).items()},
        facets=(*facets, *[some for some in scalars if some]),
        since_us=None if since is None else _since(since),
        crashed=crashed,
        waiting=waiting,
    )


def _value(key: str, value: object) -> bytes:
    return encode_canonical(value, (Root("metadata"), key))


def _since(since: object) -> int:
    if not isinstance(since, datetime):
        raise InvalidInputError(f"since must be a datetime, not {type(since).__name__}")
    if since.tzinfo is None:
        raise InvalidInputError("since must have a time zone", hint="say which: UTC, say")
    return (since - _EPOCH) // _MICROSECOND


_MICROSECOND = datetime.resolution
