"""ccswarm 0.4.0: `index.json`, `sessions/<session>/<checkpoint>.json` and the registry of forks, `forks.json`.

The index is only a hint: what counts are the files, each under the name that its own content gives it. Its paths are
looked at and never followed. A state that is an object is the state here; `context` is a part of it, as bytes.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from unicodedata import normalize

from backstay.errors import InvalidInputError
from backstay.formats.dialect import DamagedError, JsonWriter, Sorted, has_plus, nanoseconds, parse_object, time_text
from backstay.formats.exporter import Exporter, is_jsonable, jsonable, made_uuid, micros, own
from backstay.formats.model import FoundPoint, FoundSession, GivenFields, Reading, arrange, free_name
from backstay.formats.source import Entry, Parts, Source, same_name
from backstay.formats.target import Target, safe_parts
from backstay.formats.values import from_state, to_state
from backstay.model import Checkpoint, StateDict, Usage

NAME = "ccswarm"
_INDEX, _SESSIONS, _FORKS = "index.json", "sessions", "forks.json"
_BYTE = 256
_ZSTD, _GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
_HOMES: tuple[Parts, ...] = ((), ("checkpoints",))


def recognise(source: Source) -> bool:
    """True if this looks like a folder of ccswarm's."""
    for home in _HOMES:
        names = {entry.name: entry.kind for entry in source.entries(*home)}
        if names.get(_SESSIONS) == "folder" and any(
            entry.kind == "folder" and any(one.name.endswith(".json") for one in source.walk(*entry.parts))
            for entry in source.entries(*home, _SESSIONS)
        ):
            return True
        start = source.peek((*home, _INDEX), 4096)
        if names.get(_INDEX) == "file" and (b'"path"' in start and b'"size_bytes"' in start):
            return True
    return False


def read(source: Source, reading: Reading) -> None:
    """Every checkpoint that is intact."""
    for home in _HOMES:
        if source.is_folder(*home, _SESSIONS) or any(one.name == _INDEX for one in source.entries(*home)):
            _read_home(source, home, reading)


def _read_home(source: Source, home: Parts, reading: Reading) -> None:
    sessions: dict[str, list[FoundPoint]] = {}
    here: set[str] = set()
    for entry in source.walk(*home, _SESSIONS):
        if entry.kind == "link":
            reading.trouble(entry.shown, "it is a link, which is not followed")
        elif entry.kind != "file" or not entry.name.endswith(".json"):
            reading.note(entry.shown, "it is not a checkpoint")
        else:
            here.add("/".join(entry.parts[len(home) :]))
            try:
                session, point = _point(source, entry, len(home) + 1)
            except DamagedError as damage:
                reading.trouble(entry.shown, damage)
            else:
                sessions.setdefault(session, []).append(point)
    _compare_index(source, home, here, reading)
    found = {id_: arrange(id_, points, reading) for id_, points in sessions.items()}
    kept = {id_: session for id_, session in found.items() if session is not None}
    for parts in dict.fromkeys([(*home, _FORKS), (*home, "forks", _FORKS), (_FORKS,), ("forks", _FORKS)]):
        if any(entry.parts == parts for entry in source.entries(*parts[:-1])):
            _read_forks(source, parts, kept, reading)
    reading.sessions += kept.values()


def _point(source: Source, entry: Entry, top: int) -> tuple[str, FoundPoint]:
    data = source.read(entry.parts)
    given = GivenFields(parse_object(data))
    id_, session, created = given.text("id"), given.text("session_id"), given.text("created_at")
    wanted = f"{session}/{id_}.json"
    if not same_name("/".join(entry.parts[top:]), wanted):
        raise DamagedError(f"it says that it is {wanted[:200]!r}")
    label = given.maybe_text("label")
    given.value("state")
    context = _context(given)
    told = GivenFields(given.object("metadata"), "metadata.")
    total = Usage(tokens_in=told.maybe_whole("token_count") or 0, tasks_completed=told.whole("tasks_completed", low=0))
    told.whole("state_size_bytes")
    told.flag("context_compressed")
    parent = told.maybe_text("parent_checkpoint_id")
    told.object("extra")
    at_ns = nanoseconds(created)
    metadata: dict[str, Any] = {"id": id_, "created_at": created, "metadata": given.object("metadata")}
    if context is not None:
        metadata["context"] = _form(context)
    if given.rest():
        metadata["more"] = given.rest()
    if has_plus(data):
        metadata["plus"] = True
    digest = sha256(data).digest()

    def load() -> StateDict:
        value = GivenFields(parse_object(source.again(entry.parts, digest)))
        return to_state(value.value("state"), _context(value))

    return session, FoundPoint(
        id=id_,
        order=(at_ns, total.tasks_completed, total.tokens_in, id_),
        at_us=at_ns // 1000,
        load=load,
        where=entry.shown,
        parent=parent,
        label=label,
        total=total,
        metadata={NAME: metadata},
    )


