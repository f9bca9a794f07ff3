"""Files in a state: the one place that knows the key under which a state has its list of files.

`join` puts a list into a state that is about to be written, `split` takes it out of one that was read, `carry` gives a
state the list of the head it is written on. Everything else sees states without it. A store without files never loads
what reads them (store.file_contents).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from backstay.delta import Known
from backstay.model import StateDict
from backstay.store.reading import Loaded

KEY = "\0files"


def join(state: StateDict, files: Any) -> StateDict:
    """A state with its list of files."""
    return state if files is None else {**state, KEY: files}


def split(loaded: Loaded) -> Loaded:
    """A state as it was read, its list of files apart."""
    if KEY not in loaded.state:
        return loaded
    files = loaded.state.pop(KEY)
    return msgspec.structs.replace(loaded, files=files)


def carry(state: StateDict, known: Known | None) -> StateDict:
    """A state with the list of the head that is known; a list is made of values that are their own shadows."""
    return state if known is None or KEY not in known.shadow else {**state, KEY: known.shadow[KEY]}


def files_in(known: Known | None) -> Any:
    """The list of files of a head that is known; None if it has none."""
    return None if known is None else known.shadow.get(KEY)


class CapturedFiles(msgspec.Struct, frozen=True):
    """A list of files for a commit, as a state has it, and contents that go into the same transaction, packed.

    Other contents are in the store already; `again` captures once more where a deletion swept them before the commit.
    `needs`: groups that must be whole when it is committed, because something new rests on them. `on` is the head
    whose list it was made on, `put_bytes` how long the contents are that came for it.
    """

    value: Any
    blobs: Mapping[bytes, bytes]
    again: Callable[[], CapturedFiles | None] | None = None
    needs: frozenset[bytes] = frozenset()
    on: str | None = None
    put_bytes: int = 0
