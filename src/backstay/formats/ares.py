"""ARES 0.7.5 and later: `<session>_<step>.json` and the pointer `<session>_latest.json`, all in one folder.

Which session a file belongs to is what it says itself, and its name must agree: `a` and `a_b` never mix. The pointer
is a hint; what it names is never opened on its word. A higher step that is older than the one pointed at is left from
a line that was given up, and gets a branch of its own.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from unicodedata import normalize

from backstay.formats.chat import arguments_of, arguments_text, calls_in, flatten, text_of
from backstay.formats.dialect import AFTER_LAST_SECOND, DamagedError, JsonWriter, parse_object
from backstay.formats.exporter import Exporter, jsonable, micros, own
from backstay.formats.model import MAIN, FoundPoint, FoundSession, GivenFields, PendingCall, Reading, arrange, free_name
from backstay.formats.source import Entry, Parts, Source, same_name
from backstay.formats.target import Target, safe_parts
from backstay.model import Checkpoint, StateDict, Status

NAME = "ares"
_POINTER = "_latest.json"
_STATUSES = {"InProgress": Status.IN_PROGRESS, "Completed": Status.COMPLETED}
_REASONED = {"Failed": Status.FAILED, "Halted": Status.HALTED}
_NAMES = {status.value: name for name, status in (_STATUSES | _REASONED).items()} | {"waiting": "InProgress"}
_CARRIED = frozenset({"statuses", "reasons", "agents"})
_PARTS = {"messages", "tool_calls", "partial_results"}
_HOMES: tuple[Parts, ...] = ((), ("checkpoints",))
_MAX_STEP = 2**63
_MAX_POINTER_BYTES = 4096


def recognise(source: Source) -> bool:
    """True if this looks like a folder of ARES's."""
    return _home(source) is not None


def _home(source: Source) -> Parts | None:
    for home in _HOMES:
        if any(_is_ours(source, entry) for entry in source.entries(*home)):
            return home
    return None


def _is_ours(source: Source, entry: Entry) -> bool:
    """True for a pointer, and for what says that it is a step, by its name and its first lines."""
    if entry.kind != "file" or not entry.name.endswith(".json"):
        return False
    start = source.peek(entry.parts, 4096)
    if entry.name.endswith(_POINTER) and not start.lstrip().startswith(b"{"):
        return True
    return entry.name[:-5].rpartition("_")[2].isdigit() and b'"agent_name"' in start


def read(source: Source, reading: Reading) -> None:
    """Every step that is intact."""
    home = _home(source) or ()
    sessions: dict[str, list[FoundPoint]] = {}
    pointers: dict[str, Entry] = {}
    for entry in source.walk(*home):
        # A session called `a/b` has its files in a folder; other things in folders are passed over.
        deeper = len(entry.parts) > len(home) + 1
        name = "/".join(entry.parts[len(home) :])
        if entry.kind == "link":
            reading.trouble(entry.shown, "it is a link, which is not followed")
        elif entry.kind != "file" or not name.endswith(".json") or (deeper and not _is_ours(source, entry)):
            reading.note(entry.shown, "it is not a checkpoint")
        elif name.endswith(_POINTER):
            pointers[normalize("NFC", name.removesuffix(_POINTER))] = entry
        else:
            try:
                session, point = _point(source, entry, name)
            except DamagedError as damage:
                reading.trouble(entry.shown, damage)
            else:
                sessions.setdefault(session, []).append(point)
    for session, points in sessions.items():
        pointer = pointers.pop(normalize("NFC", session), None)
        found = arrange(session, points, reading)
        if found is not None:
            _find_head(source, found, pointer, reading)
            _find_pending(found)
            reading.sessions.append(found)
    for entry in pointers.values():
        reading.trouble(entry.shown, "it points at a session of which no step is here")


