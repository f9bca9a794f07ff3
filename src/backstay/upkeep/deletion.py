"""Deleting: single checkpoints, many of them in portions, and whole sessions.

A checkpoint that stays but whose parent goes is written again, before the rule decides: as a delta from its nearest
ancestor that stays, or as a keyframe where there is none or that is hardly longer. If another process commits in
between, the rule refuses and the portion is planned again. A session is hidden at once and then emptied in portions; a
kill on the way leaves a hidden session, which `sweep` finishes: with the next deletion, prune, import or repair. It is
no damage: no reader can see it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from backstay.delta import advance, know, whole
from backstay.errors import ConflictError, CorruptionError
from backstay.port import (
    EVERY,
    Ask,
    Backend,
    Batch,
    CheckpointRow,
    Kind,
    More,
    SegmentRow,
    SessionQuery,
    SessionRow,
    Unreadable,
    View,
)
from backstay.port.lease import here, is_live
from backstay.port.rows import Took
from backstay.port.segment_packing import pack_segment, portions
from backstay.port.segments import open_segment
from backstay.rules import refusals
from backstay.rules.deletion import (
    MAX_CHECKPOINTS,
    Deletion,
    Rewrite,
    delete_checkpoints,
    drop_rows,
    drop_session,
    hide,
    hide_ask,
    left_behind,
    rewritten,
)
from backstay.sealing import pack_blob, seal_delta, seal_keyframe, spill, spilled
from backstay.store.fields import read_fields
from backstay.store.reading import Loaded, load
from backstay.upkeep.pages import row_key

_TRIES = 100
_DELTA_WORTH = 0.5  # of a keyframe: above that the keyframe is taken, which rests on nothing
_PORTION_ROWS = 200
_HIDDEN = 1000
_EMPTIED = (Kind.CALL, Kind.KEYFRAME, Kind.SEGMENT, Kind.CHECKPOINT, Kind.NAME)


def delete_some(backend: Backend, session: str, gone: Collection[int], *, spare_names: bool = False) -> int:
    """Delete checkpoints by their sequences, in portions, the oldest first; how many there were.

    ConflictError if one is needed.
    """
    ordered = sorted(gone)
    for at in range(0, len(ordered), MAX_CHECKPOINTS):
        _delete_portion(backend, session, ordered[at : at + MAX_CHECKPOINTS], spare_names=spare_names)
    return len(ordered)


def _delete_portion(backend: Backend, session: str, gone: Sequence[int], *, spare_names: bool) -> None:
    for _ in range(_TRIES):
        deletion = _plan(backend, session, gone, spare_names=spare_names)
        try:
            backend.write(deletion.ask, delete_checkpoints(deletion))
        except ConflictError:
            if spare_names:
                raise  # the caller's own plan may be out of date
            continue
        return
    raise refusals.changed(session, "it is being committed to; nothing was deleted")[1]


def _plan(backend: Backend, session: str, gone: Sequence[int], *, spare_names: bool) -> Deletion:
    view = backend.read(Ask(session, names=EVERY, sequences=tuple(gone), children_of=tuple(gone)))
    if view.session is None:
        raise refusals.no_session(session)[1]
    going = set(gone)
    anchors: dict[int, int | None] = {}  # the nearest ancestors that stay
    for at in sorted(gone):
        row = view.checkpoints.get(at)
        if row is None:
            raise refusals.no_checkpoint(session, f"#{at}")[1]
        anchors[at] = row.parent if row.parent not in going else anchors[row.parent]
    children = {child: at for at in gone for child in view.children.get(at, ()) if child not in going}
    blobs: dict[bytes, bytes] = {}
    rewrites: list[Rewrite] = []
    heirs = _heirs(backend, session, view, children)
    for child, parent in sorted(children.items()):
        inherits = tuple([took for took, heir in heirs.items() if heir == child])
        rewrites.append(rewrite(backend, session, child, anchors[parent], blobs, inherits=inherits))
    edge = view.session.packed
    concerned = tuple([at for at in (*gone, *children) if at <= edge])
    before = segments_of(backend, session, concerned)
    return Deletion(
        session,
        view.session.uid,
        tuple(gone),
        tuple(rewrites),
        tuple({at for at in anchors.values() if at is not None}),
        blobs,
        spare_names,
        edge,
        tuple(before),
        tuple(repacked(session, view.session.uid, before, going, rewrites)),
    )


def _heirs(backend: Backend, session: str, view: View, children: Mapping[int, int]) -> dict[Took, int]:
    """The calls that were left behind by what goes, each with the child that keeps them.

    Only the branch whose run made them can go back to where they were left: of several children the one on it.
    """
    found: dict[Took, list[int]] = {}
    for child, parent in sorted(children.items()):
        for took in left_behind(view.checkpoints, parent, view.checkpoints.keys()):
            found.setdefault(took, []).append(child)
    several = {child for heirs in found.values() if len(heirs) > 1 for child in heirs}
    rows = backend.read(Ask(session, sequences=tuple(several))).checkpoints if several else {}
    branches = {
        child: read_fields(row).branch for child in several if isinstance(row := rows.get(child), CheckpointRow)
    }
    owners = {lane.run: lane.name for lane in view.lanes.values()}
    return {
        took: next((child for child in heirs if branches.get(child) == owners.get(took.run)), heirs[0])
        for took, heirs in found.items()
    }


def segments_of(backend: Backend, session: str, packed: tuple[int, ...]) -> list[SegmentRow]:
    """The segments that some checkpoints are in."""
    found = backend.read(Ask(session, segments=packed)).segments.values() if packed else ()
    for row in found:
        if isinstance(row, Unreadable):
            raise refusals.damaged_checkpoint(session, row.why)[1]
    return sorted([row for row in found if isinstance(row, SegmentRow)], key=lambda row: row.first)


def repacked(
    session: str, uid: bytes, before: Sequence[SegmentRow], gone: set[int], rewrites: Sequence[Rewrite]
) -> Iterator[SegmentRow]:
    """Segments without the checkpoints that go, and with those that are rewritten: no byte of what goes is left."""
    changed = {new.sequence: new for new in rewrites}
    for old in before:
        rows: list[CheckpointRow] = []
        for row in open_segment(old, uid=uid).rows(delta=True, refs=True):
            if row_key(row) in gone:
                continue
            if isinstance(row, Unreadable):
                raise refusals.damaged_checkpoint(session, row.why)[1]
            new = changed.get(row.sequence)
            rows.append(row if new is None else rewritten(row, new))
        for portion in portions(rows):
            yield pack_segment(portion, uid=uid)


def rewrite(
    backend: Backend,
    session: str,
    child: int,
    anchor: int | None,
    blobs: dict[bytes, bytes],
    *,
    inherits: tuple[Took, ...] = (),
) -> Rewrite:
    """A checkpoint as it will be, with the calls it inherits; the blobs it needs are added to `blobs`."""
    found = _loaded(backend, session, child)
    row, uid = found.row, found.session.uid
    if row.keyframe:
        return Rewrite(child, anchor, inherits=inherits)
    keyframe, pieces = whole(found.state)
    if anchor is not None:
        base = _loaded(backend, session, anchor)
        delta, more, _ = advance(know(base.state), found.state)
        if delta.size_bytes < _DELTA_WORTH * keyframe.size_bytes:
            digest = base.row.state_digest
            data, parts = spill(seal_delta(delta, uid=uid, tail=row.tail, base=digest, state=row.state_digest))
            blobs.update(parts)
            blobs.update({digest: pack_blob(piece) for digest, piece in more.items()})
            return Rewrite(child, anchor, digest, data, (*delta.refs, *spilled(data)), inherits=inherits)
    data, parts = spill(seal_keyframe(keyframe, uid=uid, tail=row.tail, state=row.state_digest))
    blobs.update(parts)
    blobs.update({digest: pack_blob(piece) for digest, piece in pieces.items()})
    return Rewrite(child, anchor, keyframe=data, keyframe_refs=(*keyframe.refs, *spilled(data)), inherits=inherits)


def _loaded(backend: Backend, session: str, sequence: int) -> Loaded:
    found = load(backend, session, sequence)
    if not isinstance(found, Loaded):
        raise refusals.changed(session, f"checkpoint #{sequence} was deleted meanwhile")[1]
    return found


# whole sessions


def delete_session(backend: Backend, session: str, *, touched: int | None = None) -> int:
    """Delete a session and everything only it needed; how many checkpoints it had.

    ConflictError if it was touched since it had this number.
    """
    lines: list[SessionRow] = []
    rule = hide(session, touched=touched, holder=here())

    def decide(view: View) -> Batch | More:
        lines.extend([view.session] if view.session is not None else [])
        return rule(view)

    hidden: SessionRow | None = backend.write(hide_ask(session), decide).answer
    if hidden is not None:
        empty(backend, hidden.id)
    for line in lines[:1] if hidden is None else ():  # an earlier try went through, and its answer was lost on the way
        for row in backend.sessions(SessionQuery(hidden=True, prefix=f"{line.uid.hex()}.")):
            empty(backend, row.id)
    return lines[-1].checkpoints if lines else 0


def empty(backend: Backend, hidden: str) -> None:
    """Remove a hidden session, in portions."""
    ask = Ask(hidden, hidden=True)
    for kind in _EMPTIED:
        while rows := backend.scan(hidden, kind, limit=_PORTION_ROWS, hidden=True):
            backend.write(ask, drop_rows([(kind, row_key(row)) for row in rows]))
    backend.write(ask, drop_session())


def leftovers(backend: Backend) -> list[SessionRow]:
    """The orphans: hidden sessions that no process deletes or imports any more; none if they cannot be listed."""
    try:
        rows = backend.sessions(SessionQuery(hidden=True, limit=_HIDDEN))
        view = backend.read(Ask("")) if rows else None
    except CorruptionError:
        return []
    return [
        row for row in rows if view is not None and not is_live(row.claim, now_us=view.now_us, wall_us=view.wall_us)
    ]


def sweep(backend: Backend) -> list[str]:
    """Remove the orphans of killed deletions and imports, and say so. A damaged one is left where it is."""
    done = []
    for row in leftovers(backend):
        with contextlib.suppress(CorruptionError):
            empty(backend, row.id)
            done.append("a half-deleted or half-imported session was removed")
    return done
