"""Blobs: there as long as a row refers to them, and no longer (W7)."""

from __future__ import annotations

import secrets

import pytest

from backstay.delta import LARGE_BYTES
from backstay.port import Ask, Backend, Batch, BlobsAbsentError, KeyframeRow, Kind, Row, View
from backstay.sealing import MAX_ROW_BYTES
from backstay.testing.author import SESSION, Author, check_states, delete, read_back
from backstay.testing.contract.handmade import blob, checkpoint, drop, line, put
from backstay.testing.contract.hooks import Hooks

A, B, C = blob(1), blob(2), blob(3)
ALL = [A[0], B[0], C[0]]


class BlobContract(Hooks):
    """What the verbs about large values owe."""

    def test_w7_a_blob_comes_back_as_it_was_put_and_what_is_absent_is_left_out(self, backend: Backend) -> None:
        odd = [blob(number, size) for number, size in enumerate([0, 1, 4096, 5_000_000], 10)]
        put(backend, checkpoint(1, refs=tuple([digest for digest, _ in odd])), blobs=dict(odd))
        digests = [digest for digest, _ in odd]
        backend = self.again(backend)
        assert backend.blobs([*digests, A[0]]) == dict(odd)
        assert set(backend.absent([*digests, A[0]])) == {A[0]}
        assert not backend.blobs([])
        assert not backend.absent([])

    def test_w7_a_blob_that_is_there_need_not_come_again(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(A[0],)), blobs=dict([A]))
        put(backend, checkpoint(2, 1, refs=(A[0],)))
        put(backend, checkpoint(1, refs=(A[0],)), session="another")
        put(backend, KeyframeRow(1, b"data", (A[0],)), session="another")
        assert not backend.absent([A[0]])
        assert backend.blobs(ALL) == dict([A])

    def test_w7_a_blob_goes_with_the_last_row_that_refers_to_it(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(A[0], B[0])), blobs=dict([A, B]))
        put(backend, checkpoint(2, 1, refs=(A[0],)), KeyframeRow(2, b"data", (A[0],)))
        put(backend, checkpoint(1, refs=(A[0],)), session="another")
        assert kept(backend) == {A[0], B[0]}
        drop(backend, (Kind.CHECKPOINT, 1))
        assert kept(backend) == {A[0]}
        drop(backend, (Kind.CHECKPOINT, 2))
        assert kept(backend) == {A[0]}, "its keyframe refers to it still"
        drop(backend, (Kind.KEYFRAME, 2))
        assert kept(backend) == {A[0]}, "another session refers to it still"
        drop(backend, (Kind.CHECKPOINT, 1), session="another")
        assert kept(backend) == set()
        assert set(backend.absent(ALL)) == set(ALL)

    def test_w7_a_row_put_again_refers_to_what_it_says_now(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(A[0], B[0])), blobs=dict([A, B]))
        put(backend, checkpoint(1, refs=None, size_bytes=99))
        assert kept(backend) == {A[0], B[0]}, "None leaves them as they are"
        put(backend, checkpoint(1, refs=(B[0], C[0])), blobs=dict([C]))
        assert kept(backend) == {B[0], C[0]}
        put(backend, checkpoint(1, refs=()))
        assert kept(backend) == set()

    def test_w7_a_blob_may_be_let_go_and_referred_to_in_one_batch(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(A[0],)), blobs=dict([A]))

        def swap(view: View) -> Batch:
            assert view.session is not None
            rows = (view.session, checkpoint(2, refs=(A[0],)))
            return Batch(rows, ((Kind.CHECKPOINT, 1),))

        backend.write(Ask(SESSION, sequences=(1, 2)), swap)
        assert kept(backend) == {A[0]}
        for first, second in ((0, 1), (1, 0)):  # from a delta to a keyframe and back, whichever row comes first
            for refs in (((), (A[0],)), ((A[0],), ())):
                rows: list[Row] = [checkpoint(2, refs=refs[0]), KeyframeRow(2, b"data", refs[1])]
                put(backend, rows[first], rows[second])
                assert kept(backend) == {A[0]}
        drop(backend, (Kind.KEYFRAME, 2))
        put(backend, checkpoint(2, refs=(A[0], A[0])))
        drop(backend, (Kind.CHECKPOINT, 2))
        assert kept(backend) == set()

    @pytest.mark.parametrize("first", [True, False])
    def test_w7_a_blob_may_move_from_one_row_of_a_batch_to_another(self, backend: Backend, *, first: bool) -> None:
        put(backend, checkpoint(1, refs=(A[0],)), blobs=dict([A]))
        rows = checkpoint(1, refs=()), KeyframeRow(1, b"data", (A[0],))
        put(backend, *(rows if first else rows[::-1]))
        assert kept(backend) == {A[0]}

    def test_w7_a_blob_put_ahead_is_there_until_it_is_swept(self, backend: Backend) -> None:
        backend.put_blobs(dict([A, B]))
        backend.put_blobs(dict([A]))
        assert set(backend.absent(ALL)) == {C[0]}
        put(backend, checkpoint(1, refs=(A[0],)))
        assert backend.blobs(ALL).keys() >= {A[0]}
        assert kept(backend) == {A[0]}
        with pytest.raises(BlobsAbsentError):
            put(backend, checkpoint(2, 1, refs=(B[0],)))
        assert not backend.read(Ask(SESSION, sequences=(2,))).checkpoints

    def test_w7_a_blob_that_no_row_of_its_batch_needs_is_not_owed(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(A[0],)), blobs=dict([A, B]))
        assert kept(backend) == {A[0]}

    def test_w7_a_session_that_goes_takes_what_only_it_needed(self, backend: Backend) -> None:
        put(backend, checkpoint(1, refs=(A[0], B[0])), KeyframeRow(1, b"d", (C[0],)), blobs=dict([A, B, C]))
        put(backend, checkpoint(1, refs=(A[0],)), session="another")
        backend.write(Ask(SESSION), lambda _view: Batch(drops=((Kind.SESSION, SESSION),)))
        assert kept(backend) == {A[0]}
        assert backend.read(Ask("another", sequences=(1,))).checkpoints
        put(backend, session=SESSION, uid=bytes(16))
        assert not backend.scan(SESSION, Kind.CHECKPOINT, limit=9), "nothing of the old one is in the new one"
        assert not backend.scan(SESSION, Kind.KEYFRAME, limit=9)

    def test_w7_the_blobs_of_a_hidden_session_are_kept_too(self, backend: Backend) -> None:
        hidden = line("hidden", hidden=True)
        backend.write(
            Ask("hidden", hidden=True),
            lambda _view: Batch((hidden, checkpoint(1, refs=(A[0],))), blobs=dict([A])),
        )
        assert kept(backend) == {A[0]}
        backend.write(Ask("hidden", hidden=True), lambda _view: Batch(drops=((Kind.SESSION, "hidden"),)))
        assert kept(backend) == set()

    def test_w7_a_state_comes_with_the_blobs_it_needs(self, backend: Backend) -> None:
        pictures = [blob(number, 6_000)[1] for number in range(20, 24)]
        author = Author(backend, keyframe_every=3)
        for number in range(9):
            author.commit({"shown": pictures[number % 4], "also": [pictures[0]] * (number % 2)})
        check_states(backend, SESSION, author.states)
        delete(backend, SESSION, 2, 3, 5)
        backend.tend()
        check_states(backend, SESSION, {at: s for at, s in author.states.items() if at not in (2, 3, 5)})

    def test_a_record_longer_than_a_row_is_cut_into_blobs_and_comes_back(self, backend: Backend) -> None:
        author = Author(backend)
        noise = [secrets.token_bytes(LARGE_BYTES - 1) for _ in range(MAX_ROW_BYTES // LARGE_BYTES + 1)]
        rows = [author.commit({}), author.commit({"noise": noise}), author.commit({"noise": noise}, delta=False)]
        assert len(rows[1].delta) < 1000
        for row in rows[1:]:
            assert backend.state(SESSION, row.sequence).blobs
            assert read_back(backend, SESSION, row.sequence) == {"noise": noise}


def kept(backend: Backend) -> set[bytes]:
    """The blobs that are there once those that nothing refers to are swept."""
    backend.tend()
    return set(backend.blobs(ALL))
