"""Continuum's folder as users have it: checksums that fail for no reason, links that dangle, copies with new dates."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import formats
from tests.faces.formats.made import CALL, continuum, continuum_checkpoint, continuum_file, put, raw, sealed, text, tree


def three(base: Path) -> Path:
    return continuum(base, [continuum_checkpoint(number) for number in (1, 2, 3)])


def problems(report: formats.FormatReport) -> str:
    return "\n".join(map(str, report.problems))


def iterations(session: backstay.Session) -> list[int | None]:
    return [checkpoint.step for checkpoint in session.log()]


def checkpoints(base: Path) -> Path:
    return base / "s" / "checkpoints"


@pytest.mark.parametrize("number", ["0.9856906946328695", "0.1", "123456789.123456789", "5e-324"])
def test_20_a_sound_file_is_not_taken_for_a_damaged_one(number: str, store: backstay.Store, base: Path) -> None:
    continuum(base, [continuum_checkpoint(1, cost_estimate=raw(number), tool_results=[raw(number)])])
    assert formats.import_(store, base, strict=True).checkpoints == 1
    assert store.session("s").checkpoint().total_usage.cost == float(number)


@pytest.mark.parametrize("number", ["1e16", "1e+16"])
def test_21_large_numbers_of_either_spelling_verify_and_go_back_as_they_were(
    number: str, store: backstay.Store, base: Path
) -> None:
    continuum(base, [continuum_checkpoint(1, tool_results={"n": raw(number)})])
    formats.import_(store, base, strict=True)
    formats.export(store, "s", base.parent / "to", system="continuum")
    assert tree(base.parent / "to") == tree(base)


def test_22_a_cost_that_was_no_number_does_not_cost_the_checkpoint(store: backstay.Store, base: Path) -> None:
    continuum(base, [continuum_checkpoint(1), continuum_checkpoint(2, cost_estimate=None)])
    assert formats.import_(store, base).ok
    assert iterations(store.session("s")) == [2, 1]
    assert store.session("s").checkpoint().metadata["continuum"]["cost_estimate"] is None
    formats.export(store, "s", base.parent / "to", system="continuum")
    with backstay.open("memory://") as other:
        formats.import_(other, base.parent / "to", strict=True)
        assert other.session("s").checkpoint().metadata["continuum"]["cost_estimate"] == 0.0


def test_23_a_latest_with_a_bad_checksum_gives_the_one_before_it(store: backstay.Store, base: Path) -> None:
    three(base)
    path = checkpoints(base) / "cp_20260514_101500_00000003.json"
    path.write_text(path.read_text().replace('"tokens_used": 300', '"tokens_used": 301'))
    report = formats.import_(store, base)
    assert iterations(store.session("s")) == [2, 1]
    assert "00000003.json: its checksum does not match" in problems(report)


def test_23_a_checkpoint_that_survives_only_as_the_backup_is_taken_from_there(
    store: backstay.Store, base: Path
) -> None:
    three(base)
    put(checkpoints(base) / "cp_20260514_101500_00000002.json", b"")
    report = formats.import_(store, base)
    assert iterations(store.session("s")) == [3, 2, 1]
    assert "survives only here" in str(report)


@pytest.mark.parametrize("aim", ["cp_20260514_101500_00000001.json", "cp_gone.json", "../../../secret.json"])
def test_24_28_a_link_that_is_stale_or_dangles_hides_nothing(
    aim: str, store: backstay.Store, base: Path, tmp_path: Path
) -> None:
    put(tmp_path / "secret.json", text(continuum_checkpoint(9), sort=True))
    three(base)
    link = checkpoints(base) / "latest.json"
    link.unlink()
    link.symlink_to(aim)
    assert formats.import_(store, base).checkpoints == 3
    assert iterations(store.session("s")) == [3, 2, 1]


def test_28_a_latest_that_is_a_copy_or_the_text_of_a_link_is_understood(store: backstay.Store, base: Path) -> None:
    three(base)
    link = checkpoints(base) / "latest.json"
    name = str(link.readlink())
    link.unlink()
    put(link, name)
    report = formats.import_(store, base, strict=True)
    assert (report.checkpoints, report.notes) == (3, ())
    shutil.copyfile(link.parent / name, link)
    assert formats.import_(store, base, strict=True).skipped == ("s",)
    (link.parent / name).unlink()
    assert formats.import_(store, base, rename="t").checkpoints == 3


@pytest.mark.parametrize("id_", ["*", "[1]", "?", "b", "a_b", "a*"])
def test_25_an_id_is_no_pattern(id_: str, store: backstay.Store, base: Path) -> None:
    base = base.with_name("from [1]*")
    continuum(
        base,
        [
            continuum_checkpoint(number, checkpoint_id=name)
            for number, name in enumerate(["b", "a_b", "*", "[1]", "?", "a*"])
        ],
    )
    formats.import_(store, base, strict=True)
    session = store.session("s")
    assert session.checkpoint(id_).id == id_
    session.delete(id_)
    assert len(list(session.log())) == 5


def test_26_dates_of_files_say_nothing(store: backstay.Store, base: Path) -> None:
    three(base)
    for age, number in enumerate((3, 1, 2)):
        os.utime(checkpoints(base) / f"cp_20260514_101500_{number:08x}.json", (1000 + age, 1000 + age))
    formats.import_(store, base)
    assert iterations(store.session("s")) == [3, 2, 1]


def test_26_saves_within_one_second_stay_in_order(store: backstay.Store, base: Path) -> None:
    same = "2026-05-14T10:15:00Z"
    ids = ["ffffffff", "00000000", "88888888"]
    continuum(base, [continuum_checkpoint(at, checkpoint_id=id_, created_at=same) for at, id_ in enumerate(ids)])
    formats.import_(store, base)
    assert [point.id for point in store.session("s").log()] == ids[::-1]


def test_29_what_a_crash_left_behind_is_no_checkpoint(store: backstay.Store, base: Path) -> None:
    three(base)
    put(checkpoints(base) / ".tmp_checkpoint_x", text(continuum_checkpoint(9), sort=True)[:80])
    (checkpoints(base) / ".tmp_latest_x").symlink_to("cp_gone.json")
    report = formats.import_(store, base, strict=True)
    assert (report.checkpoints, str(report).count("left by a crash")) == (3, 2)


def test_30_two_checkpoints_with_one_id_are_both_kept(store: backstay.Store, base: Path) -> None:
    continuum(base, [continuum_checkpoint(1)])
    continuum_file(base, continuum_checkpoint(2, checkpoint_id="00000001"), "20260514_101600")
    report = formats.import_(store, base)
    assert [point.id for point in store.session("s").log()] == ["00000001.2", "00000001"]
    assert "is called '00000001.2' here" in str(report)
    formats.export(store, "s", base.parent / "to", system="continuum")
    ours, theirs = tree(base.parent / "to"), tree(base)
    assert all(ours[name] == theirs[name] for name in theirs if "/cp_" in name)


def test_30_a_session_that_says_it_lives_elsewhere_is_not_believed(store: backstay.Store, base: Path) -> None:
    three(base)
    put(
        checkpoints(base) / "cp_20260514_101500_x.json",
        text(continuum_checkpoint(4, "../../x", checkpoint_id="x"), sort=True),
    )
    report = formats.import_(store, base)
    assert (report.checkpoints, "'../../x'" in problems(report)) == (3, True)


def test_32_the_folder_of_the_python_sdk_is_read_and_names_that_share_it_stay_apart(
    store: backstay.Store, base: Path
) -> None:
    for at, (session, state) in enumerate([("a/b", {"n": 1}), ("a_b", [1, 2]), ("a/b", {"n": 2})]):
        record = {"checkpoint_id": f"{at:012x}", "session_id": session, "created_at": f"2026-05-14T10:15:00.00000{at}"}
        put(base / "a_b" / f"cp_{at:012x}_1778753700.json", text(record | {"state": state, "_version": 1}))
    report = formats.import_(store, base, strict=True)
    assert (report.system, sorted(report.sessions)) == ("continuum", ["a/b", "a_b"])
    assert [point.state for point in store.session("a/b").log()] == [{"n": 2}, {"n": 1}]
    assert store.session("a_b").load() == {"state": [1, 2]}
    formats.export(store, "a_b", base.parent / "to", system="continuum")
    with backstay.open("memory://") as other:
        formats.import_(other, base.parent / "to", strict=True)
        assert other.session("a_b").load()["messages"] == [[1, 2]]


def test_pending_calls_are_in_doubt_and_a_run_takes_them_up(store: backstay.Store, base: Path) -> None:
    continuum(
        base, [continuum_checkpoint(1), continuum_checkpoint(2, tool_calls_pending=[CALL, CALL | {"id": "tc_2"}])]
    )
    report = formats.import_(store, base)
    session = store.session("s")
    first, second = session.calls(pending=True)
    assert (report.in_doubt, first.key, first.name, first.args, first.status) == (
        2,
        "tc_1",
        "bash",
        {"command": "ls"},
        "in_doubt",
    )
    assert [info.id for info in store.crashed()] == ["s"]
    session.resolve(first.id, result="a\nb\n")
    session.resolve(second.id, "retry")
    asked: list[str] = []

    def bash() -> str:
        asked.append("ls")
        return "again"

    with store.run("s") as run:
        for key in ("tc_1", "tc_2"):
            out = run.call("bash", bash, key=key, args={"command": "ls"})
            run.append({"role": "tool", "tool_call_id": key, "content": out})
    assert asked == ["ls"]
    formats.export(store, "s", base.parent / "to", system="continuum")
    with backstay.open("memory://") as other:
        assert formats.import_(other, base.parent / "to", strict=True).in_doubt == 0
    assert [message["content"] for message in session.load()["messages"][-2:]] == ["a\nb\n", "again"]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/store.db", "file://{}/store"])
def test_a_session_that_went_on_there_decides_what_was_in_doubt_here(url: str, base: Path, tmp_path: Path) -> None:
    other = CALL | {"id": "tc_2"}
    with backstay.open(url.format(tmp_path.as_posix())) as store:
        formats.import_(store, continuum(base, [continuum_checkpoint(1, tool_calls_pending=[CALL])]))
        continuum(base, [continuum_checkpoint(2), continuum_checkpoint(3, tool_calls_pending=[other])])
        report = formats.import_(store, base, strict=True)
        session = store.session("s")
        assert (dict(report.extended), iterations(session)) == ({"s": 2}, [3, 2, 1])
        assert [(call.key, call.status) for call in session.calls(pending=True)] == [("tc_2", "in_doubt")]
        assert [info.id for info in store.crashed()] == ["s"]
        assert formats.import_(store, base).skipped == ("s",)
        assert store.verify().ok


def test_a_call_left_in_doubt_here_is_pending_there(store: backstay.Store, base: Path) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), store.run("s") as run:
        run.append({"role": "user", "content": "go"})
        run.checkpoint()
        run.call("bash", killed, key="tc_9", args={"command": "rm"})
    formats.export(store, "s", base, system="continuum")
    with backstay.open("memory://") as other:
        formats.import_(other, base, strict=True)
        assert [(call.key, call.args) for call in other.session("s").calls(pending=True)] == [
            ("tc_9", {"command": "rm"})
        ]


@pytest.mark.parametrize(
    ("state", "meta", "expected"),
    [
        ({"status": "Running", "completed": False}, {"is_active": True}, ("in_progress", None)),
        ({"status": "Completed", "completed": True}, {"is_active": False}, ("completed", None)),
        (
            {"status": "Error", "completed": False},
            {"is_active": False, "termination_reason": "boom"},
            ("failed", "boom"),
        ),
        (None, {"is_active": False, "termination_reason": "user_exit"}, ("halted", "user_exit")),
        (None, {"is_active": False, "termination_reason": "completed"}, ("completed", None)),
        (None, {"is_active": True, "termination_reason": None}, ("in_progress", None)),
    ],
)
def test_what_is_known_of_the_session_is_kept(
    state: dict[str, Any] | None,
    meta: dict[str, Any],
    expected: tuple[str, str | None],
    store: backstay.Store,
    base: Path,
) -> None:
    three(base)
    put(base / "s" / "session_meta.json", text({"session_id": "s"} | meta))
    if state is not None:
        put(base / "s" / "state.json", text({"session_id": "s"} | state))
    formats.import_(store, base, strict=True)
    head = store.session("s").checkpoint()
    assert (head.status, head.reason) == expected
    assert head.metadata["continuum"]["session_meta"]["is_active"] is meta["is_active"]


@pytest.mark.parametrize("change", [{"_version": "2.0"}, {"_version": 1}, {"_checksum": None}, {"_checksum": "0" * 64}])
def test_a_seal_that_is_not_right_is_not_believed(change: dict[str, Any], store: backstay.Store, base: Path) -> None:
    three(base)
    continuum_file(base, continuum_checkpoint(4) | change)
    report = formats.import_(store, base)
    assert (report.checkpoints, len(report.problems)) == (3, 1)


@pytest.mark.parametrize(
    "change", [{"iteration": 2**31}, {"iteration": "1"}, {"messages": None}, {"cost_estimate": "0"}, {"created_at": ""}]
)
def test_a_field_that_continuum_would_not_load_is_refused_by_name(
    change: dict[str, Any], store: backstay.Store, base: Path
) -> None:
    three(base)
    bare = {key: value for key, value in continuum_checkpoint(4).items() if not key.startswith("_")}
    continuum_file(base, sealed(bare | change))
    report = formats.import_(store, base)
    assert (report.checkpoints, len(report.problems)) == (3, 1)


@pytest.mark.parametrize("given", ["from", "from/s", "from/s/checkpoints", "."])
def test_the_folder_of_one_session_will_do_too(given: str, store: backstay.Store, tmp_path: Path) -> None:
    three(tmp_path / ("from" if given != "." else "continuum_checkpoints"))
    assert formats.import_(store, tmp_path / given, strict=True).sessions == ("s",)


def test_hints_triggers_and_usage_have_their_place(store: backstay.Store, base: Path) -> None:
    continuum(base, [continuum_checkpoint(1), continuum_checkpoint(2, trigger="error", resume_hint="retry")])
    formats.import_(store, base)
    head = store.session("s").checkpoint()
    assert (head.trigger, head.resume_hint, head.usage.tokens_in, head.total_usage.tokens_in) == (
        "error",
        "retry",
        100,
        200,
    )
    assert head.metadata["continuum"]["created_at"] == "2026-05-14T10:15:00.000000002Z"


def test_figures_that_continuum_could_not_load_are_not_written(store: backstay.Store, base: Path) -> None:
    store.session("s").commit({"messages": []}, step=2**40)
    formats.export(store, "s", base, system="continuum")
    with backstay.open("memory://") as other:
        formats.import_(other, base, strict=True)
        point = other.session("s").checkpoint()
    assert (point.step, point.total_usage.cost) == (2**31 - 1, 0.0)
