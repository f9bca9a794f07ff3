"""Tests for whoever writes a backend, and the machine that every store must survive. Needs the extra `testing`.

    from backstay.testing import BackendContract

    class TestMyBackend(BackendContract):
        def make(self): return MyBackend(...)
        def reopen(self, backend): ...

`BackendContract` says what each verb of the port owes and tries every guarantee that a backend can break.
`machine_for` gives a Hypothesis state machine that plays a store against a plain dict.
"""

import pytest

# Before the modules are imported, so that a failing assert of theirs shows its values.
pytest.register_assert_rewrite(
    *[f"backstay.testing.{name}" for name in ("author", "contract", "machine")],
)

from backstay.testing.contract import BackendContract  # noqa: E402
from backstay.testing.machine import machine_for  # noqa: E402

__all__ = ["BackendContract", "machine_for"]
