"""The memory backend: the port in plain dicts, under one lock. The reference that the others are compared with.

Every verb first looks and refuses, then changes: nothing can fail between two changes, so a write happens whole or
not at all. Records are kept as they came; blobs once, each with the checkpoints that need it. Rolls are not kept: here
a chain of a hundred records is as near as one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from backstay.backend import (
    GROUP_DELTAS,
    LOOK_S,
    BranchRow,
    CallRow,
    Chain,
    Commit,
    Deletion,
    Entered,
    Journaled,
    Kept,
    Lease,
    Moved,
    Names,
    Pending,
    Rewrite,
    Row,
    RunRow,
    SessionRow,
    Sizes,
    TagRow,
    Totals,
    next_prefix,
)
from backstay.backend import Entry as RunEntry
from backstay.backends.memory import running
from backstay.backends.memory.drawers import (
    Drawer,
    Entry,
    Stand,
    anchor_of,
    arrive,
    entry_of,
    line_of,
    new_entry,
    refuse_pinned,
    refuse_taken,
    row_of,
)
from backstay.errors import AlreadyExistsError, ClosedError, ConflictError, CorruptionError, NotFoundError
from backstay.model import Problem
from backstay.whereabouts import claim


class MemoryBackend:
    """See the module's text. What it keeps is gone when it is closed."""

    name = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._commits = 0
        self._sessions: dict[str, Drawer] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._needed_by: dict[bytes, set[tuple[str, str]]] = {}

    # writes

    def commit(self, commit: Commit) -> Row:
        with self._held():
            known = self._sessions.get(commit.session)
            branch = None if known is None else known.branches.get(commit.branch)
            head_id = None if branch is None else branch.head
            running.refuse_commit(known, commit)
            if head_id != commit.expect:
                return self._settle_conflict(known, commit, head_id)
            session = known or Drawer(commit.session, commit.totals, commit.totals.at_us, born=self._commits + 1)
            if branch is None:
                refuse_taken(session, commit.branch)
            if commit.id in session.checkpoints:
                message = f"session {commit.session!r}: there is already a checkpoint {commit.id[:12]}"
                raise ConflictError(message, hint="load again and decide")
            for id_ in (commit.undo_to, commit.take_up):
                if id_ is not None:
                    entry_of(session, id_)
            parent = None if head_id is None else entry_of(session, head_id)
            kept = new_entry(commit, parent, sequence=session.sequence + 1, number=self._commits + 1)
            self._refuse_missing(kept.refs(), commit.blobs)

            self._put_blobs(session, kept, commit.blobs)
            after = 0 if parent is None else parent.row.sequence
            kept.took = running.take_in(session, commit, after=after, sequence=kept.row.sequence)
            session.checkpoints[commit.id] = kept
            undo = commit.undo_to if commit.undo_to is not None else branch.undo if branch is not None else None
            session.branches[commit.branch] = Stand(commit.id, undo)
            session.sequence += 1
            session.totals = commit.totals
            self._commits += 1
            self._sessions[commit.session] = session
            return kept.row

    def _settle_conflict(self, session: Drawer | None, commit: Commit, head_id: str | None) -> Row:
        # The same id is already here: an earlier try of this very commit did go through.
        if session is not None and commit.id in session.checkpoints:
            return row_of(session.checkpoints[commit.id])
        where = "does not exist" if head_id is None else f"stands at {head_id[:12]}"
        wanted = "expected not to exist" if commit.expect is None else f"expected at {commit.expect[:12]}"
        message = f"session {commit.session!r}: branch {commit.branch!r} {where}, {wanted}"
        raise ConflictError(message, hint="load the branch again, then decide")

    def fork(self, session: str, *, id_: str, branch: str) -> None:
        with self._held():
            found = self._session(session)
            entry_of(found, id_)
            refuse_taken(found, branch)
            found.branches[branch] = Stand(id_)

    def delete_branch(self, session: str, *, branch: str) -> None:
        with self._held():
            found = self._session(session)
            if branch not in found.branches:
                message = f"there is no branch {branch!r}"
                raise NotFoundError(message, hint="session.branches() lists those there are")
            running.refuse_live(found, branch)
            del found.branches[branch]
            running.forget_branch(found, branch)

    def tag(self, session: str, *, id_: str, name: str) -> None:
        with self._held():
            found = self._session(session)
            entry_of(found, id_)
            refuse_taken(found, name)
            found.tags[name] = id_

    def untag(self, session: str, *, name: str) -> None:
        with self._held():
            if self._session(session).tags.pop(name, None) is None:
                message = f"there is no tag {name!r}"
                raise NotFoundError(message, hint="session.tags() lists those there are")

    def delete_checkpoints(self, deletion: Deletion) -> None:
        with self._held():
            session = self._session(deletion.session)
            gone = {id_: entry_of(session, id_) for id_ in deletion.ids}
            orphans = {rewrite.id: entry_of(session, rewrite.id) for rewrite in deletion.rewrites}
            if set(orphans) != {id_ for id_, kept in session.checkpoints.items() if kept.link in gone} - set(gone):
                message = f"session {session.id!r}: other checkpoints lean on those to be deleted than a moment ago"
                raise ConflictError(message, hint="try again")
            refuse_pinned(session, gone, spare_names=deletion.spare_names)
            stalled = running.refuse_deletion(session, gone)
            for rewrite in deletion.rewrites:
                self._refuse_unfit(session, orphans[rewrite.id], rewrite, gone)

            for rewrite in deletion.rewrites:
                orphan = orphans[rewrite.id]
                before = orphan.refs()
                delta = None if orphan.whole is not None or rewrite.whole is not None else rewrite.delta
                orphan.link, orphan.delta, orphan.whole = anchor_of(orphan, gone), delta, orphan.whole or rewrite.whole
                orphan.place = orphan.place if delta is None else 1
                self._put_blobs(session, orphan, rewrite.blobs)
                self._drop_blobs(session, orphan, before - orphan.refs())
            for branch in session.branches.values():
                branch.head = (anchor_of(gone[branch.head], gone) or "") if branch.head in gone else branch.head
                branch.undo = None if branch.undo in gone else branch.undo
            for id_, kept in gone.items():
                del session.checkpoints[id_]
                self._drop_blobs(session, kept, kept.refs())
            took, sequences = {kept.took for kept in gone.values()}, {kept.row.sequence for kept in gone.values()}
            running.forget_checkpoints(session, took, sequences)
            for one in stalled:
                one.fence()
            session.epoch += 1

    def _refuse_unfit(self, session: Drawer, orphan: Entry, rewrite: Rewrite, gone: Mapping[str, Entry]) -> None:
        if orphan.whole is not None:
            return
        record = rewrite.whole or rewrite.delta
        if record is None:
            message = f"checkpoint {rewrite.id[:12]} has no whole copy yet"
            raise ConflictError(message, hint="try again")
        anchor = anchor_of(orphan, gone)
        stands = anchor is not None and session.checkpoints[anchor].row.state_digest == rewrite.base_digest
        if rewrite.whole is None and not stands:
            message = f"checkpoint {rewrite.id[:12]} would stand on another state than a moment ago"
            raise ConflictError(message, hint="try again")
        self._refuse_missing(set(record.refs), rewrite.blobs)

    def delete_session(self, session: str, *, touched: int | None = None) -> None:
        with self._held():
            gone = self._session(session)
            if touched not in (None, gone.touched()):
                message = f"session {session!r} was written to meanwhile"
                raise ConflictError(message, hint="look again")
            for branch in gone.runs:
                running.refuse_live(gone, branch)
            for kept in gone.checkpoints.values():
                self._drop_blobs(gone, kept, kept.refs())
            del self._sessions[session]

    def adopt(self, moved: Moved, history: Iterable[tuple[Kept, Mapping[bytes, bytes]]]) -> None:
        with self._held():
            self._refuse_known(moved.line.id)
        # Read first, without the lock: what comes may be slow, and may turn out to be damaged.
        arrived = list(history)
        contents = {digest: content for _, blobs in arrived for digest, content in blobs.items()}
        with self._held():
            self._refuse_known(moved.line.id)
            session = arrive(moved, [kept for kept, _ in arrived], born=self._commits + 1)
            for kept in session.checkpoints.values():
                self._refuse_missing(kept.refs(), contents)

            for kept in session.checkpoints.values():
                self._put_blobs(session, kept, contents)
            self._commits += max(1, len(arrived))
            self._sessions[session.id] = session

    # runs

    def enter(self, entry: RunEntry) -> Entered:
        with self._held():
            known = self._sessions.get(entry.session)
            totals = Totals(entry.agent, "in_progress", None, None, b"", entry.at_us)
            session = known or Drawer(entry.session, totals, entry.at_us, born=self._commits + 1)
            entered = running.enter(session, entry)
            self._commits += known is None
            self._sessions[session.id] = session
            return entered

    def renew(self, lease: Lease) -> None:
        with self._held():
            running.holding(self._sessions.get(lease.session), lease).claim = claim(lease.lease_us)

    def journal(self, lease: Lease, call: CallRow, *, after: int, slot: int | None = None) -> int:
        with self._held():
            return running.journal(self._sessions.get(lease.session), lease, call, after=after, slot=slot)

    def leave(self, lease: Lease, *, status: str | None, reason: str | None) -> None:
        with self._held():
            running.leave(self._sessions.get(lease.session), lease, status=status, reason=reason)

    def settle(self, session: str, branch: str, *, before: Journaled, after: CallRow) -> None:
        with self._held():
            running.settle(self._session(session), branch, before=before, after=after)

    def abandon(self, session: str, branch: str, *, reason: str) -> int:
        with self._held():
            return running.abandon(self._session(session), branch, reason=reason)

    def pending(self, session: str, branch: str) -> Pending:
        with self._held():
            found = self._sessions.get(session)
            return Pending(None, ()) if found is None else running.pending(found, branch)

    def calls(self, session: str, id_: str) -> Sequence[Journaled]:
        with self._held():
            found = self._session(session)
            return running.calls_of(found, entry_of(found, id_).took)

    def runs(self, session: str) -> Sequence[RunRow]:
        with self._held():
            found = self._sessions.get(session)
            return [] if found is None else [running.row_of_run(name, one) for name, one in sorted(found.runs.items())]

    def entries(self, session: str) -> Sequence[Journaled]:
        with self._held():
            return list(self._session(session).calls.values())

    def crashed(self) -> Sequence[tuple[SessionRow, RunRow]]:
        with self._held():
            sessions = sorted(self._sessions.values(), key=Drawer.touched, reverse=True)
            rows = [(line_of(one), running.row_of_run(*each)) for one in sessions for each in sorted(one.runs.items())]
            return [(line, row) for line, row in rows if row.entered and not row.live]

    def wait(self, seconds: float) -> None:
        with self._held():
            pass
        time.sleep(max(0.0, min(seconds, LOOK_S)))

    def _refuse_known(self, session: str) -> None:
        if session in self._sessions:
            message = f"there is already a session {session!r}"
            raise AlreadyExistsError(message, hint="import it under another name, or delete the old one first")

    # reads

    def find_session(self, session: str) -> SessionRow | None:
        with self._held():
            found = self._sessions.get(session)
            return None if found is None else line_of(found)

    def sessions(
        self, *, before: int | None, limit: int, status: str | None, agent: str | None
    ) -> Sequence[SessionRow]:
        with self._held():
            found = [
                session
                for session in self._sessions.values()
                if (before is None or session.touched() < before)
                and status in (None, session.totals.status)
                and agent in (None, session.totals.agent)
            ]
            found.sort(key=Drawer.touched, reverse=True)
            return [line_of(session) for session in found[:limit]]

    def names(self, session: str) -> Names:
        with self._held():
            found = self._sessions.get(session)
            if found is None:
                return Names((), ())
            branches = [BranchRow(name, branch.head, branch.undo) for name, branch in sorted(found.branches.items())]
            return Names(tuple(branches), tuple([TagRow(name, id_) for name, id_ in sorted(found.tags.items())]))

    def find_branch(self, session: str, branch: str) -> BranchRow | None:
        with self._held():
            known = self._sessions.get(session)
            found = None if known is None else known.branches.get(branch)
            return None if found is None else BranchRow(branch, found.head, found.undo)

    def find_row(self, session: str, id_: str) -> Row | None:
        with self._held():
            known = self._sessions.get(session)
            found = None if known is None else known.checkpoints.get(id_)
            return None if found is None else row_of(found)

    def find_ids(self, session: str, prefix: str, *, limit: int) -> Sequence[str]:
        with self._held():
            known = self._sessions.get(session)
            if known is None or not prefix:
                return []
            return sorted([id_ for id_ in known.checkpoints if id_.startswith(prefix)])[:limit]

    def line(self, session: str, id_: str, *, limit: int) -> Sequence[Row]:
        with self._held():
            found = self._session(session)
            kept: Entry | None = entry_of(found, id_)
            rows: list[Row] = []
            while kept is not None and len(rows) < limit:
                rows.append(row_of(kept))
                kept = None if kept.link is None else entry_of(found, kept.link)
            return rows

    def chain(self, session: str, id_: str, *, salvage: bool = False) -> Chain:  # noqa: ARG002 - nothing is lost here
        with self._held():
            found = self._session(session)
            links = [entry_of(found, id_)]
            while links[-1].whole is None and links[-1].link is not None:
                links.append(entry_of(found, links[-1].link))
            links.reverse()
            if links[0].whole is None:
                message = "the whole copy at the beginning of a chain is missing"
                raise CorruptionError(message, hint="run verify to see what is intact")
            records, place, prefix = [links[0].whole], 0, b""
            for kept in links[1:]:
                if kept.delta is None:
                    message = "a delta is missing from a chain"
                    raise CorruptionError(message, hint="run verify to see what is intact")
                place = kept.place
                prefix = b"" if (place - 1) % GROUP_DELTAS == 0 else prefix
                prefix = next_prefix(place, prefix, kept.delta.body)
                records.append(kept.delta)
            return Chain(
                row=row_of(links[-1]),
                records=tuple(records),
                singles=len(records) - 1,
                roll_base=links[0].row.id,
                whole_bytes=links[0].size_bytes,
                place=place,
                prefix=prefix,
                epoch=found.epoch,
            )

    def children(self, session: str, id_: str) -> Sequence[str]:
        with self._held():
            found = self._session(session)
            entry_of(found, id_)
            return [child for child, kept in found.checkpoints.items() if kept.link == id_]

    def ids(self, session: str) -> Sequence[str]:
        with self._held():
            found = self._sessions.get(session)
            return [] if found is None else list(found.checkpoints)

    def history(self, session: str, *, after: int, limit: int) -> Sequence[Kept]:
        with self._held():
            kept = [kept for kept in self._session(session).checkpoints.values() if kept.row.sequence > after]
            return [
                Kept(row_of(found), found.size_bytes, found.delta, found.whole, found.took) for found in kept[:limit]
            ]

    def blobs(self, digests: Collection[bytes], *, salvage: bool = False) -> Mapping[bytes, bytes]:
        with self._held():
            found = {digest: self._blobs[digest] for digest in digests if digest in self._blobs}
            for digest in digests:
                if digest not in found and not salvage:
                    message = f"blob {digest.hex()[:12]} is missing"
                    raise CorruptionError(message, hint="run verify to see which checkpoints need it")
            return found

    # upkeep

    def sizes(self) -> Sizes:
        with self._held():
            kept = [kept for session in self._sessions.values() for kept in session.checkpoints.values()]
            return Sizes(
                sessions=len(self._sessions),
                checkpoints=len(kept),
                logical_bytes=sum([checkpoint.size_bytes for checkpoint in kept]),
                stored_bytes=sum([checkpoint.size() for checkpoint in kept]) + sum(map(len, self._blobs.values())),
            )

    def check(self) -> Iterator[Problem]:
        with self._held():
            needed: dict[bytes, set[tuple[str, str]]] = {}
            for session in self._sessions.values():
                for kept in session.checkpoints.values():
                    for ref in kept.refs():
                        needed.setdefault(ref, set()).add((session.id, kept.row.id))
            problems = [] if needed == self._needed_by else [Problem(what="blobs are counted as needed by others")]
            if set(self._blobs) != set(needed):
                problems.append(Problem(what="the blobs kept are not those that checkpoints need"))
        yield from problems

    def compact(self) -> None:
        with self._held():
            pass  # what was deleted is gone already

    def repair(self) -> Sequence[str]:
        with self._held():
            return ()  # nothing here can be damaged from outside

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            self._sessions, self._blobs, self._needed_by = {}, {}, {}

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        if self._pid != os.getpid():  # before the lock: in a forked child nobody may be left to release it
            message = "this store was opened by the parent process"
            raise ClosedError(message, hint="open it again in this process")
        with self._lock:
            if self._closed:
                message = "the store is closed"
                raise ClosedError(message, hint="open it again")
            yield

    def _session(self, id_: str) -> Drawer:
        found = self._sessions.get(id_)
        if found is None:
            message = f"there is no session {id_!r}"
            raise NotFoundError(message, hint="store.sessions() lists those there are")
        return found

    def _refuse_missing(self, refs: set[bytes], contents: Mapping[bytes, bytes]) -> None:
        for digest in refs:
            if digest not in self._blobs and digest not in contents:
                message = f"blob {digest.hex()[:12]} is needed and not here"
                raise CorruptionError(message, hint="run verify")

    def _put_blobs(self, session: Drawer, kept: Entry, contents: Mapping[bytes, bytes]) -> None:
        for digest in kept.refs():
            if digest not in self._blobs:
                self._blobs[digest] = contents[digest]
            self._needed_by.setdefault(digest, set()).add((session.id, kept.row.id))

    def _drop_blobs(self, session: Drawer, kept: Entry, digests: set[bytes]) -> None:
        for digest in digests:
            self._needed_by[digest].discard((session.id, kept.row.id))
            if not self._needed_by[digest]:
                del self._needed_by[digest], self._blobs[digest]
