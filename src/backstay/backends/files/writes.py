"""Writing: each function is called with the store's lock held and a journal that was just brought up to date.

The order of a commit is visible in `commit`: blobs, then its lines (records, then the checkpoint with its head) in one
write, then the sync. Deletion mirrors it: the journal without the checkpoints takes its place, then blobs go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from backstay.backend import FORMAT_VERSION, BranchRow, Commit, Deletion, Kept, Moved, Rewrite, Row
from backstay.backends.files import anew
from backstay.backends.files.folder import Folder
from backstay.backends.files.index import Index
from backstay.backends.files.journal import Journal
from backstay.backends.files.lines import About, checkpoint_lines, first_line, name_lines, session_lines
from backstay.backends.files.running import Runs, bearing
from backstay.delta import Record
from backstay.digest import checkpoint_digest
from backstay.errors import AlreadyExistsError, ConflictError, CorruptionError, InvalidInputError, NotFoundError


class Applied(Protocol):
    """How an index is told of what was written: inside the backend's lock, when the disk has it."""

    def __call__(self, tell: Callable[[], None], /) -> None:
        """Run it there."""


def commit(
    folder: Folder, runs: Runs, journal: Journal | None, new: Commit, number: Callable[[], int], applied: Applied
) -> Row:
    """Write one checkpoint and move its branch, or raise and leave nothing."""
    index = Index() if journal is None else journal.index
    runs.refuse_commit(journal, new)
    branch = index.find_branch(new.branch)
    head_id = None if branch is None else branch.head_id
    if head_id is not None and head_id not in index.entries:
        message = f"session {new.session!r}: branch {new.branch!r} points at a checkpoint that is lost"
        raise CorruptionError(message, hint="run verify")
    if head_id != new.expect:
        return _settle_conflict(journal, new, head_id)
    if branch is None:
        refuse_taken(index, new.branch)
    if new.id in index.entries:
        message = f"session {new.session!r}: there is already a checkpoint {new.id[:12]}"
        raise ConflictError(message, hint="load again and decide")
    for id_ in (new.undo_to, new.take_up):
        if id_ is not None:
            index.entry(id_)
    if journal is not None and new.lease is None:
        runs.fence(journal, new.branch)
    parent_digest = None if head_id is None else bytes.fromhex(index.entries[head_id].about.digest)
    delta = None if head_id is None else new.delta
    records = {kind: record for kind, record in (("delta", delta), ("whole", new.whole)) if record is not None}
    refs = frozenset([ref for record in records.values() for ref in record.refs])
    sequence = index.sequence + 1
    digest = checkpoint_digest(
        id_=new.id, parent=parent_digest, state=new.state_digest, sequence=sequence, fields=new.fields
    )
    row = Row(new.id, sequence, head_id, parent_digest, head_id, new.state_digest, digest, new.fields)
    about = _about(new, index, branch, row, tuple(records), number())

    if refs:
        folder.refuse_missing(refs, new.blobs)
        folder.put_blobs(refs, new.blobs)
    if journal is None:
        begin = session_lines(1, new.session, created_us=new.totals.at_us, born=about.number)
        lines = checkpoint_lines(3, about, list(records.values()), row)
        count = len(begin) + len(lines)
        folder.put(folder.journal(new.session), b"".join([first_line(count, FORMAT_VERSION), *begin, *lines]))
        return row
    places = _places(index, new, about)
    lines = checkpoint_lines(index.lines + 1, about, list(records.values()), row, places=places)
    spans = journal.append(lines, sync=folder.durable)

    def tell() -> None:
        index.lines += len(lines)
        index.add(about, spans, refs)
        journal.known(lines, spans[-1].at + spans[-1].size)

    applied(tell)
    if new.lease is not None:
        if new.ends_run:
            runs.let_go(journal, index.ledger.states[new.branch])
        else:
            runs.hold(new.lease, journal)
    return row


