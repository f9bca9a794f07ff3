"""Files of JSON lines that another program wrote, perhaps is writing, and perhaps made to do harm: read with limits.

Values are counted before they are decoded, in each line and in the file. A file that grows while it is read is read as
far as it went at the first look; its last line may be half written.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Protocol

from backstay.formats.dialect import DamagedError, count_values, parse
from backstay.formats.model import Reading
from backstay.formats.source import Entry, Source
from backstay.model import MAX_STATE_BYTES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_FILE_BYTES = MAX_STATE_BYTES
MAX_LINE_BYTES = 32 * 1024 * 1024
MAX_LINES = 250_000
_SPARE_LINES = 10_000  # of a packed file; beyond that a line for each of its bytes
MAX_FILE_VALUES = 10_000_000
_MAGIC = b"\x28\xb5\x2f\xfd"


class _Lines(Protocol):
    def readline(self, size: int, /) -> bytes: ...


class JsonLines:
    """The lines of one file as they stood when it was first read."""

    def __init__(self, source: Source, entry: Entry) -> None:
        self._source = source
        self.entry = entry
        self._size: int | None = None
        self._digest = b""

    def read(self, reading: Reading | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every object with the number of its line; what is none goes to the troubles of the first reading.

        Raises DamagedError where the file cannot be read, or is another than it was.
        """
        seen = sha256()
        size = values = 0
        with self._open() as (file, most):
            for number in range(1, most + 2):
                left = (MAX_FILE_BYTES if self._size is None else self._size) - size
                line = file.readline(min(MAX_LINE_BYTES, left) + 1)
                if len(line) > left:
                    if self._size is None:
                        raise DamagedError(f"it has more than the {MAX_FILE_BYTES:,} bytes that are read")
                    line = line[:left]
                size += len(line)
                seen.update(line)
                if not line:
                    break
                if number > most:
                    raise DamagedError(f"it has more than the {most:,} lines that are read")
                if len(line) > MAX_LINE_BYTES:
                    size += self._skip(file, seen, MAX_FILE_BYTES - size)
                    self._tell(reading, number, f"it has more than the {MAX_LINE_BYTES:,} bytes that are read")
                    continue
                values += count_values(line)
                if values > MAX_FILE_VALUES:
                    raise DamagedError(f"it holds more than the {MAX_FILE_VALUES:,} values that are read")
                if (value := self._object(line, number, reading)) is not None:
                    yield number, value
        if self._size is None:
            self._size, self._digest = size, seen.digest()
        elif seen.digest() != self._digest:
            raise DamagedError("it has changed while it was read")

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[_Lines, int]]:
        """The file, unpacked if need be, and how many lines of it are read."""
        with self._source.opened(self.entry.parts) as file:
            packed = self._source.peek(self.entry.parts, len(_MAGIC)) == _MAGIC
            if not packed:
                yield file, MAX_LINES
                return
            most = min(MAX_LINES, _SPARE_LINES + os.fstat(file.fileno()).st_size)
            with zstd.ZstdFile(file, options={zstd.DecompressionParameter.window_log_max: 27}) as plain:
                try:
                    yield plain, most
                except (zstd.ZstdError, EOFError) as error:
                    raise DamagedError(f"it cannot be unpacked: {error}") from error

    @staticmethod
    def _skip(file: _Lines, seen: Any, left: int) -> int:
        """To the end of a line that is too long."""
        skipped = 0
        while part := file.readline(MAX_LINE_BYTES):
            skipped += len(part)
            seen.update(part)
            if skipped > left:
                raise DamagedError(f"it has more than the {MAX_FILE_BYTES:,} bytes that are read")
            if part.endswith(b"\n"):
                break
        return skipped

    def _object(self, line: bytes, number: int, reading: Reading | None) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            value = parse(line)
        except DamagedError as damage:
            if not line.endswith(b"\n") and "torn" in str(damage):
                if reading is not None:
                    reading.note(self._where(number), "it is half written, and comes with the next import")
            else:
                self._tell(reading, number, str(damage))
            return None
        if type(value) is not dict:
            self._tell(reading, number, "it is not a JSON object")
            return None
        return value

    def _tell(self, reading: Reading | None, number: int, why: str) -> None:
        if reading is not None:
            reading.trouble(self._where(number), why)

    def _where(self, number: int) -> str:
        return f"{self.entry.shown}:{number}"
