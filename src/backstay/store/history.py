"""One session's history as the hall reads and writes it: load, plan, write. What Session and Run share.

A History keeps what is known of the heads it wrote (see plan), so that a commit costs what changed, and where each
branch was last seen (see looks), so that it never writes over what its caller has not seen.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

import msgspec

from backstay.delta import advance
from backstay.errors import ConflictError, CorruptionError
from backstay.messages import summarise
from backstay.model import ANY, NOTHING, Checkpoint, SessionId, StateDict, Usage
from backstay.port import Ask, Backend, Batch, BlobsAbsentError, CallKey, CheckpointRow, LaneRow, Stale, View
from backstay.rules import refusals
from backstay.rules.commit import Commit, Totals, commit
from backstay.rules.refusals import Lease
from backstay.store.events import Events
from backstay.store.fields import Fields, check_state, encode_usage, read_fields, to_checkpoint, total_of
from backstay.store.looks import Looks, Place
from backstay.store.plan import Plan, Tip, tip_of
from backstay.store.reading import Loaded, load
from backstay.store.refs import Ref, Refs

RACES = 100  # tries of a write that expects nothing before it gives up and reports the conflict

MakeFields = Callable[[Fields | None], Fields]
_NO_TOTALS = Totals(None, "in_progress", None, None, b"", 0)


class History:
    """See the module's text. Threads may share it as far as Looks says."""

    def __init__(self, backend: Backend, events: Events, id_: SessionId, *, agent: str | None) -> None:
        self.backend = backend
        self.events = events
        self.id = id_
        self.agent = agent
        self.refs = Refs(backend, id_)
        self.looks = Looks()
        self._tips: dict[str, Tip] = {}
        self._uid: bytes | None = None

    # reading

    def load(self, ref: Ref, *, salvage: bool = False) -> Loaded:
        """The state at a ref with where it was read: one read for a branch or a tag."""
        if isinstance(ref, str) and ref:
            found = self._read(self.refs.text(ref), salvage=salvage)
            if found is not None:
                return found
        row = self.refs.row(ref)
        found = self._read(row.sequence, salvage=salvage)
        if found is None or found.row.id != row.id:
            raise refusals.no_checkpoint(self.id, row.id)[1]
        return found

    def find(self, ref: str | int) -> Loaded | None:
        """The state at a branch, a tag or a sequence; None if there is none."""
        return self._read(ref)

    def _read(self, ref: str | int, *, salvage: bool = False) -> Loaded | None:
        try:
            found = load(self.backend, self.id, ref, salvage=salvage)
            if isinstance(found, Loaded):
                read_fields(found.row)
                return found
        except CorruptionError as error:
            message = f"session {self.id!r}: the state at {ref!r} is damaged: {error.args[0]}"
            hint = "session.newest_intact() finds the newest one that is whole"
            raise CorruptionError(message, hint=hint) from error
        return None

    def state_of(self, row: CheckpointRow) -> StateDict:
        """The state of a checkpoint."""
        found = self._read(row.sequence)
        if found is None or found.row.id != row.id:
            raise refusals.no_checkpoint(self.id, row.id)[1]
        return found.state

    def checkpoint(self, row: CheckpointRow, fields: Fields | None = None) -> Checkpoint:
        """A row as people hold it; verified, unless its fields were made here a moment ago."""
        return to_checkpoint(row, self.id, lambda: self.state_of(row), fields)

    def lane(self, branch: str) -> LaneRow:
        """A branch's row; NotFoundError if there is none with a checkpoint."""
        lane = self.backend.read(Ask(self.id, names=(branch,))).lanes.get(branch)
        if lane is None or lane.head is None:
            raise refusals.no_branch(self.id, branch)[1]
        return lane

    # what is known of heads

    def remember(self, branch: str, loaded: Loaded) -> Tip:
        """Keep what was read of a branch's head for the next commit."""
        tip = self._tips[branch] = tip_of(loaded)
        return tip

    def remember_as(self, branch: str, head_id: str) -> None:
        """A new branch at a head that is known."""
        for tip in self._tips.values():
            if tip.head.id == head_id:
                self._tips[branch] = tip
                break

    def forget(self, branch: str | None = None) -> None:
        """What is known of a branch, or of all, may be out of date."""
        if branch is None:
            self._tips.clear()
        else:
            self._tips.pop(branch, None)

    def is_at_head(self, branch: str, state: StateDict) -> bool:
        """True if a state is the one that was last written or read on the branch."""
        tip = self._tips.get(branch)
        return tip is not None and tip.known is not None and advance(tip.known, state)[2].digest == tip.known.digest

    # writing

    def fields(
        self,
        parent: Fields | None,
        state: StateDict,
        *,
        branch: str,
        trigger: str,
        status: str,
        step: int | None,
        label: str | None = None,
        reason: str | None = None,
        used: Usage,
        metadata: bytes = b"",
        resume_hint: str | None = None,
        restored_from: str | None = None,
        loop: bytes = b"",
        summary: str | None = None,
    ) -> Fields:
        """The fields of a checkpoint on this parent."""
        return Fields(
            at_us=time.time_ns() // 1000,
            branch=branch,
            trigger=trigger,
            status=status,
            step=step,
            label=label,
            reason=reason,
            agent=self.agent or (parent.agent if parent else None),
            usage=encode_usage(used),
            total=total_of(parent, used),
            metadata=metadata,
            resume_hint=resume_hint,
            restored_from=restored_from,
            summary=summarise(state) if summary is None else summary,
            loop=loop,
        )

    def write(
        self,
        branch: str,
        state: StateDict,
        fields: MakeFields,
        *,
        expect: Place,
        id_: str | None = None,
        root: bool = False,
        frozen: bool = False,
        undoable: bool = False,
        takes_up: bool = False,
        lease: Lease | None = None,
        places: Mapping[CallKey, bytes] | None = None,
        ends_run: bool = False,
    ) -> Checkpoint:
        """Commit on the expected head; with ANY, on whatever head there is. Durable when this returns."""
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
            ends_run=ends_run,
        )
        for _ in range(RACES):
            with contextlib.suppress(Stale):
                tip = None if root else self._tip(branch, expect, draft)
                if root:
                    session = self.backend.read(Ask(self.id)).session
                    self._uid = None if session is None else session.uid
                uid = self._uid if tip is None else tip.uid
                parent = None if tip is None else tip.fields
                draft = msgspec.structs.replace(draft, expect=None if tip is None else tip.head.id)
                plan = Plan(tip, state, uid=uid, fields=fields(parent), commit=draft, frozen=frozen)
                try:
                    return self._written(branch, plan)
                except ConflictError:
                    self.forget(branch)
                    if expect is not ANY or id_ is not None or root:
                        raise
        message = f"session {self.id!r}: branch {branch!r} moved {RACES} times while this commit was tried"
        raise ConflictError(message, hint="try again, or use a branch of its own")

    def _written(self, branch: str, plan: Plan) -> Checkpoint:
        new = plan.commit
        try:
            row = self.backend.write(new.ask, commit(new)).answer
        except BlobsAbsentError:  # a deletion took some that were thought to be kept
            new = plan.with_all_blobs()
            row = self.backend.write(new.ask, commit(new)).answer
        except Stale:
            self.forget()
            raise
        tip = self._tips[branch] = plan.tip(row)
        self.looks.moved(branch, row.id)
        made = self.checkpoint(row, tip.fields)
        self.events.emit("checkpoint", made)
        return made

    def _tip(self, branch: str, expect: Place, draft: Commit) -> Tip | None:
        """What is known of the head a commit goes on; None if there is none yet.

        A head that is not the expected one is refused by the rule itself, which knows what else stands against it.
        """
        tip = self._tips.get(branch)
        if tip is not None and (expect is ANY or tip.head.id == expect):
            return tip
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
        if expect is ANY and session is not None and session.checkpoints:
            raise refusals.no_branch(self.id, branch)[1]
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
