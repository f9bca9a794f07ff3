"""Reading while somebody deletes: what was there at either moment is given, and nothing is called damaged."""

from collections.abc import Callable, Collection

import pytest

from backstay.backends.memory import MemoryBackend
from backstay.errors import NotFoundError
from backstay.face import Store
from backstay.port import Kind, Records


class Interrupted(MemoryBackend):
    """A backend on which something happens between a look at a ref and the reading of its state."""

    meanwhile: Callable[[], object] | None = None

    def state(self, session: str, ref: str | int, *, salvage: bool = False, without: Collection[int] = ()) -> Records:
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
        return super().state(session, ref, salvage=salvage, without=without)


@pytest.fixture
def backend() -> Interrupted:
    return Interrupted()


@pytest.fixture
def store(backend: Interrupted) -> Store:
    store = Store(backend)
    session = store.session("s")
    for number in range(4):
        session.commit({"number": number, "picture": bytes([number]) * 9_000, "bulk": list(range(9_000))})
    return store


def delete_parents(store: Store) -> None:
    session = store.session("s")
    for row in list(session.log("main~1")):
        session.delete(row.id)


@pytest.mark.parametrize("salvage", [False, True])
def test_a_state_whose_ancestors_are_deleted_while_it_is_read_is_not_called_damaged(
    store: Store, backend: Interrupted, salvage: bool
) -> None:
    backend.meanwhile = lambda: delete_parents(store)
    state = store.session("s").load(salvage=salvage)
    assert (state["number"], state["picture"]) == (3, b"\3" * 9_000)
    assert len(backend.scan("s", Kind.CHECKPOINT, limit=9)) == 1


def test_a_store_in_which_something_is_deleted_meanwhile_is_not_called_damaged(
    store: Store, backend: Interrupted
) -> None:
    backend.meanwhile = lambda: delete_parents(store)
    assert store.verify().ok


def test_a_checkpoint_deleted_while_it_is_read_is_said_not_to_be_there(store: Store, backend: Interrupted) -> None:
    session = store.session("s")
    ref = session.checkpoint("main~1")
    backend.meanwhile = lambda: store.session("s").delete(ref)
    with pytest.raises(NotFoundError):
        session.load(ref)
