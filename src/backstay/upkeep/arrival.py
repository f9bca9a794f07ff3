"""The target of a copy: rows and blobs written in portions beside a hidden line, and shown at once when all are there.

A claim on the line says that its maker lives. An orphan's claim ends: `deletion.sweep` removes it.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from backstay.errors import ConflictError, CorruptionError, NotFoundError
from backstay.hints import RUN_VERIFY
from backstay.port import Ask, Backend, Batch, BlobsAbsentError, More, Row, SessionRow, View
from backstay.port.lease import here
from backstay.rules.deletion import add_rows, arrive, show, show_ask
from backstay.rules.runs import claim_for
from backstay.sealing import open_held
from backstay.upkeep.deletion import delete_session, empty

PORTION_BYTES = 4 * 1024 * 1024

_TRIES = 5  # of a portion whose blobs are deleted by others
_LEASE_US = 300_000_000
_BLOBS_AT_ONCE = 4  # 16 MiB each at most
_CARRIED = 100_000


class Arrival:
    """A copy that is complete and still hidden; `row` is what it will be, and is, once it is shown.

    `doubts` is how many of its calls are in doubt.
    """

    def __init__(self, target: Backend, hidden: str, row: SessionRow, last_run: int, doubts: int) -> None:
        self._target = target
        self._hidden = hidden
        self._last_run = last_run
        self._shown: SessionRow | None = None
        self.row = row
        self.doubts = doubts

    def show(self, name: str, **changes: Any) -> None:
        """Give it its name. AlreadyExistsError if that is taken."""
        wanted = msgspec.structs.replace(self.row, id=name, **changes)
        rule = show(wanted, last_run=self._last_run)

        def decide(view: View) -> Batch | More:
            batch = rule(view)
            if isinstance(batch, Batch) and batch.puts and isinstance(batch.puts[0], SessionRow):
                self._shown = batch.puts[0]  # before it is written, so that an interrupt leaves a record of it
            return batch

        self._target.write(show_ask(wanted, hidden=self._hidden), decide)
        self.row = self._shown or wanted

    def discard(self) -> None:
        """It is not wanted after all: removed, unless a commit or a run has gone on with it."""
        empty(self._target, self._hidden)
        if self._shown is not None:
            with contextlib.suppress(ConflictError, NotFoundError):
                delete_session(self._target, self._shown.id, touched=self._shown.touched)


class SourceBlobs:
    """The blobs of a source."""

    def __init__(self, source: Backend) -> None:
        self._source = source

    def packed(self, digests: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Blobs as they are kept; CorruptionError if one is missing. The caller that opens them verifies them."""
        found = self._source.blobs(digests)
        for digest in digests:
            if digest not in found:
                raise CorruptionError(f"blob {digest.hex()[:12]} is missing", hint=RUN_VERIFY)
        return found

    def one_by_one(self, digests: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Blobs as they are kept, verified, few at a time."""
        wanted = list(digests)
        for at in range(0, len(wanted), _BLOBS_AT_ONCE):
            for digest, data in self.packed(wanted[at : at + _BLOBS_AT_ONCE]).items():
                open_held(data, digest)
                yield digest, data


class Portions:
    """Rows and blobs on their way into a hidden session, some megabytes at a time."""

    def __init__(self, target: Backend) -> None:
        self._target = target
        self.packs = target.packs
        self._hidden = secrets.token_hex(16)
        self._ask = Ask(self._hidden, hidden=True)
        self._session = ""
        self._rows: list[Row] = []
        self._blobs: dict[bytes, bytes] = {}
        self._weight = 0
        self._carried: set[bytes] = set()
        self._source: SourceBlobs | None = None
        self._renew_at = 0.0

    def begin(self, line: SessionRow) -> None:
        """The session's line, hidden, with a claim on it, so that no sweep takes it for an orphan."""
        self._session = line.id
        claim = claim_for(self._clock(), here(), _LEASE_US)
        self._target.write(self._ask, arrive(msgspec.structs.replace(line, id=self._hidden, hidden=True, claim=claim)))

    def put(self, row: Row, weight: int) -> None:
        """A row, behind the blobs that it refers to."""
        self._rows.append(row)
        self._weight += weight
        if self._weight >= PORTION_BYTES:
            self.flush()

    def carry(self, digests: Iterable[bytes], source: SourceBlobs) -> None:
        """Blobs that the next row refers to."""
        self._source = source
        fresh = [digest for digest in dict.fromkeys(digests) if digest not in self._carried]
        if not fresh:
            return
        for digest, data in source.one_by_one(self._target.absent(fresh)):
            self._blobs[digest] = data
            self._weight += len(data)
            if self._weight >= PORTION_BYTES:
                self._target.put_blobs(self._blobs)  # ahead of their row, which would make a batch too large
                self._blobs = {}
                self.flush()
        if len(self._carried) > _CARRIED:
            self._carried.clear()
        self._carried.update(fresh)

    def flush(self) -> None:
        """Write what has come together."""
        rows, blobs = self._rows, self._blobs
        if not rows:
            return
        if time.monotonic() > self._renew_at:
            view = self._clock()
            if view.session is not None:
                rows.append(msgspec.structs.replace(view.session, claim=claim_for(view, here(), _LEASE_US)))
        for left in reversed(range(_TRIES)):
            try:
                self._target.write(self._ask, add_rows(self._session, rows, blobs))
                break
            except BlobsAbsentError as error:  # thought to be there, and deleted since
                if not left or self._source is None:
                    raise
                for digest, data in self._source.one_by_one(error.digests):
                    self._target.put_blobs({digest: data})
        self._rows, self._blobs, self._weight = [], {}, 0

    def _clock(self) -> View:
        self._renew_at = time.monotonic() + _LEASE_US / 2e6
        return self._target.read(self._ask)

    def arrival(self, row: SessionRow, last_run: int, doubts: int = 0) -> Arrival:
        """The copy, complete and still hidden."""
        return Arrival(self._target, self._hidden, row, last_run, doubts)

    def discard(self) -> None:
        """Remove what was written."""
        empty(self._target, self._hidden)
