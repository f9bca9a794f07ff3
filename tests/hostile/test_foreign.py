"""Files of other systems that are small bombs: an import ends in time, within its memory, and says what it left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faces.cli import shell
from tests.hostile import foreign

MOST_MB = 300
# One child tries them all, and says how much memory it ever took.
TRY_ALL = """
import sys
from pathlib import Path
from tests.hostile import commands
for folder in sorted(Path(sys.argv[1]).iterdir()):
    done = commands.run(("import", str(folder)), folder.parent, str(Path(sys.argv[2]) / f"{folder.name}.db"))
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(int(peak.split()[1]) // 1024, done.code, folder.name, "|", done.out.partition(chr(10))[0], flush=True)
"""


def try_all(folder: Path, names: list[str]) -> dict[str, str]:
    """What an import said of each; AssertionError if one took too long or too much."""
    for name in names:
        foreign.BOMBS[name](folder / "in" / name)
        size = sum(path.stat().st_size for path in (folder / "in" / name).rglob("*") if path.is_file())
        assert size < foreign.MOST_BYTES, name
    (folder / "out").mkdir()
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", TRY_ALL, str(folder / "in"), str(folder / "out")],
        capture_output=True,
        text=True,
        check=False,
        env=shell.plain_environment(PYTHONPATH=f"{root / 'src'}:{root}"),
        cwd=root,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert len(said) == len(names)
    costly = [line for line in said if int(line.split()[0]) > MOST_MB]
    assert not costly, costly[0]
    return {line.partition(" | ")[0].split(maxsplit=2)[2]: line for line in said}


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says how much was taken")
FEW = ("ares empty", "smooth names", "messages never closed", "codex packed text", "codex packed objects")


@needs_proc
def test_a_short_file_of_another_system_takes_neither_memory_nor_time_without_end(tmp_path: Path) -> None:
    said = try_all(tmp_path, [*FEW, "claude rewinds"])
    assert all("0 sessions" in said[name] or "1 session with 4" in said[name] for name in FEW if "names" not in name)
    assert "1,200 checkpoints" in said["claude rewinds"]


@needs_proc
@pytest.mark.exhaustive
def test_no_short_file_of_another_system_takes_memory_or_time_without_end(tmp_path: Path) -> None:
    try_all(tmp_path, list(foreign.BOMBS))
