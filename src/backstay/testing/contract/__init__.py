"""What a backend owes, W1 to W11, each in tests whose names say it. docs/backends.md has the same in prose.

Subclass BackendContract in a test file, give it `make` and `reopen`, and as many of the further hooks of
`backstay.testing.contract.hooks` as the backend allows: what a hook cannot do is skipped, and says so.
"""

from backstay.testing.contract.blobs import BlobContract
from backstay.testing.contract.cutting import CutContract
from backstay.testing.contract.damage import DamageContract
from backstay.testing.contract.hidden import HiddenContract
from backstay.testing.contract.hooks import Change, Hooks
from backstay.testing.contract.listing import ListingContract
from backstay.testing.contract.packing import PackingContract
from backstay.testing.contract.pairs import PairsContract
from backstay.testing.contract.racing import RacingContract
from backstay.testing.contract.reading import ReadingContract
from backstay.testing.contract.refusing import RefusingContract
from backstay.testing.contract.running import RunningContract
from backstay.testing.contract.writing import WritingContract


class BackendContract(
    WritingContract,
    RacingContract,
    PairsContract,
    ReadingContract,
    ListingContract,
    BlobContract,
    CutContract,
    HiddenContract,
    PackingContract,
    RunningContract,
    RefusingContract,
    DamageContract,
):
    """All of it. See the module's text."""


__all__ = ["BackendContract", "Change", "Hooks"]