def _context(given: GivenFields) -> bytes | None:
    if given.maybe("context") is None:
        return None
    numbers = given.items("context")
    if not all([type(number) is int and 0 <= number < _BYTE for number in numbers]):
        raise DamagedError("context is not a list of bytes")
    return bytes(numbers)


def _form(context: bytes) -> str:
    """What the bytes are. `context_compressed` does not say: the original never compresses."""
    return "zstd" if context.startswith(_ZSTD) else "gzip" if context.startswith(_GZIP) else "plain"


def _compare_index(source: Source, home: Parts, here: set[str], reading: Reading) -> None:
    """What the index and the files say of each other. The files are right."""
    where = "/".join((*home, _INDEX))
    if not any(entry.name == _INDEX for entry in source.entries(*home)):
        reading.note(where, "there is none; all files were taken without it")
        return
    try:
        index = parse_object(source.read((*home, _INDEX)))
    except DamagedError as damage:
        reading.trouble(where, f"{damage}; all files were taken without it")
        return
    known = {normalize("NFC", name) for name in here}
    listed: set[str] = set()
    for id_, row in index.items():
        path = row.get("path") if isinstance(row, dict) else None
        wanted = f"{_SESSIONS}/{row.get('session_id')}/{id_}.json" if isinstance(row, dict) else ""
        if not isinstance(path, str) or path != wanted or ".." in path.split("/"):
            reading.trouble(where, f"the entry {id_[:80]!r} has the path {str(path)[:120]!r}, which was not followed")
            continue
        listed.add(normalize("NFC", path))
        if normalize("NFC", path) not in known:
            reading.trouble("/".join((*home, path)), "the index lists it and it is not there")
    for name in sorted(here):
        if normalize("NFC", name) not in listed:
            reading.note("/".join((*home, name)), "the index does not know it")


def _read_forks(source: Source, parts: Parts, sessions: dict[str, FoundSession], reading: Reading) -> None:
    """Forks become branches of the session they were made from, at the checkpoint they were made from."""
    where = "/".join(parts)
    try:
        forks = GivenFields(parse_object(source.read(parts))).object("forks")
    except DamagedError as damage:
        reading.trouble(where, damage)
        return
    for id_, fork in forks.items():
        try:
            given = GivenFields(fork if isinstance(fork, dict) else {}, f"fork {id_[:60]!r}: ")
            session, checkpoint = given.text("parent_session_id"), given.text("checkpoint_id")
            wanted = given.maybe_text("branch_name") or id_
            given.text("fork_id")
            given.text("created_at")
            given.text("status")
        except DamagedError as damage:
            reading.trouble(where, damage)
            continue
        found = sessions.get(session)
        points = {} if found is None else {point.id: point for point in found.points}
        if found is None or not points:
            reading.trouble(where, f"fork {id_[:60]!r} is of session {session[:80]!r}, which is not here")
            continue
        if checkpoint in points:
            _name_fork(found, points[checkpoint], wanted)
        else:
            reading.note(where, f"fork {id_[:60]!r} began at checkpoint {checkpoint[:60]!r}, which is not there")
        point = points.get(checkpoint, found.points[-1])
        point.metadata[NAME].setdefault("forks", []).append(fork)


def _name_fork(found: FoundSession, point: FoundPoint, wanted: str) -> None:
    """A branch at the checkpoint. A leaf that has its checkpoint's name for want of a better one gets this name."""
    made_up = [name for name, head in found.heads.items() if head == point.id and name in (point.label, point.id)]
    for name in made_up:
        del found.heads[name]
    branch = free_name(wanted, found.heads)
    found.heads[branch] = point.id
    for one in found.points:
        if one.branch in made_up:
            one.branch = branch


# writing


def write(exporter: Exporter, target: Target) -> None:
    """All checkpoints of a session, whatever branch they are on, the forks, then the index."""
    folder = (_SESSIONS, *safe_parts(exporter.session, "a session called"))
    target.refuse(target.names(*folder), *folder)
    index = _index_there(target)
    names: dict[str, str] = {}  # ids here, and there
    told: list[dict[str, Any]] = []
    for checkpoint in exporter.checkpoints():
        record, writer = _record(exporter, checkpoint, names)
        names[checkpoint.id] = record["id"]
        content = writer.pretty(record)
        parts = (_SESSIONS, *safe_parts(f"{exporter.session}/{record['id']}", "a checkpoint called", tail=".json"))
        target.write(parts, content)
        index[record["id"]] = {
            "id": record["id"],
            "session_id": exporter.session,
            "label": record["label"],
            "created_at": record["created_at"],
            "path": "/".join(parts),
            "size_bytes": len(content),
        }
        told += own(checkpoint, NAME).get("forks", [])
    target.settle(*folder)
    forks = _forks(exporter, told, names)
    if forks:
        _write_forks(target, exporter.session, forks)
    target.write((_INDEX,), JsonWriter().pretty(index))
    target.settle()
    if exporter.newest_is_elsewhere():
        exporter.note("ccswarm goes on with the newest checkpoint, and that is not on the branch asked for")


