"""Ending what a test, or whatever it tested, left running."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """kill -9 each; one may have ended since it was found, also because of another."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
