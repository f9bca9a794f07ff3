"""How a command ends: the exit codes, and what is said of an error, in one place.

Errors of the library give hints in Python. Here they are told in the words of the command line.
"""

from __future__ import annotations

from backstay.errors import BackstayError, ConflictError, CorruptionError, FencedError, LeaseHeldError

DONE, FAILED, USAGE, HELD, DAMAGED = 0, 1, 2, 3, 4
INTERRUPTED, PIPE_CLOSED = 130, 141  # as a shell reports the signal

# What each code means, for people: docs/cli.md is made from it.
MEANINGS = {
    DONE: "done",
    FAILED: "it failed, or was not agreed to; stderr says why and what to do, in one line",
    USAGE: "the command line was not understood",
    HELD: "somebody else was faster or is at it: a conflict, or a run holds the lease",
    DAMAGED: "damage was found",
    INTERRUPTED: "interrupted with Ctrl-C",
    PIPE_CLOSED: "whoever read the output stopped reading (`backstay demo | head -1`); nothing is said about it",
}

_IN_WORDS = (
    ("and ids as session.log() shows", "and ids as `backstay log` shows"),
    ("session.log() lists those there are", "`backstay log` lists those there are"),
    ("session.tags() lists those there are", "`backstay tag SESSION` lists those there are"),
    ("session.fork(ref, name) makes one", "`backstay fork SESSION REF NAME` makes one"),
    ("session.restore(ref) goes back to any checkpoint", "`backstay restore SESSION REF` goes back to any checkpoint"),
    (
        "run verify; session.newest_intact() finds",
        "`backstay verify` says which are whole; `backstay restore SESSION REF` goes back to",
    ),
    (
        "session.newest_intact() finds the newest one that is whole",
        "`backstay verify` says which are whole; `backstay restore SESSION REF` goes back to one",
    ),
    ("decide each with session.resolve(call_id, …), or give up: session.abandon()", "decide with `backstay recover`"),
    ("session.abandon() gives up", "`backstay recover SESSION --abandon` gives up"),
    ("session.delete() of", "`backstay delete SESSION REF` of"),
    ("session.calls() of it is an error", "`backstay log --calls` of it is an error"),
    ("no call is in doubt: session.calls(pending=True)", "no call is in doubt"),
    ("store.sessions() lists those there are", "`backstay sessions` lists those there are"),
    ("store.export(path) writes one", "`backstay export FILE` writes one"),
    ("run verify, or load(salvage=True)", "run `backstay verify`, or `backstay show SESSION REF --salvage`"),
    (
        "carry on from session.newest_intact(), or load(salvage=True)",
        "`backstay restore SESSION REF` to an intact one, or `backstay show SESSION REF --salvage`",
    ),
    ("carry on from session.newest_intact()", "`backstay restore SESSION REF` to an intact one"),
    ("verify(repair=True)", "`backstay verify --repair`"),
    ("look again: session.calls(pending=True)", "look again: `backstay recover`"),
    ("run verify", "run `backstay verify`"),
    ("untag it first", "`backstay tag SESSION -d NAME` first"),
    ("load the branch again, then decide", "look again, then decide"),
    ("give keep_last=, keep_days= or finished_days=", "give --keep-last, --keep-days or --finished"),
    ("backstay.open('sqlite:///store.db')", "--store sqlite:///store.db"),
)


def code_of(error: BackstayError) -> int:
    """The exit code for an error."""
    if isinstance(error, ConflictError | LeaseHeldError | FencedError):
        return HELD
    return DAMAGED if isinstance(error, CorruptionError) else FAILED


def words_of(error: BackstayError) -> str:
    """What an error says to somebody at a shell."""
    return in_words(str(error))


def in_words(text: str) -> str:
    """A text of the library, in the words of the command line."""
    for python, shell in _IN_WORDS:
        text = text.replace(python, shell)
    return text
