"""The files of a checkpoint as people hold them: what `checkpoint.files` gives."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol


class File(Protocol):
    """A file, link or folder of a checkpoint. `path` is as `os.fsdecode` gives it, relative to the root."""

    @property
    def path(self) -> str:
        """Where it is, relative to the root, with `/` between its parts."""

    @property
    def kind(self) -> Literal["file", "link", "folder"]:
        """What it is."""

    @property
    def size(self) -> int:
        """The length of its contents."""

    @property
    def mode(self) -> int:
        """Its permission bits."""

    @property
    def digest(self) -> str | None:
        """The sha256 of its contents in hexadecimal; None if it is no file, or a secret."""

    @property
    def target(self) -> str | None:
        """Where a link leads."""

    @property
    def author(self) -> str:
        """The author of its last change: `outside`, `restore`, `unknown`, or `call:` and the call's id."""

    @property
    def mark(self) -> str:
        """Why its contents are not those of the file: `secret`, `older`, `forgotten`; empty if they are.

        `private` marks the contents of a secret, captured because that was asked for.
        """

    def read(self) -> bytes:
        """Its contents, verified. NotFoundError if they are not kept."""


class Files(Protocol):
    """The files of a checkpoint: a mapping from paths to files, in order."""

    @property
    def root(self) -> str:
        """The folder that was captured."""

    @property
    def count(self) -> int:
        """How many files and links there are."""

    @property
    def bytes(self) -> int:
        """How long the contents of all files are together."""

    @property
    def left_out(self) -> Mapping[str, tuple[int, int, tuple[str, ...]]]:
        """By reason: how many paths were left out, how many bytes, as far as known, and the first of them."""

    @property
    def exact(self) -> bool:
        """False if a file was being written while it was read, if time ran out, or if nothing was captured here."""

    @property
    def author(self) -> str:
        """The author of the last capture's changes; `carried` if this checkpoint has its parent's list."""

    def __getitem__(self, path: str | builtins.bytes) -> File:
        """The file at a path; KeyError if there is none."""

    def __contains__(self, path: object) -> bool:
        """True if there is something at a path."""

    def __iter__(self) -> Iterator[str]:
        """All paths, in order."""

    def __len__(self) -> int:
        """How many paths there are."""

    def list(self, folder: str = "") -> Sequence[File]:
        """Everything at and below a path."""

    @property
    def forgotten(self) -> tuple[str, ...]:
        """The paths of files whose contents were forgotten, by a retention, the disk limit or `forget_files`."""

    def export_to(self, folder: str, *, partial: bool = False) -> int:
        """Write all of it into a folder that is new or empty; how many files and links that were.

        NotFoundError if contents were forgotten; with `partial` the other files are written.
        """
