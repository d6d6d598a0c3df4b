"""One controller per state directory: a lock that dies with its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from backends.errors import ControllerError
from backends.state import NOT_JSON, ControllerInfo
from backends.writing import try_lock

# Whoever asks who holds the lock holds it, shared, for a moment.
TRIES = 20
INFO_BYTES_MAX = 1 << 16


def hold_lock(path: Path, info: ControllerInfo) -> int:
    """Take the controller's lock and sign it; the descriptor returned holds it.

    Raises:
        ControllerError: another controller holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not try_lock(descriptor, tries=TRIES):
        holder = _read(descriptor)
        os.close(descriptor)
        raise ControllerError(
            "Another controller of yours is running "
            f"(pid {holder.pid if holder else 'unknown'})",
            "dllm-tui uses it; dllm-tui down --all ends it.",
        )
    signature = msgspec.json.encode(info)
    # A full disk: the lock holds all the same, and what fails next can say why.
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, signature, 0)
        os.ftruncate(descriptor, len(signature))
    return descriptor


def lock_holder(path: Path) -> ControllerInfo | None:
    """Return the holder of a lock; None if it is free, or not signed yet."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> ControllerInfo | None:
    raw = os.pread(descriptor, INFO_BYTES_MAX, 0)
    try:
        return msgspec.json.decode(raw, type=ControllerInfo)
    except NOT_JSON:
        return None
