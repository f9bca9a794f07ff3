"""Continuum (sh_layer2): `<session>/checkpoints/cp_<time>_<id>.json` with a checksum, and the folder of its Python SDK.

The checksum is compared over the numbers as they stand in the text, so that a sound file is never taken for a damaged
one. What is newest is told by the checkpoints themselves, not by the link, the name or the date of a file. A
checkpoint that survives only as `latest.json.backup` is taken from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from backstay.formats.chat import arguments_of, arguments_text
from backstay.formats.dialect import (
    AFTER_LAST_SECOND,
    DamagedError,
    JsonWriter,
    Sorted,
    has_plus,
    literal_digest,
    nanoseconds,
    parse_object,
    time_text,
)
from backstay.formats.exporter import Exporter, jsonable, micros, own
from backstay.formats.model import MAIN, FoundPoint, FoundSession, GivenFields, PendingCall, Reading, arrange
from backstay.formats.source import Entry, Parts, Source, same_name
from backstay.formats.target import Target, safe_parts
from backstay.formats.values import from_state, to_state
from backstay.model import Checkpoint, StateDict, Status, Usage

NAME = "continuum"
_CHECKPOINTS, _LATEST, _BACKUP = "checkpoints", "latest.json", "latest.json.backup"
_META, _STATE = "session_meta.json", "state.json"
_VERSION = "1.0"
_SEALS = ("_checksum", "_version")
_PARTS = {"messages", "tool_calls_pending", "tool_results"}
_CARRIED = frozenset({"triggers", "resume hints", "tokens", "costs"})
_FILE = re.compile(r"cp_(\d{8}_\d{6})_(.+)\.json", re.DOTALL)
_MAX_ITERATION, _MAX_TOKENS = 2**31, 2**63 - 1
_SDK_FILE = re.compile(r"cp_([0-9a-f]{12})_(\d{1,12})\.json")
_HOME = "continuum_checkpoints"
_ENDED = {"Running": Status.IN_PROGRESS, "Paused": Status.IN_PROGRESS, "Completed": Status.COMPLETED}


def recognise(source: Source) -> bool:
    """True if this looks like a folder of Continuum's."""
    home = _home(source)
    return any(_is_ours(source, entry, entry.parts[len(home) :]) for entry in source.walk(*home))


def _is_ours(source: Source, entry: Entry, parts: Parts) -> bool:
    if entry.kind != "file":
        return False
    if entry.name == _META:
        return len(parts) <= len(("session", _META))
    if _SDK_FILE.fullmatch(entry.name):
        return len(parts) <= len(("session", "cp")) and b'"_version"' in source.peek(entry.parts, 1 << 16)
    if not _FILE.fullmatch(entry.name):
        return False
    return len(parts) == 1 or (len(parts) <= len(("session", _CHECKPOINTS, "cp")) and parts[-2] == _CHECKPOINTS)


def read(source: Source, reading: Reading) -> None:
    """Every checkpoint that is intact."""
    home = _home(source)
    folders: dict[Parts, list[Entry]] = {}
    for entry in source.walk(*home):
        folders.setdefault(entry.parts[:-1], []).append(entry)
    sessions: dict[str, list[FoundPoint]] = {}
    beside: dict[str, Parts] = {}
    for folder, entries in folders.items():
        if folder == home or folder[-1:] == (_CHECKPOINTS,):
            # The folder of one session may be given, too: then its name is not known.
            session = "/".join(folder[len(home) : -1]) or None
            for id_ in _read_checkpoints(source, entries, session, sessions, reading):
                beside[id_] = folder[:-1] if folder != home else home
        else:
            _read_sdk(source, entries, sessions, reading)
    for session, points in sessions.items():
        found = arrange(session, points, reading)
        if found is not None:
            _tell_status(source, found, beside.get(session), reading)
            _find_pending(found)
            reading.sessions.append(found)


def _home(source: Source) -> Parts:
    """Where the sessions are: at the top, or in one of the folders that Continuum makes for them."""
    if source.is_folder(_HOME):
        return (_HOME,)
    inner = [entry for entry in source.entries(_CHECKPOINTS) if entry.kind == "folder"]
    if any(source.is_folder(*entry.parts, _CHECKPOINTS) for entry in inner):
        return (_CHECKPOINTS,)
    return ()


# the checkpoints of the program