def _about(
    new: Commit, index: Index, branch: BranchRow | None, row: Row, records: tuple[str, ...], number: int
) -> About:
    totals, runs = new.totals, bearing(index, new)
    undo = new.undo_to if new.undo_to is not None else None if branch is None else branch.undo_id
    return About(
        id=new.id,
        branch=new.branch,
        sequence=row.sequence,
        number=number,
        digest=row.digest.hex(),
        records=records,
        size_bytes=new.size_bytes,
        checkpoints=index.checkpoints + 1,
        branches=index.branch_count + (branch is None),
        logical_bytes=index.logical_bytes + new.size_bytes,
        at_us=totals.at_us,
        status=totals.status,
        link=row.link_id,
        undo=undo,
        agent=totals.agent,
        reason=totals.reason,
        last_step=totals.last_step,
        usage=totals.usage,
        run=runs.run,
        ends_run=runs.ends_run,
        took=runs.took,
        took_up=runs.took_up,
    )


def _places(index: Index, new: Commit, about: About) -> dict[str, bytes]:
    """Where the state keeps the results of calls that this commit takes in."""
    if about.took is None or not new.kept_in_state:
        return {}
    taken = {called.brief.id for called in index.ledger.at(about.took[:2])}
    return {id_: place for id_, place in new.kept_in_state.items() if id_ in taken}


def _settle_conflict(journal: Journal | None, new: Commit, head_id: str | None) -> Row:
    # The same id is already here: an earlier try of this very commit did go through.
    if journal is not None and new.id in journal.index.entries:
        return journal.row(journal.index.entries[new.id])
    where = "does not exist" if head_id is None else f"stands at {head_id[:12]}"
    wanted = "expected not to exist" if new.expect is None else f"expected at {new.expect[:12]}"
    message = f"session {new.session!r}: branch {new.branch!r} {where}, {wanted}"
    raise ConflictError(message, hint="load the branch again, then decide")


def refuse_taken(index: Index, name: str) -> None:
    """AlreadyExistsError if a branch or tag has the name."""
    index.be_certain_of(name)
    if name in index.branches or name in index.tags:
        message = f"there is already a branch or tag named {name!r}"
        raise AlreadyExistsError(message, hint="branches and tags share their names: choose another")


def give_name(folder: Folder, journal: Journal, what: str, name: str, id_: str, applied: Applied) -> None:
    """A branch or a tag at a checkpoint."""
    journal.index.entry(id_)
    refuse_taken(journal.index, name)
    _append_name(folder, journal, what, name, id_, applied)


def give_up_name(folder: Folder, journal: Journal, what: str, name: str, applied: Applied) -> None:
    """Forget a branch or a tag."""
    index = journal.index
    index.be_certain_of(name)
    kind, names = ("branch", set(index.branches)) if what == "forget" else ("tag", set(index.tags))
    if name not in names:
        message = f"there is no {kind} {name!r}"
        listing = "branches" if kind == "branch" else "tags"
        raise NotFoundError(message, hint=f"session.{listing}() lists those there are")
    _append_name(folder, journal, what, name, None, applied)


def _append_name(folder: Folder, journal: Journal, what: str, name: str, id_: str | None, applied: Applied) -> None:
    lines = name_lines(journal.index.lines + 1, what, name, id_)
    journal.append(lines, sync=folder.durable)
    applied(lambda: journal.feed(lines))


def delete_checkpoints(folder: Folder, runs: Runs, journal: Journal, deletion: Deletion) -> frozenset[bytes]:
    """Put a journal without these checkpoints in the place of the old one; the blobs it needed are returned."""
    index = journal.index
    gone = set(deletion.ids)
    for id_ in deletion.ids:
        index.entry(id_)
    for rewrite in deletion.rewrites:
        index.entry(rewrite.id)
    if index.unknown_at:
        index.ids()  # raises: with lines lost, nobody can say which checkpoints are linked to these
    rewrites = {rewrite.id: rewrite for rewrite in deletion.rewrites}
    linked = {id_ for id_, entry in index.entries.items() if entry.about.link in gone and id_ not in gone}
    if set(rewrites) != linked:
        message = f"the checkpoints to delete ({len(gone)}) have other children than a moment ago"
        raise ConflictError(message, hint="try again")
    _refuse_pinned(index, gone, spare_names=deletion.spare_names)
    for name, branch in index.branches.items():
        if branch.head_id in gone:
            runs.refuse_others(journal, name)
    links = {id_: anew.staying(index, index.entries[id_].about.link, gone) for id_ in rewrites}
    needed: list[tuple[frozenset[bytes], Mapping[bytes, bytes]]] = []
    for rewrite in deletion.rewrites:
        record = _fitting(journal, rewrite, links[rewrite.id])
        needed.append((frozenset(() if record is None else record.refs), rewrite.blobs))
        folder.refuse_missing(*needed[-1])
    touched = frozenset([ref for id_ in {*gone, *rewrites} for ref in index.entries[id_].refs])

    for name, branch in index.branches.items():
        if branch.head_id in gone:
            runs.fence(journal, name)
    for refs, blobs in needed:
        folder.put_blobs(refs, blobs)
    aside = anew.write_aside(folder, anew.without(journal, gone, rewrites, links))
    anew.put_in_place(folder, aside, journal.path)
    return touched


