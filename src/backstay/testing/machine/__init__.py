"""A machine that plays a store against a plain dict: random histories, every state compared to the last bit.

`machine_for(open_store)` gives a Hypothesis state machine. It commits states that grow out of earlier ones the way
those of agents do, forks, restores, undoes, tags, deletes, reads by every kind of ref, closes and opens again, and
writes from a second Session that has not seen the newest checkpoint. Runs are begun, cut off, gone on with, decided and
given up in between; sessions are pruned and go through an export. After each step the store must verify, and no call
that was recorded is ever made again.
"""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine

from backstay.testing.machine.histories import Histories, OpenStore
from backstay.testing.machine.packing import PackedHistories
from backstay.testing.machine.runs import Runs


def machine_for(
    open_store: OpenStore, *, lasting: bool = True, runs: bool = True, packs: bool = False
) -> type[RuleBasedStateMachine]:
    """A state machine for the store that `open_store(folder)` opens, or makes where there is none in the folder.

    `lasting` is False for a store that keeps nothing over a close: then only its sessions are opened again. `runs` is
    False for a backend that has none yet. With `packs` there are no runs, and histories are packed at every turn.
    """
    kind: type[Histories] = PackedHistories if packs else Runs if runs else Histories
    return type("StoreMachine", (kind,), {"open_store": staticmethod(open_store), "lasting": lasting})


__all__ = ["machine_for"]
