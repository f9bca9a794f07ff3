"""Groups of contents as they are verified: each read once, and of a damaged one the files that it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backstay.codec import is_held
from backstay.errors import CorruptionError
from backstay.grouping import places_of
from backstay.listing import Listing, from_value, shown
from backstay.model import Problem, SessionId, counted
from backstay.port import EVERY, Ask, Backend
from backstay.sealing import Remnant, open_held
from backstay.store.files import split
from backstay.store.reading import Loaded, load

_AT_ONCE = 4
_NAMED = 8


class GroupCheck:
    """The groups that the checkpoints of one session hold."""

    def __init__(self, backend: Backend, session: str) -> None:
        self._backend = backend
        self._session = session
        self._held: dict[bytes, None] = {}
        self.forgotten: dict[bytes, int] = {}  # contents that were forgotten, by group

    def seen(self, refs: Sequence[bytes]) -> None:
        """A record refers to these blobs."""
        for ref in refs:
            if is_held(ref):
                self._held[ref] = None

    def problems(self) -> Iterator[Problem]:
        """Read all of them: one problem for those that are damaged or missing."""
        damaged = set(self._damaged())
        if not damaged:
            return
        paths = sorted({path for listing in self._lists() for path in _concerned(listing, damaged)})
        named = ", ".join(map(shown, paths[:_NAMED])) + (" …" if len(paths) > _NAMED else "")
        what = f"{counted(len(damaged), 'group')} of contents of files cannot be read"
        cost = "files of older checkpoints"
        if paths:
            cost = f"{counted(len(paths), 'file')} at the heads of its branches: {named}"
        remedy = "restore them from an export; all other files and all states are intact"
        yield Problem(what=what, session_id=SessionId(self._session), cost=cost, remedy=remedy)

    def _damaged(self) -> Iterator[bytes]:
        digests = list(self._held)
        for at in range(0, len(digests), _AT_ONCE):
            wanted = digests[at : at + _AT_ONCE]
            try:
                found = self._backend.blobs(wanted)
            except CorruptionError:
                found = {}
                for digest in wanted:
                    try:
                        found |= self._backend.blobs([digest])
                    except CorruptionError:
                        continue
            for digest in wanted:
                try:
                    group = open_held(found.get(digest, b""), digest)
                    if isinstance(group, Remnant):
                        self.forgotten[digest] = group.forgotten
                except CorruptionError:
                    yield digest

    def _lists(self) -> Iterator[Listing]:
        for name in self._backend.read(Ask(self._session, names=EVERY)).lanes:
            try:
                found = load(self._backend, self._session, name)
                if isinstance(found, Loaded) and (files := split(found).files) is not None:
                    yield from_value(files)
            except CorruptionError:
                continue


def _concerned(listing: Listing, damaged: set[bytes]) -> Iterator[bytes]:
    for entry in listing:
        if entry.kind == "file" and any([listing.group(number) in damaged for number in places_of(listing, entry)]):
            yield entry.path
