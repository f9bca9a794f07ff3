"""Deleting: single checkpoints, many of them in portions, and whole sessions.

A checkpoint that stays but whose parent goes is written again, before the rule decides: as a delta from its nearest
ancestor that stays, or as a keyframe where there is none or that is hardly longer. If somebody commits in between, the
rule refuses and the portion is planned again. A session is hidden at once and then emptied in portions; a kill on the
way leaves a hidden session, which `sweep` finishes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from backstay.delta import advance, know, whole
from backstay.errors import ConflictError, CorruptionError
from backstay.port import EVERY, Ask, Backend, CheckpointRow, Key, Kind, SessionQuery, SessionRow, Unreadable
from backstay.port.lease import is_live
from backstay.port.rows import key_of
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
)
from backstay.sealing import pack_blob, seal_delta, seal_keyframe, spill, spilled
from backstay.store.reading import Loaded, load

_TRIES = 100
_DELTA_WORTH = 0.5  # of a keyframe: above that the keyframe is taken, which rests on nothing
_PORTION_ROWS = 200
_EMPTIED = (Kind.CALL, Kind.KEYFRAME, Kind.CHECKPOINT, Kind.NAME)


def delete_some(backend: Backend, session: str, gone: Collection[int], *, spare_names: bool = False) -> int:
    """Delete checkpoints by their sequences, in portions; how many there were. ConflictError if one is needed."""
    ordered = sorted(gone, reverse=True)
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
    rows = dict(view.checkpoints)
    going = set(gone)
    anchors = {at: _anchor(backend, session, rows, at, going) for at in gone}
    children = {child: at for at in gone for child in view.children.get(at, ()) if child not in going}
    blobs: dict[bytes, bytes] = {}
    rewrites = [
        _rewrite(backend, session, child, anchors[parent], blobs) for child, parent in sorted(children.items())
    ]
    return Deletion(
        session,
        view.session.uid,
        tuple(gone),
        tuple(rewrites),
        tuple({at for at in anchors.values() if at is not None}),
        blobs,
        spare_names,
    )


def _anchor(
    backend: Backend, session: str, rows: Mapping[int, CheckpointRow | Unreadable], at: int, going: Collection[int]
) -> int | None:
    """The nearest ancestor of a checkpoint that stays."""
    parent: int | None = at
    while parent is not None and parent in going:
        row = rows.get(parent)
        if row is None:
            raise refusals.no_checkpoint(session, f"#{parent}")[1]
        parent = row.parent
    return parent


def _rewrite(
    backend: Backend, session: str, child: int, anchor: int | None, blobs: dict[bytes, bytes]
) -> Rewrite:
    """What a checkpoint becomes; the blobs it needs are added to `blobs`."""
    found = _loaded(backend, session, child)
    row, uid = found.row, found.session.uid
    if row.keyframe:
        return Rewrite(child, anchor)
    keyframe, pieces = whole(found.state)
    if anchor is not None:
        base = _loaded(backend, session, anchor)
        delta, more, _ = advance(know(base.state), found.state)
        if delta.size_bytes < _DELTA_WORTH * keyframe.size_bytes:
            digest = base.row.state_digest
            data, parts = spill(seal_delta(delta, uid=uid, tail=row.tail, base=digest, state=row.state_digest))
            blobs.update(parts)
            blobs.update({digest: pack_blob(piece) for digest, piece in more.items()})
            return Rewrite(child, anchor, digest, data, (*delta.refs, *spilled(data)))
    data, parts = spill(seal_keyframe(keyframe, uid=uid, tail=row.tail, state=row.state_digest))
    blobs.update(parts)
    blobs.update({digest: pack_blob(piece) for digest, piece in pieces.items()})
    return Rewrite(child, anchor, keyframe=data, keyframe_refs=(*keyframe.refs, *spilled(data)))


def _loaded(backend: Backend, session: str, sequence: int) -> Loaded:
    found = load(backend, session, sequence)
    if not isinstance(found, Loaded):
        raise refusals.changed(session, f"checkpoint #{sequence} was deleted meanwhile")[1]
    return found


# whole sessions


def delete_session(backend: Backend, session: str, *, touched: int | None = None) -> SessionRow:
    """Delete a session and everything only it needed; its row as it was. ConflictError if touched since the number."""
    hidden: SessionRow = backend.write(hide_ask(session), hide(session, touched=touched)).answer
    empty(backend, hidden.id)
    return hidden


def empty(backend: Backend, hidden: str) -> None:
    """Remove a hidden session, in portions."""
    ask = Ask(hidden, hidden=True)
    for kind in _EMPTIED:
        while True:
            rows = backend.scan(hidden, kind, limit=_PORTION_ROWS, hidden=True)
            if not rows:
                break
            backend.write(ask, drop_rows(_keys(kind, rows)))
    backend.write(ask, drop_session())


def _keys(kind: Kind, rows: Iterable[object]) -> list[tuple[Kind, Key]]:
    keys: list[tuple[Kind, Key]] = []
    for row in rows:
        keys.append((kind, row.key if isinstance(row, Unreadable) else key_of(row)))  # type: ignore[arg-type]
    return keys


def sweep(backend: Backend) -> list[str]:
    """Finish what a kill left of deletions and imports; what was done."""
    done = []
    for row in backend.sessions(SessionQuery(hidden=True, limit=1000)):
        if row.claim is not None:
            clock = backend.read(Ask(row.id, hidden=True))  # the store's own, which the claim was made by
            if is_live(row.claim, now_us=clock.now_us, wall_us=clock.wall_us):
                continue  # an import that is under way
        try:
            empty(backend, row.id)
        except CorruptionError as error:
            done.append(f"a half-deleted session could not be removed: {error.args[0]}")
            continue
        done.append("a session that was half deleted or half imported is gone")
    return done
