"""ccswarm's folder as users have it: with a torn index, orphans, clocks that went back and forks of deleted parents."""

from __future__ import annotations

from pathlib import Path

import pytest

import backstay
from backstay import formats
from tests.faces.formats.made import ccswarm, ccswarm_checkpoint, fork, put, text, uuid


def three(base: Path) -> Path:
    return ccswarm(base, [ccswarm_checkpoint(number) for number in range(3)])


def problems(report: formats.FormatReport) -> str:
    return "\n".join(map(str, report.problems))


def ids(session: backstay.Session, ref: str = "main") -> list[str]:
    return [checkpoint.id for checkpoint in session.log(ref)]


@pytest.mark.parametrize("content", [b"", b'{\n  "0000', b"\xff\xff", b"[]"])
def test_01_a_torn_index_costs_no_checkpoint(content: bytes, store: backstay.Store, base: Path) -> None:
    put(three(base) / "index.json", content)
    report = formats.import_(store, base, system="ccswarm")
    assert (report.checkpoints, "index.json" in problems(report)) == (3, True)
    assert ids(store.session("s")) == [uuid(2), uuid(1), uuid(0)]


def test_01_a_missing_index_costs_no_checkpoint(store: backstay.Store, base: Path) -> None:
    (three(base) / "index.json").unlink()
    report = formats.import_(store, base)
    assert (report.system, report.checkpoints, report.ok) == ("ccswarm", 3, True)
    assert "without it" in str(report)


def test_02_a_checkpoint_the_index_never_heard_of_is_there(store: backstay.Store, base: Path) -> None:
    put(three(base) / "sessions" / "s" / f"{uuid(3)}.json", text(ccswarm_checkpoint(3)))
    report = formats.import_(store, base)
    assert (report.checkpoints, report.ok) == (4, True)
    assert "does not know it" in str(report)
    assert store.session("s").checkpoint().id == uuid(3)


def test_05_a_torn_checkpoint_is_named_and_the_others_are_taken(store: backstay.Store, base: Path) -> None:
    torn = three(base) / "sessions" / "s" / f"{uuid(1)}.json"
    torn.write_bytes(torn.read_bytes()[:100])
    (base / "sessions" / "s" / f"{uuid(2)}.json").unlink()
    report = formats.import_(store, base)
    assert ids(store.session("s")) == [uuid(0)]
    assert f"{uuid(1)}.json: it is torn" in problems(report)
    assert f"{uuid(2)}.json: the index lists it" in problems(report)


def test_06_a_path_in_the_index_is_never_followed(store: backstay.Store, base: Path, tmp_path: Path) -> None:
    secret = put(tmp_path / "secret.json", text(ccswarm_checkpoint(9)))
    index = {
        uuid(9): {"id": uuid(9), "session_id": "s", "label": None, "created_at": "x", "path": "../secret.json"},
        uuid(8): {"id": uuid(8), "session_id": "../..", "path": f"sessions/../../{uuid(8)}.json"},
        uuid(7): "nonsense",
    }
    put(three(base) / "index.json", text(index))
    report = formats.import_(store, base)
    assert (report.checkpoints, len(report.problems)) == (3, 3)
    assert secret.exists()


def test_06_a_session_that_says_it_lives_elsewhere_is_not_believed(store: backstay.Store, base: Path) -> None:
    three(base)
    put(base / "sessions" / "s" / f"{uuid(5)}.json", text(ccswarm_checkpoint(5, session="../../../x")))
    report = formats.import_(store, base)
    assert report.checkpoints == 3
    assert "it says that it is" in problems(report)
    assert [info.id for info in store.sessions()] == ["s"]


def test_07_equal_times_are_told_apart_by_what_was_done(store: backstay.Store, base: Path) -> None:
    same = "2026-01-28T02:00:00Z"
    ccswarm(base, [ccswarm_checkpoint(number, created_at=same) for number in (2, 0, 1)])
    formats.import_(store, base)
    assert ids(store.session("s")) == [uuid(2), uuid(1), uuid(0)]


def test_07_a_clock_that_went_back_does_not_hide_the_newest(store: backstay.Store, base: Path) -> None:
    points = [
        ccswarm_checkpoint(1, created_at="2026-01-28T05:00:00Z"),
        ccswarm_checkpoint(2, created_at="2026-01-28T03:00:00Z", parent=uuid(1)),
        ccswarm_checkpoint(3, created_at="2026-01-28T04:00:00Z", parent=uuid(2)),
    ]
    ccswarm(base, points)
    formats.import_(store, base)
    assert ids(store.session("s")) == [uuid(3), uuid(2), uuid(1)]


