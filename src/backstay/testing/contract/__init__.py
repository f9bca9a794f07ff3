"""What a backend owes, verb by verb and guarantee by guarantee.

Subclass BackendContract in a test file, give it `make` and `reopen`, and as many of the further hooks of
`backstay.testing.contract.hooks` as the backend allows: what a hook cannot do is skipped, and says so.
"""

from backstay.testing.contract.damage import DamageContract
from backstay.testing.contract.deleting import DeletingContract
from backstay.testing.contract.hooks import Hooks, What
from backstay.testing.contract.journaling import JournalingContract
from backstay.testing.contract.leasing import LeasingContract
from backstay.testing.contract.moving import MovingContract
from backstay.testing.contract.naming import NamingContract
from backstay.testing.contract.racing import RacingContract
from backstay.testing.contract.reading import ReadingContract
from backstay.testing.contract.settling import SettlingContract
from backstay.testing.contract.writing import WritingContract


class BackendContract(
    WritingContract,
    NamingContract,
    ReadingContract,
    RacingContract,
    DeletingContract,
    MovingContract,
    LeasingContract,
    JournalingContract,
    SettlingContract,
    DamageContract,
):
    """All of it. See the module's text."""


__all__ = ["BackendContract", "Hooks", "What"]
