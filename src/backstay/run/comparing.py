"""Is a recorded call the one that is asked for now? A replay is given an outcome only if it is."""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.codec import decode
from backstay.errors import MismatchError
from backstay.port import CallRow
from backstay.port.rows import DONE, RETRY
from backstay.run.options import changed
from backstay.run.typed_results import typed
from backstay.sealing import open_value


def compared(
    recorded: CallRow, kind: str, asked: tuple[bytes | None, bytes, bytes], *, again: bool, returns: Any
) -> CallRow:
    """A recorded call, if it is the one that is asked for now; MismatchError if it is another.

    With `again` a model whose question or answer no longer fits is to be asked again.
    """
    data, digest, parts = asked
    same = (recorded.kind, recorded.args_digest) == (kind, digest)
    if not same and not (again and recorded.kind == kind):
        raise changed(recorded, kind, digest, data, parts)
    if not again or (same and _fits(recorded, returns)):
        return recorded
    return msgspec.structs.replace(recorded, status=RETRY, args=data, args_digest=digest, parts=parts, place=None)


def _fits(call: CallRow, returns: Any) -> bool:
    """True if what is recorded of a call can be given as the type that is asked for."""
    if returns is None or call.status != DONE or call.result is None:
        return True
    try:
        typed(call, decode(open_value(call.result)), returns)
    except MismatchError:
        return False
    return True
