"""The power-loss ring: from one recorded day to thousands of disks as they may be found, each opened and judged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import holdfast
from holdfast.testing.faults import Call, Crash, Timeline
from tests.crash.ring.rooms import Place
from tests.crash.ring.workload import Look, go_on, judge, judge_bundle, look_at


class Tally(NamedTuple):
    """What was found in how many states."""

    states: int
    lost: int
    ahead: int


def crashes(trace: Sequence[Call], count: int, *, seed: int, share: int = 0, shares: int = 1) -> Iterator[Crash]:
    """Different states, `count` in all shares: every systematic one as far as there is room, the others by chance."""
    seen: set[int] = set()
    chosen = random.Random(seed)
    wanted = count // shares
    uncertain = [moment.number for moment in Timeline(trace) if moment.open_calls]
    systematic = set(uncertain) if len(uncertain) < count // 8 else set(chosen.sample(uncertain, count // 8))
    while len(seen) < wanted:
        before = len(seen)
        for moment in Timeline(trace):
            if len(seen) >= wanted:
                return
            if moment.number % shares != share:
                continue
            found = [moment.chance(chosen) for _ in range(4)]
            if moment.number in systematic:
                found += moment.systematic()
            for crash in found:
                if hash(crash) not in seen and len(seen) < wanted:
                    seen.add(hash(crash))
                    yield crash
        systematic = set()
        assert len(seen) > before, f"there are only {before} different states"


def survive(crash: Crash, place: Place, expected: list[Look], *, may_lose: bool, more: bool) -> tuple[bool, bool]:
    """Open one state. Whether the newest acknowledged steps were lost, and whether one is there that was not yet."""
    crash.put(place.folder)
    if not may_lose or place.bundle.exists():
        judge_bundle(place.bundle, expected, crash.marks)
    with place.open() as store:
        verdict = judge(store, expected)
        least, most = crash.marks, crash.marks + 1
        kept = {least, most} & set(verdict.steps)
        assert kept or (may_lose and min(verdict.steps) < least), (
            f"{crash!r}: step {least} was acknowledged, the store looks as after {verdict.steps}"
        )
        if more:
            go_on(store, 2)
    return not kept, least not in verdict.steps and bool(kept)


def survive_in_part(crash: Crash, place: Place, expected: list[Look]) -> bool:
    """Open one state of a store that promised nothing: each session as it once was, or an error.

    True if all could be read.
    """
    crash.put(place.folder)
    try:
        with place.open() as store:
            for name in [info.id for info in store.sessions()]:
                found = look_at(store, name)
                known = any(found == looked.get(name) for looked in expected)
                assert known, f"{crash!r}: session {name!r} was never like this"
    except holdfast.HoldfastError:
        return False
    return True


def survive_all(found: Iterator[Crash], place: Place, expected: list[Look], *, may_lose: bool = False) -> Tally:
    """Open them all."""
    states = lost = ahead = 0
    for crash in found:
        try:
            was_lost, was_ahead = survive(crash, place, expected, may_lose=may_lose, more=states % 10 == 0)
        except (AssertionError, holdfast.HoldfastError) as error:
            message = f"{crash!r}: {type(error).__name__}: {error}"
            raise AssertionError(message) from error
        states, lost, ahead = states + 1, lost + was_lost, ahead + was_ahead
    return Tally(states, lost, ahead)


def forgotten_in(
    traces: list[tuple[int, list[Call]]], place: Place, expected: list[Look], cuts: int, chances: int
) -> int:
    """A sync failed once and the system forgot what it should have kept, as Linux does; later the power is cut."""
    states = 0
    for number, trace in traces:
        chosen = random.Random(number)
        wanted = _cuts_after_failure(trace, cuts, chosen)
        for moment in Timeline(trace):
            if moment.number in wanted:
                nothing = moment.crash(lambda *_: False, names=(), how="nothing that was not synced")
                found = [nothing, *(moment.chance(chosen) for _ in range(chances))]
                states += survive_all(iter(found), place, expected).states
    return states


def _cuts_after_failure(trace: list[Call], count: int, chosen: random.Random) -> list[int]:
    failed = next(number for number, call in enumerate(trace) if call.verb == "failed_sync")
    marks = [number for number, call in enumerate(trace) if call.verb == "mark" and number > failed]
    return chosen.sample(marks, min(count, len(marks)))
