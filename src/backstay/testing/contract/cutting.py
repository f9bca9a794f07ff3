"""Blobs of which something is forgotten: a remnant in the place of each, and no write that relied on the whole (W7)."""

from __future__ import annotations

import msgspec
import pytest

from backstay.codec import held_digest
from backstay.port import Ask, Backend, Batch, BlobsAbsentError, Kind, View
from backstay.sealing import Remnant, open_held, pack_held, pack_remnant
from backstay.testing.author import SESSION
from backstay.testing.contract.handmade import checkpoint, drop, put
from backstay.testing.contract.hooks import Hooks

_SECRET = b"a secret that is not to be found anywhere"
_CONTENT = b"what stays " * 40 + _SECRET
DIGEST = held_digest(_CONTENT)
WHOLE = {DIGEST: pack_held(_CONTENT)}
LEFT = {DIGEST: pack_remnant(Remnant(len(_CONTENT), 1, ((0, b"what stays"),)), DIGEST)}


class CutContract(Hooks):
    """What a backend owes to contents that are given up."""

    def test_w7_a_remnant_takes_the_place_of_its_blob(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(DIGEST,)), blobs=WHOLE)
        assert backend.sizes().held_bytes > 0
        assert cut(backend, fresh_of(backend))
        backend = self.again(backend)
        left = open_held(backend.blobs([DIGEST])[DIGEST], DIGEST)
        assert isinstance(left, Remnant)
        assert (left.read(5, 5), left.read(5, 6)) == (b"stays", None)
        assert list(backend.absent([DIGEST])) == [DIGEST], "a writer brings the whole again"
        assert not list(backend.check())
        backend.tend()
        raw = self.raw_bytes(backend)
        assert raw is None or _SECRET not in raw

    def test_w7_a_blob_takes_the_place_of_its_remnant_and_never_the_other_way_round(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(DIGEST,)), blobs=WHOLE)
        backend.put_blobs(LEFT)
        put(backend, checkpoint(2, 1, refs=(DIGEST,)), blobs=LEFT)
        assert backend.blobs([DIGEST]) == WHOLE
        for bring in (
            lambda: backend.put_blobs(WHOLE),
            lambda: put(backend, checkpoint(3, 1, refs=(DIGEST,)), blobs=WHOLE),
        ):
            assert cut(backend, fresh_of(backend))
            assert backend.blobs([DIGEST]) == LEFT
            bring()
            assert backend.blobs([DIGEST]) == WHOLE

    def test_w7_a_remnant_may_be_referred_to_and_goes_with_the_last_row(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(DIGEST,)), blobs=WHOLE)
        assert cut(backend, fresh_of(backend))
        put(backend, checkpoint(2, 1, refs=(DIGEST,)))
        drop(backend, (Kind.CHECKPOINT, 1))
        assert backend.blobs([DIGEST]) == LEFT
        drop(backend, (Kind.CHECKPOINT, 2))
        assert not backend.blobs([DIGEST])

    def test_w7_a_write_that_needs_the_whole_finds_a_remnant_absent(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(DIGEST,)), blobs=WHOLE)
        assert add(backend, 2)
        assert cut(backend, fresh_of(backend))
        with pytest.raises(BlobsAbsentError) as caught:
            add(backend, 3)
        assert caught.value.digests == {DIGEST}
        assert 3 not in backend.read(Ask(SESSION, sequences=(3,))).checkpoints
        assert add(backend, 3, WHOLE)
        assert add(backend, 4)

    def test_w7_nothing_is_cut_once_any_session_was_written_to(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(DIGEST,)), blobs=WHOLE)
        planned = fresh_of(backend)
        put(self.other(backend), checkpoint(1, refs=(DIGEST,)), session="another")
        assert not cut(backend, planned)
        assert backend.blobs([DIGEST]) == WHOLE
        assert cut(backend, fresh_of(backend))
        assert backend.blobs([DIGEST]) == LEFT


def fresh_of(backend: Backend) -> int:
    """The number that says whether any session is written to."""
    answer = backend.write(Ask(SESSION), lambda view: Batch(answer=view.fresh)).answer
    assert isinstance(answer, int)
    return answer


def cut(backend: Backend, planned: int) -> bool:
    """Forget, unless something was written since."""

    def decide(view: View) -> Batch:
        assert view.session is not None
        if view.fresh != planned:
            return Batch(answer=view.again and view.session.touched == planned)
        return Batch((msgspec.structs.replace(view.session, touched=view.fresh),), cuts=LEFT, answer=True)

    return bool(backend.write(Ask(SESSION), decide).answer)


def add(backend: Backend, sequence: int, blobs: dict[bytes, bytes] | None = None) -> bool:
    """A checkpoint that rests on the whole blob."""

    def decide(view: View) -> Batch:
        assert view.session is not None
        count = view.session.checkpoints + (sequence not in view.checkpoints)
        line = msgspec.structs.replace(view.session, touched=view.fresh, sequence=sequence, checkpoints=count)
        row = checkpoint(sequence, 1, refs=(DIGEST,) if blobs else ())
        return Batch((line, row), blobs=blobs or {}, whole=(DIGEST,), answer=True)

    return bool(backend.write(Ask(SESSION, sequences=(sequence,)), decide).answer)
