"""Random work in a folder whose checkpoints are kept by PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis.stateful import run_state_machine_as_test

import backstay
from tests.backends.conftest import Fresh
from tests.workspace.files_machine import LONG, machine_with_files


@pytest.mark.exhaustive
def test_every_checkpoint_brings_back_exactly_its_files(postgres_url: str, fresh_schema: Fresh) -> None:
    def opened(_: Path) -> backstay.Store:
        joint = "&" if "?" in postgres_url else "?"
        return backstay.open(f"{postgres_url}{joint}{urlencode({'schema': fresh_schema()})}")

    machine = machine_with_files(opened, lasting=False)
    run_state_machine_as_test(machine, settings=LONG)
