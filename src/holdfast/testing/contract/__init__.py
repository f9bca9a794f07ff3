"""What a backend owes, verb by verb and guarantee by guarantee.

Subclass BackendContract in a test file, give it `make` and `reopen`, and as many of the further hooks of
`holdfast.testing.contract.hooks` as the backend allows: what a hook cannot do is skipped, and says so.
"""

from holdfast.testing.contract.damage import DamageContract
from holdfast.testing.contract.deleting import DeletingContract
from holdfast.testing.contract.hooks import Hooks, What
from holdfast.testing.contract.journaling import JournalingContract
from holdfast.testing.contract.leasing import LeasingContract
from holdfast.testing.contract.moving import MovingContract
from holdfast.testing.contract.naming import NamingContract
from holdfast.testing.contract.racing import RacingContract
from holdfast.testing.contract.reading import ReadingContract
from holdfast.testing.contract.settling import SettlingContract
from holdfast.testing.contract.writing import WritingContract


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
