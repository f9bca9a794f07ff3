"""A rewind or an undo that was interrupted while files were put back: what stands, its end, and the way back.

Before another one is shown or asked about, it comes to its end: a preview of a folder that is half put back would be
wrong, and an undo would take back the restore before it.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import backstay
from backstay.cli.text import safe

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Session
    from backstay.run.file_restore import PlaceCall


def interrupted(session: Session, branch: str) -> PlaceCall | None:
    """The restore that was interrupted on a branch while files were put back, if there is one."""
    from backstay.face.run_status import placing
    from backstay.run.file_restore import placed_by

    call = placing(session.calls(branch, pending=True))
    return None if call is None or call.status == "skipped" else placed_by(call.args)


def finish(screen: Screen, session: Session, branch: str, *, dry_run: bool = False) -> PlaceCall | None:
    """Bring an interrupted restore of a branch to its end and say so; what it was, or None if there is none."""
    begun = interrupted(session, branch)
    if begun is None:
        return None
    if dry_run:
        message = f"files were being put back in {_folder(begun)} when that was interrupted, and nothing is certain yet"
        raise backstay.InDoubtError(message, hint=f"`{recover_line(session.id, branch)}` brings it to its end")
    with told(session, branch):
        session.finish_files(branch=branch)
    word = "undo" if begun.request.trigger == "undo" else "rewind"
    screen.line(f"The interrupted {word} came to its end first: files in {_folder(begun)} are put back", as_of(begun))
    return begun


def as_of(begun: PlaceCall) -> str:
    """The end of a sentence about a restore: the checkpoint whose files it puts back."""
    return f" as of {begun.request.target[:8]}."


def meant(session: Session, ref: str, branch: str) -> str:
    """A ref as it was meant before an interrupted restore kept the folder in a checkpoint of its own."""
    from backstay.run.file_restore import BEFORE

    begun = interrupted(session, branch)
    rest = re.fullmatch(rf"{re.escape(branch)}((?:[~^]\d*)*)", ref)
    if begun is None or rest is None:
        return ref
    before = session.checkpoint(begun.before)
    at = before.parent_id if before.label == BEFORE and before.parent_id is not None else before.id
    return f"{at}{rest[1]}"


@contextlib.contextmanager
def told(session: Session, branch: str) -> Iterator[None]:
    """Around a restore with files: a Ctrl-C says on stderr what stands, what finishes it and what takes it back."""
    before = session.head(branch)
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):
            begun, now = interrupted(session, branch), session.head(branch)
            undo = undo_line(session.id, branch)
            if begun is not None:
                said = (
                    f"Interrupted: in {_folder(begun)} some files are put back and others are not yet.\n"
                    f"To finish it: {recover_line(session.id, branch)}\nTo take it back: {undo}"
                )
            elif now is not None and before is not None and now.id != before.id and now.trigger in ("restore", "undo"):
                said = _moved(now.label, undo)
            else:
                said = "Interrupted: nothing was changed."
            print(f"\n{said}", file=sys.stderr)
        raise


def _moved(label: str | None, undo: str) -> str:
    from backstay.run.file_restore import BEFORE

    if label == BEFORE:
        return "Interrupted: no file was changed; the folder as it is now is kept in a checkpoint."
    return f"Interrupted, when all of it was done.\nTo take it back: {undo}"


def undo_line(id_: str, branch: str) -> str:
    """The line that takes a rewind back."""
    return _line("undo", id_, branch)


def recover_line(id_: str, branch: str) -> str:
    """The line that brings a rewind to its end."""
    return _line("recover", id_, branch)


def _line(command: str, id_: str, branch: str) -> str:
    from backstay.cli.restore import quoted

    return f"backstay {command} {'' if branch == 'main' else f'--branch {quoted(branch)} '}{quoted(id_)}"


def _folder(begun: PlaceCall) -> str:
    from backstay.listing import shown

    return safe(shown(begun.path))
