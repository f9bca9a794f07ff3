"""Leases: believed exactly as far as their holder can be known, by the clock that counts."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from msgspec.structs import replace

from backstay.port import LaneRow, live_lanes
from backstay.port import lease as leases
from backstay.port.lease import Claim, Holder, clock_us, here, is_live

LEASE_US = 60_000_000
NOW_US, WALL_US = 5_000_000_000, 1_700_000_000_000_000

OURS = here()
PARENT = os.getppid()


def dead_process() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


DEAD = dead_process()


def live(*, age_us: int = 1, wall_age_us: int = 1, server: bool = False, **who: Any) -> bool:
    """True if a lease counts that was taken a while ago, by either clock."""
    claim = Claim(replace(OURS, **who), LEASE_US, NOW_US - age_us + LEASE_US, WALL_US - wall_age_us + LEASE_US)
    return is_live(claim, now_us=NOW_US, wall_us=WALL_US, server_clock=server)


needs_boot = pytest.mark.skipif(not OURS.boot, reason="this system does not say when it was started")


@needs_boot
@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ({}, True),
        ({"pid": PARENT, "born": leases._born(PARENT)}, True),
        ({"pid": DEAD}, False),
        ({"pid": DEAD, "born": 0}, False),
        # A number that was given again: to another process, or to this very one.
        ({"pid": PARENT, "born": leases._born(PARENT) - 1}, False),
        ({"born": OURS.born - 1}, False),
        ({"pid": PARENT, "born": 0}, True),
        # Where the number means nothing here, only time counts.
        ({"space": OURS.space + 1, "pid": DEAD}, True),
        # Another boot of this machine is over; another machine is believed by the calendar.
        ({"boot": "another"}, False),
        ({"boot": "another", "host": "elsewhere"}, True),
        ({"boot": "another", "host": "elsewhere", "pid": DEAD}, True),
        # A machine of another name on this very boot: a container, say.
        ({"host": "elsewhere"}, True),
        ({"host": "elsewhere", "pid": DEAD}, False),
    ],
)
def test_a_lease_is_believed_as_far_as_its_holder_can_be_known(who: dict[str, Any], expected: bool) -> None:
    assert live(**who) is expected


@needs_boot
@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ({}, True),
        ({"pid": DEAD}, False),
        ({"born": OURS.born - 1}, False),
        # Two machines may go by one name: another boot proves nothing where the store has a clock of its own.
        ({"boot": "another", "pid": DEAD}, True),
        ({"host": "elsewhere", "pid": DEAD}, True),
        ({"space": OURS.space + 1, "pid": DEAD}, True),
        ({"boot": "another", "host": "elsewhere"}, True),
    ],
)
def test_with_a_clock_of_the_store_a_holder_is_looked_for_only_on_its_very_boot(
    who: dict[str, Any], expected: bool
) -> None:
    assert live(server=True, **who) is expected
    assert not live(server=True, age_us=LEASE_US, **who)


@needs_boot
@pytest.mark.parametrize(
    ("age_us", "expected"),
    [
        (0, True),
        (1, True),
        (LEASE_US - 1, True),
        (LEASE_US, False),
        (LEASE_US + 1, False),
        (-1, False),
        (-(10**9), False),
    ],
)
def test_a_lease_lasts_as_long_as_it_was_given_and_no_clock_that_began_again_makes_it_longer(
    age_us: int, expected: bool
) -> None:
    assert live(age_us=age_us) is expected
    assert live(age_us=age_us, wall_age_us=10**12) is expected, "on this boot nobody asks the calendar"


def test_the_clock_of_a_store_is_believed_whatever_it_says() -> None:
    assert live(server=True, age_us=-(10**9))
    assert not live(server=True, age_us=LEASE_US)


@needs_boot
@pytest.mark.parametrize(("wall_age_us", "expected"), [(0, True), (LEASE_US - 1, True), (LEASE_US, False)])
def test_of_another_machine_the_calendar_counts_and_not_its_clock(wall_age_us: int, expected: bool) -> None:
    assert live(wall_age_us=wall_age_us, age_us=10**12, boot="another", host="elsewhere") is expected


def test_no_lease_is_not_alive() -> None:
    assert not is_live(None, now_us=NOW_US, wall_us=WALL_US)


@needs_boot
def test_without_a_boot_nobody_is_looked_for_where_the_store_has_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Holder("host", "", 0, os.getpid(), 0)
    monkeypatch.setattr(leases, "here", lambda: ours)
    claim = Claim(replace(ours, pid=DEAD), LEASE_US, NOW_US + 1, WALL_US)
    assert is_live(claim, now_us=NOW_US, wall_us=WALL_US, server_clock=True)


def test_a_view_says_which_branches_are_held() -> None:
    def lane(name: str, until_us: int | None) -> LaneRow:
        return LaneRow(name, claim=None if until_us is None else Claim(OURS, LEASE_US, until_us, 0))

    lanes = [lane("held", NOW_US + 1), lane("over", NOW_US), lane("free", None)]
    assert live_lanes(lanes, now_us=NOW_US, wall_us=WALL_US) == {"held"}
    assert live_lanes(lanes, now_us=NOW_US, wall_us=WALL_US, server_clock=True) == {"held"}


def test_a_process_that_was_killed_and_not_waited_for_is_dead() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        until = time.monotonic() + 10
        while leases._born(child) >= 0 and time.monotonic() < until:
            time.sleep(0.001)
        assert not live(pid=child, born=0)
    finally:
        os.waitpid(child, 0)


def test_a_forked_child_is_another_holder() -> None:
    read, write = os.pipe()
    here()
    child = os.fork()
    if child == 0:
        os.write(write, str(here().pid).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(read, 100)) == child
    os.close(read)
    os.close(write)


def test_the_clock_goes_on_and_not_by_the_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock_us()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock_us() < before + 60_000_000
