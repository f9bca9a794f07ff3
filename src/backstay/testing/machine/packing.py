"""The rule that packs: whatever is done to a history afterwards is done to packed checkpoints."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from backstay.port import Ask
from backstay.store.packing import pack_older
from backstay.testing.machine.histories import SESSIONS, Histories


class PackedHistories(Histories):
    """Forks, restores, deletions and prunes into and across segments of any length."""

    @rule(rows=st.sampled_from([1, 2, 5, 32]), merged=st.integers(0, 3))
    def pack(self, rows: int, merged: int) -> None:
        """Older checkpoints are packed, as a commit does that finds many: nothing that is said of them may change."""
        line = self.store.backend.read(Ask(SESSIONS[0])).session
        if line is not None and self.store.backend.packs:
            uid, packed = line.uid, line.packed
            assert pack_older(self.store.backend, SESSIONS[0], uid=uid, packed=packed, rows=rows, merged=merged)