def _read_checkpoints(
    source: Source, entries: list[Entry], session: str | None, sessions: dict[str, list[FoundPoint]], reading: Reading
) -> set[str]:
    """The checkpoints of one folder; the sessions that they say they belong to (there should be one)."""
    seen: dict[tuple[str, bytes], str] = {}
    spare: list[Entry] = []
    met: set[str] = set()

    def take(entry: Entry, *, spares: bool) -> None:
        data = source.read(entry.parts)
        found, point = _point(source, entry, data, session)
        mark = (point.id, sha256(data).digest())
        if mark in seen:
            return
        if spares:
            if any(id_ == point.id for id_, _ in seen):
                return
            reading.note(entry.shown, f"checkpoint {point.id!r} survives only here")
        seen[mark] = entry.shown
        met.add(found)
        sessions.setdefault(found, []).append(point)

    for entry in entries:
        if entry.name in (_LATEST, _BACKUP) or entry.name.endswith(".backup"):
            spare.append(entry)
        elif entry.name.startswith((".tmp_checkpoint_", ".tmp_latest_")):
            reading.note(entry.shown, "it was left by a crash before it was complete, and is not a checkpoint")
        elif entry.kind == "link":
            reading.trouble(entry.shown, "it is a link, which is not followed")
        elif entry.name in (_META, _STATE):
            continue
        elif entry.kind == "file" and _FILE.fullmatch(entry.name):
            try:
                take(entry, spares=False)
            except DamagedError as damage:
                reading.trouble(entry.shown, damage)
        else:
            reading.note(entry.shown, "it is not a checkpoint")
    names = {entry.name for entry in entries}
    for entry in spare:
        aim = source.link(entry.parts) if entry.kind == "link" else _link_text(source, entry)
        if aim is not None:
            if aim not in names:
                reading.note(entry.shown, f"it points at {aim[:120]!r}, which is not here; the newest was taken")
            continue
        try:
            take(entry, spares=True)
        except DamagedError as damage:
            reading.trouble(entry.shown, damage)
    return met


def _link_text(source: Source, entry: Entry) -> str | None:
    """What a link said that was turned into a file, as archives and checkouts without links do."""
    start = source.peek(entry.parts, 512)
    if entry.name != _LATEST or start.lstrip().startswith(b"{") or not start.strip():
        return None
    return start.decode(errors="replace").strip()


def _point(source: Source, entry: Entry, data: bytes, folder: str | None) -> tuple[str, FoundPoint]:
    given = GivenFields(parse_object(data))
    if given.text("_version") != _VERSION:
        raise DamagedError(f"_version is {given.text('_version')[:40]!r}, and {_VERSION!r} is what can be read")
    if literal_digest(data, _SEALS) != given.text("_checksum"):
        raise DamagedError("its checksum does not match its content")
    id_, session, created = given.text("checkpoint_id"), given.text("session_id"), given.text("created_at")
    if folder is not None and not same_name(session, folder):
        raise DamagedError(f"it says that it belongs to session {session[:120]!r}")
    named = _FILE.fullmatch(entry.name)
    if named is not None and not same_name(named[2], id_):
        raise DamagedError(f"it says that it is checkpoint {id_[:120]!r}")
    iteration, tokens = given.whole("iteration", low=-(2**31), high=2**31), given.whole("tokens_used", high=2**63)
    cost = given.value("cost_estimate")
    if type(cost) not in (int, float, type(None)):
        raise DamagedError("cost_estimate is not a number")
    given.items("messages")
    given.items("tool_calls_pending")
    given.value("tool_results")
    at_ns = nanoseconds(created)
    kept: dict[str, Any] = {"id": id_, "created_at": created, "tokens_used": tokens, "cost_estimate": cost}
    if named is not None:
        kept["saved"] = named[1]
    if has_plus(data):
        kept["plus"] = True
    digest = sha256(data).digest()
    point = FoundPoint(
        id=id_,
        order=(at_ns, iteration, "" if named is None else named[1], id_),
        at_us=at_ns // 1000,
        load=_loader(source, entry, digest, lambda value: {part: value[part] for part in sorted(_PARTS)}),
        where=entry.shown,
        step=iteration,
        trigger=given.text("trigger"),
        resume_hint=given.maybe_text("resume_hint"),
        total=Usage(tokens_in=max(tokens, 0), cost=float(cost or 0.0)),
        metadata={NAME: kept},
    )
    if given.rest():
        kept["more"] = given.rest()
    return session, point


