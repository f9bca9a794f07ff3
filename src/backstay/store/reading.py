"""From a checkpoint's id to its state: its chain and the blobs that the chain needs, as of one moment."""

from __future__ import annotations

from backstay.backend import Backend, Chain
from backstay.delta import refs_of
from backstay.errors import CorruptionError


def read_chain(backend: Backend, session: str, id_: str, *, salvage: bool = False) -> tuple[Chain, dict[bytes, bytes]]:
    """A chain and its blobs; with `salvage`, those that can be read."""
    while True:
        chain = backend.chain(session, id_, salvage=salvage)
        needed = refs_of(chain.records)
        try:
            blobs = dict(backend.blobs(needed, salvage=salvage)) if needed else {}
        except CorruptionError:
            if _is_current(backend, session, chain):
                raise
            continue
        if len(blobs) == len(needed) or _is_current(backend, session, chain):
            return chain, blobs


def _is_current(backend: Backend, session: str, chain: Chain) -> bool:
    # A deletion between the two reads may have taken blobs that only the old chain needed: that is not damage.
    return backend.chain(session, chain.row.id, salvage=True).epoch == chain.epoch
