"""What the contract asks of the test class that uses it: how a backend is made, and how to look behind its back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from backstay.backend import Backend

What = Literal["fields", "delta", "roll", "whole", "blob", "row", "call", "call's row"]


class Hooks:
    """`make` and `reopen` must be given. The others answer for a backend that cannot be looked into."""

    def make(self) -> Backend:
        """A fresh backend with nothing in it; each call gives another."""
        raise NotImplementedError

    def reopen(self, backend: Backend) -> Backend:
        """Close it and open the same bytes again; one that keeps nothing over a close returns itself, open."""
        raise NotImplementedError

    def beside(self, backend: Backend) -> Backend:
        """A second opening of the same bytes, as another process would have; itself where there can be only one."""
        return backend

    def damage(self, backend: Backend, session: str, id_: str, what: What, *, at: float = 0.5) -> bool:  # noqa: ARG002
        """Flip a bit in what is kept of a checkpoint, behind the backend's back; False if that cannot be done.

        `what` is its fields, its delta, its roll, its whole copy, one blob that it needs, or (removed altogether) its
        row; `at` says how far into those bytes. What a backend does not keep is False too. For "call" and (removed
        altogether) "call's row", `id_` is that of a call.
        """
        return False

    def opening_code(self, backend: Backend) -> str | None:  # noqa: ARG002
        """Python statements with which another process opens the same bytes, as `backend`; None if none can."""
        return None

    def raw_text(self, backend: Backend) -> bytes | None:  # noqa: ARG002
        """Every byte that is kept, wherever it is; None if that cannot be had."""
        return None

    def shrink_rows(self, monkeypatch: pytest.MonkeyPatch) -> bool:  # noqa: ARG002
        """Make the backend cut its rows at about a kilobyte instead of 16 MiB; False if it does not cut."""
        return False

    @pytest.fixture
    def backend(self) -> Iterator[Backend]:
        """A fresh backend, closed when the test is done."""
        backend = self.make()
        yield backend
        backend.close()
