"""The rules by which contents of files are forgotten.

Groups are cut only if no session was touched since it was decided what may go. A commit, a restore and an import touch
their session, in the transaction that makes them need contents. So what was found to be needed by nothing, with this
very number, is needed by nothing in the moment in which it goes. Short patches stand in the states themselves: those
are rewritten with other bytes and the same digests, while no run is alive that could write them again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backstay.port import EVERY, Ask, Batch, CallRow, CheckpointRow, Decide, SegmentRow, View
from backstay.rules import refusals
from backstay.rules.deletion import Rewrite, rewritten_rows
from backstay.rules.packing import is_same


def fresh_ask(session: str) -> Ask:
    """The rows that these rules read."""
    return Ask(session)


def fresh() -> Decide:
    """Look at the number that the next write of any session will take; nothing is written."""
    return lambda view: Batch(answer=view.fresh)


def cut(session: str, planned: int, remnants: Mapping[bytes, bytes]) -> Decide:
    """Leave remnants in the places of blobs. The answer is False if a session was touched since `planned` was fresh."""

    def decide(view: View) -> Batch:
        row = view.session
        if row is None:
            raise refusals.no_session(session)[1]
        if view.fresh != planned:
            return Batch(answer=view.again and row.touched == planned)  # an earlier try may have gone through
        return Batch((msgspec.structs.replace(row, touched=view.fresh),), cuts=remnants, answer=True)

    return decide


class Redaction(msgspec.Struct, frozen=True, gc=False):
    """States of a session rewritten without patches that are to be forgotten, and calls without what they kept.

    Checkpoints up to `packed` are in segments: those concerned are in `before` as they were read, in `segments` as they
    will be. `touched` is the session's number when all of it was read.
    """

    session: str
    touched: int
    packed: int
    rewrites: tuple[Rewrite, ...] = ()
    blobs: Mapping[bytes, bytes] = {}
    before: tuple[SegmentRow, ...] = ()
    segments: tuple[SegmentRow, ...] = ()
    calls: tuple[CallRow, ...] = ()

    @property
    def ask(self) -> Ask:
        """The rows that the rule reads."""
        return Ask(
            self.session,
            names=EVERY,
            sequences=tuple([rewrite.sequence for rewrite in self.rewrites]),
            segments=tuple([segment.first for segment in self.before]),
            calls=tuple([call.at for call in self.calls]),
        )


def redact(new: Redaction) -> Decide:
    """Put the rewritten rows. The answer is the session's new number; ConflictError if it was written to meanwhile."""

    def decide(view: View) -> Batch:
        line = view.session
        if line is None:
            raise refusals.no_session(new.session)[1]
        if view.again and line.touched != new.touched and _is_done(new, view):
            return Batch(answer=line.touched)
        found = [reason for lane in view.lanes for reason in refusals.held(view, lane)]
        same = [is_same(view.segments.get(segment.first), segment) for segment in new.before]
        rows = [view.checkpoints.get(rewrite.sequence) for rewrite in new.rewrites]
        if (line.touched, line.packed) != (new.touched, new.packed) or not all(same):
            found.append(refusals.changed(new.session, "it was written to meanwhile"))
        if not all([isinstance(row, CheckpointRow) for row in rows]):
            found.append(refusals.changed(new.session, "checkpoints were deleted meanwhile"))
        refusals.settle(found)
        after = msgspec.structs.replace(line, touched=view.fresh, forgets=line.forgets + 1)
        puts = (after, *rewritten_rows(new.rewrites, new.packed, view), *new.segments, *new.calls)
        return Batch(puts, blobs=new.blobs, erases=True, answer=view.fresh)

    return decide


def _is_done(new: Redaction, view: View) -> bool:
    """True if an earlier try of this very write went through."""
    found = [view.checkpoints.get(rewrite.sequence) for rewrite in new.rewrites if rewrite.sequence > new.packed]
    wanted = [rewrite.delta for rewrite in new.rewrites if rewrite.sequence > new.packed]
    segments = [is_same(view.segments.get(segment.first), segment) for segment in new.segments]
    same = [isinstance(row, CheckpointRow) and row.delta == delta for row, delta in zip(found, wanted, strict=True)]
    return all(same) and all(segments) and all([view.calls.get(call.at) == call for call in new.calls])
