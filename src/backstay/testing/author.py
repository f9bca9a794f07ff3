"""Histories in few lines, for tests that speak to a backend alone: an Author commits states, a Runner runs a branch.

Both go through the rules, as the hall does, with real deltas and keyframes. `read_back` reads a state and verifies all
of it. An Author decides itself when a keyframe is due, so that a test can put one where it wants it. The fields it
writes are text that only it understands: a backend must not look inside.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from backstay.delta import Known, Record, advance, know, rebuild, whole
from backstay.digest import state_digest
from backstay.errors import CorruptionError, NotFoundError
from backstay.ids import TAIL_BYTES, UID_BYTES, checkpoint_digest
from backstay.model import StateDict
from backstay.port import Ask, Backend, CallRow, CheckpointRow, Key, Kind, Records, Row, SegmentRow, Unreadable
from backstay.port.lease import Holder, here
from backstay.port.rows import DONE, STARTED, Head, key_of
from backstay.rules import branches, runs
from backstay.rules.commit import Commit, Totals
from backstay.rules.commit import commit as commit_rule
from backstay.rules.deletion import Deletion, Rewrite, delete_checkpoints
from backstay.rules.refusals import Lease
from backstay.sealing import open_blob, open_delta, open_keyframe, pack_blob, seal_delta, seal_keyframe, spill, unspill
from backstay.testing.exact import exactly_equal

NOW_US = 1_700_000_000_000_000
SESSION = "a session"

Random = Callable[[int], bytes]


class Author:
    """One writer on one branch. `states` is what every checkpoint it wrote must give back, by sequence."""

    def __init__(
        self,
        backend: Backend,
        session: str = SESSION,
        *,
        branch: str = "main",
        keyframe_every: int = 12,
        random: Random = secrets.token_bytes,
    ) -> None:
        self.backend = backend
        self.session = session
        self.branch = branch
        self.keyframe_every = keyframe_every
        self.states: dict[int, StateDict] = {}
        self.rows: list[CheckpointRow] = []
        self.state: StateDict = {}
        self.head: Head | None = None
        self.place = 0
        self._random = random
        self._known: Known | None = None
        line = backend.read(Ask(session)).session
        self.uid = random(UID_BYTES) if line is None else line.uid

    def stand_on(self, ref: str | int) -> Author:
        """Go on from a checkpoint, or from where a name points, as a process does that has just read it."""
        records = self.backend.state(self.session, ref)
        self.state = open_records(records)
        row = records.rows[-1]
        assert isinstance(row, CheckpointRow)
        assert records.session is not None
        self.uid, self.head, self.place = records.session.uid, row.head, len(records.rows) - 1
        self._known = know(self.state)
        return self

    def stand_on_head(self) -> Author:
        """Go on from where the branch points now."""
        return self.stand_on(self.branch)

    def draft(
        self,
        state: StateDict,
        *,
        keyframe: bool | None = None,
        delta: bool = True,
        id_: str | None = None,
        totals: Totals | None = None,
        fields: bytes | None = None,
        **options: Any,
    ) -> Commit:
        """A commit of this state on the place where the author is; `options` are further fields of Commit."""
        tail = self._random(TAIL_BYTES)
        step: Record | None = None
        pieces: dict[bytes, bytes] = {}
        if self._known is None:
            known = know(state)
        else:
            step, pieces, known = advance(self._known, state)
        base = b"" if self.head is None else self.head.state_digest
        packed = _Packed()
        if step is not None and delta:
            sealed = seal_delta(step, uid=self.uid, tail=tail, base=base, state=known.digest)
            options["delta"], options["refs"] = packed.add(sealed, step, pieces)
        due = self.place + 1 >= self.keyframe_every if keyframe is None else keyframe
        if step is None or due or not delta:
            copy, pieces = whole(state)
            sealed = seal_keyframe(copy, uid=self.uid, tail=tail, state=known.digest)
            options["keyframe"], options["keyframe_refs"] = packed.add(sealed, copy, pieces)
        return Commit(
            session=self.session,
            branch=self.branch,
            uid=self.uid,
            tail=tail,
            expect=None if self.head is None else self.head.id,
            fields=f"the fields of {tail.hex()}".encode() if fields is None else fields,
            state_digest=known.digest,
            size_bytes=known.size_bytes,
            totals=totals or totals_at(NOW_US),
            blobs=packed.blobs,
            id=id_,
            **options,
        )

    def write(self, new: Commit, state: StateDict) -> CheckpointRow:
        """Hand a draft to the backend; if it takes it, go on from there."""
        row = self.backend.write(new.ask, commit_rule(new)).answer
        assert isinstance(row, CheckpointRow)
        self.rows.append(row)
        self.states[row.sequence] = state
        self.state, self.head, self._known = state, row.head, know(state)
        self.place = self.place + 1 if new.keyframe is None else 0
        return row

    def commit(self, state: StateDict, **options: Any) -> CheckpointRow:
        """Draft and write."""
        return self.write(self.draft(state, **options), state)

    def grow(self, count: int, **options: Any) -> list[CheckpointRow]:
        """Some turns of a conversation: appended to, now and then trimmed, with pictures that come back."""
        first = len(self.rows)
        return [self.commit(next_turn(self.state, first + at), **options) for at in range(count)]

    def fork(self, row: CheckpointRow, branch: str) -> Author:
        """A new branch at a checkpoint, and an author for it."""
        fork(self.backend, self.session, row, branch)
        other = Author(self.backend, self.session, branch=branch, keyframe_every=self.keyframe_every)
        if row.sequence in self.states:
            other.states[row.sequence] = self.states[row.sequence]
        return other.stand_on(row.sequence)


class Runner:
    """A run on a branch: entered when it is made. `author` writes its boundaries."""

    def __init__(
        self,
        backend: Backend,
        session: str = SESSION,
        branch: str = "main",
        *,
        lease_s: float = 30,
        holder: Holder | None = None,
        expect_token: int | None = None,
        input_: bytes | None = None,
        random: Random = secrets.token_bytes,
    ) -> None:
        self.backend = backend
        self.author = Author(backend, session, branch=branch, random=random)
        self._random = random
        new = entering(
            self.author.uid, session, branch, lease_s=lease_s, holder=holder, nonce=random(8), input_=input_,
            expect_token=expect_token,
        )  # fmt: skip
        entered = backend.write(new.ask, runs.enter(new)).answer
        assert isinstance(entered, runs.Entered)
        self.entered = entered
        self.lease: Lease = entered.lease
        if entered.lane.head is not None:
            self.author.stand_on_head()

    def start(self, name: str = "tool", **fields: Any) -> CallRow:
        """Write down that a call begins."""
        call = call_row(self._random(8).hex(), name=name, token=self.lease.token, **fields)
        row = self.backend.write(runs.journal_ask(self.lease, None), runs.journal(self.lease, call, at=None)).answer
        assert isinstance(row, CallRow)
        return row

    def finish(self, call: CallRow, **fields: Any) -> CallRow:
        """Write down what became of it: done, with a result, unless something else is said."""
        after = msgspec.structs.replace(call, **({"status": DONE, "result": b"a result", "ended_us": NOW_US} | fields))
        ask = runs.journal_ask(self.lease, call.at)
        row = self.backend.write(ask, runs.journal(self.lease, after, at=call.at)).answer
        assert isinstance(row, CallRow)
        return row

    def call(self, name: str = "tool", **fields: Any) -> CallRow:
        """A call from its beginning to its end."""
        return self.finish(self.start(name), **fields)

    def boundary(self, state: StateDict | None = None, **options: Any) -> CheckpointRow:
        """A checkpoint that takes in what is pending."""
        after = next_turn(self.author.state, len(self.author.rows)) if state is None else state
        return self.author.commit(after, lease=self.lease, **options)

    def renew(self) -> None:
        """Hold on."""
        self.backend.write(runs.lease_ask(self.lease), runs.renew(self.lease))

    def leave(self, status: str | None = None, reason: str | None = None) -> None:
        """Give the lease back; without a status the run was interrupted."""
        self.backend.write(runs.leave_ask(self.lease), runs.leave(self.lease, status=status, reason=reason))


class _Packed:
    """Collects what the rows of one commit are made of."""

    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}

    def add(self, sealed: bytes, record: Record, pieces: Mapping[bytes, bytes]) -> tuple[bytes, tuple[bytes, ...]]:
        data, parts = spill(sealed)
        self.blobs |= {digest: pack_blob(piece) for digest, piece in pieces.items()} | parts
        return data, tuple(dict.fromkeys([*record.refs, *parts]))


def entering(
    uid: bytes,
    session: str = SESSION,
    branch: str = "main",
    *,
    lease_s: float = 30,
    holder: Holder | None = None,
    nonce: bytes = b"a nonce",
    input_: bytes | None = None,
    expect_token: int | None = None,
) -> runs.Enter:
    """A run about to begin, in this process unless another is named."""
    return runs.Enter(
        session=session,
        branch=branch,
        uid=uid,
        nonce=nonce,
        holder=holder or here(),
        agent=None,
        lease_us=round(lease_s * 1e6),
        at_us=NOW_US,
        input=input_,
        expect_token=expect_token,
    )


def call_row(id_: str, *, at: tuple[int, int, int] = (0, 0, 0), **fields: Any) -> CallRow:
    """A call that has begun, unless the fields say otherwise."""
    given: dict[str, Any] = {"parent": None, "name": "tool", "key": None, "nth": 0, "kind": "tool", "args": b"args"}
    given |= {"args_digest": bytes(16), "status": STARTED, "token": 1, "started_us": NOW_US}
    return CallRow(*at, id=id_, **(given | fields))


def totals_at(at_us: int, *, status: str = "in_progress", agent: str | None = None) -> Totals:
    """Totals as a commit made at that time would bring them."""
    return Totals(agent, status, None, None, b"", at_us)


def next_turn(state: StateDict, number: int) -> StateDict:
    """The state after one more turn. Each change that a conversation knows comes up within a few turns."""
    messages = list(state.get("messages", []))
    if number % 20 == 19:
        messages = [{"role": "system", "content": f"what happened before turn {number}"}, *messages[-6:]]
    question = {"role": "user", "content": f"question {number}: " + "and why is that so? " * (number % 5 + 2)}
    answer: dict[str, Any] = {"role": "assistant", "content": f"answer {number}: because " + "it is so, " * 8}
    if number % 7 == 3:
        answer["image"] = bytes([number % 3]) * 9_000
    notes = f"{state.get('notes', '')} Turn {number} was noted."
    return {**state, "messages": [*messages, question, answer], "notes": notes, "turn": number}


# reading


def read_back(backend: Backend, session: str, ref: str | int, *, without: Collection[int] = ()) -> StateDict:
    """A state, everything verified; CorruptionError if any of it is not as it was written."""
    return open_records(backend.state(session, ref, without=without))


def open_records(records: Records) -> StateDict:
    """The state that some records lead to, everything verified."""
    if records.session is None or not records.rows:
        raise NotFoundError("there is no such checkpoint")
    rows = [check_row(row) for row in records.rows]
    uid = records.session.uid
    first, last = rows[0], rows[-1]
    if records.keyframe is None:
        raise CorruptionError(f"no keyframe leads to checkpoint #{last.sequence}")
    keyframe = unspill(records.keyframe, records.blobs)
    chain = [open_keyframe(keyframe, uid=uid, tail=first.tail, state=first.state_digest)]
    for before, row in pairwise(rows):
        if row.parent != before.sequence or not row.delta:
            raise CorruptionError(f"nothing leads from checkpoint #{before.sequence} to #{row.sequence}")
        delta = unspill(row.delta, records.blobs)
        base = before.state_digest
        chain.append(open_delta(delta, uid=uid, tail=row.tail, base=base, state=row.state_digest))
    needed = {ref for record in chain for ref in record.refs}
    pieces = {ref: open_blob(records.blobs[ref], ref) for ref in needed if ref in records.blobs}
    state = rebuild(chain, pieces).state
    if state_digest(state) != last.state_digest:
        raise CorruptionError(f"the state of checkpoint #{last.sequence} does not match its digest")
    return state


def check_row(row: CheckpointRow | Unreadable) -> CheckpointRow:
    """A checkpoint whose digest covers what it says; CorruptionError for any other."""
    if isinstance(row, Unreadable):
        raise CorruptionError(row.why)
    expected = checkpoint_digest(
        id_=row.id, parent=row.parent_digest, state=row.state_digest, sequence=row.sequence, fields=row.fields
    )
    if expected != row.digest:
        raise CorruptionError(f"checkpoint #{row.sequence} does not match its digest")
    return row


def every_row(backend: Backend, session: str, kind: Kind, *, hidden: bool = False) -> list[Row | Unreadable]:
    """All rows of one kind, page by page: only an empty page is the end."""
    found: list[Row | Unreadable] = []
    after: Key | None = None
    while page := backend.scan(session, kind, after=after, limit=500, hidden=hidden):
        found += page
        after = page[-1].last if isinstance(page[-1], SegmentRow) else key_in(page[-1])
    return found


def key_in(row: Row | Unreadable) -> Key:
    """The key of a row, or of what stands in its place."""
    return row.key if isinstance(row, Unreadable) else key_of(row)


def check_states(backend: Backend, session: str, states: Mapping[int, StateDict]) -> None:
    """Every one of these checkpoints gives back what was put in, and there are no others."""
    rows = every_row(backend, session, Kind.CHECKPOINT)
    assert [row.sequence for row in rows if isinstance(row, CheckpointRow)] == sorted(states)
    for sequence, state in states.items():
        assert exactly_equal(read_back(backend, session, sequence), state), f"#{sequence} gives back another state"


# names and deletion


def fork(backend: Backend, session: str, row: CheckpointRow, branch: str) -> None:
    """A new branch at a checkpoint."""
    rule = branches.fork(session, branch, sequence=row.sequence, id_=row.id)
    backend.write(branches.naming_ask(session, branch, row.sequence), rule)


def tag(backend: Backend, session: str, row: CheckpointRow, name: str) -> None:
    """A tag on a checkpoint."""
    rule = branches.tag(session, name, sequence=row.sequence, id_=row.id)
    backend.write(branches.naming_ask(session, name, row.sequence), rule)


def plan_deletion(backend: Backend, session: str, *gone: int, spare_names: bool = False) -> Deletion:
    """A deletion as the hall plans it: children that stay are given keyframes, and rest on what stays."""
    view = backend.read(Ask(session, sequences=gone, children_of=gone))
    assert view.session is not None
    anchors: dict[int, int | None] = {}
    for sequence in gone:
        at: int | None = sequence
        while at is not None and at in gone:
            at = _found(backend, session, at).parent
        anchors[sequence] = at
    rewrites, packed = [], _Packed()
    for parent in gone:
        for child in sorted(set(view.children[parent]) - set(gone)):
            row = _found(backend, session, child)
            assert isinstance(row, CheckpointRow)
            copy, pieces = whole(read_back(backend, session, child))
            sealed = seal_keyframe(copy, uid=view.session.uid, tail=row.tail, state=row.state_digest)
            data, refs = packed.add(sealed, copy, pieces)
            rewrites.append(Rewrite(child, anchors[parent], keyframe=data, keyframe_refs=refs))
    staying = tuple(sorted({at for at in anchors.values() if at is not None}))
    return Deletion(session, view.session.uid, gone, tuple(rewrites), staying, packed.blobs, spare_names)


def _found(backend: Backend, session: str, sequence: int) -> CheckpointRow | Unreadable:
    """A checkpoint that was there a moment ago."""
    for row in backend.ancestors(session, sequence, limit=1):
        return row
    raise NotFoundError(f"checkpoint #{sequence} was deleted meanwhile")


def delete(backend: Backend, session: str, *gone: int, spare_names: bool = False) -> int:
    """Delete checkpoints as the hall does. How many went."""
    plan = plan_deletion(backend, session, *gone, spare_names=spare_names)
    answer = backend.write(plan.ask, delete_checkpoints(plan)).answer
    assert isinstance(answer, int)
    return answer
