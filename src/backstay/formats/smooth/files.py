"""smooth's file store: one folder per agent, one file per checkpoint."""

from __future__ import annotations

import re
from hashlib import sha256
from itertools import islice

from backstay.formats.dialect import DamagedError, JsonWriter, has_plus, nanoseconds, parse, parse_object, time_text
from backstay.formats.exporter import Exporter, own
from backstay.formats.model import FoundPoint, GivenFields, Reading
from backstay.formats.smooth.conversation import (
    HAS_EXPONENT,
    NAME,
    check_conversation,
    conversation_of,
    iteration_of,
    make_point,
    metadata_of,
)
from backstay.formats.source import Entry, Source, same_name
from backstay.formats.target import Target, safe_parts
from backstay.model import StateDict

_LOOKS = 100  # at files of a folder, to see what it is
_AGENT = re.compile(rb'"agent_id":\s*("(?:[^"\\]|\\.)*"),\s*"conversation"')


def recognise(source: Source, folder: Entry, top: int) -> bool:
    """True if there is a checkpoint below this folder, under the agent that it names itself."""
    for entry in islice(source.walk(*folder.parts), _LOOKS):
        if entry.kind == "file" and entry.name.endswith(".json"):
            start = source.peek(entry.parts, 4096)
            named = _AGENT.search(start)
            if named is not None and same_name("/".join(entry.parts[top:-1]), _text(named[1])):
                return True
    return False


def _text(quoted: bytes) -> str:
    try:
        return str(parse(quoted))
    except DamagedError:
        return ""


def read(source: Source, folder: Entry, top: int, reading: Reading) -> list[tuple[str, FoundPoint]]:
    """The checkpoints of a folder, each with its agent."""
    found: list[tuple[str, FoundPoint]] = []
    for entry in source.walk(*folder.parts):
        if entry.kind == "link":
            reading.trouble(entry.shown, "it is a link, which is not followed")
        elif entry.kind != "file" or not entry.name.endswith(".json"):
            reading.note(entry.shown, "it is not a checkpoint")
        else:
            try:
                found.append(_point(source, entry, top))
            except DamagedError as damage:
                reading.trouble(entry.shown, damage)
    return found


def _point(source: Source, entry: Entry, top: int) -> tuple[str, FoundPoint]:
    data = source.read(entry.parts)
    given = GivenFields(parse_object(data))
    id_, agent, created = given.text("id"), given.text("agent_id"), given.text("created_at")
    wanted = f"{agent}/{id_}.json"
    if not same_name("/".join(entry.parts[top:]), wanted):
        raise DamagedError(f"it says that it is {wanted[:200]!r}")
    digest = sha256(data).digest()

    def load() -> StateDict:
        return {"messages": parse_object(source.again(entry.parts, digest))["conversation"]["messages"]}

    point = make_point(
        id_=id_,
        agent=agent,
        conversation=check_conversation(given.value("conversation")),
        iteration=given.whole("iteration"),
        metadata=given.object("metadata"),
        at_ns=nanoseconds(created),
        where=entry.shown,
        tie=0,
        load=load,
    )
    kept = point.metadata[NAME]
    kept["created_at"] = created
    if HAS_EXPONENT.search(data):
        kept["plus"] = has_plus(data)
    if given.rest():
        kept["more"] = given.rest()
    return agent, point


def write(exporter: Exporter, target: Target) -> None:
    """The checkpoints of a branch; smooth goes on with the one of the latest time."""
    folder = safe_parts(exporter.session, "an agent called")
    target.refuse([name for name in target.names(*folder) if name.endswith(".json")], *folder)
    for checkpoint in exporter.line():
        kept = own(checkpoint, NAME)
        id_ = kept.get("id", checkpoint.id)
        told = kept.get("created_at")
        written_us = exporter.written_us(checkpoint, None if told is None else nanoseconds(told) // 1000)
        record = {
            "id": id_,
            "agent_id": exporter.session,
            "conversation": conversation_of(exporter, checkpoint),
            "iteration": iteration_of(checkpoint),
            "metadata": metadata_of(exporter, checkpoint),
            "created_at": told or time_text(written_us),
            **kept.get("more", {}),
        }
        parts = safe_parts(f"{exporter.session}/{id_}", "a checkpoint called", tail=".json")
        target.write(parts, JsonWriter(plus=kept.get("plus", True)).pretty(record))
    exporter.note_branches("smooth")
    target.settle(*folder)
