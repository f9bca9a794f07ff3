"""LangGraph's own tests with BackstaySaver in place of its savers: `python -m tests.faces.adapters.theirs [KIND ...]`.

Arguments behind `--` are those of pytest; the kind `theirs` leaves LangGraph's own savers in their place.

They come with its source distribution, which pip fetches for the version that is installed; they run in an environment
made for them. Kinds of stores: memory, sqlite, files. The saver is opened as the docs show it, without a setting.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import venv
from importlib import metadata
from pathlib import Path

KINDS = ("memory", "sqlite", "files")
HERE = Path(__file__).resolve().parents[3]
NEEDED = ("pytest-mock", "pytest-asyncio", "syrupy", "httpx", "redis", "pycryptodome", "uvloop", "langgraph-cli[inmem]")
FIXTURES = """

import tempfile as _tempfile
from backstay.adapters.langgraph import BackstaySaver as _Saver

_URLS = {"memory": "memory://", "sqlite": "sqlite:///{}/store.db", "files": "file://{}/store"}


@pytest.fixture(params=os.environ["BACKSTAY_KINDS"].split())
def sync_checkpointer(request):
    with _tempfile.TemporaryDirectory() as folder:
        with _Saver.open(_URLS[request.param].format(folder)) as saver:
            yield saver


@pytest.fixture(params=os.environ["BACKSTAY_KINDS"].split())
async def async_checkpointer(request):
    with _tempfile.TemporaryDirectory() as folder:
        async with _Saver.open(_URLS[request.param].format(folder)) as saver:
            yield saver
"""


def main(kinds: list[str], options: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="backstay-theirs-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = str(folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-e", f"{HERE}[dev]", *NEEDED], check=True)
        wanted = f"langgraph=={metadata.version('langgraph')}"
        subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", name, wanted], check=True)
        (archive,) = folder.glob("langgraph-*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (source,) = [path for path in folder.glob("langgraph-*") if path.is_dir()]
        conftest = source / "tests" / "conftest.py"
        if kinds != ["theirs"]:
            conftest.write_text(conftest.read_text() + FIXTURES)
        # What is tested is what is installed: the sources beside the tests would be imported instead.
        (source / "langgraph").rename(source / "not-imported")
        env = {**os.environ, "NO_DOCKER": "true", "BACKSTAY_KINDS": " ".join(kinds or KINDS)}
        tests = [python, "-m", "pytest", "-q", "--tb=short", "-W", "ignore", "-n", "2", *(options or ["tests"])]
        return subprocess.run(tests, cwd=source, env=env, check=False).returncode


if __name__ == "__main__":
    given, _, more = (" ".join(sys.argv[1:]) + " ").partition("-- ")
    sys.exit(main(given.split(), shlex.split(more)))
