"""What may be forgotten. Pure: given the checkpoints of a session and its names, which ones go.

Kept is what any rule keeps, and always: heads, tags, fork points, and where an open undo leads. Age is the largest
time seen up to a checkpoint's sequence, so that a writer whose clock was behind does not lose its work early.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from backstay.errors import InvalidInputError
from backstay.hints import Hint

_GIVE = Hint(
    "give keep_last=, keep_days=, finished_days=, files_last=, files_days= or files_bytes=",
    "give --keep-last, --keep-days, --finished, --files-last, --files-days or --files-bytes",
)

_DAY_US = 86_400 * 1_000_000


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each session stays.

    `keep_last` checkpoints of each branch, those younger than `keep_days`, and (unless told otherwise) those with a
    label. `finished_days`: sessions that are completed, failed or halted on every branch, carry no tag, and have not
    been touched for so many days, go as a whole.

    Contents of files (docs/workspace.md) go earlier, while list and talk stay: `files_last` and `files_days` say of
    which checkpoints they stay, `files_bytes` how much all of them may take, the oldest unlabelled going first.

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
    files_last: int | None = None
    files_days: float | None = None
    files_bytes: int | str | None = None

    def __post_init__(self) -> None:
        """Refuse what would forget everything, or nothing that can be told."""
        given = [getattr(self, name) for name in self.__struct_fields__ if name != "keep_labelled"]
        if all([value is None for value in given]):
            message = "this retention has no rule"
            raise InvalidInputError(message, hint=_GIVE)
        for name in ("keep_last", "files_last"):
            last = getattr(self, name)
            if last is not None and (type(last) is not int or last < 1):
                message = f"{name} must be a whole number of at least 1, not {last!r}"
                raise InvalidInputError(message)
        if self.files_bytes is not None:
            to_bytes(self.files_bytes, "files_bytes")
        for name in ("keep_days", "finished_days", "files_days"):
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

    @property
    def of_files(self) -> Retention | None:
        """The rules about contents of files, as rules about checkpoints; None if all may stay but for the limit."""
        if self.files_last is None and self.files_days is None:
            return None
        return Retention(keep_last=self.files_last, keep_days=self.files_days, keep_labelled=self.keep_labelled)

    @property
    def limit_bytes(self) -> int | None:
        """How much the contents of files may take."""
        return None if self.files_bytes is None else to_bytes(self.files_bytes, "files_bytes")

    @property
    def forgets_files(self) -> bool:
        """True when contents of files may go that checkpoints need."""
        return self.of_files is not None or self.files_bytes is not None


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def to_bytes(size: int | str, what: str = "a size") -> int:
    """A size as a caller may give it: a number of bytes, or a text as `64MiB`."""
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is not None and found[2].upper() in _UNITS:
        return int(float(found[1]) * _UNITS[found[2].upper()])
    if type(size) is not int or size < 0:
        message = f"{what} must be a number of bytes or a text as '64MiB', not {size!r:.40}"
        raise InvalidInputError(message)
    return size


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
    kept = {*heads, *pinned, *fork_points(points)}
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


def fork_points(points: Sequence[Candidate]) -> set[int]:
    """The checkpoints that several others rest on."""
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