def _point(source: Source, entry: Entry, name: str) -> tuple[str, FoundPoint]:
    data = source.read(entry.parts)
    given = GivenFields(parse_object(data))
    id_, agent, session = given.text("id"), given.text("agent_name"), given.text("session_id")
    step = given.whole("step", low=0)
    if not same_name(name, f"{session}_{step}.json"):
        raise DamagedError(f"it says that it is step {step} of session {session[:120]!r}")
    _check_lists(given)
    seconds = given.whole("timestamp")
    status, reason = _status(given.value("status"))
    kept: dict[str, Any] = {"id": id_, "agent_name": agent, "timestamp": seconds}
    if step >= _MAX_STEP:
        kept["step"] = step
    if given.maybe("ttl_secs") is not None or b'"ttl_secs"' in data:
        kept["ttl_secs"] = given.maybe_whole("ttl_secs")
    if b"\n" not in data:
        kept["compact"] = True
    if given.rest():
        kept["more"] = given.rest()
    digest = sha256(data).digest()

    def load() -> StateDict:
        value = parse_object(source.again(entry.parts, digest))
        return {part: value[part] for part in ("messages", "tool_calls", "partial_results")}

    return session, FoundPoint(
        id=id_,
        order=(step,),
        at_us=min(max(seconds, 0), AFTER_LAST_SECOND - 1) * 10**6,
        load=load,
        where=entry.shown,
        step=step if step < _MAX_STEP else None,
        status=status.value,
        reason=reason,
        agent=agent or None,
        metadata={NAME: kept},
    )


def _check_lists(given: GivenFields) -> None:
    for message in given.items("messages"):
        told = GivenFields(message if isinstance(message, dict) else {}, "messages: ")
        told.text("role")
        told.text("content")
    for call in given.items("tool_calls"):
        told = GivenFields(call if isinstance(call, dict) else {}, "tool_calls: ")
        told.text("tool_name")
        told.text("arguments")
        told.maybe_text("result")
        told.flag("success")
    if not all([type(result) is str for result in given.items("partial_results")]):
        raise DamagedError("partial_results holds something that is not text")


def _status(value: Any) -> tuple[Status, str | None]:
    if isinstance(value, str) and value in _STATUSES:
        return _STATUSES[value], None
    if isinstance(value, dict) and len(value) == 1:
        ((name, reason),) = value.items()
        if name in _REASONED and isinstance(reason, str):
            return _REASONED[name], reason
    raise DamagedError(f"status is {str(value)[:80]!r}, which is none")


def _find_head(source: Source, found: FoundSession, pointer: Entry | None, reading: Reading) -> None:
    """Where `main` stands: at the highest step, unless the pointer names a lower one that is younger than it."""
    if pointer is None:
        reading.note(found.points[-1].where, "there is no pointer to the latest step; the highest was taken")
        return
    try:
        name = source.read(pointer.parts, limit=_MAX_POINTER_BYTES).decode().strip()
    except (DamagedError, UnicodeDecodeError) as damage:
        reading.trouble(pointer.shown, damage)
        return
    names = {f"{found.id}_{point.metadata[NAME].get('step', point.step)}.json": point for point in found.points}
    named = {normalize("NFC", one): point for one, point in names.items()}.get(normalize("NFC", name))
    if named is None:
        if "/" in name or "\\" in name:
            reading.trouble(pointer.shown, f"it points at {name[:120]!r}, which was not followed")
        elif not name:
            reading.trouble(pointer.shown, "it is empty; the highest step was taken")
        else:
            reading.note(pointer.shown, f"it points at {name[:120]!r}, which cannot be had; the highest step was taken")
        return
    above = found.points[found.points.index(named) + 1 :]
    if not above:
        return
    if any(point.at_us >= named.at_us for point in above):
        reading.note(pointer.shown, f"it points at {name!r}, and there are later steps; the highest was taken")
        return
    found.heads[MAIN] = named.id
    left = free_name("given-up", found.heads)
    found.heads[left] = above[-1].id
    for point in above:
        point.branch = left
    reading.note(pointer.shown, f"the steps above {name!r} are older than it; they are on the branch {left!r}")


def _find_pending(found: FoundSession) -> None:
    """Calls at the head without an outcome: no result and no success, unless all of it is completed."""
    head = next(point for point in found.points if point.id == found.heads[MAIN])
    if head.status == Status.COMPLETED.value:
        return
    for call in head.load()["tool_calls"]:
        if call.get("result") is None and not call["success"]:
            found.pending.append(PendingCall(None, call["tool_name"], arguments_of(call["arguments"])))


# writing


