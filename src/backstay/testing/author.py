"""A writer for tests that speaks to a backend alone: histories with known states, and the way they are read back.

An Author decides itself when a whole copy or a roll is due, so that a test can put one where it wants it. What it
hands to the backend as fields is text that only it understands: a backend must not look inside.
"""

from __future__ import annotations

import secrets
from typing import Any

from backstay.backend import Backend, Commit, Deletion, Rewrite, Row, Totals, next_prefix
from backstay.delta import Known, Record, advance, know, merge, rebuild, refs_of, whole
from backstay.digest import checkpoint_digest, state_digest
from backstay.errors import CorruptionError
from backstay.model import StateDict
from backstay.testing.exact import exactly_equal

NOW_US = 1_700_000_000_000_000


class Author:
    """One writer on one branch. `states` is what every checkpoint it wrote must give back."""

    def __init__(
        self,
        backend: Backend,
        session: str = "a session",
        *,
        branch: str = "main",
        whole_every: int = 24,
        roll_every: int = 10,
    ) -> None:
        self.backend = backend
        self.session = session
        self.branch = branch
        self.whole_every = whole_every
        self.roll_every = roll_every
        self.states: dict[str, StateDict] = {}
        self.rows: list[Row] = []
        self.state: StateDict = {}
        self.head_id: str | None = None
        self.place = 0
        self.prefix = b""
        self.epoch = 0
        self._known: Known | None = None
        self._singles: tuple[Record, ...] = ()
        self._roll_base: str | None = None

    def stand_on(self, id_: str) -> Author:
        """Go on from a checkpoint, as a process does that has just read it."""
        chain = self.backend.chain(self.session, id_)
        self.state = read_back(self.backend, self.session, id_)
        self._known = know(self.state)
        self.head_id, self.place, self.prefix, self.epoch = id_, chain.place, chain.prefix, chain.epoch
        self._singles, self._roll_base = chain.records[len(chain.records) - chain.singles :], chain.roll_base
        return self

    def stand_on_head(self) -> Author:
        """Go on from where the branch stands now."""
        found = self.backend.find_branch(self.session, self.branch)
        assert found is not None, f"there is no branch {self.branch!r}"
        return self.stand_on(found.head_id)

    def draft(
        self,
        state: StateDict,
        *,
        id_: str | None = None,
        fields: bytes = b"",
        keep_whole: bool | None = None,
        keep_delta: bool = True,
        undo_to: str | None = None,
        totals: Totals | None = None,
        **run: Any,
    ) -> Commit:
        """A commit of this state on the place where the author stands; `run` is what only runs and undos say."""
        delta: Record | None = None
        copy: Record | None = None
        roll: Record | None = None
        blobs: dict[bytes, bytes] = {}
        if self._known is None:
            known = know(state)
        else:
            delta, blobs, known = advance(self._known, state)
        due = self.place >= self.whole_every if keep_whole is None else keep_whole
        if delta is None or due:
            copy, more = whole(state)
            delta, blobs = (delta, {**blobs, **more}) if keep_delta else (None, more)
        elif self.roll_every and len(self._singles) + 1 >= self.roll_every and self._roll_base is not None:
            roll = merge([*self._singles, delta])
        name = id_ or secrets.token_hex(12)
        return Commit(
            session=self.session,
            branch=self.branch,
            id=name,
            expect=self.head_id,
            fields=fields or f"the fields of {name}".encode(),
            state_digest=known.digest,
            base_digest=None if self._known is None else self._known.digest,
            delta=delta,
            whole=copy,
            roll=roll,
            roll_base=None if roll is None else self._roll_base,
            prefix=self.prefix,
            epoch=self.epoch,
            blobs=blobs,
            size_bytes=known.size_bytes,
            totals=totals or totals_at(NOW_US),
            undo_to=undo_to,
            **run,
        )

    def write(self, commit: Commit, state: StateDict) -> Row:
        """Hand a draft to the backend; if it takes it, stand on it."""
        row = self.backend.commit(commit)
        self.rows.append(row)
        self.states[row.id] = state
        self.state, self.head_id, self._known = state, row.id, know(state)
        if commit.whole is not None or commit.delta is None:
            self.place, self.prefix, self._singles, self._roll_base = 0, b"", (), row.id
        else:
            self.place += 1
            self.prefix = next_prefix(self.place, self.prefix, commit.delta.body)
            rolled = commit.roll is not None
            self._singles = () if rolled else (*self._singles, commit.delta)
            self._roll_base = row.id if rolled else self._roll_base
        return row

    def commit(self, state: StateDict, **options: Any) -> Row:
        """Draft and write."""
        return self.write(self.draft(state, **options), state)

    def grow(self, count: int, **options: Any) -> list[Row]:
        """Some turns of a conversation: appended to, now and then trimmed, with pictures that come back."""
        first = len(self.rows)
        return [self.commit(next_turn(self.state, first + at), **options) for at in range(count)]

    def fork(self, id_: str, branch: str) -> Author:
        """A new branch at a checkpoint, and an author for it."""
        self.backend.fork(self.session, id_=id_, branch=branch)
        other = Author(
            self.backend, self.session, branch=branch, whole_every=self.whole_every, roll_every=self.roll_every
        )
        other.states.update({id_: self.states[id_]} if id_ in self.states else {})
        return other.stand_on(id_)


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
        answer["image"] = bytes([number % 3]) * 5_000
    notes = f"{state.get('notes', '')} Turn {number} was noted."
    return {**state, "messages": [*messages, question, answer], "notes": notes, "turn": number}


def read_row(row: Row) -> Row:
    """The row, if its digest covers it; CorruptionError otherwise."""
    expected = checkpoint_digest(
        id_=row.id, parent=row.parent_digest, state=row.state_digest, sequence=row.sequence, fields=row.fields
    )
    if expected != row.digest:
        message = f"the row of {row.id[:12]} does not match its digest"
        raise CorruptionError(message)
    return row


def read_back(backend: Backend, session: str, id_: str) -> StateDict:
    """The state of a checkpoint, everything verified; CorruptionError if any of it is not as it was written."""
    chain = backend.chain(session, id_)
    read_row(chain.row)
    needed = refs_of(chain.records)
    state = rebuild(chain.records, dict(backend.blobs(needed)) if needed else {}).state
    if state_digest(state) != chain.row.state_digest:
        message = f"the state of {id_[:12]} does not match its digest"
        raise CorruptionError(message)
    return state


def check_states(backend: Backend, session: str, states: dict[str, StateDict]) -> None:
    """Every one of these checkpoints gives back what was put in, and there are no others."""
    assert set(backend.ids(session)) == set(states)
    for id_, state in states.items():
        assert exactly_equal(read_back(backend, session, id_), state), f"{id_} gives back another state"


def delete(backend: Backend, session: str, id_: str) -> None:
    """Delete a checkpoint as the store does: its children are given whole copies of their own."""
    rewrites = []
    for child in backend.children(session, id_):
        record, blobs = whole(read_back(backend, session, child))
        rewrites.append(Rewrite(child, record, blobs))
    backend.delete_checkpoints(Deletion(session, (id_,), tuple(rewrites)))
