"""How a command ends: the exit codes, and what is said of an error, in one place.

A hint brings its words for the command line along (hints.py); here they are chosen.
"""

from __future__ import annotations

from backstay.errors import BackstayError, ConflictError, CorruptionError, FencedError, LeaseHeldError
from backstay.hints import in_shell

DONE, FAILED, USAGE, HELD, DAMAGED = 0, 1, 2, 3, 4
INTERRUPTED, PIPE_CLOSED = 130, 141  # as a shell reports the signal

# What each code means, for people: docs/cli.md is made from it.
MEANINGS = {
    DONE: "done",
    FAILED: "it failed, or was not agreed to, and stderr says in one line why and what to do; or an import could not "
    "take all, or a search found nothing",
    USAGE: "the command line was not understood",
    HELD: "another process was faster or is at work: a conflict, or a run holds the lease",
    DAMAGED: "damage was found",
    INTERRUPTED: "interrupted with Ctrl-C",
    PIPE_CLOSED: "the reader of the output stopped reading (`backstay demo | head -1`); nothing is said about it",
}


def code_of(error: BackstayError) -> int:
    """The exit code for an error."""
    if isinstance(error, ConflictError | LeaseHeldError | FencedError):
        return HELD
    return DAMAGED if isinstance(error, CorruptionError) else FAILED


def words_of(error: BackstayError) -> str:
    """The words for an error at the command line: its message, and its hint in commands and flags."""
    hint = in_shell(error.hint)
    return f"{error.message} ({hint})" if hint else error.message