def test_08_context_comes_back_as_the_bytes_it_was_whatever_the_flag_says(store: backstay.Store, base: Path) -> None:
    plain = ccswarm_checkpoint(1, context=[91, 93])
    plain["metadata"]["context_compressed"] = True
    ccswarm(
        base,
        [
            plain,
            ccswarm_checkpoint(2, context=[0x28, 0xB5, 0x2F, 0xFD, 1]),
            ccswarm_checkpoint(3, context=[0x1F, 0x8B]),
        ],
    )
    formats.import_(store, base)
    session = store.session("s")
    assert session.load(uuid(1))["context"] == b"[]"
    found = [session.checkpoint(uuid(number)).metadata["ccswarm"]["context"] for number in (1, 2, 3)]
    assert found == ["plain", "zstd", "gzip"]


def test_10_a_parent_that_was_deleted_leaves_its_child_readable(store: backstay.Store, base: Path) -> None:
    ccswarm(base, [ccswarm_checkpoint(1), ccswarm_checkpoint(2, parent=uuid(99))])
    put(base / "forks.json", text({"forks": {uuid(900): fork(uuid(99), "lost")}, "children": {}}))
    report = formats.import_(store, base)
    assert (report.ok, ids(store.session("s"))) == (True, [uuid(2), uuid(1)])
    assert "not there any more" in str(report)
    assert "began at checkpoint" in str(report)
    formats.export(store, "s", base.parent / "to", system="ccswarm")
    assert uuid(99) in (base.parent / "to" / "sessions" / "s" / f"{uuid(2)}.json").read_text()
    assert uuid(900) in (base.parent / "to" / "forks.json").read_text()


def test_a_fork_is_a_branch_of_the_session_it_was_made_from(store: backstay.Store, base: Path) -> None:
    three(base)
    forks = {uuid(900): fork(uuid(0), "try-sqlite"), uuid(901): fork(uuid(1), None, fork_id=uuid(901), status="Merged")}
    put(base / "forks" / "forks.json", text({"forks": forks, "children": {"s": [uuid(900), uuid(901)]}}))
    formats.import_(store, base)
    heads = {name: point.id for name, point in store.session("s").branches().items()}
    assert heads == {"main": uuid(2), "try-sqlite": uuid(0), uuid(901): uuid(1)}
    kept = store.session("s").checkpoint(uuid(1)).metadata["ccswarm"]["forks"]
    assert kept[0]["status"] == "Merged"


def test_a_what_if_is_a_branch_and_main_is_what_ccswarm_would_load(store: backstay.Store, base: Path) -> None:
    ccswarm(
        base, [ccswarm_checkpoint(0), ccswarm_checkpoint(1), ccswarm_checkpoint(2, parent=uuid(0), label="what-if")]
    )
    formats.import_(store, base)
    session = store.session("s")
    assert (ids(session), ids(session, uuid(1))) == ([uuid(2), uuid(0)], [uuid(1), uuid(0)])
    assert session.checkpoint(uuid(2)).parent_id == uuid(0)
    assert set(session.branches()) == {"main", uuid(1)}
    assert session.checkpoint(uuid(2)).label == "what-if"


def test_parents_in_a_circle_do_not_stop_an_import(store: backstay.Store, base: Path) -> None:
    ccswarm(
        base,
        [
            ccswarm_checkpoint(1, parent=uuid(2)),
            ccswarm_checkpoint(2, parent=uuid(1)),
            ccswarm_checkpoint(3, parent=uuid(3)),
        ],
    )
    report = formats.import_(store, base)
    assert (report.checkpoints, store.verify().ok) == (3, True)


def test_usage_times_and_what_has_no_place_are_kept(store: backstay.Store, base: Path) -> None:
    ccswarm(base, [ccswarm_checkpoint(0), ccswarm_checkpoint(3, extra={"k": [1]}, invented="later")])
    formats.import_(store, base)
    point = store.session("s").checkpoint()
    assert (point.total_usage.tokens_in, point.total_usage.tasks_completed) == (300, 3)
    assert point.created_at.isoformat() == "2026-01-28T02:03:07.123456+00:00"
    kept = point.metadata["ccswarm"]
    assert kept["created_at"] == "2026-01-28T02:03:07.123456789Z"
    assert (kept["metadata"]["extra"], kept["more"]) == ({"k": [1]}, {"invented": "later"})
    assert point.state == {"agent": "backend", "cost": 0.00001, "tasks": [3]}


