"""Files of a workspace on PostgreSQL: recorded, read, pruned, and never fetched with a state."""

from __future__ import annotations

import os
import random
from pathlib import Path
from urllib.parse import urlencode

import pytest

import backstay
from tests.backends.conftest import Fresh
from tests.workspace.test_forgetting import files_of, walk


def test_files_come_back_and_a_state_is_read_without_them(
    postgres_url: str, fresh_schema: Fresh, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "noise").write_bytes(os.urandom(300_000))
    joint = "&" if "?" in postgres_url else "?"
    with backstay.open(f"{postgres_url}{joint}{urlencode({'schema': fresh_schema()})}") as store:
        session = store.session("s", workspace=work)
        for step in range(5):
            (work / "main.py").write_text(f"print({step})\n" * 50)
            session.commit({"n": step})
        assert sum(map(len, store.backend.state("s", "main").blobs.values())) < 100_000
        store.prune(backstay.Retention(keep_last=1))
        assert store.verify().ok
        files = store.session("s").checkpoint().files
        assert files is not None
        assert files["main.py"].read() == b"print(4)\n" * 50
        assert files["noise"].read() == (work / "noise").read_bytes()


def test_contents_are_forgotten_and_the_rest_comes_back(postgres_url: str, fresh_schema: Fresh, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    joint = "&" if "?" in postgres_url else "?"
    with backstay.open(f"{postgres_url}{joint}{urlencode({'schema': fresh_schema()})}") as store:
        walk(store, work, random.Random(5), 25)
        session = store.session("last", workspace=work)
        (work / "secret").write_text("hunter2" * 20)
        session.commit({})
        assert session.forget_files("secret").versions == 1
        assert "secret" in files_of(session).forgotten
        assert store.verify().ok


@pytest.mark.exhaustive
def test_what_is_not_forgotten_comes_back_at_length(postgres_url: str, fresh_schema: Fresh, tmp_path: Path) -> None:
    joint = "&" if "?" in postgres_url else "?"
    for seed in range(20):
        work = tmp_path / f"work-{seed}"
        work.mkdir()
        with backstay.open(f"{postgres_url}{joint}{urlencode({'schema': fresh_schema()})}") as store:
            walk(store, work, random.Random(seed), 120)
