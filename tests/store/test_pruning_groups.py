"""Deltas are packed in groups: what stays between things that go, in one group, is whole by every record."""

from pathlib import Path

import pytest

import backstay
from backstay import Retention
from backstay.testing.exact import exactly_equal
from tests.store.travel import KINDS, open_kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", [2, 3, 5])
def test_what_stays_between_checkpoints_that_go_is_whole(every: int, kind: str, tmp_path: Path) -> None:
    with open_kind(kind, tmp_path) as store:
        session = store.session("s")
        state: dict[str, object] = {"fixed": "a text that makes the whole copy long " * 200, "messages": []}
        states = {}
        for turn in range(40):
            messages = [*state["messages"], {"role": "user", "content": f"turn {turn} of the conversation"}]  # type: ignore[misc]
            state = {**state, "messages": messages}
            point = session.commit(state, label="kept" if turn % every == 0 else None)
            states[point.id] = state
        assert store.prune(Retention(keep_last=1, keep_days=0)).count
        report = store.verify()
        assert report.ok, str(report)
        for point in session.log():
            assert exactly_equal(dict(session.load(point.id)), states[point.id])


def test_a_checkpoint_deleted_before_a_prune_does_no_harm_to_its_group(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        session = store.session("s")
        for turn in range(12):
            session.commit({"n": turn, "text": "grown " * turn}, label="kept" if turn % 4 == 1 else None)
        session.delete("main~5")
        store.prune(Retention(keep_last=1, keep_days=0))
        report = store.verify()
        assert report.ok, str(report)
