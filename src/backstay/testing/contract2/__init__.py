"""What a backend owes, W1 to W11, each in tests whose names say it. docs/backends.md has the same in prose.

Subclass BackendContract in a test file, give it `make` and `reopen`, and as many of the further hooks of
`backstay.testing.contract2.hooks` as the backend allows: what a hook cannot do is skipped, and says so.
"""

from backstay.testing.contract2.blobs import BlobContract
from backstay.testing.contract2.damage import DamageContract
from backstay.testing.contract2.hidden import HiddenContract
from backstay.testing.contract2.hooks import Change, Hooks
from backstay.testing.contract2.listing import ListingContract
from backstay.testing.contract2.pairs import PairsContract
from backstay.testing.contract2.racing import RacingContract
from backstay.testing.contract2.reading import ReadingContract
from backstay.testing.contract2.refusing import RefusingContract
from backstay.testing.contract2.running import RunningContract
from backstay.testing.contract2.writing import WritingContract


class BackendContract(
    WritingContract,
    RacingContract,
    PairsContract,
    ReadingContract,
    ListingContract,
    BlobContract,
    HiddenContract,
    RunningContract,
    RefusingContract,
    DamageContract,
):
    """All of it. See the module's text."""


__all__ = ["BackendContract", "Change", "Hooks"]