def _forks(exporter: Exporter, told: list[dict[str, Any]], names: dict[str, str]) -> list[dict[str, Any]]:
    """The forks that were there, and one for each branch that was made here: at its head, whose state it goes on from.

    One whose branch was deleted here does not come back.
    """
    forks: list[dict[str, Any]] = []
    known: set[str] = set()
    for fork in told:
        wanted = fork.get("branch_name") or fork["fork_id"]
        lost = fork["checkpoint_id"] not in names.values()  # it never was a branch
        if lost or any(name == wanted or name.startswith(f"{wanted[:240]} (") for name in exporter.branches):
            forks.append(fork)
            known.add(wanted)
    for name, head in exporter.branches.items():
        # A branch that an import made of a leaf has its checkpoint's own name, and needs no fork.
        if name in ("main", head.label, head.id) or name in known:
            continue
        forks.append(
            {
                "fork_id": made_uuid(exporter.session, "fork", name),
                "parent_session_id": exporter.session,
                "checkpoint_id": names[head.id],
                "branch_name": name,
                "created_at": time_text(micros(head.created_at)),
                "status": "Active",
                "metadata": {},
            }
        )
    return forks


def _index_there(target: Target) -> dict[str, Any]:
    before = target.read((_INDEX,))
    if before is None:
        return {}
    try:
        return parse_object(before)
    except DamagedError as damage:
        message = f"{target.path / _INDEX}: {damage}; nothing was written"
        raise InvalidInputError(message, hint="export to an empty folder, or mend it first") from damage


def _record(exporter: Exporter, checkpoint: Checkpoint, names: dict[str, str]) -> tuple[dict[str, Any], JsonWriter]:
    kept = own(checkpoint, NAME)
    writer = JsonWriter(plus=bool(kept.get("plus")))
    state, context = from_state(checkpoint.state)
    body = Sorted(jsonable(state, NAME))
    total = checkpoint.total_usage
    parent = exporter.parent(checkpoint)
    told = dict(kept.get("metadata") or {}) or {
        "tasks_completed": total.tasks_completed,
        "token_count": total.tokens_in + total.tokens_out or None,
        "state_size_bytes": len(writer.compact(body)),
        "context_compressed": False,
        "parent_checkpoint_id": None if parent is None else names[parent],
        "extra": _extra(exporter, checkpoint),
    }
    if checkpoint.parent_id != parent:  # it was pruned here; what was lost before stays as it was told
        told["parent_checkpoint_id"] = None if parent is None else names[parent]
    if kept and checkpoint.id in exporter.tags:
        told["extra"] = {**told["extra"], "tags": exporter.tags[checkpoint.id]}
    at = kept.get("created_at")
    written_us = exporter.written_us(checkpoint, None if at is None else nanoseconds(at) // 1000)
    return {
        "id": kept.get("id", checkpoint.id),
        "session_id": exporter.session,
        "label": checkpoint.label,
        "created_at": at or time_text(written_us),
        "state": body,
        "context": None if context is None else list(context),
        "metadata": told,
        **kept.get("more", {}),
    }, writer


def _extra(exporter: Exporter, checkpoint: Checkpoint) -> dict[str, Any]:
    """All that is known of a checkpoint and has no field in ccswarm. Names that the caller gave are the caller's."""
    used = checkpoint.total_usage
    told: dict[str, Any] = {"step": checkpoint.step, "status": checkpoint.status.value, "reason": checkpoint.reason}
    told |= {"trigger": checkpoint.trigger, "agent": checkpoint.agent, "resume_hint": checkpoint.resume_hint}
    told |= {"tokens_in": used.tokens_in or None, "tokens_out": used.tokens_out or None, "cost": used.cost or None}
    told |= {"branch": checkpoint.branch, "tags": exporter.tags.get(checkpoint.id)}
    told |= {"restored_from": checkpoint.restored_from, "usage": dict(used.extra) or None}
    written: dict[str, Any] = {}
    for key, value in checkpoint.metadata.items():
        if is_jsonable(value):
            written[key] = value
        else:
            exporter.note(f"the metadata {key!r} holds a value that JSON has no form for, and stays behind")
    for key, value in told.items():
        if value is not None:
            written[key if key not in written else f"backstay.{key}"] = value
    return written


def _write_forks(target: Target, session: str, forks: list[dict[str, Any]]) -> None:
    before = target.read((_FORKS,))
    there: dict[str, Any] = {"forks": {}, "children": {}}
    if before is not None:
        try:
            there |= parse_object(before)
        except DamagedError as damage:
            message = f"{target.path / _FORKS}: {damage}"
            raise InvalidInputError(message, hint="export to an empty folder, or mend it first") from damage
    children = there["children"].setdefault(session, [])
    for fork in forks:
        there["forks"][fork["fork_id"]] = {**fork, "parent_session_id": session}
        if fork["fork_id"] not in children:
            children.append(fork["fork_id"])
    target.write((_FORKS,), JsonWriter().pretty(there))