def write(exporter: Exporter, target: Target) -> None:
    """The steps of a branch, then the pointer; steps of other branches where their numbers are free."""
    (*folder, _) = safe_parts(exporter.session, "a session called", tail=_POINTER)
    stem = exporter.session.rpartition("/")[2]
    there = [name for name in target.names(*folder) if _is_of(name, stem)]
    target.refuse(there, *folder)
    steps = _steps(exporter)
    latest = ""
    for checkpoint in exporter.line():
        step = steps[checkpoint.id]
        latest = f"{exporter.session}_{step}.json"
        target.write((*folder, f"{stem}_{step}.json"), _content(exporter, checkpoint, step))
    taken = set(steps.values())
    left = False
    for checkpoint in exporter.others():
        kept = own(checkpoint, NAME)
        recorded = kept.get("step", checkpoint.step)
        if not kept or recorded is None or recorded in taken:
            left = True
            continue
        taken.add(recorded)
        target.write((*folder, f"{stem}_{recorded}.json"), _content(exporter, checkpoint, recorded))
    if left or any(name != exporter.branch and not own(head, NAME) for name, head in exporter.branches.items()):
        exporter.note_branches("ARES")
    target.settle(*folder)
    target.write((*folder, stem + _POINTER), latest.encode())
    target.settle(*folder)


def _is_of(name: str, stem: str) -> bool:
    if name == stem + _POINTER:
        return True
    return name.startswith(f"{stem}_") and name.endswith(".json") and name[len(stem) + 1 : -5].isdigit()


def _steps(exporter: Exporter) -> dict[str, int]:
    """The steps as they were recorded where that gives each its own, otherwise counted."""
    recorded = {one.id: own(one, NAME).get("step", one.step) for one in exporter.line()}
    steps = [step for step in recorded.values() if step is not None and step >= 0]
    if len(set(steps)) == len(recorded) and steps == sorted(steps):
        return {id_: step for id_, step in recorded.items() if step is not None}
    exporter.note("the steps were counted anew: ARES keeps one checkpoint per step")
    return {id_: number for number, id_ in enumerate(recorded)}


def _content(exporter: Exporter, checkpoint: Checkpoint, step: int) -> bytes:
    kept = own(checkpoint, NAME)
    state = jsonable(checkpoint.state, NAME)
    exporter.note_parts(state, _PARTS)
    exporter.note_fields(
        checkpoint, NAME, _CARRIED if checkpoint.status != Status.IN_PROGRESS else _CARRIED - {"reasons"}
    )
    record: dict[str, Any] = {
        "id": kept.get("id", checkpoint.id),
        "agent_name": kept.get("agent_name", checkpoint.agent or ""),
        "session_id": exporter.session,
        "step": step,
        **(state if kept else _parts(exporter, state)),
        "timestamp": kept.get("timestamp", micros(checkpoint.created_at) // 10**6),
    }
    if "ttl_secs" in kept:
        record["ttl_secs"] = kept["ttl_secs"]
    name = _NAMES.get(checkpoint.status.value, "Halted")
    record["status"] = {name: checkpoint.reason or ""} if name in _REASONED else name
    record |= kept.get("more", {})
    return JsonWriter().compact(record) if kept.get("compact") else JsonWriter().pretty(record)


def _parts(exporter: Exporter, state: StateDict) -> dict[str, Any]:
    return {
        "messages": _messages(exporter, state.get("messages", [])),
        "tool_calls": _calls(state),
        "partial_results": [text_of(one) for one in _list(state.get("partial_results"))],
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _messages(exporter: Exporter, messages: Any) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    for at, message in enumerate(_list(messages)):
        if isinstance(message, dict) and set(message) - {"role", "content"}:
            exporter.note("ARES keeps role and content of a message; its other fields stay behind")
        written += [{"role": said.role, "content": said.text} for said in flatten(message, at)]
    return written


def _calls(state: StateDict) -> list[dict[str, Any]]:
    """The calls as ARES keeps them; of a state that was not made for it, those in its messages."""
    calls = state.get("tool_calls")
    if calls is None:
        return [
            {
                "tool_name": call["name"],
                "arguments": arguments_text(call["arguments"]),
                "result": call["result"],
                "success": call["result"] is not None,
            }
            for call in calls_in(state.get("messages"))
        ]
    return [
        {
            "tool_name": str(call.get("tool_name", call.get("name", ""))),
            "arguments": arguments_text(call.get("arguments")),
            "result": None if call.get("result") is None else text_of(call["result"]),
            "success": bool(call.get("success", call.get("result") is not None)),
        }
        for call in _list(calls)
        if isinstance(call, dict)
    ]
