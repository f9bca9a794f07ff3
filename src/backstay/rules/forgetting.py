"""The rule by which contents of files are forgotten: only if no session was touched since it was decided what may go.

A commit, a restore and an import touch their session, in the transaction that makes them need contents. So what was
found to be needed by nothing, with this very number, is needed by nothing in the moment in which it goes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backstay.port import Ask, Batch, Decide, View
from backstay.rules import refusals


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
