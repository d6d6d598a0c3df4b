"""One controller per user: a lock that dies with its holder."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from backends.errors import ControllerError

if TYPE_CHECKING:
    from pathlib import Path


def hold_lock(path: Path) -> int:
    """Take the user's controller lock; the descriptor holds it until it is closed.

    Raises:
        ControllerError: another controller holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        raise ControllerError(
            f"Another controller of yours is running (pid {holder or 'unknown'})",
            "dllm-tui uses it; dllm-tui stop ends it.",
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor
