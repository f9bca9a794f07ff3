"""What the contract asks of the test class that uses it: how a backend is made, and how to look behind its back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from backstay.port import Backend, Key, Kind

Change = Callable[[bytes], bytes | None]  # bytes as they are kept; None removes them


class Hooks:
    """`make` and `reopen` must be given. The others answer for a backend that cannot be looked into.

    `alone`: nobody else uses what the backend keeps its rows in, so that `changes` stays the same unless it writes.
    """

    alone = True

    def make(self) -> Backend:
        """A fresh backend with nothing in it; each call gives another."""
        raise NotImplementedError

    def reopen(self, backend: Backend) -> Backend:
        """Close it and open the same bytes again; one that keeps nothing over a close returns itself, open."""
        raise NotImplementedError

    def beside(self, backend: Backend) -> Backend:
        """A second opening of the same bytes, as another process would have; itself where there can be only one."""
        return backend

    def harm(self, backend: Backend, session: str, kind: Kind, key: Key, change: Change) -> bool:  # noqa: ARG002
        """Change the body of a row behind the backend's back, or remove the row; False if that cannot be done.

        The row is one of a session that is not hidden. Its key is that of the port: a name, a sequence, (run, journal,
        n), or the session's id. The contract opens the backend again afterwards.
        """
        return False

    def harm_blob(self, backend: Backend, digest: bytes, change: Change) -> bool:  # noqa: ARG002
        """The same for a blob."""
        return False

    def opening_code(self, backend: Backend) -> str | None:  # noqa: ARG002
        """Python statements with which another process opens the same bytes, as `backend`; None if none can."""
        return None

    def raw_bytes(self, backend: Backend) -> bytes | None:  # noqa: ARG002
        """Every byte that is kept, wherever it is; None if that cannot be had."""
        return None

    def syncs(self, backend: Backend) -> int | None:  # noqa: ARG002
        """How often the backend has asked for its bytes to be made durable so far; None if that cannot be counted."""
        return None

    def lose_answer(self, backend: Backend) -> bool:  # noqa: ARG002
        """Let the next write reach the store, and its answer not reach the backend; False if that cannot happen."""
        return False

    @pytest.fixture
    def backend(self) -> Iterator[Backend]:
        """A fresh backend; it and what was opened of it are closed when the test is done."""
        self._opened: list[Backend] = []
        backend = self.make()
        yield backend
        for opened in [*self._opened, backend]:
            opened.close()

    def again(self, backend: Backend) -> Backend:
        """The backend closed and opened again."""
        self._opened.append(self.reopen(backend))
        return self._opened[-1]

    def other(self, backend: Backend) -> Backend:
        """A second opening; the same one where there can be no other."""
        self._opened.append(self.beside(backend))
        return self._opened[-1]

    def another(self, backend: Backend) -> Backend:
        """A second opening, or the test is skipped."""
        other = self.other(backend)
        if other is backend:
            pytest.skip("there can be no second opening of this backend")
        return other
