"""Contents of files that were captured last: the next patch of a file needs what it is made on."""

from __future__ import annotations

from collections import OrderedDict

_RECENT_BYTES = 32 * 1024 * 1024


class RecentContents:
    """Contents by their digests: the next patch needs what it is made on."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def clear(self) -> None:
        """Forget all of them."""
        self._kept, self._bytes = OrderedDict(), 0

    def get(self, digest: bytes) -> bytes | None:
        """Contents with a digest, if they are at hand."""
        return self._kept.get(digest)

    def put(self, digest: bytes, contents: bytes) -> None:
        """Keep contents; others go for them."""
        if digest in self._kept or len(contents) > _RECENT_BYTES // 2:
            return
        self._kept[digest] = contents
        self._bytes += len(contents)
        while self._bytes > _RECENT_BYTES:
            self._bytes -= len(self._kept.popitem(last=False)[1])