def _loader(
    source: Source, entry: Entry, digest: bytes, state: Callable[[dict[str, Any]], StateDict]
) -> Callable[[], StateDict]:
    return lambda: state(parse_object(source.again(entry.parts, digest)))


def _tell_status(source: Source, found: FoundSession, folder: Parts | None, reading: Reading) -> None:
    """What `session_meta.json` and `state.json` say goes to the head, where the status of a session is."""
    if folder is None:
        return
    head = next(point for point in found.points if point.id == found.heads[MAIN])
    told: dict[str, dict[str, Any]] = {}
    for name in (_META, _STATE):
        if any(entry.name == name for entry in source.entries(*folder)):
            where = "/".join((*folder, name))
            try:
                value = parse_object(source.read((*folder, name)))
                if value.get("session_id") != found.id:
                    raise DamagedError("it is of another session")
            except DamagedError as damage:
                reading.trouble(where, damage)
            else:
                told[name] = head.metadata[NAME][name.removesuffix(".json")] = value
    reason = told.get(_META, {}).get("termination_reason")
    reason = reason if isinstance(reason, str) else None
    status = told.get(_STATE, {}).get("status")
    if status == "Error":
        head.status, head.reason = Status.FAILED.value, reason
    elif told.get(_STATE, {}).get("completed") is True or status in _ENDED:
        done = told[_STATE].get("completed") is True
        head.status = (Status.COMPLETED if done else _ENDED.get(str(status), Status.IN_PROGRESS)).value
    elif reason is not None and told[_META].get("is_active") is not True:
        finished = reason.lower() in ("completed", "complete", "done", "finished", "success")
        head.status, head.reason = (Status.COMPLETED.value, None) if finished else (Status.HALTED.value, reason)


def _find_pending(found: FoundSession) -> None:
    head = next(point for point in found.points if point.id == found.heads[MAIN])
    for call in head.load().get("tool_calls_pending", []) if NAME in head.metadata else []:
        told = call if isinstance(call, dict) else {}
        arguments = told.get("arguments")
        found.pending.append(
            PendingCall(
                told["id"] if isinstance(told.get("id"), str) and told["id"] else None,
                str(told.get("name") or "tool"),
                arguments_of(arguments) if isinstance(arguments, str) else arguments if told else call,
            )
        )


# the folder of the Python SDK


def _read_sdk(source: Source, entries: list[Entry], sessions: dict[str, list[FoundPoint]], reading: Reading) -> None:
    for entry in entries:
        named = _SDK_FILE.fullmatch(entry.name)
        if entry.kind == "link":
            reading.trouble(entry.shown, "it is a link, which is not followed")
        elif named is not None and entry.kind == "file":
            try:
                session, point = _sdk_point(source, entry, int(named[2]))
            except DamagedError as damage:
                reading.trouble(entry.shown, damage)
            else:
                sessions.setdefault(session, []).append(point)
        elif entry.name not in (_META, _STATE):
            reading.note(entry.shown, "it is not a checkpoint")


def _sdk_point(source: Source, entry: Entry, seconds: int) -> tuple[str, FoundPoint]:
    """Its time is the local one of an unknown machine: the seconds in the name are used, the text is kept."""
    data = source.read(entry.parts)
    given = GivenFields(parse_object(data))
    if given.value("_version") != 1:
        raise DamagedError("_version is not 1")
    id_, session, created = given.text("checkpoint_id"), given.text("session_id"), given.text("created_at")
    given.value("state")
    folder = "".join([char if char.isalnum() or char in "-_" else "_" for char in session])
    if len(entry.parts) > 1 and not same_name(entry.parts[-2], folder):
        raise DamagedError(f"it says that it belongs to session {session[:120]!r}")
    fraction = re.search(r"\.(\d{1,6})$", created)
    micro = int(fraction[1].ljust(6, "0")) if fraction else 0
    kept: dict[str, Any] = {"id": id_, "created_at": created, "layout": "sdk"}
    if given.rest():
        kept["more"] = given.rest()
    return session, FoundPoint(
        id=id_,
        order=(seconds * 10**9 + micro * 1000, 0, created, id_),
        at_us=min(seconds, AFTER_LAST_SECOND - 1) * 10**6 + micro,
        load=_loader(source, entry, sha256(data).digest(), lambda value: to_state(value["state"], None)),
        where=entry.shown,
        metadata={NAME: kept},
    )


