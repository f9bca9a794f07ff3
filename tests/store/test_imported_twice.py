"""A session that was imported twice into one store: the same history under two names, each alive on its own.

Its uid travels, because everything is sealed to it, and its checkpoint ids with it. An id alone is then no longer
enough to say which of the two is meant, and that is said; nothing else is shared.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import backstay


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/store.db", "file://{}/store"])
def test_a_session_imported_twice_is_two_sessions(url: str, tmp_path: Path) -> None:
    with backstay.open("memory://") as origin:
        session = origin.session("s")
        points = [session.commit({"said": list(range(number))}) for number in range(3)]
        origin.export(tmp_path / "s.backstay")
    with backstay.open(url.format(tmp_path.as_posix())) as store:
        for name in ("one", "two"):
            store.import_(tmp_path / "s.backstay", rename=name)
        with pytest.raises(backstay.InvalidInputError, match=r"'one'.*'two'|'two'.*'one'"):
            store.find(points[0].id)
        mine, theirs = store.session("one").commit({"n": 1}), store.session("two").commit({"n": 2})
        assert mine.id != theirs.id
        assert (store.find(mine.id).session_id, store.find(theirs.id).session_id) == ("one", "two")
        store.session("one").delete(points[1].id)
        assert store.session("two").load(points[1].id) == {"said": [0]}
        store.delete("one")
        assert store.find(points[2].id).session_id == "two"
        assert store.session("two").load(points[2].id) == {"said": [0, 1]}
        assert store.verify().ok
