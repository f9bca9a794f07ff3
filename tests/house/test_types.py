"""What type checkers of users see: a misspelt keyword is an error, and everything that is shown passes.

mypy and pyright, both over examples/, over the code of the README, and over mistakes that must not pass.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

# Each line is a mistake. The words behind it are what both checkers must name, on that line.
MISTAKES = """
import backstay
import backstay.aio

store = backstay.open()
session = store.session("s")
awaited = backstay.aio.AsyncStore.__new__(backstay.aio.AsyncStore)
store.run("x", agnt="typo")  # agnt
store.session("x", ownr="typo")  # ownr
session.run(stratgy=backstay.Always())  # stratgy
session.commit({}, lable="typo")  # lable
session.commit({}, status="finished")  # status
list(store.sessions(staus="failed"))  # staus
list(store.sessions(status="finished"))  # status
store.on("checkpoints", print)  # checkpoints
backstay.open(durability="half")  # durability
awaited.run("x", agnt="typo")  # agnt
backstay.recover(store, print, on_doubt="retyr")  # on_doubt
with store.run("x") as run:
    run.use(token_in=5)  # token_in
    run.call("pay", print, knd="tool")  # knd
    run.call("pay", print, kind="tol")  # kind
    run.call("pay", print, on_mismatch="retry")  # on_mismatch
    number: str = run.call("count", lambda: 5, returns=int)  # str
"""


def shown() -> str:
    """The code of the README, as one program."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return "\n".join(blocks)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    good, bad = tmp_path / "readme_code.py", tmp_path / "mistakes.py"
    good.write_text(shown(), "utf-8")
    bad.write_text(MISTAKES, "utf-8")
    return good, bad


def check(*command: str) -> str:
    env = {**os.environ, "MYPYPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    return done.stdout + done.stderr


def faults(told: str, file: Path) -> dict[int, str]:
    """What a checker says of a file, by line."""
    found: dict[int, str] = {}
    for line in told.splitlines():
        at = re.match(rf".*{re.escape(file.name)}:(\d+)(?::\d+)?(?: -|:) error: (.*)", line)
        if at is not None:
            found[int(at[1])] = found.get(int(at[1]), "") + at[2]
    return found


def assert_told(told: str, good: Path, bad: Path) -> None:
    assert not faults(told, good), told
    assert not [line for line in told.splitlines() if "examples/" in line and "error" in line], told
    found = faults(told, bad)
    for number, line in enumerate(MISTAKES.splitlines(), 1):
        code, _, word = line.partition("  # ")
        assert (number in found) is bool(word), f"{code.strip()}: {found.get(number, 'passes')}"


def test_mypy_tells_a_user_of_a_mistake_and_passes_what_we_show(files: tuple[Path, Path]) -> None:
    options = ["--strict", "--no-error-summary", "--no-pretty", "--hide-error-context"]
    told = check(sys.executable, "-m", "mypy", *options, *map(str, files), str(ROOT / "examples" / "chat.py"))
    assert_told(told, *files)


@functools.cache
def pyright() -> str | None:
    """The command, if it can run here; None and why not."""
    beside = Path(sys.executable).with_name("pyright")
    command = str(beside) if beside.exists() else shutil.which("pyright")
    if command is None:
        pytest.skip("pyright is not installed: pip install pyright")
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("pyright does not start: it may want to fetch itself, and there is no network")
    if done.returncode:
        pytest.skip(f"pyright does not start: {(done.stderr or done.stdout).strip()[-200:]}")
    return command


def test_pyright_tells_a_user_of_a_mistake_and_passes_what_we_show(files: tuple[Path, Path], tmp_path: Path) -> None:
    settings = tmp_path / "pyrightconfig.json"
    include = [*map(str, files), str(ROOT / "examples")]
    src = str(ROOT / "src")
    quoted = ", ".join([f'"{path}"' for path in include])
    settings.write_text(f'{{"include": [{quoted}], "extraPaths": ["{src}"], "pythonVersion": "3.11"}}', "utf-8")
    told = check(str(pyright()), "--pythonpath", sys.executable, "-p", str(settings))
    assert_told(told, *files)
