"""What a journal says, line by line: which checkpoints there are, where their lines stand, and what the names are.

The index is made by reading a journal from its beginning and kept up by reading what was appended since. Lines that
cannot be read leave a mark: on the entry they belonged to, if another line of their transaction is left to say so;
otherwise on everything that a line in that place could have changed. Pure: bytes in, no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from backstay.backend import BranchRow, Names, SessionRow, TagRow, Totals
from backstay.backends.files.ledger import Ledger, Span
from backstay.backends.files.lines import About, Line, Snapshot, is_torn, open_line, salvage, without_blanks
from backstay.errors import CorruptionError, NotFoundError

_NOWHERE = Span(0, 0)


@dataclass(slots=True)
class Entry:
    """A checkpoint: what is known of it without reading its lines again."""

    about: About
    own: Span
    delta: Span | None
    whole: Span | None
    refs: frozenset[bytes]


class _Found(NamedTuple):
    line: Line
    span: Span


@dataclass(slots=True)
class Index:
    """See the module's text. `lines` is the number of the last line, `end` where the next one goes."""

    id: str | None = None
    created_us: int = 0
    born: int = 0
    sequence: int = 0
    epoch: int = 0
    checkpoints: int = 0
    branch_count: int = 0
    logical_bytes: int = 0
    branches: dict[str, BranchRow] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)  # in the order of their sequence
    ledger: Ledger = field(default_factory=Ledger)
    lines: int = 0
    end: int = 0
    torn: bool = False  # bytes of a write that never ended lie behind the end
    mend: bool = False  # the newline before the end is not there
    damage: list[str] = field(default_factory=list)
    refs_known: bool = True
    # A name is certain if it was last set in a line beyond all those that are lost without a trace.
    unknown_at: int = 0
    counted_at: int = 0
    settled_at: int = 0
    named_at: dict[str, int] = field(default_factory=dict)
    _latest: About | Snapshot | Totals | None = None
    _children: dict[str, list[str]] | None = None

    # reading a journal

    def feed(self, data: bytes, *, surely: int = 0) -> None:
        """Take in what follows the end, up to the last transaction that is all there.

        `surely` is how many lines the journal is known to have had. What is left at the end is torn (a write that did
        not come to its end, to be cut off) or, where it looks complete or must have been, damaged.
        """
        start, content = self.end, without_blanks(data)
        found, bad, self.mend = _cut(content, start, self.lines)
        open_: list[_Found] = []
        ends = {self.lines: start, **{each.line.n: each.span.at + each.span.size for each in found}}
        starts = {each.line.n: each.span.at for each in found}
        for each in found:
            if open_ and _first(each.line) != _first(open_[0].line):
                self._close(open_, content, start, starts, ends)
                open_ = []
            open_.append(each)
            if each.line.part[0] == each.line.part[1] and len(open_) == each.line.part[1]:
                self._close(open_, content, start, starts, ends)
                open_ = []
        rest = content[self.end - start :]
        if rest and self.lines >= surely:
            unfinished = bool(open_) and open_[-1].line.part[0] < open_[-1].line.part[1]
            cut_off = unfinished and not (bad and bad[-1].at + bad[-1].size == start + len(content))
            if cut_off or is_torn(rest, self.end):
                self.torn, self.mend = True, False
                self._note_bad(bad, self.end)
                return
        self.torn = False
        if open_:
            starts.setdefault(_first(open_[0].line) + open_[0].line.part[1], start + len(content))
            self._close(open_, content, start, starts, ends)
        elif rest:
            self._lose(self.lines + max(1, rest.count(b"\n")))
        if self.lines < surely:
            self._lose(surely)
        self._note_bad(bad, start + len(content))
        if self.mend:
            self.end = ends[found[-1].line.n]
        else:
            self.mend = bool(content) and not content.endswith(b"\n")
            self.end = start + len(content) + self.mend

    def _note_bad(self, bad: Sequence[Span], stop: int) -> None:
        for span in bad:
            if span.at < stop:
                self.damage.append(f"{span.size} bytes at {span.at} are no line")

    def _lose(self, last: int) -> None:
        """Lines up to this one are lost, and nothing says what was in them."""
        self.damage.append(f"lines {self.lines + 1} to {last} are lost")
        self.lines = self.unknown_at = last
        self.refs_known = False

    def _close(
        self, open_: list[_Found], content: bytes, start: int, starts: dict[int, int], ends: dict[int, int]
    ) -> None:
        """Take in one transaction, of which at least one line is there."""
        line = open_[-1].line
        first, count = _first(line), line.part[1]
        if first > self.lines + 1:
            self._lose(first - 1)
        spans: list[Span] = []
        by_part = {each.line.part[0]: each for each in open_}
        for part in range(1, count + 1):
            n = first + part - 1
            if part in by_part:
                spans.append(by_part[part].span)
                continue
            at, stop = ends.get(n - 1), starts.get(n + 1)
            spans.append(Span(at, stop - at) if at is not None and stop is not None and stop > at else _NOWHERE)
            self.damage.append(f"line {n} is damaged")
        self.lines = first + count - 1
        self.end = spans[-1].at + spans[-1].size if spans[-1] is not _NOWHERE else max(self.end, ends[line.n])
        if line.about is not None:
            raw = {p: content[s.at - start : s.at - start + s.size] for p, s in enumerate(spans, 1) if p not in by_part}
            self._add_lines(line.about, by_part, spans, raw)
        elif line.call is not None:
            with_args = 1 in by_part and bool(bytes(by_part[1].line.args))
            self.ledger.call(line.call, spans[0], with_args=with_args)
        else:
            self._apply(line)

    def _add_lines(self, about: About, by_part: dict[int, _Found], spans: list[Span], raw: dict[int, bytes]) -> None:
        refs: set[bytes] = set()
        for part in range(1, len(spans)):
            if part in by_part:
                refs.update([bytes.fromhex(ref) for ref in by_part[part].line.refs])
                continue
            shape = salvage(raw[part])
            if shape is None:
                self.refs_known = False
            else:
                refs.update(shape.refs)
        self.add(about, spans, frozenset(refs))

    def add(self, about: About, spans: Sequence[Span], refs: frozenset[bytes]) -> None:
        """A checkpoint was committed; its lines are the last ones."""
        places = dict(zip((*about.records, "checkpoint"), spans, strict=True))
        own = places["checkpoint"]
        self.entries[about.id] = Entry(about, own, places.get("delta"), places.get("whole"), refs)
        if about.branch:  # in a journal written anew the names come at the end
            self.branches[about.branch] = BranchRow(about.branch, about.id, about.undo)
            self.named_at[about.branch] = self.lines
        self.counted_at = self.lines
        self.sequence, self._latest = about.sequence, about
        self.checkpoints, self.branch_count = about.checkpoints, about.branches
        self.logical_bytes = about.logical_bytes
        if about.run is not None or about.took is not None or about.took_up is not None:
            self.ledger.commit(about, self.lines)
        self._children = None

    def _apply(self, line: Line) -> None:
        if line.what == "session":
            self.id, self.created_us, self.born = line.id, line.created_us, line.born
        elif line.what == "names" and line.names is not None:
            names = line.names
            self.branches = {name: BranchRow(name, head, undo) for name, (head, undo) in names.branches.items()}
            self.tags = dict(names.tags)
            self.sequence, self.epoch, self._latest = names.sequence, names.epoch, names
            self.checkpoints, self.branch_count = names.checkpoints, len(names.branches)
            self.logical_bytes = names.logical_bytes
            self.settled_at = self.counted_at = self.lines
            self.ledger.settle(names)
        elif line.what == "run":
            self._run(line)
        else:
            self.named_at[line.name] = self.lines
            if line.what == "fork":
                self.branches[line.name] = BranchRow(line.name, line.id, None)
                self.branch_count += 1
                self.ledger.fork(line.name, self.lines)
            elif line.what == "forget":
                self.branches.pop(line.name, None)
                self.branch_count -= 1
                self.ledger.forget(line.name, self.lines)
            elif line.what == "tag":
                self.tags[line.name] = line.id
            elif line.what == "untag":
                self.tags.pop(line.name, None)

    def _run(self, line: Line) -> None:
        self.ledger.say(line, self.lines)
        if line.status:
            totals = self.totals or Totals(None, line.status, None, None, b"", self.created_us)
            self._latest = msgspec.structs.replace(
                totals, agent=line.agent or totals.agent, status=line.status, reason=line.reason
            )

    # answers

    @property
    def totals(self) -> Totals | None:
        """What the newest line that says it says of the session."""
        latest = self._latest
        return latest if latest is None or isinstance(latest, Totals) else latest.totals

    def session_row(self) -> SessionRow:
        """The session's line, or a CorruptionError if the lines that say it are lost."""
        totals = self.totals
        if self.id is None or totals is None or self.counted_at < self.unknown_at:
            raise self._lost("how it stands")
        counts = self.branch_count, self.checkpoints
        return SessionRow(self.id, totals, *counts, self.created_us, self.touched())

    def touched(self) -> int:
        """The number of its newest checkpoint; sessions without one come last, each with a number of its own."""
        newest = next(reversed(self.entries.values()), None)
        return -self.born if newest is None else newest.about.number

    def names(self) -> Names:
        """All names, or a CorruptionError if one of them may be missing or elsewhere."""
        if self.unknown_at > self.settled_at:
            raise self._lost("its names")
        for head in [*[branch.head_id for branch in self.branches.values()], *self.tags.values()]:
            self.entry(head)
        branches = [branch for _, branch in sorted(self.branches.items())]
        return Names(tuple(branches), tuple([TagRow(name, id_) for name, id_ in sorted(self.tags.items())]))

    def find_branch(self, name: str) -> BranchRow | None:
        """One branch; a CorruptionError if a lost line may have moved it, made it or taken it away."""
        self.be_certain_of(name)
        return self.branches.get(name)

    def be_certain_of(self, name: str) -> None:
        """CorruptionError if a lost line may have been about this name."""
        if self.unknown_at > max(self.settled_at, self.named_at.get(name, 0)):
            raise self._lost(f"where {name!r} stands")

    def be_certain_of_run(self, branch: str) -> None:
        """CorruptionError if a lost line may have been about the run on this branch, or a call that is pending there.

        Without it a call that was made might look as if it never was, and be made again.
        """
        self.be_certain_of(branch)
        state, said_at = self.ledger.states.get(branch), self.ledger.said_at.get(branch, 0)
        if self.unknown_at > max(self.settled_at, said_at):
            raise self._lost(f"perhaps what was called on branch {branch!r}")
        if state is not None and (state.doubt or (state.run, self.stands_at(branch)) in self.ledger.broken):
            message = f"session {self.id!r}: calls that were made on branch {branch!r} are lost"
            hint = "find out what was done; then session.abandon(branch, reason=…) gives up what was pending"
            raise CorruptionError(message, hint=hint)

    def stands_at(self, branch: str) -> int:
        """The sequence of a branch's head, 0 if it has none."""
        found = self.branches.get(branch)
        return 0 if found is None else self.entry(found.head_id).about.sequence

    def find_entry(self, id_: str) -> Entry | None:
        """A checkpoint; a CorruptionError if it may be among those that are lost."""
        found = self.entries.get(id_)
        if found is None and self.unknown_at:
            raise self._lost(f"checkpoint {id_[:12]}, if there was one")
        return found

    def entry(self, id_: str | None) -> Entry:
        """A checkpoint that must be there."""
        found = None if id_ is None else self.find_entry(id_)
        if found is None:
            message = f"there is no checkpoint {id_!r}"
            raise NotFoundError(message, hint="session.log() lists those there are")
        return found

    def ids(self) -> list[str]:
        """All checkpoints, oldest first; a CorruptionError if some are lost without a trace."""
        if self.unknown_at:
            raise self._lost("some of its checkpoints, perhaps")
        return list(self.entries)

    def children(self, id_: str) -> list[str]:
        """The checkpoints linked to this one."""
        if self.unknown_at:
            raise self._lost("some of its checkpoints, perhaps")
        if self._children is None:
            self._children = {}
            for entry in self.entries.values():
                if entry.about.link is not None:
                    self._children.setdefault(entry.about.link, []).append(entry.about.id)
        return self._children.get(id_, [])

    def _lost(self, what: str) -> CorruptionError:
        message = f"session {self.id!r}: lines of its journal are lost, and with them {what}"
        return CorruptionError(message, hint="run verify to see what is intact")


def _first(line: Line) -> int:
    return line.n - line.part[0] + 1


def _cut(content: bytes, start: int, last: int) -> tuple[list[_Found], list[Span], bool]:
    """The lines in some bytes, the stretches that are none, and whether the newline of the last one is missing."""
    found: list[_Found] = []
    bad: list[Span] = []
    mend, pos = False, 0
    while pos < len(content):
        newline = content.find(b"\n", pos)
        stop = newline + 1 if newline >= 0 else len(content)
        raw = content[pos:stop]
        line = open_line(raw)
        if line is None and newline < 0:
            # All there but its newline: cut off by one byte, or flipped.
            for mended in (raw + b"\n", raw[:-1] + b"\n"):
                line = open_line(mended)
                if line is not None:
                    raw, mend = mended, True
                    break
        if line is not None and (line.n <= last or not 1 <= line.part[0] <= line.part[1]):
            line, mend = None, False
        if line is not None:
            found.append(_Found(line, Span(start + pos, len(raw))))
            last = line.n
        elif bad and bad[-1].at + bad[-1].size == start + pos:
            bad[-1] = Span(bad[-1].at, bad[-1].size + stop - pos)
        else:
            bad.append(Span(start + pos, stop - pos))
        pos = stop
    return found, bad, mend
