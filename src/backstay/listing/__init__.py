"""Lists of files: entries, the difference of two lists, and what a restore is to do. Pure: no file is touched here.

A Listing is what a checkpoint says of a folder. `difference(a, b)` gives the paths that differ. A RestorePlan is what
a restore would do, path by path; `backstay.workspace` does it.
"""

from backstay.listing.changes import FileChange, FileChanges, difference
from backstay.listing.entries import KEPT, OLDER, PERMISSIONS, SECRET, ContentPlace, FileEntry, parent_of, shown
from backstay.listing.lists import CALL, EMPTY, OUTSIDE, RESTORE, Captured, LeftOut, Listing
from backstay.listing.plan import PlaceStep, RestorePlan, in_order

__all__ = [
    "CALL",
    "EMPTY",
    "KEPT",
    "OLDER",
    "OUTSIDE",
    "PERMISSIONS",
    "RESTORE",
    "SECRET",
    "Captured",
    "ContentPlace",
    "FileChange",
    "FileChanges",
    "FileEntry",
    "LeftOut",
    "Listing",
    "PlaceStep",
    "RestorePlan",
    "difference",
    "in_order",
    "parent_of",
    "shown",
]