def _refuse_pinned(index: Index, gone: set[str], *, spare_names: bool) -> None:
    for name, id_ in index.tags.items():
        if id_ in gone:
            message = f"checkpoint {id_[:12]} is tagged {name!r}"
            raise InvalidInputError(message, hint="untag it first")
    for name, branch in index.branches.items():
        if spare_names and (branch.head_id in gone or branch.undo_id in gone):
            message = f"branch {name!r} needs a checkpoint that was to be deleted"
            raise ConflictError(message, hint="try again")
        if anew.staying(index, branch.head_id, gone) is None:
            message = f"branch {name!r} has no other checkpoint to stand on"
            raise InvalidInputError(message, hint="delete the branch or the whole session instead")


def _fitting(journal: Journal, rewrite: Rewrite, link: str | None) -> Record | None:
    """The record that a rewrite brings and that is needed; ConflictError if there would be nothing to stand on."""
    entries = journal.index.entries
    kind, record = anew.chosen(journal, entries[rewrite.id], rewrite)
    if record is None and entries[rewrite.id].whole is None:
        message = f"checkpoint {rewrite.id[:12]} has no whole copy yet"
        raise ConflictError(message, hint="try again")
    if kind == "delta":
        stands = link is not None and journal.row(entries[link]).state_digest == rewrite.base_digest
        if not stands:
            message = f"checkpoint {rewrite.id[:12]} would stand on another state than a moment ago"
            raise ConflictError(message, hint="try again")
    return record


def adopt(
    folder: Folder, moved: Moved, history: Iterable[tuple[Kept, Mapping[bytes, bytes]]], numbers: Iterator[int]
) -> tuple[Path, dict[bytes, Path], frozenset[bytes]]:
    """Write a session aside, without any lock: its journal, its blobs, and which blobs must be there in the end."""
    aside: dict[bytes, Path] = {}
    needed: set[bytes] = set()

    def checked() -> Iterator[Kept]:
        seen: set[str] = set()
        for kept, blobs in history:
            records = [kept.whole, None if kept.row.link_id is None else kept.delta]
            refs = {ref for record in records if record is not None for ref in record.refs}
            _refuse_disorder(seen, kept.row.link_id)
            if records == [None, None]:
                message = f"checkpoint {kept.row.id[:12]} comes without a record"
                raise InvalidInputError(message, hint="the history is not complete")
            for ref in refs & blobs.keys() - aside.keys():
                aside[ref] = folder.write_blob_aside(blobs[ref])
            needed.update(refs)
            seen.add(kept.row.id)
            yield kept
        for branch in moved.names.branches:
            _refuse_disorder(seen, branch.head_id, branch.undo_id)
        _refuse_disorder(seen, *[tag.id for tag in moved.names.tags])

    try:
        journal = anew.write_aside(folder, anew.adopted(moved, checked(), numbers), slow=True)
        return journal, aside, frozenset(needed)
    except BaseException:
        folder.discard(aside.values())
        raise


def _refuse_disorder(seen: set[str], *ids: str | None) -> None:
    for id_ in ids:
        if id_ is not None and id_ not in seen:
            message = f"checkpoint {id_[:12]} is referred to before it comes, or never comes"
            raise CorruptionError(message, hint="the history is not complete")
