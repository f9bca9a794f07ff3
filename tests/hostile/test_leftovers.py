"""Small holes: an export that is not there, an import into one, a salvage where one value is damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import backstay
from backstay import CorruptionError, Damaged, FormatError, NotFoundError, UnsupportedError


def test_the_path_of_an_export_that_is_not_there_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no export"):
        backstay.open(tmp_path / "gone.backstay")
    assert not list(tmp_path.iterdir())


def test_an_import_into_an_export_is_refused_before_its_sessions_are_compared(tmp_path: Path) -> None:
    with backstay.open("memory://") as store:
        store.session("s").commit({"n": 1})
        store.export(tmp_path / "x.backstay")
    with backstay.open(tmp_path / "x.backstay") as export, pytest.raises(UnsupportedError, match="only read"):
        export.import_(tmp_path / "x.backstay")


def test_a_blob_in_a_damaged_page_costs_one_value_of_a_salvage(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with backstay.open(path) as store:
        store.session("s").commit({"messages": ["kept"], "picture": _noise(30_000)})
    content = bytearray(path.read_bytes())
    at = bytes(content).index(_noise(30_000)[10_000:10_200])  # in an overflow page of the blob
    content[at] ^= 1
    path.write_bytes(content)
    with backstay.open(path) as store:
        with pytest.raises(CorruptionError):
            store.session("s").load()
        state = store.session("s").load(salvage=True)
    assert state["messages"] == ["kept"]
    assert isinstance(state["picture"], Damaged)


def _noise(size: int) -> bytes:
    return random.Random(7).randbytes(size)


def test_text_that_is_no_utf_8_in_the_files_of_a_store_is_said_to_be_that(tmp_path: Path) -> None:
    with backstay.open(f"file:{tmp_path / 'store'}") as store:
        store.session("s").commit({"n": 1})
    meta = tmp_path / "store" / "backstay.json"
    meta.write_bytes(meta.read_bytes().replace(b"files", b"f\xe9les"))
    with pytest.raises(FormatError, match="does not say"):
        backstay.open(f"file:{tmp_path / 'store'}")
