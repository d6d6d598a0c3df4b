"""Reading a file forwards through one bounded window.

Reads, not a memory map: a mapped file that shrinks (a download restarted, a disk
unplugged) kills the process with SIGBUS, a short read is an error like any other.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from backends.errors import ModelError
from backends.models.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WINDOW_BYTES = 256 * 1024
LENGTH_BYTES = 8
"""A GGUF string is a 64-bit length and its bytes."""
HEADER_BYTES_MAX = 128 * 1024 * 1024
"""Ours; the largest real headers (vocabulary included) are under 32 MiB."""
AGAIN = "Copy or download it again."


class Cursor:
    """A place in an open file; every read checks against the file's end."""

    def __init__(self, descriptor: int, size: int, name: str) -> None:
        self.size = size
        self.name = name
        self.place = 0
        self.inside = "the header"
        """The part being read, for the error sentence."""
        self._descriptor = descriptor
        self._data = b""
        self._start = 0
        self.set_order("<")

    def set_order(self, order: str) -> None:
        """Read numbers as little- (``<``) or big-endian (``>``) from here on."""
        self.order = order
        self._structs: dict[str, struct.Struct] = {}
        self._length = struct.Struct(order + "Q")

    def fail(self, what: str, hint: str = AGAIN) -> NoReturn:
        """Raise the sentence, opened by the file's name."""
        raise ModelError(f"{self.name} {what}", hint)

    def truncated(self) -> NoReturn:
        """Say that the file ends too early."""
        self.fail(f"is truncated: it ends at byte {self.size} inside {self.inside}")

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file; negative past it."""
        return self.size - self.place

    def numbers(self, letters: str) -> tuple[Any, ...]:
        """The next numbers, laid out as struct's `letters` say, without padding."""
        form = self._structs.get(letters)
        if form is None:
            form = self._structs[letters] = struct.Struct(self.order + letters)
        at = self._hold(form.size)
        self.place += form.size
        return form.unpack_from(self._data, at)

    def take(self, n_bytes: int) -> bytes:
        """The next bytes; the caller bounds how many."""
        at = self._hold(n_bytes)
        self.place += n_bytes
        return self._data[at : at + n_bytes]

    def sha256(self, begin: int) -> str:
        """Hex SHA-256 of what was passed since that place."""
        passed = os.pread(self._descriptor, self.place - begin, begin)
        return hashlib.sha256(passed).hexdigest()

    def skip(self, n_bytes: int) -> None:
        """Step over bytes without reading them."""
        self.place += n_bytes
        self._check_place()

    def skip_strings(self, count: int) -> None:
        """Step over strings, reading nothing but their lengths.

        The one loop that runs per vocabulary entry: it stays inside the window and
        lets struct notice the window's end, because a test per string costs a third.
        """
        length_at = self._length.unpack_from
        while count:
            at = self._hold(LENGTH_BYTES)
            base, data, done = self.place - at, self._data, 0
            try:
                for done in range(count):  # noqa: B007
                    at += LENGTH_BYTES + length_at(data, at)[0]
                done = count
            except (struct.error, OverflowError):
                pass
            count -= done
            self.skip(base + at - self.place)

    def _hold(self, n_bytes: int) -> int:
        at = self.place - self._start
        if at < 0 or at + n_bytes > len(self._data):
            self._refill(n_bytes)
            return 0
        return at

    def _check_place(self) -> None:
        if self.place > self.size:
            self.truncated()
        if self.place > HEADER_BYTES_MAX:
            self.fail(f"is corrupt: its header is over {HEADER_BYTES_MAX >> 20} MiB")

    def _refill(self, n_bytes: int) -> None:
        self._check_place()
        if n_bytes > self.left:
            self.truncated()
        wanted = max(n_bytes, WINDOW_BYTES)
        self._data = os.pread(self._descriptor, wanted, self.place)
        self._start = self.place
        if len(self._data) < n_bytes:
            self.size = self.place + len(self._data)
            self.truncated()


@contextmanager
def open_cursor(path: Path) -> Iterator[Cursor]:
    """A cursor at the start of a regular file, closed afterwards.

    Raises:
        ModelError: the path is missing, unreadable, or no regular file.
    """
    name = printable(path.name)
    try:
        # Non-blocking, or opening a FIFO would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _cannot_read(path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{printable(str(path))} is not a file", "Name a .gguf.")
        yield Cursor(descriptor, status.st_size, name)
    except OSError as error:
        raise _cannot_read(path, error) from error
    finally:
        os.close(descriptor)


def _cannot_read(path: Path, error: OSError | ValueError) -> ModelError:
    reason = getattr(error, "strerror", None) or str(error)
    return ModelError(
        f"Cannot read {printable(str(path))} ({reason})",
        "Check the path; dllm-tui models show takes a file or a catalogue name.",
    )
