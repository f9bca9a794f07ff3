"""Stores as random histories are played on: each in a folder of its own, and not waiting for a disk."""

from pathlib import Path

import backstay


def open_memory(_folder: Path) -> backstay.Store:
    return backstay.open("memory://")


def open_sqlite(folder: Path) -> backstay.Store:
    # A machine reopens but never crashes, so there is nothing to wait for the disk for.
    return backstay.open(folder / "store.db", durability="relaxed")


def open_files(folder: Path) -> backstay.Store:
    return backstay.open(f"file:{folder / 'store'}", durability="relaxed")
