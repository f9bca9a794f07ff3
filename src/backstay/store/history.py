"""One session's history as the hall reads and writes it: load, plan, write. Session and Run share it.

A History keeps what is known of the heads it wrote, so that a commit costs what changed, and where each branch was last
seen (Looks), so that it never writes over what its caller has not seen.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from backstay.codec import all_text
from backstay.delta import advance
from backstay.errors import ConflictError, CorruptionError
from backstay.hints import NEWEST_INTACT, Hint
from backstay.model import ANY, NOTHING, Checkpoint, SessionId, State, StateDict
from backstay.port import Ask, Backend, Batch, BlobsAbsentError, CallKey, CheckpointRow, LaneRow, Records, Stale, View
from backstay.rules import refusals
from backstay.rules.commit import Commit, Totals, commit
from backstay.rules.refusals import Lease
from backstay.rules.sessions import About
from backstay.store import packing
from backstay.store.appending import Appended, Extension, KnownKeys
from backstay.store.events import Events
from backstay.store.fields import Fields, Given, check_state, read_fields, to_checkpoint
from backstay.store.files import KEY, CapturedFiles, carry, files_in, join, split
from backstay.store.looks import Looks, Place
from backstay.store.planning import Plan, Tip, tip_of
from backstay.store.reading import Loaded, load
from backstay.store.recent import RecentHeads
from backstay.store.refs import Ref, Refs

if TYPE_CHECKING:
    from backstay.store.file_contents import CheckpointFiles

RACES = 100  # tries of a write that expects nothing before it gives up and reports the conflict

_STATES = frozenset({dict, State})  # whatever else is given is looked at closely
_NO_TOTALS = Totals(None, "in_progress", None, None, b"", 0)
_TIPS = 16
_LOOK_AGAIN = Hint(
    "look again: session.load() reads a branch and its state in one moment",
    "look again: another process is pruning this session",
)
_LOOKS = 8  # at a branch that is committed to and pruned by others all the while


class History:
    """See the module's text. Threads may share it as far as Looks says."""

    def __init__(
        self,
        backend: Backend,
        events: Events,
        id_: SessionId,
        *,
        agent: str | None,
        recent: RecentHeads | None = None,
    ) -> None:
        self.backend = backend
        self.events = events
        self.id = id_
        self.agent = agent
        self.about: About | None = None
        self.after_files: Callable[[int], None] | None = None  # told how many bytes of contents a commit brought
        self.recent = RecentHeads() if recent is None else recent
        self.refs = Refs(backend, id_)
        self.looks = Looks()
        self._tips: dict[str, Tip] = {}
        self._keys = KnownKeys()
        self._keeping = threading.Lock()
        self._uid: bytes | None = None
        self._packer = packing.Packer(backend, id_)

    # reading

    def load(self, ref: Ref, *, salvage: bool = False) -> Loaded:
        """The state at a ref with where it was read: one read for a branch or a tag."""
        if isinstance(ref, str) and ref:
            found = self._read(ref if ref.isascii() else self.refs.text(ref), salvage=salvage)
            if found is not None:
                return found
        for _ in range(_LOOKS):
            row, branch = self.refs.resolve(ref)
            # A branch that was begun between the two looks is read by its name, so that the reader is told where.
            found = None if branch is None else self._read(branch, salvage=salvage)
            if found is not None:
                return found
            found = self._read(row.sequence, salvage=salvage)
            if found is not None and found.row.id == row.id:
                return found
            # It was pruned since; `main~1` is another by now, and an id is not found when it is looked for again.
        raise refusals.no_checkpoint(self.id, row.id)[1]

    def find(self, ref: str | int) -> Loaded | None:
        """The state at a branch, a tag or a sequence; None if there is none."""
        return self._read(ref)

    def _read(self, ref: str | int, *, salvage: bool = False) -> Loaded | None:
        try:
            found: Loaded | Records | None = None
            if not salvage and (self.id, ref) in self.recent.heads:
                found = self._read_again(str(ref))
            again = found is not None
            if found is None:
                found = load(self.backend, self.id, ref, salvage=salvage)
            if isinstance(found, Loaded):
                read_fields(found.row)
                if not again and not salvage and isinstance(ref, str):
                    self.recent.saw(ref, found)
                return split(found) if KEY in found.state else found
        except CorruptionError as error:
            message = f"session {self.id!r}: the state at {ref!r} is damaged: {error.args[0]}"
            raise CorruptionError(message, hint=NEWEST_INTACT) from error
        return None

    def _read_again(self, name: str) -> Loaded | None:
        """The state of a head that this Store has read before, if it is still the head."""
        recent = self.recent.heads.get((self.id, name))
        if recent is None or not recent.records:
            return None
        try:
            view = self.backend.read(Ask(self.id, names=(name,), heads=True))
        except CorruptionError:
            return None  # a full read says what is damaged
        lane, tag = view.lanes.get(name), view.tags.get(name)
        at = None if tag is None else tag.sequence
        if lane is not None and lane.head is not None:
            at = lane.head.sequence
        row = None if at is None else view.checkpoints.get(at)
        if view.session is None or not isinstance(row, CheckpointRow) or not recent.is_at(view.session, row):
            return None
        return recent.read(view.session, lane, row)

    def state_of(self, row: CheckpointRow) -> StateDict:
        """The state of a checkpoint that was looked at; ConflictError if it was deleted since.

        It must not seem that there never was one: a loop that takes that for a new session would bury the old one.
        """
        return self.loaded(row).state

    def loaded(self, row: CheckpointRow) -> Loaded:
        """As `state_of`, with where it was read."""
        found = self._read(row.sequence)
        if found is None or found.row.id != row.id:
            message = f"session {self.id!r}: checkpoint {row.id[:12]} was deleted or pruned since it was looked at"
            raise ConflictError(message, hint=_LOOK_AGAIN)
        return found

    def files_of(self, row: CheckpointRow) -> CheckpointFiles | None:
        """The files of a checkpoint; None if it has none."""
        from backstay.store.file_contents import CheckpointFiles  # noqa: PLC0415 - most stores have no files

        found = self.loaded(row)
        return None if found.files is None else CheckpointFiles(self.backend, found)

    def files_at(self, branch: str) -> tuple[Any, str | None]:
        """The list of files of a branch's head as a state has it, None if there is none; and the head's id."""
        view = self.backend.read(Ask(self.id, names=(branch,)))
        lane, tip = view.lanes.get(branch), self._tips.get(branch)
        forgets = 0 if view.session is None else view.session.forgets
        if tip is not None and lane is not None and (tip.head, tip.forgets) == (lane.head, forgets):
            return files_in(tip.known), tip.head.id
        found = self._read(branch)
        return (None, None) if found is None else (found.files, found.row.id)

    def checkpoint(self, row: CheckpointRow, fields: Fields | None = None) -> Checkpoint:
        """A row as people hold it; verified, unless its fields were made here a moment ago."""
        return to_checkpoint(row, self.id, lambda: self.state_of(row), fields, lambda: self.files_of(row))

    def lane_or_none(self, branch: str) -> LaneRow | None:
        """A branch's row; None if there is none."""
        return self.backend.read(Ask(self.id, names=(branch,))).lanes.get(branch)

    def lane(self, branch: str) -> LaneRow:
        """A branch's row; NotFoundError if there is none with a checkpoint."""
        lane = self.lane_or_none(branch)
        if lane is None or lane.head is None:
            raise refusals.no_branch(self.id, branch)[1]
        return lane

    # what is known of heads

    def _keep(self, branch: str, tip: Tip) -> Tip:
        """The tips of the branches written last: each holds a state, and a session may have thousands of branches."""
        with self._keeping:
            self._tips.pop(branch, None)
            if len(self._tips) >= _TIPS:
                del self._tips[next(iter(self._tips))]
            self._tips[branch] = tip
        return tip

    def remember(self, branch: str, loaded: Loaded) -> Tip:
        """Keep what was read of a branch's head for the next commit; of one that is known already nothing is made."""
        tip = self._tips.get(branch)
        if tip is not None and tip.known is not None and (tip.uid, tip.head) == (loaded.session.uid, loaded.row.head):
            return tip
        return self._keep(branch, tip_of(loaded))

    def remember_as(self, branch: str, head_id: str) -> None:
        """A new branch at a head that is known."""
        for tip in [*self._tips.values()]:
            if tip.head.id == head_id:
                self._keep(branch, tip)
                break

    def forget(self, branch: str | None = None) -> None:
        """Forget the cached head of a branch, or of all: it may be out of date."""
        with self._keeping:
            if branch is None:
                self._tips.clear()
            else:
                self._tips.pop(branch, None)

    def is_at_head(self, branch: str, state: StateDict) -> bool:
        """True if a state is the one that was last written or read on the branch."""
        tip = self._tips.get(branch)
        if tip is None or tip.known is None:
            return False
        return advance(tip.known, carry(state, tip.known))[2].digest == tip.known.digest

    # writing

    def write(
        self,
        branch: str,
        state: StateDict,
        given: Given | Fields,
        *,
        expect: Place,
        id_: str | None = None,
        root: bool = False,
        frozen: bool = False,
        undoable: bool = False,
        takes_up: bool = False,
        lease: Lease | None = None,
        places: Mapping[CallKey, bytes] | None = None,
        received: tuple[int, ...] = (),
        ends_run: bool = False,
        look: Callable[[View], None] | None = None,
        files: CapturedFiles | None = None,
        keeps_journal: bool = False,
        settles: CallKey | None = None,
    ) -> Checkpoint:
        """Commit on the expected head; with ANY, on whatever head there is. Durable when this returns.

        `files` is the list of files to record with the state; without one, that of the head stays.

        `look` is shown the rows that the rule saw, once they are written.
        With Fields instead of what a caller says, all of them are as given: a checkpoint that was made elsewhere.
        """
        if type(state) not in _STATES or not all_text(map(type, state)) or min(state, default="~") < "\1":
            check_state(state)
        draft = Commit(
            self.id,
            branch,
            b"",
            b"",
            None,
            b"",
            b"",
            0,
            _NO_TOTALS,
            id=id_,
            undoable=undoable,
            takes_up=takes_up,
            lease=lease,
            places=places or {},
            received=received,
            ends_run=ends_run,
            about=self.about,
            keeps_journal=keeps_journal,
            settles=settles,
        )
        for _ in range(RACES):
            try:
                tip = None if root else self._tips.get(branch)
                if root:
                    session = self.backend.read(Ask(self.id)).session
                    self._uid = None if session is None else session.uid
                elif tip is None or (expect is not ANY and tip.head.id != expect):
                    tip = self._tip(branch, expect, draft)
                uid = self._uid if tip is None else tip.uid
                return self._written(tip, uid, state, given, draft, frozen=frozen, look=look, files=files)
            except Stale:
                # A list may have been made on what was forgotten since.
                files = files.again() if files is not None and files.again is not None else files
            except BlobsAbsentError:
                if files is None or files.again is None:
                    raise
                files = files.again()
            except ConflictError:
                self.forget(branch)
                if expect is not ANY or id_ is not None or root:
                    raise
                files = files.again() if files is not None and files.again is not None else files
        message = f"session {self.id!r}: branch {branch!r} moved {RACES} times while this commit was tried"
        raise ConflictError(message, hint="try again, or use a branch of its own")

    def append(self, branch: str, new: Appended, given: Given) -> Checkpoint:
        """Put items behind a list of the state at a branch, whatever head there is; the head itself if none is new."""
        draft = Commit(self.id, branch, b"", b"", None, b"", b"", 0, _NO_TOTALS, about=self.about)
        for _ in range(RACES):
            try:
                made = self._append(self._tips.get(branch) or self._tip(branch, ANY, draft), new, given, draft)
            except Stale:
                continue
            except ConflictError:
                self.forget(branch)
                continue
            tip = self._tips.get(branch)
            if tip is not None and tip.head.id == made.id:
                new.written(tip.known, self._keys)
            return made
        message = f"session {self.id!r}: branch {branch!r} moved {RACES} times while items were appended"
        raise ConflictError(message, hint="try again, or use a branch of its own")

    def _append(self, tip: Tip | None, new: Appended, given: Given, draft: Commit) -> Checkpoint:
        branch, place = draft.branch, NOTHING if tip is None else tip.head.id
        # What others wrote below these items was not seen by this caller: a later commit of a state it holds must not
        # take that for its own.
        seen = self.looks.expected(branch) in (ANY, place)
        items = new.fresh(None if tip is None else tip.known, self._keys)
        if tip is None:
            return self._written(None, self._uid, {new.part: items}, given, draft, seen=seen)
        if tip.known is None:
            self.load(branch)  # it is damaged, and this says how
            self.forget(branch)
            raise Stale
        if not items:
            row = self.refs.row(branch)
            if row.id != tip.head.id:
                self.forget(branch)
                raise Stale
            return self.checkpoint(row)
        if new.part != "messages" and given.summary is None and tip.fields is not None:
            given = msgspec.structs.replace(given, summary=tip.fields.summary)
        head = tip.head

        def load_head() -> StateDict:
            found = self._read(branch)
            if found is None or found.row.id != head.id:
                self.forget(branch)
                raise Stale
            return join(found.state, found.files)

        return self._written(tip, tip.uid, Extension(new.part, items, load_head), given, draft, seen=seen)

    def _written(
        self,
        tip: Tip | None,
        uid: bytes | None,
        state: StateDict | Extension,
        given: Given | Fields,
        draft: Commit,
        *,
        frozen: bool = False,
        look: Callable[[View], None] | None = None,
        seen: bool = True,
        files: CapturedFiles | None = None,
    ) -> Checkpoint:
        if files is not None:
            if files.on is not None and files.again is not None and (tip is None or tip.head.id != files.on):
                self.forget(draft.branch)  # the list may be newer than what is known of the branch
                raise Stale
            state = join(state, files.value)  # type: ignore[arg-type] # items that are appended bring no files
            given = msgspec.structs.replace(given, captured=True)
        elif tip is not None and tip.known is not None and KEY in tip.known.shadow and not isinstance(state, Extension):
            state = carry(state, tip.known)
        plan = Plan(tip, state, uid=uid, given=given, agent=self.agent, commit=draft, frozen=frozen)
        branch, new = draft.branch, plan.commit if files is None else plan.with_blobs(files.blobs, files.needs)
        try:
            view = self.backend.write(new.ask, commit(new))
        except BlobsAbsentError:  # a deletion took some that were thought to be kept
            new = plan.with_all_blobs({}, ()) if files is None else plan.with_all_blobs(files.blobs, files.needs)
            view = self.backend.write(new.ask, commit(new))
        except Stale:
            self.forget()
            raise
        row: CheckpointRow = view.answer
        if look is not None:
            look(view)
        tip = self._keep(branch, plan.tip(row, 0 if view.session is None else view.session.forgets))
        if seen:
            self.looks.moved(branch, row.id)
        recent = self.recent.heads.get((self.id, branch))
        if recent is not None and recent.records:
            self.recent.moved(branch, recent, plan.delta, plan.pieces, plan.moved(recent.loaded, tip, row))
        before = view.session
        if len(row.delta) <= packing.HOT_BYTES:
            # Where checkpoints were looked at, one may be this, by an earlier try of the same commit.
            left = None if view.checkpoints else view.fresh
            self._packer.hot.append((row, 0 if before is None else before.touched, left))
        if before is not None and row.sequence - before.packed >= packing.PACK_ROWS:
            self._packer.committed(row.sequence, before)
        made = to_checkpoint(row, self.id, lambda: self.state_of(row), tip.fields, lambda: self.files_of(row))
        if files is not None and self.after_files is not None:
            self.after_files(files.put_bytes)
        if self.events.listeners["checkpoint"]:
            self.events.emit("checkpoint", made)
        return made

    def _tip(self, branch: str, expect: Place, draft: Commit) -> Tip | None:
        """What is known of the head a commit goes on; None if there is none yet.

        A head that is not the expected one is refused by the rule itself, which knows what else stands against it.
        """
        try:
            found = load(self.backend, self.id, branch)
        except CorruptionError:
            return self._blind_tip(branch, expect, draft)
        if isinstance(found, Loaded):
            head: Place = NOTHING if found.lane is None else found.row.id
            if found.lane is None or expect not in (ANY, head):
                self._refuse(draft, expect)
            return self.remember(branch, found)
        session = found.session
        self._uid = None if session is None else session.uid
        if expect in (ANY, NOTHING) and session is not None and session.checkpoints:
            raise refusals.no_branch(self.id, branch)[1]  # a branch begins by a fork, or with `root`
        if expect not in (ANY, NOTHING):
            self._refuse(draft, expect)
        return None

    def _blind_tip(self, branch: str, expect: Place, draft: Commit) -> Tip:
        """The tip of a branch whose head cannot be read, so that work can go on behind it."""
        view = self.backend.read(Ask(self.id, names=(branch,), heads=True))
        lane = view.lanes.get(branch)
        if view.session is None or lane is None or lane.head is None or expect not in (ANY, lane.head.id):
            self._refuse(draft, expect)
            raise AssertionError  # pragma: no cover - refused above
        fields = None
        row = view.checkpoints.get(lane.head.sequence)
        if isinstance(row, CheckpointRow):
            with contextlib.suppress(CorruptionError):
                fields = read_fields(row)
        return Tip(view.session.uid, lane.head, fields, None)

    def _refuse(self, draft: Commit, expect: Place) -> None:
        """Let the rule say why this commit cannot be; Stale if it could be by now."""
        new = msgspec.structs.replace(draft, expect=expect if isinstance(expect, str) else None)

        def decide(view: View) -> Batch:
            uid = b"" if view.session is None else view.session.uid
            commit(msgspec.structs.replace(new, uid=uid))(view)
            raise Stale

        self.backend.write(new.ask, decide)
