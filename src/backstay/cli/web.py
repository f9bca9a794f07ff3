"""`backstay web`: the store in a browser, on this computer."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import click

import backstay
from backstay import shapes
from backstay.cli.command import Command, json_option
from backstay.cli.store_option import name_of, open_store, store_option
from backstay.cli.street import neighbour
from backstay.opening import is_export, place

_MAX_TOKEN_BYTES = 4096
_SSH_WORDS = 4  # of SSH_CONNECTION: address and port of the client, then of the server
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@click.command(
    "web",
    cls=Command,
    shape="served",
    examples=["backstay web", "backstay web --demo", "backstay web --read-only --port 8080 --no-browser"],
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port; a free one by default.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where it listens; others than this computer's own need --token-file.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="A file with the token to come in with; only you may read it.",
)
@click.option("--read-only", is_flag=True, help="Show, and change nothing: for a shared screen.")
@click.option("--no-browser", is_flag=True, help="Print the address, and do not open a browser.")
@click.option("--demo", is_flag=True, help="Show a made-up store instead of yours; it is gone when you stop.")
@json_option
@store_option
def command(
    *,
    url: str | None,
    port: int,
    host: str,
    token_file: str | None,
    read_only: bool,
    no_browser: bool,
    demo: bool,
    as_json: bool,
) -> None:
    """Open the store in a browser: sessions, branches, conversations, costs, and what needs you, with the buttons.

    It runs on this computer until you press Ctrl-C, asks nothing of the network, and needs no account. The address
    that it prints has a token in it: who has it comes in.
    """
    web = neighbour("web")
    token = None if token_file is None else _token(token_file)
    with contextlib.ExitStack() as opened:
        opened.enter_context(_stopped_like_interrupted())
        if demo:
            folder = opened.enter_context(TemporaryDirectory(prefix="backstay-demo-"))
            url = str(Path(folder) / "demo.db")
            click.echo("Making up a store …", err=True)
            web.make_demo(Path(url))
        store = opened.enter_context(open_store(url))
        name, file = name_of(url), place(url)
        read_only = read_only or (file is not None and is_export(str(file)))  # nothing is written to an export

        def ready(address: str) -> None:
            if as_json:
                click.echo(shapes.dump({"url": address, "store": name, "read_only": read_only}))
            else:
                click.echo(f"Backstay is at {address}")
                if (tunnel := forward(address)) is not None:
                    click.echo(f"You are here by ssh. On your own computer, before you open it: {tunnel}", err=True)
                click.echo("Press Ctrl-C to stop.", err=True)
            sys.stdout.flush()  # a program that started this reads it from a pipe
            if not no_browser and not as_json:
                _open_browser(address)

        shown = name if "://" in name else Path(name).name
        web.serve(
            store,
            shown,
            host=host,
            port=port,
            token=token,
            read_only=read_only,
            is_demo=demo,
            place=file,
            on_ready=ready,
        )


@contextlib.contextmanager
def _stopped_like_interrupted() -> Iterator[None]:
    """A process that is told to end leaves nothing behind, like one that is interrupted."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _token(file: str) -> str:
    """The token in a file that only its owner can read."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if not stat.S_ISREG(mode) or mode & _OTHERS:
            message = f"{file} must be a file that only you can read"
            raise backstay.InvalidInputError(message, hint=f"chmod 600 {file}")
        text = opened.read(_MAX_TOKEN_BYTES + 1)
    try:
        return text.decode("ascii").strip()
    except UnicodeDecodeError:
        raise backstay.InvalidInputError(f"{file} has a token that is no plain text") from None


def forward(address: str) -> str | None:
    """The command that brings the page to the computer that an ssh session came from; None if there is none."""
    found = os.environ.get("SSH_CONNECTION", "").split()
    parts = urlsplit(address)
    if len(found) != _SSH_WORDS or parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    _, _, server, door = found
    user = os.environ.get("USER") or os.environ.get("LOGNAME")
    at = f"{user}@{server}" if user else server
    return f"ssh -N -L {parts.port}:127.0.0.1:{parts.port} {'' if door == '22' else f'-p {door} '}{at}"


def _open_browser(address: str) -> None:
    """Open a browser, if there is a desktop to open it on; never wait for it, never fail because of it."""
    import threading

    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
