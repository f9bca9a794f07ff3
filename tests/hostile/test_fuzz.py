"""Every cut and many flips of a small store: whatever is asked gives a true answer or an error of Backstay's."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.hostile import fuzz
from tests.hostile.commands import ends_in_time

CUTS, FLIPS = 10, 10  # of each kind, unless all are asked for
ALL_FLIPS = 25_000  # of each of the four kinds


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz.Sample]:
    return {kind: fuzz.make(kind, tmp_path_factory.mktemp("sample")) for kind in fuzz.KINDS}


def try_all(sample: fuzz.Sample, changes: Iterable[fuzz.Change], folder: Path) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for change in changes:
        fuzz.damage(sample, change, folder / "damaged")
        try:
            with ends_in_time((sample.kind, str(change))):
                refused = fuzz.ask_everything(sample, folder / "damaged")
        except Exception as error:
            message = f"{sample.kind}, {change}"
            raise AssertionError(message) from error
        outcomes["refused" if "open" in refused else "damaged" if refused else "harmless"] += 1
    return outcomes


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_an_undamaged_store_answers_everything(kind: str, samples: dict[str, fuzz.Sample], tmp_path: Path) -> None:
    fuzz.damage(samples[kind], fuzz.Change("", 0), tmp_path / "whole")
    # An export is only read.
    assert fuzz.ask_everything(samples[kind], tmp_path / "whole") == (["repair"] if kind == "export" else [])


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_cuts_and_flips_give_errors_of_ours_and_nothing_else(
    kind: str, samples: dict[str, fuzz.Sample], tmp_path: Path
) -> None:
    seed = int(os.environ.get("BACKSTAY_SEED", random.randrange(2**32)))
    print(f"BACKSTAY_SEED={seed}")
    rng = random.Random(seed)
    sample = samples[kind]
    cuts = rng.sample(list(fuzz.cuts(sample)), CUTS)
    outcomes = try_all(sample, itertools.chain(cuts, fuzz.flips(sample, rng, FLIPS)), tmp_path)
    assert outcomes["refused"] + outcomes["damaged"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_every_cut_gives_errors_of_ours_and_nothing_else(
    kind: str, samples: dict[str, fuzz.Sample], tmp_path: Path
) -> None:
    print(kind, dict(try_all(samples[kind], fuzz.cuts(samples[kind]), tmp_path)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_a_hundred_thousand_flips_give_errors_of_ours_and_nothing_else(
    kind: str, samples: dict[str, fuzz.Sample], tmp_path: Path
) -> None:
    seed = int(os.environ.get("BACKSTAY_SEED", random.randrange(2**32)))
    print(f"BACKSTAY_SEED={seed}")
    changes = fuzz.flips(samples[kind], random.Random(seed), ALL_FLIPS)
    print(kind, dict(try_all(samples[kind], changes, tmp_path)))
