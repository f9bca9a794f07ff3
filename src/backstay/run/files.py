"""The files of a session: captured between its calls and at its boundaries, each change with its author.

A capture before a call finds what others changed since the last one, a capture after it what the call changed. Calls
that were in flight at once share what was found meanwhile; of calls inside one another the innermost has done it.
Nothing is written before the boundary: the list goes into its transaction, and with it contents that are small.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from backstay.codec import held_in
from backstay.errors import BackstayError, InvalidInputError, UnsupportedError
from backstay.grouping import contents_of
from backstay.hints import Hint
from backstay.listing import (
    CALL,
    EMPTY,
    LOST,
    MISSING,
    OUTSIDE,
    RESTORE,
    FileChanges,
    FileEntry,
    Listing,
    difference,
    from_value,
    to_value,
)
from backstay.model import NOTHING, Checkpoint, StateDict, counted
from backstay.port import BlobsAbsentError, CallRow, View
from backstay.rules.refusals import Lease
from backstay.run.holding import HeldBranch
from backstay.run.rollback import keep_aside, lost_steps, pack_before, put_back, rollback_steps
from backstay.store.fields import Given
from backstay.store.file_contents import BlobSink, GroupReader
from backstay.store.files import CapturedFiles
from backstay.store.history import History
from backstay.workspace.capturing import Capturer
from backstay.workspace.losses import Missing, is_lost
from backstay.workspace.open_root import OpenRoot
from backstay.workspace.policy import Workspace

if TYPE_CHECKING:
    from logging import Logger


_NAMED = 20


def _log() -> Logger:
    import logging  # noqa: PLC0415 - what is seldom said need not be waited for

    return logging.getLogger("backstay")


def captured(
    listing: Listing, sink: BlobSink, again: Callable[[], CapturedFiles | None] | None = None
) -> CapturedFiles:
    """A list for a commit, with the contents that go along and the groups that must be whole then."""
    needs = frozenset(sink.needs.intersection(held_in(listing.groups))) if sink.needs else frozenset()
    found = CapturedFiles(to_value(listing), sink.taken(), again, needs, put_bytes=sink.put_bytes + sink.waiting_bytes)
    sink.put_bytes = 0
    return found


class SessionFiles:
    """The workspace of one session. Threads may share it; captures take turns."""

    def __init__(self, history: History, workspace: Workspace) -> None:
        self.workspace = workspace
        self._history = history
        self._capturer = Capturer(workspace)
        self._fetch = GroupReader(history.backend)
        self._lock = threading.RLock()

    def listing(self, branch: str) -> tuple[Listing, str | None]:
        """The list of a branch's head, an empty one if it has none; and the head's id."""
        value, head = self._history.files_at(branch)
        return EMPTY if value is None else from_value(value), head

    def capture(
        self,
        base: Listing,
        sink: BlobSink,
        *,
        author: Callable[[bytes], str] | str = OUTSIDE,
        budget_s: float | None = None,
    ) -> tuple[Listing, tuple[bytes, ...]]:
        """The list as the folder is now, and the paths that differ from another list."""
        is_missing = Missing(self.workspace.path, base.about.root)

        def author_of(path: bytes) -> str:
            who = author if isinstance(author, str) else author(path)
            return MISSING if who == OUTSIDE and is_missing(path) else who

        by = author if isinstance(author, str) and author != OUTSIDE else author_of
        with self._lock:
            reader = self._reader(sink)
            found = self._capturer.capture(base, fetch=reader, emit=sink, cut=reader.cut, author=by, budget_s=budget_s)
            sink.needs |= found.needs
        return found.listing, found.changed

    def capture_at_entering(self, base: Listing, sink: BlobSink, *, author: str) -> tuple[Listing, list[bytes]]:
        """The list as the folder is now, and the paths of another list that a power cut took back."""
        lost: list[bytes] = []

        def author_of(path: bytes) -> str:
            before = base.find(path)
            if before is None or not is_lost(root, before):
                return author
            lost.append(path)
            return LOST

        with OpenRoot(self.workspace.path) as root:
            return self.capture(base, sink, author=author_of)[0], lost

    def compare(self, base: Listing) -> FileChanges:
        """What differs between a list and the folder now; nothing is kept of it."""
        return difference(base, self.capture(base, BlobSink(self._history.backend, dry=True))[0])

    def committed(self, branch: str, *, last: bool = False) -> CapturedFiles:
        """The files as they are now, for a commit on a branch."""
        if last:
            self.look_again()
        sink = BlobSink(self._history.backend)
        base, head = self.listing(branch)
        listing, _ = self.capture(base, sink)
        found = captured(listing, sink, partial(self.committed, branch, last=True))
        return msgspec.structs.replace(found, on=head)

    def write(
        self,
        branch: str,
        given: Given,
        head: Checkpoint | None,
        *,
        lease: Lease,
        look: Callable[[View], None],
        files: CapturedFiles,
    ) -> Checkpoint:
        """A checkpoint of files alone: with the state that the head has, and calls that are pending stay so."""
        return self._history.write(
            branch,
            {} if head is None else self._history.load(branch).state,
            given,
            expect=NOTHING if head is None else head.id,
            lease=lease,
            look=look,
            files=files,
            root=head is None,
            keeps_journal=True,
        )

    def look_again(self) -> None:
        """Contents may have been forgotten since they were seen here."""
        with self._lock:
            self._fetch.forget()
            self._capturer.recent.clear()

    def of_run(self, branch: str, *, by: Collection[CallRow] = (), is_new: bool = False) -> RunFiles:
        """The files of a run that begins on a branch. `by`: calls that are made elsewhere and did what differs.

        `is_new`: no call did.
        """
        return RunFiles(self, branch, by=by, is_new=is_new)

    def refuse_unusable(self, branch: str) -> None:
        """An error, before anything is written, for a folder that cannot be captured at all."""
        lane = self._history.lane_or_none(branch)
        if lane is None or lane.head is None:  # the first run of a session must not leave a failed one behind
            with self._lock:
                self._capturer.measure()

    def sink(self) -> BlobSink:
        """Takes the contents of a capture."""
        return BlobSink(self._history.backend)

    def contents(self, listing: Listing, entry: FileEntry, sink: BlobSink) -> bytes:
        """The contents of a file of a list that may not be committed yet."""
        with self._lock:
            return contents_of(listing, entry, self._reader(sink))

    def _reader(self, sink: BlobSink) -> GroupReader:
        self._fetch.beside = sink.waiting
        return self._fetch


def put_back_before(files: SessionFiles | None, history: History, branch: str, call: CallRow) -> None:
    """Put the files back as they were before a call in doubt; what the call left is kept on a branch of its own."""
    if call.files is None:
        message = f"call {call.name!r} ({call.id}) has no files that could be put back"
        raise InvalidInputError(message, hint="a call says so beforehand: run.call(…, effects='files')")
    if files is None:
        raise InvalidInputError("files are put back in the workspace of the session", hint=_WORKSPACE)
    with HeldBranch(history, branch, "rollback"):
        lane = history.lane_or_none(branch)
        state = {} if lane is None or lane.head is None else history.load(branch).state
        RunFiles(files, branch).roll_back(history, branch, call, state)


_WORKSPACE = Hint(
    "store.session(id, workspace=folder) says which folder that is",
    "run it in the folder that the files are in, or name it by --workspace",
)


# Writes a checkpoint of files on a head, with its state: given the head, the run's counters, its lease and its look.
WriteFound = Callable[[Checkpoint | None, bytes, Lease, Callable[[View], None]], Checkpoint]


class RunFiles:
    """The files of one run, from its entering on: the last list, the calls in flight, and what they changed."""

    def __init__(self, files: SessionFiles, branch: str, *, by: Collection[CallRow] = (), is_new: bool = False) -> None:
        self._files = files
        self._branch = branch
        self._sink = files.sink()
        self._lock = threading.RLock()
        self._turns = threading.Condition(self._lock)
        self._alone: str | None = None  # the call in flight that no other may be beside
        self._head = self._start = self._recorded = self._last = files.listing(branch)[0]
        # Calls in flight, each with the one that encloses it; and those in flight at any time since the last capture.
        self._flying = {call.id: call.parent for call in by if call.ended_us is None}
        self._since = {call.id: call.parent for call in by}
        self._fresh = False  # the last capture was made after the last call
        self._looked = False  # and nothing happened since that the next call has to be told from
        self._found = False  # what others changed is in no checkpoint yet
        self.problem: str | None = None
        self._lost: list[bytes] = []
        self._look(self._author(), first=True)
        self._since = dict(self._flying)
        self._start = self._last
        self._found = is_new and bool(difference(self._head, self._last).changes)
        if self._lost:
            what = f"{counted(len(self._lost), 'file')} of the last checkpoint never reached the disk as captured there"
            _log().warning("%s: %s; run.files.put_back_lost() writes them again", what, ", ".join(self.lost[:_NAMED]))

    @property
    def lost(self) -> list[str]:
        """The files that are not on the disk as the last checkpoint has them, though nothing changed them since.

        A power cut took them back before the system had written them.
        """
        return [os.fsdecode(path) for path in sorted(self._lost)]

    def put_back_lost(self) -> list[str]:
        """Write the files that were lost again; those that were changed meanwhile stay, and are given back by name."""
        with self._lock:
            steps = lost_steps(self._lost, self._head, self._start)
            placed = put_back(
                self._files.workspace.path, "lost", steps, lambda e: self._files.contents(self._head, e, self._sink)
            )
            self._lost = []
            self._look(RESTORE)
        return sorted([os.fsdecode(path) for path in placed.kept])

    def changed(self) -> FileChanges:
        """What differs now from the files that this run began with."""
        with self._lock:
            self._look(self._author())
            return difference(self._start, self._last)

    def unrecorded(self, *, look: bool = True) -> FileChanges:
        """What differs from the files of the last boundary, as they are now; without `look`, as they were last seen.

        The caller says by this that nothing of the run's own happens before its next call or boundary, which then
        makes no look of its own.
        """
        with self._lock:
            seen = self._look(self._author()) if look else self.problem is None
            self._fresh = self._looked = seen
            return difference(self._recorded, self._last)

    def began(self, call: CallRow, record: Callable[[WriteFound], None] | None, *, alone: bool = False) -> bytes | None:
        """A call is about to be made: what differs now was done by others. With `alone`, the files as they are then.

        The call may write over what others did, so that is recorded before.

        One that is to be alone waits until no other is in flight, and others wait for it; those around it and inside
        it do not count.
        """
        with self._turns:
            self._turns.wait_for(lambda: self._may_begin(call, alone=alone))
            self._alone = call.id if alone else self._alone
            if not self._flying or alone:
                if not self._looked:
                    before = self._last
                    self._look(OUTSIDE)
                    self._found = self._found or bool(difference(before, self._last).changes)
                self._since = dict(self._flying)
            if self._found and record is not None:
                record(partial(self._write_found, captured(self._last, self._sink, self._recaptured)))
                self.recorded()
            self._looked = False
            self._flying[call.id] = self._since[call.id] = call.parent
            return pack_before(self._recorded, self._last, self._contents) if alone else None

    def _write_found(
        self,
        files: CapturedFiles,
        head: Checkpoint | None,
        loop: bytes,
        lease: Lease,
        look: Callable[[View], None],
    ) -> Checkpoint:
        if head is None:
            given = Given("files", status="in_progress", summary="the files as they were found", loop=loop)
        else:
            summary = "files changed from outside"
            hint = head.resume_hint
            given = Given("files", status="in_progress", step=head.step, resume_hint=hint, summary=summary, loop=loop)
        return self._files.write(self._branch, given, head, lease=lease, look=look, files=files)

    def _may_begin(self, call: CallRow, *, alone: bool) -> bool:
        around, at = set(), call.parent
        while at is not None:
            around.add(at)
            at = self._flying.get(at)
        if self._alone is not None and self._alone not in around:
            return False
        return not alone or self._flying.keys() <= around

    def ended(self, call: CallRow) -> None:
        """A call has its outcome: what differs now was done by it, and by those in flight beside it."""
        with self._turns:
            if self._flying.pop(call.id, self) is self:
                return  # from the journal: it was made by an earlier run
            self._look(self._author())
            self._since = dict(self._flying)
            self._fresh = not self._flying
            self._alone = None if self._alone == call.id else self._alone
            self._turns.notify_all()

    def left(self, call_id: str) -> None:
        """A call ended without an outcome: the next look finds what it did."""
        with self._turns:
            self._flying.pop(call_id, None)
            self._alone = None if self._alone == call_id else self._alone
            self._turns.notify_all()

    def roll_back(self, history: History, branch: str, call: CallRow, state: StateDict) -> list[str]:
        """Put the files back as they were when a call began that was cut off; the paths that were kept as they are."""
        if call.files is None:
            return []
        with self._lock:
            self._look(CALL + call.id)
            steps = rollback_steps(call.files, self._recorded, self._last)
            if not steps:
                return []
            keep_aside(history, branch, call, state, captured(self._last, self._sink))
            placed = put_back(self._files.workspace.path, f"rollback-{call.id}", steps, self._recorded_contents)
            self._look(RESTORE)
        return sorted([os.fsdecode(path) for path in placed.kept])

    def _contents(self, entry: FileEntry) -> bytes:
        return self._files.contents(self._last, entry, self._sink)

    def _recorded_contents(self, entry: FileEntry) -> bytes:
        return self._files.contents(self._recorded, entry, self._sink)

    def boundary(self) -> CapturedFiles | None:
        """The files as they are at a boundary; None if they could not be captured: then the list stays as it was."""
        with self._lock:
            if not self._fresh and not self._look(OUTSIDE):
                return None
            return captured(self._last, self._sink, self._recaptured)

    def _recaptured(self) -> CapturedFiles | None:
        """The files once more, all contents that are new with them: some were swept before their boundary came."""
        with self._lock:
            self._files.look_again()
            self._last = self._recorded = self._files.listing(self._branch)[0]
            self._sink = self._files.sink()
            self._look(OUTSIDE)
            return captured(self._last, self._sink)

    def recorded(self) -> None:
        """A boundary was written with the last list."""
        with self._lock:
            self._fresh = self._found = False
            self._recorded = self._last
            self._sink.forget()

    def _author(self) -> str:
        around = set(self._since.values())
        inner = sorted([id_ for id_ in self._since if id_ not in around])
        if not inner:
            return OUTSIDE
        return CALL + inner[0] if len(inner) == 1 else f"calls:{','.join(inner)}"

    def _look(self, author: str, *, first: bool = False) -> bool:
        """Capture the folder; False where that cannot be done. A run does not end because its folder is gone."""
        self._fresh = self._looked = False
        budget_s = None if first or not self._last.about.capture else self._files.workspace.budget_s
        try:
            if first:
                self._last, self._lost = self._files.capture_at_entering(self._last, self._sink, author=author)
            else:
                self._last, _ = self._files.capture(self._last, self._sink, author=author, budget_s=budget_s)
        except BlobsAbsentError:
            raise
        except (BackstayError, OSError) as error:
            if first and isinstance(error, InvalidInputError | UnsupportedError):
                raise
            self.problem = str(error.args[0]) if isinstance(error, BackstayError) else str(error)
            _log().warning("the files of %s could not be captured: %s", self._files.workspace.path, self.problem)
            return False
        self.problem = None
        return True
