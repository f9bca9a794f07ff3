"""The error ring: a day on a disk that fails from some call on, and is well again later."""

from __future__ import annotations

from backstay.errors import UnavailableError
from tests.crash.ring.children import beneath
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place
from tests.crash.ring.workload import Day, Look, judge, judge_bundle, look
from tests.faults import Faults

LATE_ERRORS = 1  # what could not be moved from the log is reported once more, by the next write


class Sufferer:
    """One day with one fault. `again`: the store is opened anew once the disk is well."""

    def __init__(self, place: Place, faults: Faults, expected: list[Look], *, again: bool) -> None:
        self.place, self.faults, self.expected, self.again = place, faults, expected, again
        self.day: Day | None = None
        self.done = 0
        self.errors = 0

    def live(self) -> int:
        """To the end of the day, whatever happens on the way. How often storage said no."""
        while True:
            try:
                self._work()
            except UnavailableError:
                self.errors += 1
                assert self.faults.struck, "the disk was well"
                assert self.errors <= 1 + LATE_ERRORS, "writing does not work again"
                self._recover()
            else:
                return self.errors

    def _work(self) -> None:
        if self.day is None:
            self.day = Day(self.place.open, self.place.bundle)
            self.faults.mark(0)
        while self.done < len(self.day.steps):
            self.day.steps[self.done]()
            self.done += 1
            self.faults.mark(self.done)
        self.day.store.close()
        judge_bundle(self.place.bundle, self.expected, self.done)
        with self.place.open() as store:
            assert self.done in judge(store, self.expected).steps

    def _recover(self) -> None:
        if self.day is None:
            self.faults.lift()
            return
        if not self.day.store._closed:
            self._settle(look(self.day.store), "while the disk fails")
        self.faults.lift()
        if self.again or self.day.store._closed:
            self.day.reopen()
        seen = judge(self.day.store, self.expected)
        self._settle(seen.found, "once the disk is well")
        if self.expected[self.done] != seen.found:
            self.done += 1  # it was reported as failed and is there, whole: nothing is left to do for it
            self.faults.mark(self.done)

    def _settle(self, seen: Look, when: str) -> None:
        allowed = self.expected[self.done : self.done + 2]
        assert seen in allowed, f"{when} the store does not look as after step {self.done} or the next"


def suffer(say: Say, place: Place, expected: list[Look], error: int, calls: list[int], lasting: bool) -> None:
    """A day for each of these calls. Says where each went wrong; nothing if none did."""
    faults = Faults()
    with beneath(place, faults):
        for number in calls:
            faults.lift()
            place.clear()
            faults.reset(fail_from=number, fail_until=None if lasting else number + 1, error=error)
            try:
                Sufferer(place, faults, expected, again=number % 2 == 0).live()
            except Exception as wrong:
                message = f"call {number} failed with {error}, {'lasting' if lasting else 'once'}"
                raise AssertionError(message) from wrong
            say((number, faults.struck))


def count(say: Say, place: Place) -> None:
    """How many storage calls a day has."""
    faults = Faults()
    with beneath(place, faults):
        Day(place.open, place.bundle).run(lambda _: None)
    say(faults.calls)


def forget_syncs(say: Say, place: Place, expected: list[Look], syncs: list[int], deaf: bool = False) -> None:
    """A day for each sync that fails, once, with its trace."""
    faults = Faults()
    with beneath(place, faults):
        for number in syncs:
            faults.lift()
            place.clear()
            faults.reset(fail_from=number, fail_until=number + 1, only="sync", record=True, deaf=deaf)
            Sufferer(place, faults, expected, again=False).live()
            if faults.struck:
                say((number, faults.trace))
