"""The rules of repair: counts that are not those of the rows, names that lead nowhere, names that cannot be read.

They change what leads to checkpoints and never a checkpoint. Each looks whether the damage is still as it was found.
"""

from __future__ import annotations

import msgspec

from backstay.port import Ask, Batch, CheckpointRow, Decide, Key, Kind, LaneRow, SessionRow, View
from backstay.rules import refusals


class Counts(msgspec.Struct, frozen=True, gc=False):
    """The rows that a session has, as far as they are there."""

    checkpoints: int
    lanes: int
    tags: int
    logical_bytes: int


def recount(session: str, counts: Counts, *, touched: int) -> Decide:
    """Let a session's line count what is there; ConflictError if it was written to since it had this number."""

    def decide(view: View) -> Batch:
        line = _line(view, session)
        if line.touched != touched:
            raise refusals.changed(session, "it was written to meanwhile")[1]
        return Batch((msgspec.structs.replace(line, touched=view.fresh, **msgspec.structs.asdict(counts)),))

    return decide


def point_back_ask(session: str, name: str, *, nowhere: int, to: int | None) -> Ask:
    """The rows that `point_back` reads."""
    return Ask(session, names=(name,), sequences=(nowhere,) if to is None else (nowhere, to))


def point_back(session: str, name: str, *, nowhere: int, to: int | None) -> Decide:
    """A name that leads to the missing checkpoint `nowhere`: a branch goes back to `to`, a tag goes, an undo is over.

    What is pending on a branch stays pending. The answer says what was done, None if nothing had to be.
    """

    def decide(view: View) -> Batch:
        lane, tag = view.lanes.get(name), view.tags.get(name)
        if nowhere in view.checkpoints:
            return Batch()
        line = msgspec.structs.replace(_line(view, session), touched=view.fresh)
        if tag is not None and tag.sequence == nowhere:
            fewer = msgspec.structs.replace(line, tags=line.tags - 1)
            return Batch((fewer,), ((Kind.NAME, name),), answer=f"tag {name!r} led nowhere and was removed")
        change: dict[str, object] = {}
        done = ""
        if lane is not None and lane.undo == nowhere:
            change, done = (
                {"undo": None, "undo_journal": None, "undo_calls": 0, "undo_wait": None},
                "has no undo any more",
            )
        if lane is not None and lane.head is not None and lane.head.sequence == nowhere:
            refusals.settle(refusals.held(view, name))
            row = None if to is None else view.checkpoints.get(to)
            head = row.head if isinstance(row, CheckpointRow) else None
            change |= {"head": head, "token": lane.token + 1}
            done = "has no checkpoint now" if head is None else f"is at {head.id[:12]} now"
        if lane is None or not change:
            return Batch()
        answer = f"branch {name!r} led nowhere and {done}"
        return Batch((line, msgspec.structs.replace(lane, **change)), wakes=True, answer=answer)

    return decide


def remake_ask(session: str, *, to: int | None) -> Ask:
    """The rows that `remake` reads. The name is not among them: it is damaged."""
    return Ask(session, sequences=() if to is None else (to,))


def remake(session: str, name: str, *, to: int | None, run: int) -> Decide:
    """A name whose row cannot be read is a branch at `to` again; without one it goes. Counts are made good apart.

    `run` has the calls that were made on that checkpoint, 0 if there are none: they are pending again, because to make
    them once more might be to do them twice. The answer says what was done.
    """

    def decide(view: View) -> Batch:
        _line(view, session)
        row = None if to is None else view.checkpoints.get(to)
        if not isinstance(row, CheckpointRow):
            drop: tuple[Kind, Key] = (Kind.NAME, name)
            return Batch(drops=(drop,), answer=f"{name!r} could not be read and was removed")
        # A run that still lives has a smaller token, and is fenced: no process can read its row.
        token = view.fresh
        lane = LaneRow(name, head=row.head, journal=row.sequence, run=run, token=token, unfinished=run != 0)
        return Batch((lane,), wakes=True, answer=f"branch {name!r} could not be read and is at {row.id[:12]} now")

    return decide


def _line(view: View, session: str) -> SessionRow:
    if view.session is None:
        raise refusals.no_session(session)[1]
    return view.session
