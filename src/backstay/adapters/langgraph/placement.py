"""Where a checkpoint or writes go, and what they take along from what is there."""

from __future__ import annotations

from collections.abc import Container

from backstay.adapters.langgraph.lines import LineEnd, Place, Thread
from backstay.adapters.langgraph.rows import MINE, Entries, Held, stray_id, write_id
from backstay.adapters.langgraph.sharing import referred, writes_of
from backstay.bookkeeping import WRITES_PART
from backstay.codec import encode_canonical
from backstay.model import StateDict


def is_inner(channel: str) -> bool:
    """True for channels that LangGraph makes for itself, and that are of no interest behind the next step."""
    return ":" in channel or channel in ("__start__", "__pregel_tasks")


def merged(known: Entries, new: Entries) -> Entries:
    """Writes with others added: a special one replaces the one before, of an ordinary one the first stays."""
    places = {(entry[1], entry[2]): at for at, entry in enumerate(known)}
    result = list(known)
    for entry in new:
        place = places.setdefault((entry[1], entry[2]), len(result))
        if place == len(result):
            result.append(entry)
        elif entry[2] < 0:
            result[place] = entry
    return result


def _is_same(after: Entries, before: Entries) -> bool:
    # True is not 1, and an answer of 1.0 is not 1; looked at closely only where it matters.
    return after == before and encode_canonical(after) == encode_canonical(before)


def place_of(thread: Thread, ns: str, heads: dict[str, Held], parent: str | None) -> Place:
    """Where a checkpoint goes: on the line that ends with its parent, else on a new one that begins there."""
    fitting = [branch for branch, head in heads.items() if head.of == (parent or "")]
    base = None if fitting or not parent else thread.trace(parent)[0]
    if not fitting and base is None and heads:
        # It names no parent, or one that is gone: behind all that there is, so that it costs what changed.
        fitting = list(heads)
    if not fitting:
        return thread.on_top(ns, base) if base is not None or parent else thread.beginning(ns)
    branch = max(fitting, key=lambda name: heads[name].sequence)
    return thread.at_end(branch, heads[branch])


def unchanged(before: StateDict, versions: StateDict, values: Container[str]) -> StateDict:
    """Channels that are left out because they are as the parent has them: their version says so."""
    missing = [name for name in versions if name not in values and name in before and not is_inner(name)]
    if not missing:
        return {}
    known = dict(before.get(MINE, {}).get("cp", ())).get("channel_versions", {})
    return {name: before[name] for name in missing if known.get(name) == versions[name]}


def on_checkpoint(thread: Thread, ns: str, tail: LineEnd, entries: Entries) -> None:
    """Writes of the checkpoint that a line ends with."""
    head = tail.head
    mine = tail.state.get(MINE, {})
    if "stray" in mine:  # otherwise the same object, which is not looked at again
        mine = {key: value for key, value in mine.items() if key != "stray"}
    before = tail.state.get(WRITES_PART, [])
    after = merged(before, referred(entries, tail.state))
    if _is_same(after, before):
        return
    state = {**tail.state, MINE: mine, WRITES_PART: after}
    place = Place(tail.branch, head)
    thread.write(ns, place, state, id_=write_id(head.of, head.number + 1), summary=_channels(entries))


def elsewhere(thread: Thread, ns: str, heads: dict[str, Held], id_: str, entries: Entries) -> None:
    """Writes of a checkpoint that its line has left behind, or that is not there yet."""
    row, strays = thread.trace(id_)
    if row is None:
        thread.wait(id_, entries)
        return
    early, late = thread.strays(strays, born=row.born)
    known = merged(merged(early, writes_of(thread.state(row.id))), late)
    if _is_same(merged(known, entries), known):
        return
    if not heads:  # somebody else's commit is on top of each line
        place = thread.on_top(ns, None)
        thread.write(ns, place, {MINE: {"stray": entries}}, id_=stray_id(id_), summary=_channels(entries))
        return
    branch = max(heads, key=lambda name: heads[name].sequence)
    state = thread.state(heads[branch].id)
    state = {**state, MINE: {**state.get(MINE, {}), "stray": referred(entries, state)}}
    place = Place(branch, heads[branch])
    thread.write(ns, place, state, id_=stray_id(id_), summary=_channels(entries))


def _channels(entries: Entries) -> str:
    return ", ".join(dict.fromkeys([entry[3] for entry in entries if not is_inner(entry[3])]))[:64]
