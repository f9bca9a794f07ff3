"""Hints in two languages: the text names calls of Python, `shell` names commands and flags.

A hint is data of its error from where it is raised; the command line only chooses which of the two it prints. Hints
that several rooms give are constants here, so that a reader is told the same thing everywhere.
"""

from __future__ import annotations

from typing import Self


class Hint(str):
    """What to do next, for a caller in Python; `shell` says it to a person at the command line."""

    __slots__ = ("shell",)

    shell: str

    def __new__(cls, text: str, shell: str) -> Self:
        """A hint in both languages."""
        hint = super().__new__(cls, text)
        hint.shell = shell
        return hint

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # str has one: this one is copied whole
        return str(self), self.shell


def in_shell(hint: str) -> str:
    """A hint as the command line prints it. A plain text names no call and no flag: it is the same in both."""
    return hint.shell if isinstance(hint, Hint) else hint


def after(lead: str, hint: str) -> str:
    """A hint with words before it, in both languages."""
    return Hint(f"{lead}; {hint}", f"{lead}; {in_shell(hint)}") if hint else lead


RUN_VERIFY = Hint("run verify to see what is intact", "`backstay verify` says what is intact")
REPAIR = Hint("store.verify(repair=True) repairs it", "`backstay verify --repair` repairs it")
NEWEST_INTACT = Hint(
    "run verify; session.newest_intact() finds the newest checkpoint that is intact",
    "`backstay verify` says which are intact; `backstay restore SESSION REF` goes back to one",
)
SALVAGE = Hint(
    "session.newest_intact() finds the newest checkpoint to go on from; load(salvage=True) reads what is left",
    "`backstay restore SESSION REF` goes back to an intact one; `backstay show SESSION REF --salvage` shows what is "
    "left",
)
LIST_SESSIONS = Hint("store.sessions() lists those there are", "`backstay sessions` lists those there are")
DECIDE_CALLS = Hint(
    "decide each with session.resolve(call_id, …) or `backstay recover`, or give up all: session.abandon()",
    "`backstay recover SESSION` shows them and takes a decision: --retry, --skip, --result, --mark-failed or --abandon",
)


def repairs(what: str) -> Hint:
    """What `verify` with repair does about a problem."""
    return Hint(f"store.verify(repair=True) {what}", f"`backstay verify --repair` {what}")