def test_an_export_into_a_store_in_use_keeps_its_other_sessions(store: backstay.Store, base: Path) -> None:
    store.session("mine").commit({"n": 1})
    three(base)
    formats.export(store, "mine", base, system="ccswarm")
    with backstay.open("memory://") as other:
        report = formats.import_(other, base, strict=True)
        assert (set(report.sessions), report.notes) == ({"s", "mine"}, ())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"id": 5}, "id is not a text"),
        ({"created_at": "soon"}, "not a time"),
        ({"context": [256]}, "context"),
        ({"context": "x"}, "context"),
        ({"metadata": {}}, "is missing"),
        ({"label": 1}, "label"),
    ],
)
def test_a_checkpoint_that_ccswarm_would_not_load_is_refused_by_name(
    change: dict[str, object], why: str, store: backstay.Store, base: Path
) -> None:
    three(base)
    put(base / "sessions" / "s" / f"{uuid(4)}.json", text(ccswarm_checkpoint(4) | change))
    report = formats.import_(store, base)
    assert report.checkpoints == 3
    assert why in problems(report)
    with pytest.raises(backstay.CorruptionError, match="nothing was imported"):
        formats.import_(store, base, strict=True)


def test_a_strict_import_takes_nothing_where_something_is_damaged(store: backstay.Store, base: Path) -> None:
    put(three(base) / "index.json", b"")
    with pytest.raises(backstay.CorruptionError, match=r"index\.json"):
        formats.import_(store, base, strict=True)
    assert list(store.sessions()) == []


def test_another_session_of_the_same_name_is_left_alone(store: backstay.Store, base: Path) -> None:
    store.session("s").commit({"mine": True})
    three(base)
    assert "it is another session" in problems(formats.import_(store, base))
    assert store.session("s").load() == {"mine": True}
    with pytest.raises(backstay.AlreadyExistsError, match="nothing was imported"):
        formats.import_(store, base, on_exists="refuse")
    report = formats.import_(store, base, on_exists="rename")
    assert dict(report.renamed) == {"s": "s (2)"}
    assert formats.import_(store, base, rename="t").sessions == ("t",)
    assert formats.import_(store, base, on_exists="rename").skipped == ("s (2)",)


def test_what_was_saved_since_the_first_import_is_added_by_the_second(store: backstay.Store, base: Path) -> None:
    formats.import_(store, three(base))
    before = [point.digest for point in store.session("s").log()]
    late = [ccswarm_checkpoint(4, parent=uuid(2)), ccswarm_checkpoint(5, parent=uuid(1), label="what-if")]
    late.append(ccswarm_checkpoint(6, parent=uuid(4)))
    ccswarm(base, [*[ccswarm_checkpoint(number) for number in range(3)], *late])
    report = formats.import_(store, base)
    assert (report.sessions, dict(report.extended), report.checkpoints) == ((), {"s": 3}, 3)
    session = store.session("s")
    assert ids(session) == [uuid(number) for number in (6, 4, 2, 1, 0)]
    assert ids(session, "what-if") == [uuid(number) for number in (5, 1, 0)]
    assert [point.digest for point in session.log(uuid(2))] == before
    assert formats.import_(store, base).skipped == ("s",)
    formats.export(store, "s", base.parent / "to", system="ccswarm")
    name = f"{uuid(6)}.json"
    assert (base.parent / "to" / "sessions" / "s" / name).read_bytes() == (base / "sessions" / "s" / name).read_bytes()
    assert store.verify().ok


def test_what_was_saved_since_is_only_told_where_somebody_has_gone_on_here(store: backstay.Store, base: Path) -> None:
    formats.import_(store, three(base))
    mine = store.session("s").commit({"mine": True})
    ccswarm(base, [ccswarm_checkpoint(number) for number in range(5)])
    report = formats.import_(store, base)
    assert (report.sessions, report.skipped, "lacks 2" in str(report)) == ((), ("s",), True)
    assert store.session("s").checkpoint() == mine
    assert formats.import_(store, base, on_exists="rename").checkpoints == 5


def test_what_was_pruned_here_does_not_come_back(store: backstay.Store, base: Path) -> None:
    formats.import_(store, three(base))
    store.session("s").prune(backstay.Retention(keep_last=1, keep_days=0, keep_labelled=False))
    formats.import_(store, base)
    assert ids(store.session("s")) == [uuid(2)]


def test_a_context_of_a_megabyte_takes_a_moment_only(store: backstay.Store, base: Path) -> None:
    ccswarm(base, [ccswarm_checkpoint(1, context=[number % 256 for number in range(200_000)])])
    formats.import_(store, base)
    assert len(store.session("s").load()["context"]) == 200_000
