"""`python -m tests.faces.cli.golden` writes what commands print, at 80 and at 120 columns, into golden/.

Look at the difference before you commit it: these files are what people see.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from tests.faces.cli import hostile, shell, story
from tests.faces.cli.reference import mask

FOLDER = Path(__file__).parent / "golden"
COLUMNS = (80, 120)
COMMANDS = {
    "sessions": "sessions",
    "status": "status",
    "log": "log ticket-42",
    "log-graph": "log ticket-42 --graph --all",
    "log-oneline": "log ticket-42 --graph --all --oneline",
    "log-calls": "log ticket-42 --calls",
    "log-patch": "log ticket-42 -p",
    "log-crashed": "log ticket-43 --graph",
    "show": "show ticket-42",
    "show-state": "show ticket-42 --state",
    "diff": "diff ticket-42 main what-if",
    "branches": "branches ticket-42",
    "recover": "recover",
    "search": "search EUR",
    "stats": "stats",
    "restore": "restore ticket-42 asked",
    "delete": "delete ticket-42",
    "delete-checkpoint": "delete ticket-42 main~1 --dry-run",
    "prune": "prune --keep-last 1",
}
HOSTILE = {
    "hostile-sessions": "sessions",
    "hostile-log": "log 'a b/c d' --graph --all",
    "hostile-oneline": "log 'a b/c d' --oneline",
    "hostile-show": "show 'a b/c d'",
    "hostile-tree": "show 'a b/c d' --state",
    "hostile-diff": "diff 'a b/c d' main main~3",
    "hostile-branches": "branches 'a b/c d'",
    "hostile-search": "search wide --session 'a b/c d'",
}


def printed(command: str, columns: int, folder: Path) -> str:
    """What a command says to people, on both streams."""
    done = shell.run(*shlex.split(command), folder=folder, columns=columns)
    return mask(done.out + done.err, folder)


def file_of(name: str, columns: int) -> Path:
    return FOLDER / f"{name}-{columns}.txt"


def main() -> int:
    """Write all of them anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for commands, make in ((COMMANDS, story.make), (HOSTILE, hostile.make)):
        with tempfile.TemporaryDirectory() as where:
            folder = Path(where)
            (folder / ".backstay").mkdir(mode=0o700)
            make(folder / ".backstay" / "store.db")
            for name, command in commands.items():
                for columns in COLUMNS:
                    file_of(name, columns).write_text(printed(command, columns, folder), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
