"""Counts agree with their nouns, in reports and everywhere a person reads a number."""

import pytest

from backstay.model import (
    CheckpointId,
    ImportReport,
    Problem,
    PruneReport,
    RecoverReport,
    SessionId,
    VerifyReport,
    counted,
)

A, B = SessionId("a"), SessionId("b")


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "session", "0 sessions"),
        (1, "session", "1 session"),
        (2, "branch", "2 branches"),
        (1, "branch", "1 branch"),
        (3, "crash", "3 crashes"),
        (2, "entry", "2 entries"),
        (1_000, "checkpoint", "1,000 checkpoints"),
    ],
)
def test_a_number_and_its_noun_agree(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_a_report_about_one_thing_says_one_thing() -> None:
    one, none = CheckpointId("c"), ()
    assert str(VerifyReport(problems=none, checked=1)) == "1 checkpoint checked, 0 problems"
    assert str(VerifyReport(problems=(Problem(what="x"),), checked=2)) == "2 checkpoints checked, 1 problem\nx"
    pruned = PruneReport(checkpoints={A: (one,)}, sessions=(B,), freed_bytes=1, dry_run=False)
    assert str(pruned) == "1 checkpoint and 1 session gone, 1 byte freed"
    nothing = PruneReport(checkpoints={}, sessions=(), freed_bytes=0, dry_run=True)
    assert str(nothing) == "0 checkpoints and 0 sessions would go, 0 bytes freed"
    imported = ImportReport(sessions=(A,), checkpoints=1, renamed={}, skipped=())
    assert str(imported) == "1 session with 1 checkpoint imported"
    assert str(RecoverReport(completed=(A,))) == "1 session recovered, 0 left to others"
    assert str(RecoverReport(completed=(A, B))) == "2 sessions recovered, 0 left to others"
