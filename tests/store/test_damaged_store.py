"""A store with damage in it: what a person can still do, from the store's own face."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import backstay
from backstay import CorruptionError, Damaged, Session, Store


def message(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"message {number} " + " ".join(str(number * word) for word in range(300))}


def history(session: Session, steps: int) -> list[backstay.Checkpoint]:
    messages: list[dict[str, str]] = []
    made = []
    for number in range(steps):
        messages.append(message(number))
        made.append(session.commit({"messages": messages}))
    return made


def spoil(file: Path, column: str, checkpoint: str) -> None:
    """Change one byte of a record behind the store's back, with page checksums that fit."""
    connection = apsw.Connection(str(file), vfs="cksmvfs")
    sql = f"SELECT cid, {column} FROM checkpoints WHERE id = ?"
    ((cid, data),) = connection.execute(sql, (bytes.fromhex(checkpoint),))
    assert isinstance(data, bytes)
    changed = data[:-1] + bytes([data[-1] ^ 1])
    connection.execute(f"UPDATE checkpoints SET {column} = ? WHERE cid = ?", (changed, cid))
    connection.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def damaged(file: Path, column: str, number: int, steps: int = 4) -> tuple[Store, list[backstay.Checkpoint]]:
    with backstay.open(file) as store:
        made = history(store.session("s"), steps)
        store.session("other").commit({"fine": True})
    spoil(file, column, made[number].id)
    return backstay.open(file), made


def test_a_damaged_head_is_an_error_and_the_newest_intact_one_is_a_call_away(file: Path) -> None:
    store, made = damaged(file, "delta", -1)
    session = store.session("s")
    with store:
        with pytest.raises(CorruptionError, match="newest_intact"):
            session.load()
        found = session.newest_intact()
        assert found == made[-2]
        assert session.load(made[-2])["messages"] == [message(number) for number in range(3)]
        assert store.session("other").load() == {"fine": True}


def test_damage_that_another_way_leads_around_costs_nothing(file: Path) -> None:
    with backstay.open(file) as store:
        made = history(store.session("s"), 80)
        connection = apsw.Connection(str(file), vfs="cksmvfs", flags=apsw.SQLITE_OPEN_READONLY)
        columns = ("roll", "whole")
        with_copy = {
            column: [
                bytes(id_).hex()
                for (id_,) in connection.execute(f"SELECT id FROM checkpoints WHERE {column} IS NOT NULL")
            ]
            for column in columns
        }
        connection.close()
    assert with_copy["roll"]
    assert len(with_copy["whole"]) > 1
    spoil(file, "roll", with_copy["roll"][-1])
    spoil(file, "whole", with_copy["whole"][-1])
    with backstay.open(file) as store:
        session = store.session("s")
        assert [session.load(point)["messages"] for point in made] == [
            [message(number) for number in range(count + 1)] for count in range(80)
        ]


def test_work_goes_on_behind_a_damaged_head(file: Path) -> None:
    store, made = damaged(file, "delta", -1)
    with store:
        session = store.session("s")
        point = session.restore(made[-2])
        assert point.parent_id == made[-1].id
        assert session.load() == session.load(made[-2])
        session.commit({"messages": []})
        assert store.session("s").load() == {"messages": []}
        assert {id_ for problem in store.verify().problems for id_ in problem.checkpoints} == {made[-1].id}


def test_a_salvage_marks_what_is_lost_and_keeps_the_rest(file: Path) -> None:
    store, made = damaged(file, "delta", 3)
    with store:
        found = store.session("s").load(made[3], salvage=True)["messages"]
        assert found[:3] == [message(0), message(1), message(2)]
        assert [type(item) for item in found[3:]] == [Damaged]
        with pytest.raises(backstay.InvalidInputError):
            store.session("s").commit({"messages": found}, branch="main")


def test_verify_names_each_checkpoint_that_cannot_be_read_and_no_other(file: Path) -> None:
    store, made = damaged(file, "fields", 2)
    with store:
        report = store.verify()
        assert not report.ok
        assert {id_ for problem in report.problems for id_ in problem.checkpoints} == {made[2].id}
        assert report.checked == 5
        assert made[2].id[:12] in str(report)
        assert store.verify("other").ok


def test_nothing_intact_is_said_and_not_taken_for_nothing_there(file: Path) -> None:
    with backstay.open(file) as store:
        (only,) = history(store.session("s"), 1)
    spoil(file, "whole", only.id)
    with backstay.open(file) as store:
        with pytest.raises(CorruptionError, match="no checkpoint"):
            store.session("s").newest_intact()
        assert store.session("unheard of").newest_intact() is None


def test_a_repair_removes_what_nobody_needs_and_nothing_that_can_be_read(file: Path) -> None:
    with backstay.open(file) as store:
        made = history(store.session("s"), 3)
        store.session("s").commit({"picture": bytes(range(256)) * 40}, branch="main")
    connection = apsw.Connection(str(file), vfs="cksmvfs")
    connection.execute("INSERT INTO blobs(digest, data) VALUES(zeroblob(32), x'00')")
    connection.execute("INSERT INTO blob_refs(cid, bid) VALUES(999, 1)")
    connection.execute("UPDATE sessions SET checkpoints = 77")
    connection.close()
    with backstay.open(file) as store:
        assert len(store.verify().problems) == 3
        report = store.verify(repair=True)
        assert report.ok
        assert report.checked == 4
        assert [what.split(" ", 1)[1] for what in report.repaired[:2]] == [
            "references that led nowhere",
            "blobs that no checkpoint needs",
        ]
        assert "counted anew" in str(report)
        assert [info.checkpoints for info in store.sessions()] == [4]
        assert [len(store.session("s").load(point)["messages"]) for point in made] == [1, 2, 3]
        assert store.session("s").load() == {"picture": bytes(range(256)) * 40}
        assert store.verify(repair=True).repaired == ()
