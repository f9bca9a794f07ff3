"""What may be forgotten. Pure: given the checkpoints of a session and its names, which ones go.

Kept is what any rule keeps, and always: heads, tags, fork points, and where an open undo leads. Age is the largest
time seen up to a checkpoint's sequence, so that a writer whose clock was behind does not lose its work early.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from backstay.errors import InvalidInputError
from backstay.hints import Hint

_GIVE = Hint("give keep_last=, keep_days= or finished_days=", "give --keep-last, --keep-days or --finished")

_DAY_US = 86_400 * 1_000_000


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each session stays.

    `keep_last` checkpoints of each branch, those younger than `keep_days`, and (unless told otherwise) those with a
    label. `finished_days`: sessions that are completed, failed or halted on every branch, carry no tag, and have not
    been touched for so many days, go as a whole.

    ```python
    import backstay

    with backstay.open() as store:
        report = store.prune(backstay.Retention(keep_last=50, keep_days=30, finished_days=90), dry_run=True)
        print(report)
    ```
    """

    keep_last: int | None = None
    keep_days: float | None = None
    keep_labelled: bool = True
    finished_days: float | None = None

    def __post_init__(self) -> None:
        """Refuse what would forget everything, or nothing that can be told."""
        if self.keep_last is None and self.keep_days is None and self.finished_days is None:
            message = "this retention has no rule"
            raise InvalidInputError(message, hint=_GIVE)
        if self.keep_last is not None and (type(self.keep_last) is not int or self.keep_last < 1):
            message = f"keep_last must be a whole number of at least 1, not {self.keep_last!r}"
            raise InvalidInputError(message)
        for name in ("keep_days", "finished_days"):
            days = getattr(self, name)
            if days is not None and (type(days) not in (int, float) or not 0 <= days < float("inf")):
                message = f"{name} must be a number of days, not {days!r}"
                raise InvalidInputError(message)
        if type(self.keep_labelled) is not bool:
            message = f"keep_labelled must be True or False, not {self.keep_labelled!r}"
            raise InvalidInputError(message)

    @property
    def thins(self) -> bool:
        """True when checkpoints inside sessions may go, not only sessions as a whole."""
        return self.keep_last is not None or self.keep_days is not None


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint as retention sees it."""

    sequence: int
    parent: int | None
    at_us: int
    labelled: bool


def to_drop(
    points: Sequence[Candidate], heads: Collection[int], pinned: Collection[int], retention: Retention, *, now_us: int
) -> list[int]:
    """The sequences that go, oldest first. `points` are all of a session's, oldest first; `pinned`: tags and undos."""
    if not retention.thins:
        return []
    parents = {point.sequence: point.parent for point in points}
    kept = {*heads, *pinned, *_fork_points(points)}
    if retention.keep_labelled:
        kept.update([point.sequence for point in points if point.labelled])
    if retention.keep_days is not None:
        youngest = now_us - retention.keep_days * _DAY_US
        latest = 0
        for point in points:
            latest = max(latest, point.at_us)
            if latest > youngest:
                kept.add(point.sequence)
    if retention.keep_last is not None:
        for head in heads:
            at: int | None = head
            for _ in range(retention.keep_last):
                if at is None or at not in parents:
                    break
                kept.add(at)
                at = parents[at]
    return [point.sequence for point in points if point.sequence not in kept]


def _fork_points(points: Sequence[Candidate]) -> set[int]:
    seen: set[int] = set()
    forks: set[int] = set()
    for point in points:
        if point.parent is not None:
            (forks if point.parent in seen else seen).add(point.parent)
    return forks


def is_over(*, finished: bool, tagged: bool, at_us: int, retention: Retention, now_us: int) -> bool:
    """True when a whole session may go."""
    if retention.finished_days is None or not finished or tagged:
        return False
    return at_us <= now_us - retention.finished_days * _DAY_US
