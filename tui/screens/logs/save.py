"""Saving a whole log to a file."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from backends.errors import DllmError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tui.seam.cluster import Cluster

PAGE_BYTES = 1_048_576
"""Read at one go."""


async def save_log(cluster: Cluster, name: str, folder: Path) -> Path:
    """Write a process's log, from its first byte, to a new file in a folder.

    Returns:
        The file written.

    Raises:
        DllmError: the log cannot be read, or the disk refuses.
    """
    try:
        path, file = await asyncio.to_thread(_create, folder, name)
        with file:
            await _copy(cluster, name, file)
    except OSError as error:
        raise DllmError(
            f"Cannot save the log in {folder} ({error.strerror})",
            "Free some space there, or copy the log with y.",
        ) from error
    return path


async def whole_log(cluster: Cluster, name: str) -> str:
    """A process's log from its first byte.

    Raises:
        DllmError: it cannot be read.
    """
    return "".join([text async for text in _pages(cluster, name)])


async def _copy(cluster: Cluster, name: str, file: BinaryIO) -> None:
    async for text in _pages(cluster, name):
        await asyncio.to_thread(file.write, text.encode())


async def _pages(cluster: Cluster, name: str) -> AsyncIterator[str]:
    """A log page by page, until nothing more comes."""
    offset = 0
    while True:
        chunk = await cluster.read_log(name, offset, PAGE_BYTES)
        if chunk.next_offset <= offset:
            return
        yield chunk.text
        offset = chunk.next_offset


def _create(folder: Path, name: str) -> tuple[Path, BinaryIO]:
    """Open a file that was not there: ``dllm-server.log``, ``dllm-server-2.log``…"""
    folder = folder if folder.is_dir() else Path.home()
    stem = "dllm-" + re.sub(r"[^\w.-]+", "-", name)
    number = 1
    while True:
        suffix = "" if number == 1 else f"-{number}"
        path = folder / f"{stem}{suffix}.log"
        try:
            return path, path.open("xb")
        except FileExistsError:
            number += 1
