"""What the kernel says of processes, also of those in a container."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable


def comm(pid: int) -> str:
    """The name of a process; empty once it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def command_line(pid: int) -> str:
    """What it was started with; empty for a thread of the kernel."""
    with contextlib.suppress(OSError):
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
        return data.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return ""


def children(pid: int) -> dict[int, str]:
    """Its children, with their names."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return {int(child): comm(int(child)) for child in text.split()}
    return {}


def alive(pids: Iterable[int]) -> list[psutil.Process]:
    """Those that have not gone since they were seen."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found
