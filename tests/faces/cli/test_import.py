"""`backstay import`: what came, what did not, what would come; and where the other systems keep their sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import backstay
from tests.faces.cli import shell
from tests.faces.formats import made as foreign
from tests.faces.formats.test_ares import OPEN


def imported(*args: str, folder: Path, home: Path | None = None) -> dict[str, Any]:
    done = shell.run("import", *args, "--json", folder=folder, HOME=str(home), XDG_DATA_HOME="")
    assert done.err == ""
    (line,) = done.out.splitlines()
    told: dict[str, Any] = json.loads(line)
    assert done.code == (1 if told["not_taken"] else 0)
    return told


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return foreign.ares(tmp_path / "checkpoints", [foreign.ares_step(0), foreign.ares_step(1)])


def test_what_cannot_be_taken_is_named_and_a_script_notices(checkpoints: Path, tmp_path: Path) -> None:
    (checkpoints / "other_0.json").write_text('{"id": "other-0", "agent_na')
    done = shell.run("import", "checkpoints", folder=tmp_path)
    assert done.code == 1
    assert "1 session with 2 checkpoints imported from ares" in done.out
    assert "not taken: other_0.json: " in done.out
    told = imported("checkpoints", folder=tmp_path)
    assert [each["where"] for each in told["not_taken"]] == ["other_0.json"]
    assert told["skipped"] == ["s"]


@pytest.mark.parametrize("known", [False, True])
def test_a_dry_run_says_what_would_come_and_leaves_no_trace(known: bool, checkpoints: Path, tmp_path: Path) -> None:
    if known:
        backstay.open(tmp_path / "store.db").close()
    before = tree(tmp_path)
    told = imported("checkpoints", "--dry-run", "--store", "store.db", folder=tmp_path)
    assert (told["dry_run"], told["sessions"], told["checkpoints"]) == (True, ["s"], 2)
    assert {name for name in tree(tmp_path) if not name.startswith("store.db-")} == before
    shown = shell.run("import", "checkpoints", "--dry-run", "--store", "store.db", folder=tmp_path)
    assert shown.out == "1 session with 2 checkpoints would be imported from ares\n"
    really = imported("checkpoints", "--store", "store.db", folder=tmp_path)
    assert really | {"dry_run": True} == told


def test_a_dry_run_knows_what_is_here_already_and_what_is_damaged(checkpoints: Path, tmp_path: Path) -> None:
    imported("checkpoints", folder=tmp_path)
    assert imported("checkpoints", "--dry-run", folder=tmp_path)["skipped"] == ["s"]
    foreign.ares(checkpoints, [foreign.ares_step(number) for number in range(4)])
    assert imported("checkpoints", "--dry-run", folder=tmp_path)["extended"] == {"s": 2}
    assert imported("checkpoints", folder=tmp_path)["extended"] == {"s": 2}
    (checkpoints / "s_3.json").write_text("{")
    assert imported("checkpoints", "--dry-run", folder=tmp_path)["not_taken"]


@pytest.mark.parametrize("on_exists", ["skip", "rename"])
def test_a_dry_run_of_an_export_says_what_an_import_would_do(on_exists: str, folder: Path) -> None:
    assert shell.run("export", "all.backstay", folder=folder).code == 0
    with backstay.open(folder / "other.db") as store:
        store.session("ticket-42").commit({"n": 1})
    args = ("all.backstay", "--on-exists", on_exists, "--store", "other.db")
    told = imported(*args, "--dry-run", folder=folder)
    with backstay.open(folder / "other.db") as store:
        assert [info.id for info in store.sessions()] == ["ticket-42"]
    really = imported(*args, folder=folder)
    assert set(told["sessions"]) == set(really["sessions"])
    assert (told["checkpoints"], told["renamed"], told["skipped"]) == (
        really["checkpoints"],
        really["renamed"],
        really["skipped"],
    )


def test_a_damaged_export_is_found_by_a_dry_run(folder: Path) -> None:
    assert shell.run("export", "all.backstay", folder=folder).code == 0
    data = bytearray((folder / "all.backstay").read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    (folder / "all.backstay").write_bytes(bytes(data))
    done = shell.run("import", "all.backstay", "--dry-run", "--store", "new.db", folder=folder)
    assert done.code in (1, 4)
    assert len(done.err.splitlines()) == 1
    assert not (folder / "new.db").exists()


@pytest.mark.parametrize(
    ("system", "name", "where"),
    [
        ("ccswarm", "ccswarm", ".ccswarm/checkpoints"),
        ("ares", "ares", ".local/share/ares/checkpoints"),
        ("continuum", "continuum", ".local/share/continuum/checkpoints"),
        ("continuum", "sh_layer2", ".local/share/continuum/checkpoints"),
        ("continuum", "sh_layer2", "tmp/continuum_checkpoints"),
    ],
)
def test_a_system_is_found_where_it_keeps_its_sessions(
    system: str, name: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    makes = {
        "ccswarm": lambda: foreign.ccswarm(tmp_path / where, [foreign.ccswarm_checkpoint(0)]),
        "ares": lambda: foreign.ares(tmp_path / where, [foreign.ares_step(0)]),
        "continuum": lambda: foreign.continuum(tmp_path / where, [foreign.continuum_checkpoint(0)]),
    }
    missing = shell.run("import", name, folder=tmp_path, HOME=str(tmp_path), XDG_DATA_HOME="")
    assert (missing.code, missing.out) == (1, "")
    assert f"{name} keeps its sessions in {tmp_path}" in missing.err
    assert f"and there is no such folder (say where it is: backstay import {name} PATH)" in missing.err
    assert tree(tmp_path) == set(), "a store was made for nothing"
    makes[system]()
    told = imported(name, folder=tmp_path, home=tmp_path)
    assert (told["system"], told["sessions"]) == (system, ["s"])


def test_sh_layer2_is_another_name_of_continuum(tmp_path: Path) -> None:
    foreign.continuum(tmp_path / "there", [foreign.continuum_checkpoint(0)])
    assert imported("sh_layer2", "there", folder=tmp_path)["system"] == "continuum"


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("nowhere", 1, "there is no file or folder 'nowhere'"),
        ("ares nowhere/at/all", 1, "there is no file or folder 'nowhere/at/all'"),
        ("aress", 1, "did you mean ares?"),
        ("smooth", 1, "smooth has no folder of its own"),
        ("arse here", 2, "'arse' is no system; did you mean ares?"),
        ("xyz here", 2, "'xyz' is no system; there are ccswarm"),
        ("a b c", 2, "give one PATH"),
    ],
)
def test_what_is_not_there_is_said_plainly_and_makes_no_store(line: str, code: int, says: str, tmp_path: Path) -> None:
    done = shell.run("import", *line.split(), folder=tmp_path)
    assert (done.code, done.out) == (code, "")
    assert says in done.err.splitlines()[-1]
    assert tree(tmp_path) == set()


def test_a_store_is_not_taken_for_an_export(folder: Path) -> None:
    done = shell.run("import", ".backstay/store.db", "--store", "new.db", folder=folder)
    assert (done.code, done.out) == (1, "")
    assert "is a store and no export (`backstay export FILE --store .backstay/store.db` makes" in done.err


def test_an_import_names_the_sessions_with_calls_in_doubt(tmp_path: Path) -> None:
    steps = [foreign.ares_step(0), foreign.ares_step(1, tool_calls=[OPEN], status={"Failed": "OOM"})]
    foreign.ares(tmp_path / "checkpoints", steps)
    done = shell.run("import", "checkpoints", folder=tmp_path)
    assert "in doubt: 's': `backstay recover s` shows its calls" in done.out
    listed = shell.run("recover", folder=tmp_path).out
    assert "tool search(q='Q3') in doubt" in listed
    assert listed == shell.run("recover", "s", folder=tmp_path).out
    assert "1 call in doubt" in shell.run("status", folder=tmp_path).out
    assert json.loads(shell.run("status", "--json", folder=tmp_path).out)["in_doubt"] == 1
    assert shell.run("recover", "s", "--skip", folder=tmp_path).code == 0
    assert "no call is in doubt" in shell.run("recover", folder=tmp_path).out
    assert "in doubt" not in shell.run("status", folder=tmp_path).out


def test_an_export_with_calls_in_doubt_names_them_where_it_comes_to(folder: Path) -> None:
    assert shell.run("export", "all.backstay", folder=folder).code == 0
    told = imported("all.backstay", "--store", "new.db", folder=folder)
    assert told["in_doubt"] == ["ticket-43"]
    assert "refund(order=9, euro=20) in doubt" in shell.run("recover", "--store", "new.db", folder=folder).out
