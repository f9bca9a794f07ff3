"""Streams: a call whose answer comes in chunks. They are given as they come, and recorded whole at the end.

A stream that is closed early, or breaks off, is cut off: what had come is kept with the call as `partial`, is never
taken for the whole, and a model is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from backstay.run.calling import Calling
from backstay.run.typed_results import plain
from backstay.run.wait_making import WaitMaking


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
        chunks: list[Any] = []
        try:
            with self.enclosed(calling):
                source = iter(fn())
            while True:
                with self.enclosed(calling):  # what the source asks for belongs to it; what the loop asks for does not
                    try:
                        chunk = next(source)
                    except StopIteration:
                        break
                chunks.append(plain(chunk))
                yield chunks[-1]
        except BaseException as error:
            cut(calling, chunks, error)
            raise
        calling.finish(chunks)


def cut(calling: Calling, chunks: list[Any], error: BaseException) -> None:
    """A stream was closed early, or broke off: what had come of it is kept."""
    if isinstance(error, GeneratorExit) or calling.row.kind != "tool":
        calling.cut_off(chunks, failed=isinstance(error, Exception))
    else:
        calling.keep_partial(chunks)
        calling.give_up(error)
