"""Every error Backstay raises, grouped by what the caller does next.

Each carries a stable `code` (documented in docs/errors.md) and a `hint`: one sentence that says what to do, which may
be a `Hint` with other words for the command line (hints.py).
The driver's own error, where there was one, is always chained as `__cause__`. Nothing here knows any other room.
"""

from __future__ import annotations

from typing import ClassVar


class BackstayError(Exception):
    """Anything that Backstay itself reports."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def message(self) -> str:
        """What happened, without the hint."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class NotFoundError(BackstayError, LookupError):
    """There is no such session, checkpoint, branch or tag."""

    code = "not_found"


class AlreadyExistsError(BackstayError):
    """The name is taken; choose another or delete the old one first."""

    code = "already_exists"


class ConflictError(BackstayError):
    """The branch has moved since it was last seen; load it again and decide."""

    code = "conflict"


class FilesConflictError(ConflictError):
    """A restore would change files that others than the session's calls changed; `paths` names them. Nothing was done.

    Say what is to become of them: `keep_mine=`, or their `paths=`.
    """

    code = "files_conflict"

    def __init__(self, message: str, *, hint: str = "", paths: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.paths = paths


class LeaseHeldError(BackstayError):
    """Another run is alive on this branch; wait for it or fork."""

    code = "lease_held"


class FencedError(BackstayError):
    """This run lost its lease to another; stop, and let the other go on."""

    code = "fenced"


class InDoubtError(BackstayError):
    """A call was in flight at a crash and it is not known whether it happened; decide it.

    `call_id` and `session_id` tell which, where it is about one call: `store.session(session_id).resolve(call_id, …)`.
    """

    code = "in_doubt"

    def __init__(
        self, message: str, *, hint: str = "", call_id: str | None = None, session_id: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.call_id = call_id
        self.session_id = session_id


class MismatchError(BackstayError):
    """The code asks for other calls than the journal recorded; change it back, resolve or abandon."""

    code = "mismatch"


class CallFailedError(BackstayError):
    """A journaled call raised; its `type` and `text` are recorded. The original is chained the first time."""

    code = "call_failed"

    def __init__(self, message: str, *, hint: str = "", type: str = "", text: str = "") -> None:  # noqa: A002
        super().__init__(message, hint=hint)
        self.type = type
        self.text = text


class ChildEndedError(CallFailedError):
    """A child of a run failed or was halted; its `type` and `text` say how and why."""

    code = "child_ended"


class InvalidInputError(BackstayError, ValueError):
    """A value given by the caller cannot be used; the message names it."""

    code = "invalid_input"


class UnsupportedError(BackstayError):
    """This store, machine or version cannot do that."""

    code = "unsupported"


class UnavailableError(BackstayError):
    """The storage did not answer: busy, full, or gone. Nothing was recorded, unless the message says "not known"."""

    code = "unavailable"

    def __init__(self, message: str, *, hint: str = "", retryable: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable


class CorruptionError(BackstayError):
    """Stored bytes are damaged; the message names what is damaged and what is intact."""

    code = "corruption"


class FormatError(BackstayError):
    """This is not a store, or one that this version cannot read; it was left untouched."""

    code = "format"


class ClosedError(BackstayError):
    """The store was closed, or belongs to the parent of this forked process; open it again."""

    code = "closed"
