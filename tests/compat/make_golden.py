"""How the golden store of this format was made: `python -m tests.compat.make_golden FOLDER`.

Run once for each format, when it is new; the store it wrote is then kept for ever and never made again. The next
format gets a store of its own beside it. So this refuses to write over one that is there.
"""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import backstay
from backstay import Retention, Status, Usage
from backstay.backend import FORMAT_VERSION
from tests.compat.portrait import portrait

_INDIA = timezone(timedelta(hours=5, minutes=30))

VALUES: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, 1, -1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 2**200, -(2**200)],
    "floats": [0.0, -0.0, 1.5, 1e308, 5e-324, math.inf, -math.inf, math.nan],
    "texts": ["", "plain", "nul \0 inside", "grüße 🌊", "\ud800 alone"],
    "bytes": [b"", b"\0\xff", bytes(range(256))],
    "tuple": (1, ("nested", [2]), ()),
    "set": {1, "two", (3, 4), b"five"},
    "frozenset": frozenset({1, 2, frozenset({3})}),
    "odd keys": {1: "int", (2, 3): "tuple", b"4": "bytes", None: "none", date(2020, 2, 29): "date"},
    "datetimes": [
        datetime(2024, 2, 29, 23, 59, 59, 999999),
        datetime(2024, 10, 27, 2, 30, fold=1),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(2024, 6, 1, 12, tzinfo=_INDIA),
    ],
    "date": date(9999, 12, 31),
    "times": [time(1, 2, 3, 4), time(23, 59, tzinfo=_INDIA), time(2, 30, fold=1)],
    "timedeltas": [timedelta(days=-1, microseconds=1), timedelta(days=999999999)],
    "decimals": [Decimal("1.10"), Decimal("-0.00"), Decimal("NaN"), Decimal("-Infinity"), Decimal("1E+99")],
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "nested": {"a": {"b": {"c": [1, {"d": [[]]}]}}},
    "": "an empty key",
    "\udfff": "a key that is a lone surrogate",
}


def large(seed: int, count: int) -> str:
    """Text that is long and yet packs well."""
    return " ".join(f"word {seed * number % 97}" for number in range(count))


def every_value(store: backstay.Store) -> None:
    session = store.session("every value", agent="scribe")
    for key, value in VALUES.items():
        session.commit({key: value}, label=f"only {key!r}".encode("ascii", "backslashreplace").decode())
    session.commit(VALUES, label="all of them", metadata={"when": datetime(2024, 1, 1, tzinfo=UTC), "n": (1, 2)})
    session.commit({**VALUES, "texts": [*VALUES["texts"], "one more"]}, step=7)
    session.commit({f"key {number}": number for number in range(150)}, label="more keys than one bucket")
    session.commit({f"key {number}": number + (number == 77) for number in range(150)})
    session.commit({})


def large_values(store: backstay.Store) -> None:
    session = store.session("large values")
    prompt, image = large(3, 2500), bytes(range(256)) * 160
    state: dict[str, Any] = {"system": prompt, "messages": [{"role": "user", "image": image}], "scratch": large(5, 900)}
    session.commit(state)
    session.commit({**state, "scratch": state["scratch"] + " and so on"})
    session.commit({**state, "messages": [*state["messages"], {"role": "tool", "content": large(7, 6000)}]})
    session.commit({**state, "messages": [{"role": "user", "image": image[:-1] + b"!"}], "odd": prompt + "\ud801"})
    store.session("shares the prompt").commit({"system": prompt})


def long_talk(store: backstay.Store) -> None:
    """Appends with rolls and whole copies, edits in the middle, a window that moves on."""
    session = store.session("long talk", agent="planner")
    # Long enough at its beginning that many deltas weigh less than the state: only then are they merged.
    messages: list[dict[str, Any]] = [{"role": "system", "content": large(number, 300)} for number in range(24)]
    for number in range(70):
        messages.append({"role": "user", "content": f"question {number}: " + large(number, 12)})
        messages.append({"role": "assistant", "content": f"answer {number}", "n": number})
        used = Usage(tokens_in=100 + number, tokens_out=number, cost=0.25, extra={"cached": number})
        label = f"step {number}" if number % 20 == 0 else None
        session.commit({"messages": messages}, step=number, usage=used, trigger="step", label=label)
    messages[10] = {"role": "user", "content": "edited"}
    session.commit({"messages": messages}, resume_hint="after the edit")
    session.commit({"messages": messages[-30:]}, status=Status.HALTED)
    session.commit({"messages": messages[-30:], "plan": {"todo": ["x"]}}, status=Status.FAILED("no money left"))


def branching(store: backstay.Store) -> None:
    """Forks, tags, a restore and its undo, a deleted checkpoint whose child has lost its parent."""
    session = store.session("branches and tags")
    made = [session.commit({"n": number, "log": list(range(number))}) for number in range(8)]
    session.fork(made[3], "other way")
    other = [session.commit({"n": f"other {number}"}, branch="other way") for number in range(3)]
    session.tag(made[2], "good")
    session.tag(other[1], "v1/ünï")
    session.restore(made[1])
    session.commit({"n": "after the restore"})
    session.restore(made[5])
    session.undo()
    session.delete(made[4])
    session.fork(made[6], "gone soon")
    session.delete_branch("gone soon")


def pruned(store: backstay.Store) -> None:
    session = store.session("pruned")
    for number in range(40):
        session.commit({"messages": [f"message {at}" for at in range(number)]}, label="kept" if number == 9 else None)
    session.prune(Retention(keep_last=5, keep_labelled=True))
    session.commit({"messages": ["after"]}, status="completed")


def foreign_ids(store: backstay.Store) -> None:
    """Ids that another system made: text of any kind, and one that only looks like ours."""
    session = store.session("föreign: ../ids")
    ids = ["1ef4f797-8335-6428-8001-8a1503f9b875", "run/7 #ä", "ABCDEFABCDEFABCDEFABCDEF", "x" * 200]
    for number, id_ in enumerate(ids):
        with patch("backstay.store.session.secrets.token_hex", return_value=id_):
            session.commit({"n": number, "seen": ids[:number]})


def make(folder: Path) -> Path:
    """The store and what it must give, side by side."""
    file = folder / f"format-{FORMAT_VERSION}.db"
    if file.exists():
        message = f"{file} is there already, and is kept for ever"
        raise FileExistsError(message)
    with backstay.open(file) as store:
        for write in (every_value, large_values, long_talk, branching, pruned, foreign_ids):
            write(store)
    for beside in folder.glob(f"{file.name}-*"):
        beside.unlink()
    with backstay.open(file) as store:
        assert store.verify().ok
        found = portrait(store)
    for beside in folder.glob(f"{file.name}-*"):
        beside.unlink()
    file.with_suffix(".json").write_text(json.dumps(found, separators=(",", ":")) + "\n", "ascii")
    return file


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
