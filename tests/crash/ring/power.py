"""The power-loss ring: from one recorded day to thousands of disks as they may be found, each opened and judged."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import backstay
from tests.crash.ring.rooms import Place
from tests.crash.ring.workload import Look, go_on, judge, judge_bundle, look_at
from tests.faults import Call, Crash, Moment, Timeline

BY_CHANCE = (-1, -2, -3, -4)  # of each moment, besides its systematic states


class Tally(NamedTuple):
    """What was found in how many states, and how many steps were acknowledged before the latest cut."""

    states: int
    lost: int
    ahead: int
    latest: int


def crashes(trace: Sequence[Call], count: int, *, seed: int, share: int = 0, shares: int = 1) -> Iterator[Crash]:
    """Different states, `count` in all shares, from the whole day: every systematic one if there is room for it."""
    seen: set[int] = set()
    chosen = random.Random(seed)
    wanted = count // shares
    sizes = {moment.number: moment.size for moment in Timeline(trace) if moment.number % shares == share}
    while len(seen) < wanted:
        before = len(seen)
        # Some of the first round are the same; of the next there are more than enough to make up for them.
        picks = _picks(sizes, len(sizes) * 4 if before else wanted, chosen)
        for moment in Timeline(trace):
            for crash in _picked(moment, picks.get(moment.number, ()), chosen):
                if hash(crash) not in seen and len(seen) < wanted:
                    seen.add(hash(crash))
                    yield crash
        assert len(seen) > before, f"there are only {before} different states"


def _picks(sizes: dict[int, int], count: int, chosen: random.Random) -> dict[int, set[int]]:
    """Which states of which moments: one of each, in the order of the day, as far as they go; then any others."""
    every = chosen.sample([(number, BY_CHANCE[0]) for number in sizes], min(count, len(sizes)))
    more = [(number, pick) for number, size in sizes.items() for pick in (*BY_CHANCE[1:], *range(size))]
    picks: dict[int, set[int]] = {}
    for number, pick in [*every, *chosen.sample(more, min(count - len(every), len(more)))]:
        picks.setdefault(number, set()).add(pick)
    return picks


def _picked(moment: Moment, picks: Collection[int], chosen: random.Random) -> Iterator[Crash]:
    yield from (moment.chance(chosen) for pick in BY_CHANCE if pick in picks)
    if any(pick >= 0 for pick in picks):
        yield from (crash for number, crash in enumerate(moment.systematic()) if number in picks)


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
    except backstay.BackstayError:
        return False
    return True


def survive_all(found: Iterator[Crash], place: Place, expected: list[Look], *, may_lose: bool = False) -> Tally:
    """Open them all."""
    states = lost = ahead = latest = 0
    for crash in found:
        try:
            was_lost, was_ahead = survive(crash, place, expected, may_lose=may_lose, more=states % 10 == 0)
        except (AssertionError, backstay.BackstayError) as error:
            message = f"{crash!r}: {type(error).__name__}: {error}"
            raise AssertionError(message) from error
        states, lost, ahead, latest = states + 1, lost + was_lost, ahead + was_ahead, max(latest, crash.marks)
    return Tally(states, lost, ahead, latest)


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