# writing


def write(exporter: Exporter, target: Target) -> None:
    """The checkpoints of a branch, the backup and the link, and what was told of the session."""
    top = safe_parts(exporter.session, "a session called")
    folder = (*top, _CHECKPOINTS)
    target.refuse([name for name in target.names(*folder) if not name.startswith(".")], *folder)
    written: list[tuple[str, bytes]] = [("", b"")]
    told: dict[str, Any] = {}
    for checkpoint in exporter.line():
        kept = own(checkpoint, NAME)
        told = kept
        id_ = kept.get("id", checkpoint.id)
        name = f"cp_{_saved(kept, checkpoint)}_{id_}.json"
        safe = safe_parts(name, "a checkpoint called")
        if len(safe) > 1:
            safe = safe_parts(f"cp_{_saved(kept, checkpoint)}_{checkpoint.sequence}.json", "a checkpoint called")
        content = _content(exporter, checkpoint, kept)
        target.write((*folder, *safe), content)
        written = [written[-1], (safe[-1], content)]
    exporter.note_branches("Continuum")
    if written[0][0]:
        target.write((*folder, _BACKUP), written[0][1])
    target.settle(*folder)
    target.link((*folder, _LATEST), written[-1][0])
    for name in (_META, _STATE):
        value = told.get(name.removesuffix(".json"))
        if value is not None:
            target.write((*top, name), JsonWriter().pretty(value))
    target.settle(*folder)


def _saved(kept: dict[str, Any], checkpoint: Checkpoint) -> str:
    saved = kept.get("saved")
    if isinstance(saved, str) and re.fullmatch(r"\d{8}_\d{6}", saved):
        return saved
    return checkpoint.created_at.strftime("%Y%m%d_%H%M%S")


def _content(exporter: Exporter, checkpoint: Checkpoint, kept: dict[str, Any]) -> bytes:
    state = jsonable(checkpoint.state, NAME)
    if kept.get("layout") == "sdk":
        state = {"messages": [from_state(state)[0]]}
    exporter.note_parts(state, _PARTS)
    exporter.note_fields(checkpoint, NAME, _CARRIED)
    total = checkpoint.total_usage
    messages = state.get("messages", [])
    cost = kept.get("cost_estimate", total.cost)
    step = checkpoint.step if checkpoint.step is not None else checkpoint.sequence
    created = kept.get("created_at") if kept.get("layout") != "sdk" else None
    record: dict[str, Any] = {
        "_version": _VERSION,
        "checkpoint_id": kept.get("id", checkpoint.id),
        # A cost that was not a number is a null, which Continuum writes and then cannot read.
        "cost_estimate": cost if cost is not None and cost - cost == 0 else 0.0,
        "created_at": created or time_text(micros(checkpoint.created_at)),
        "iteration": min(max(step, -_MAX_ITERATION), _MAX_ITERATION - 1),
        "messages": messages if isinstance(messages, list) else [messages],
        "resume_hint": checkpoint.resume_hint,
        "session_id": exporter.session,
        "tokens_used": kept.get("tokens_used", min(total.tokens_in + total.tokens_out, _MAX_TOKENS)),
        "tool_calls_pending": _pending(exporter, checkpoint, state, kept),
        "tool_results": state.get("tool_results"),
        "trigger": checkpoint.trigger,
        **kept.get("more", {}),
    }
    writer = JsonWriter(plus=bool(kept.get("plus")))
    bare = {key: value for key, value in record.items() if key != "_version"}
    record["_checksum"] = sha256(writer.compact(Sorted(bare))).hexdigest()
    return writer.pretty(Sorted(record))


def _pending(exporter: Exporter, checkpoint: Checkpoint, state: StateDict, kept: dict[str, Any]) -> list[Any]:
    """The calls without an outcome: as it was there; of what was made here, what the state and the journal say."""
    told = state.get("tool_calls_pending")
    told = told if isinstance(told, list) else []
    if kept or (not told and checkpoint.id != exporter.head.id):
        return told
    settled = exporter.settled()
    left = [call for call in told if not (isinstance(call, dict) and call.get("id") in settled)]
    if left or checkpoint.id != exporter.head.id:
        return left
    return [{"id": call.key, "name": call.name, "arguments": arguments_text(call.args)} for call in exporter.pending()]
