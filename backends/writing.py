"""Writing files: whole or not at all, for this user only, and never over another's."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import BinaryIO


def write_private(
    file: Path, content: bytes, *, durable: bool = True, mode: int = 0o600
) -> None:
    """Replace a file atomically, readable by its owner only or by ``mode``.

    What is not ``durable`` need not outlive a power cut, and is not waited for.

    Raises:
        OSError: the directory or disk refuses it; the old file is untouched.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".{file.name}.{os.getpid()}-{get_ident()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def try_lock(descriptor: int, *, tries: int = 1) -> bool:
    """Lock an open file for us alone; False if another holds it at each try."""
    for left in reversed(range(tries)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(0.02)
        else:
            return True
    return False


def append_line(file: Path, line: bytes) -> None:
    """Add a line, in one write; one that was torn off before it is ended first."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" * bool(torn) + line + b"\n")
    finally:
        os.close(descriptor)


@contextmanager
def set_aside(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A hidden file to write to, gone afterwards; what it became by then stays."""
    path = folder / f".{os.urandom(8).hex()}.tmp"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield path, stream
    finally:
        path.unlink(missing_ok=True)


def write_new(file: Path, content: bytes) -> None:
    """Write a file that was not there.

    Raises:
        FileExistsError: it is there.
        OSError: the disk refuses it; nothing was written.
    """
    with set_aside(file.parent) as (aside, stream):
        stream.write(content)
        stream.close()
        become(aside, file)


def become(aside: Path, file: Path) -> None:
    """Give what was written aside its name.

    Raises:
        FileExistsError: another has it.
        OSError: the disk refuses it.
    """
    try:
        # A link: unlike a rename it never takes another's place.
        os.link(aside, file)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems (of memory sticks) have no links.
        if os.path.lexists(file):
            raise FileExistsError(file) from None
        aside.rename(file)


def remove_leftovers(folder: Path) -> None:
    """Remove what ended programs left there: each folder has a process's number."""
    import psutil  # Few commands need it.

    for one in folder.glob("*"):
        is_number = one.name.isdecimal()
        if not is_number or not psutil.pid_exists(int(one.name)):
            shutil.rmtree(one, ignore_errors=True)


# --- files that can be had again ---------------------------------------------------

UNUSED_S = 30 * 86400.0
"""A kept file that nobody uses for so long is forgotten."""


def is_kept(file: Path, size_bytes: int) -> bool:
    """True if a file of that size is there; that counts as its use."""
    with suppress(OSError):
        status = file.stat()
        # Its time of change stays: what was asked about it is known by that.
        os.utime(file, ns=(time.time_ns(), status.st_mtime_ns))
        return status.st_size == size_bytes
    return False


def forget_unused(cache: Path, pattern: str) -> None:
    """Remove folders of which no file was used for ``UNUSED_S``."""
    oldest = time.time() - UNUSED_S
    for folder in cache.glob(pattern):
        with suppress(OSError):
            used = [max(f.stat().st_atime, f.stat().st_mtime) for f in folder.iterdir()]
            if max(used, default=folder.stat().st_mtime) < oldest:
                shutil.rmtree(folder)
