"""Contents of files are forgotten: what nothing needs any more goes from the groups that hold it, list and talk stay.

    walk    every session that has files: which bytes of which groups it needs (file_uses)
    cut     what is left of each group takes its place, some megabytes in a transaction, if no session was touched
            since the walk began (rules.forgetting); those that were are walked again

A kill leaves each group as it was or as it is to be. While a session is being imported nothing is forgotten: what it
will need is not known yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from backstay.errors import ConflictError, CorruptionError, NotFoundError
from backstay.grouping import GROUP_BYTES
from backstay.listing import shown
from backstay.model import ForgottenFile
from backstay.port import Ask, Backend, SessionQuery, SessionRow
from backstay.port.lease import is_live
from backstay.rules import forgetting as rules
from backstay.rules import refusals
from backstay.sealing import Remnant, open_held, pack_remnant
from backstay.store.file_contents import GroupReader, remnants_of
from backstay.upkeep.file_policies import KeepEverything
from backstay.upkeep.file_uses import PINNED, UNWANTED, FilePolicy, FileVersion, Range, SessionWalk, Uses, VersionKey

_TRIES = 20
_ROUNDS = 4
_PAGE_ROWS = 1000
_PORTION_BYTES = 4 * 1024 * 1024
_AT_ONCE = 8
_LOW_WATER = 0.9  # of a limit: so that the next capture does not cross it again


class Forgotten(msgspec.Struct, frozen=True):
    """What was forgotten, or would be, by path. `groups` is how many were cut, `stored_bytes` about what that frees.

    `elsewhere`: paths with contents that were to go and stay: another path, checkpoint or session needs the same.
    """

    files: tuple[ForgottenFile, ...] = ()
    elsewhere: tuple[str, ...] = ()
    groups: int = 0
    stored_bytes: int = 0

    @property
    def versions(self) -> int:
        """How many contents of files."""
        return sum([file.versions for file in self.files])

    @property
    def size_bytes(self) -> int:
        """How long they are together."""
        return sum([file.size_bytes for file in self.files])


class _Cut(msgspec.Struct):
    """A group to be cut: the ranges that stay, those that are known to go, and contents in the place of patches.

    `lost`: the versions of files that cannot be read then.
    """

    stay: list[Range]
    go: list[Range]
    wholes: dict[bytes, bytes]
    lost: set[VersionKey] = msgspec.field(default_factory=set)


class Forgetting:
    """One forgetting. `policy_of` says what of each session is needed; `thorough`: no byte more than that is left.

    Otherwise groups are cut where at least half of what is known to be in them is not needed; with `regroup` all groups
    are read of which little is needed: checkpoints that are gone may have needed the rest.
    """

    def __init__(
        self,
        backend: Backend,
        policy_of: Callable[[str], FilePolicy],
        *,
        writer: str,
        thorough: bool = False,
        regroup: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._backend = backend
        self._policy_of = policy_of
        self._writer = writer
        self._thorough, self._regroup = thorough, regroup
        self._stopped = stopped
        self._fetch = GroupReader(backend)
        self._walked: dict[str, tuple[int, SessionWalk]] = {}
        self._remnants: dict[bytes, Remnant] = {}

    def plan(self, limit_bytes: int | None = None) -> Forgotten:
        """What would go; nothing is written."""
        uses = self._uses()
        return self._told(uses, self._cuts(uses, self._cutoff(uses, limit_bytes)))

    def run(self, limit_bytes: int | None = None) -> Forgotten:
        """Forget; what went. ConflictError if other processes write all the time and nothing could be."""
        total = Forgotten()
        for _ in range(_ROUNDS):
            done = self._round(limit_bytes)
            total = _added(total, done)
            if limit_bytes is None or not done.groups or self._stopped():
                break
            if self._backend.sizes().held_bytes <= limit_bytes:
                break
        return total

    def _round(self, limit_bytes: int | None) -> Forgotten:
        total = Forgotten()
        for _ in range(_TRIES):
            planned = self._fresh()
            uses = self._uses()
            cuts = self._cuts(uses, self._cutoff(uses, limit_bytes))
            done: dict[bytes, _Cut] = {}
            for portion in self._portions(cuts):
                if self._stopped():
                    return _added(total, self._told(uses, done))
                ask = rules.fresh_ask(self._writer)
                if not self._backend.write(ask, rules.cut(self._writer, planned, portion)).answer:
                    break
                planned += 1
                self._moved(planned - 1)
                done |= {digest: cuts[digest] for digest in portion}
            else:
                return _added(total, self._told(uses, done))
            total = _added(total, self._told(uses, done))
        raise refusals.changed(self._writer, "other processes write all the time; not all was forgotten")[1]

    def _moved(self, touched: int) -> None:
        """The session that cuts are written with was touched by that, and needs nothing else than before."""
        if self._writer in self._walked:
            self._walked[self._writer] = touched, self._walked[self._writer][1]

    def _fresh(self) -> int:
        answer = self._backend.write(rules.fresh_ask(self._writer), rules.fresh()).answer
        assert isinstance(answer, int)  # noqa: S101 - the rule gives a number
        return answer

    # what is needed

    def walks(self) -> Mapping[str, SessionWalk]:
        """The last walk over each session."""
        return {name: walk for name, (_, walk) in self._walked.items()}

    def _uses(self) -> Uses:
        self._refuse_imports()
        lines = list(self._sessions())
        names = {line.id for line in lines}
        self._walked = {name: found for name, found in self._walked.items() if name in names}
        for line in lines:
            found = self._walked.get(line.id)
            if found is None or found[0] != line.touched:
                walk = SessionWalk(self._backend, line.id, self._policy_of(line.id), self._fetch)
                try:
                    walk.run()
                except (CorruptionError, NotFoundError):
                    now = self._backend.read(Ask(line.id)).session
                    if now is not None and now.touched == line.touched:
                        raise  # nothing was deleted meanwhile: it is damage
                    touched = -1
                else:
                    touched = line.touched
                self._walked[line.id] = touched, walk
        uses = Uses()
        for _, walk in self._walked.values():
            uses.add(walk.uses)
        self._remnants = remnants_of(self._backend, list(uses.ranges))
        for digest, left in self._remnants.items():
            ranges = uses.ranges[digest]
            uses.ranges[digest] = {at: weight for at, weight in ranges.items() if left.read(*at) is not None}
        return uses

    def _sessions(self) -> Iterator[SessionRow]:
        before: int | None = None
        while page := self._backend.sessions(SessionQuery(before=before, limit=_PAGE_ROWS)):
            yield from page
            before = page[-1].touched

    def _refuse_imports(self) -> None:
        hidden = self._backend.sessions(SessionQuery(hidden=True, limit=_PAGE_ROWS))
        view = self._backend.read(Ask(self._writer)) if hidden else None
        if view is not None and any([is_live(row.claim, now_us=view.now_us, wall_us=view.wall_us) for row in hidden]):
            message = "a session is being imported or deleted: what it needs is not known yet"
            raise ConflictError(message, hint="try again in a moment")

    # what goes

    def _cutoff(self, uses: Uses, limit_bytes: int | None) -> int:
        """How much something must be needed to stay: more than nothing, or late enough for the rest to fit a limit."""
        held = 0 if limit_bytes is None else self._backend.sizes().held_bytes
        if limit_bytes is None or held <= limit_bytes:
            return UNWANTED + 1
        weights: dict[int, int] = {}
        for ranges in uses.ranges.values():
            for (_, size), weight in ranges.items():
                weights[weight] = weights.get(weight, 0) + size
        total = sum(weights.values())
        excess = (held - _LOW_WATER * limit_bytes) * total / max(held, 1)
        cutoff = UNWANTED + 1
        for weight in sorted(weights):
            if excess <= 0 or weight == PINNED:
                break
            excess -= weights[weight]
            cutoff = weight + 1
        return cutoff

    def _cuts(self, uses: Uses, cutoff: int) -> dict[bytes, _Cut]:
        found: dict[bytes, _Cut] = {}
        for digest, ranges in uses.ranges.items():
            stay = [at for at, weight in ranges.items() if weight >= cutoff]
            go = [at for at, weight in ranges.items() if weight < cutoff]
            kept, gone = sum([size for _, size in stay]), sum([size for _, size in go])
            due = bool(go) and (self._thorough or not stay or gone >= kept)
            due |= self._regroup and kept < GROUP_BYTES // 2 and 2 * kept <= self._present(digest)
            wholes = self._wholes(uses, digest, cutoff)
            if due or wholes.keys() != self._wholes_kept(digest):
                found[digest] = _Cut(stay, go, wholes)
        for ident, version in self._lost(uses, found):
            at = next((digest for digest, _, _ in version.ranges if digest in found), None)
            if at is not None:
                found[at].lost.add(ident)
        return found

    def _lost(self, uses: Uses, cuts: Mapping[bytes, _Cut]) -> Iterator[tuple[VersionKey, FileVersion]]:
        """The versions of files that cannot be read once groups are cut and patches withheld."""
        going = {(digest, *at) for digest, cut in cuts.items() for at in cut.go}
        for ident, version in uses.versions.items():
            rewritten = any([ident[1] in uses.wholes.get(group, ()) for group, _, _ in version.ranges[:1]])
            withheld = self._thorough and version.unwanted and version.inline
            if withheld or (not going.isdisjoint(version.ranges) and not rewritten):
                yield ident, version

    def _wholes(self, uses: Uses, digest: bytes, cutoff: int) -> dict[bytes, bytes]:
        """Contents that take the place of patches on a group, as far as they are needed."""
        left = self._remnants.get(digest)
        there = {**({} if left is None else left.wholes), **uses.wholes.get(digest, {})}
        needed = uses.chained.get(digest, {})
        return {version: there[version] for version in there if needed.get(version, UNWANTED) >= cutoff}

    def _wholes_kept(self, digest: bytes) -> Collection[bytes]:
        left = self._remnants.get(digest)
        return () if left is None else left.wholes.keys()

    def _present(self, digest: bytes) -> int:
        """How many bytes of a group are there."""
        group = self._fetch([digest]).get(digest, b"")
        return sum([len(part) for _, part in group.parts]) if isinstance(group, Remnant) else len(group)

    def _portions(self, cuts: Mapping[bytes, _Cut]) -> Iterator[dict[bytes, bytes]]:
        portion: dict[bytes, bytes] = {}
        digests = sorted(cuts)
        for at in range(0, len(digests), _AT_ONCE):
            for digest, data in self._backend.blobs(digests[at : at + _AT_ONCE]).items():
                left = _left(open_held(data, digest), cuts[digest])
                portion[digest] = pack_remnant(left, digest)
                if sum(map(len, portion.values())) >= _PORTION_BYTES:
                    yield portion
                    portion = {}
        if portion:
            yield portion

    def _told(self, uses: Uses, cuts: Mapping[bytes, _Cut]) -> Forgotten:
        files: dict[str, tuple[int, int]] = {}
        lost = dict(self._lost(uses, cuts))
        for (path, _, _), version in lost.items():
            count, size = files.get(shown(path), (0, 0))
            files[shown(path)] = count + 1, size + version.size
        elsewhere = {
            shown(ident[0])
            for ident, version in uses.versions.items()
            if version.unwanted
            and ident not in lost
            and any([at[1:] in uses.ranges.get(at[0], {}) for at in version.ranges])
        }
        gone = [ForgottenFile(path, *files[path]) for path in sorted(files)]
        known = sum([size for ranges in uses.ranges.values() for _, size in ranges])
        freed = sum([size for cut in cuts.values() for _, size in cut.go]) * self._backend.sizes().held_bytes
        return Forgotten(tuple(gone), tuple(sorted(elsewhere)), len(cuts), freed // max(known, 1))


def _left(group: bytes | Remnant, cut: _Cut) -> Remnant:
    """What is left of a group."""
    size = group.size if isinstance(group, Remnant) else len(group)
    before = group if isinstance(group, Remnant) else Remnant(size, 0, ((0, group),))
    parts: list[tuple[int, bytes]] = []
    for start, end in _merged(cut.stay):
        part = before.read(start, end - start)
        for offset, length in [] if part is not None else sorted(at for at in cut.stay if start <= at[0] < end):
            single = before.read(offset, length)
            parts += [] if single is None else [(offset, single)]
        parts += [] if part is None else [(start, part)]
    return Remnant(size, before.forgotten + len(cut.lost), tuple(parts), cut.wholes)


def _merged(ranges: list[Range]) -> list[Range]:
    """Where the ranges begin and end that touch or overlap."""
    found: list[Range] = []
    for offset, size in sorted(ranges):
        if found and offset <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], offset + size)
        else:
            found.append((offset, offset + size))
    return found


def _added(one: Forgotten, other: Forgotten) -> Forgotten:
    """What went in two rounds; what stayed after the second."""
    files = {file.path: file for file in one.files}
    for file in other.files:
        before = files.get(file.path, ForgottenFile(file.path, 0, 0))
        files[file.path] = ForgottenFile(
            file.path, before.versions + file.versions, before.size_bytes + file.size_bytes
        )
    return Forgotten(
        tuple([files[path] for path in sorted(files)]),
        other.elsewhere,
        one.groups + other.groups,
        one.stored_bytes + other.stored_bytes,
    )


def everything(_session: str) -> FilePolicy:
    """Sessions of which nothing is to be forgotten."""
    return KeepEverything()
