"""Other processes: small programs run with the same Python and the same Backstay."""

import os
import subprocess
import sys
from pathlib import Path

import backstay

PLACE = str(Path(backstay.__file__).parents[1])


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program; it says what it has to say on standard output, line by line."""
    environment = {**os.environ, "PYTHONPATH": PLACE, "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONWARNINGS", None)
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child: subprocess.Popen[str], timeout_s: float = 60) -> list[str]:
    """What a program said, once it has ended well."""
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        message = f"a child hangs; it said {out!r} and {err!r}"
        raise AssertionError(message) from None
    assert child.returncode == 0, err
    return out.splitlines()


def finish_all(children: list[subprocess.Popen[str]]) -> list[list[str]]:
    """What several programs said; if one fails, the others are not left running."""
    try:
        return [finish(child) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()


def run(program: str, *arguments: object) -> list[str]:
    """Run a program to its end."""
    return finish(start(program, *arguments))
