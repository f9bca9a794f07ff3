"""Streams: a call whose answer comes in chunks. They are given as they come, and recorded whole at the end.

A stream that is closed early, breaks off or dies with its process is cut off: what had come is kept with the call as
`partial`, is never taken for the whole, and a model is asked again. For the sake of a kill it is kept now and then
while it comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from backstay.codec import Root, decode, encode_stored
from backstay.run.calling import Calling
from backstay.run.wait_making import WaitMaking

# A kill loses the chunks of half a second at most, or 64 kB of them. Each time all of them are written, so a long
# stream must have grown by a quarter too: what is written in all stays within five times what comes.
KEEP_S = 0.5
KEEP_BYTES = 64 * 1024
_GROWTH = 4


class StreamMaking(WaitMaking):
    """The streams of a loop. A Run is one that has a state, a lease and boundaries too."""

    @property
    def replaying(self) -> bool:
        """True while recorded calls are unasked: a page may show a replay in another way than news."""
        return bool(self._entered().unasked())

    def stream(
        self,
        name: str,
        fn: Callable[[], Any],
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "llm",
        args: Any = None,
    ) -> Iterator[Any]:
        """The chunks that the iterator `fn()` gives, as they come; after a crash, those that were recorded.

        Chunks are plain values. Read it to its end: closed early it is cut off, and a model is asked again at a resume.
        """
        calling = self.begin(name, key=key, kind=kind, args=args)
        if calling.done:
            yield from calling.result
            return
        arrived = Arrived(calling)
        try:
            with self.enclosed(calling):
                source = iter(fn())
            while True:
                with self.enclosed(calling):  # what the source asks for belongs to it; what the loop asks for does not
                    try:
                        chunk = next(source)
                    except StopIteration:
                        break
                chunk = arrived.add(chunk)
                if arrived.due:
                    arrived.keep()
                yield chunk
        except BaseException as error:
            cut(calling, arrived.chunks, error)
            raise
        calling.finish(arrived.chunks)


class Arrived:
    """What has come of a stream, and when it is to be kept next."""

    def __init__(self, calling: Calling) -> None:
        self.chunks: list[Any] = []
        self._calling = calling
        self._bytes = self._kept_bytes = 0
        self._looked = time.monotonic()

    def add(self, chunk: Any) -> Any:
        """One more chunk. It is given back as it will be recorded."""
        data = encode_stored(chunk, (Root("result"),))
        self._bytes += len(data)
        self.chunks.append(decode(data))
        return self.chunks[-1]

    @property
    def due(self) -> bool:
        """True if enough has come, or enough time gone, for another write."""
        new = self._bytes - self._kept_bytes
        if new * _GROWTH < self._kept_bytes:
            return False
        return new >= KEEP_BYTES or time.monotonic() - self._looked >= KEEP_S

    def keep(self) -> None:
        """Write down what has come so far."""
        self._calling.keep_arrived(self.chunks)
        self._kept_bytes, self._looked = self._bytes, time.monotonic()


def cut(calling: Calling, chunks: list[Any], error: BaseException) -> None:
    """A stream was closed early, or broke off: what had come of it is kept."""
    if isinstance(error, GeneratorExit) or calling.row.kind != "tool":
        calling.cut_off(chunks, failed=isinstance(error, Exception))
    else:
        calling.keep_partial(chunks)
        calling.give_up(error)
