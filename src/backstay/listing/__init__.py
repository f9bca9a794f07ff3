"""Lists of files: entries, the difference of two lists, and what a restore is to do. Pure: no file is touched here.

A Listing is what a checkpoint says of a folder. `difference(a, b)` gives the paths that differ. A RestorePlan is what
a restore would do, path by path; `backstay.workspace` does it.
"""

from backstay.listing.changes import FileChange, FileChanges, difference
from backstay.listing.entries import (
    FORGOTTEN,
    KEPT,
    OLDER,
    OWN,
    PERMISSIONS,
    PRIVATE,
    SECRET,
    ContentPlace,
    FileEntry,
    parent_of,
    shown,
    unsafe,
)
from backstay.listing.file_diff import FileDiff
from backstay.listing.lists import (
    CALL,
    EMPTY,
    LOST,
    MISSING,
    OUTSIDE,
    RESTORE,
    Captured,
    LeftOut,
    Listing,
    from_value,
    to_value,
)
from backstay.listing.plan import PlaceStep, RestorePlan, in_order
from backstay.listing.restoring import KeepMine, Wish, plan_restore
from backstay.listing.three_way import merge_lines

__all__ = [
    "CALL",
    "EMPTY",
    "FORGOTTEN",
    "KEPT",
    "LOST",
    "MISSING",
    "OLDER",
    "OUTSIDE",
    "OWN",
    "PERMISSIONS",
    "PRIVATE",
    "RESTORE",
    "SECRET",
    "Captured",
    "ContentPlace",
    "FileChange",
    "FileChanges",
    "FileDiff",
    "FileEntry",
    "KeepMine",
    "LeftOut",
    "Listing",
    "PlaceStep",
    "RestorePlan",
    "Wish",
    "difference",
    "from_value",
    "in_order",
    "merge_lines",
    "parent_of",
    "plan_restore",
    "shown",
    "to_value",
    "unsafe",
]
