"""Store and Session, as users hold them. One line a method: each points down to the room that does it."""

from backstay.face.session import Session
from backstay.face.store import Store

__all__ = ["Session", "Store"]
