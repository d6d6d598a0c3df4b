"""Saving a whole log to a file."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from backends.errors import DllmError
from backends.units import format_bytes
from backends.writing import become, set_aside
from tui.widgets.safe_text import safe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tui.api.cluster import Cluster

PAGE_BYTES = 1_048_576
"""Read at one go."""
PAGER_BYTES = 16 * PAGE_BYTES
"""Shown in a pager, the newest."""


async def save_log(cluster: Cluster, name: str, folder: Path) -> Path:
    """Write a process's log, from its first byte, to a new file in a folder.

    Nothing is left of one that could not be written whole.

    Returns:
        The file written.

    Raises:
        DllmError: the log cannot be read, or the disk refuses.
    """
    try:
        folder = await asyncio.to_thread(_there_or_home, folder)
        with set_aside(folder) as (aside, stream):
            await _copy(cluster, name, stream)
            path = await asyncio.to_thread(_name, aside, stream, folder, name)
    except OSError as error:
        raise DllmError(
            f"Cannot save the log in {folder} ({error.strerror}): nothing was written",
            "Free some space there, or copy the log with y.",
        ) from error
    return path


async def end_of_log(cluster: Cluster, name: str) -> str:
    """The last part of a process's log, for a pager."""
    first = await cluster.read_log(name, -PAGER_BYTES, PAGE_BYTES)
    left_out = f"── {format_bytes(first.offset)} before this are not shown ──\n"
    texts = [left_out] if first.offset > 0 else []
    texts += [first.text]
    texts += [text async for text in _pages(cluster, name, first.next_offset)]
    return await asyncio.to_thread(safe, "".join(texts))


async def _copy(cluster: Cluster, name: str, file: BinaryIO) -> None:
    async for text in _pages(cluster, name):
        await asyncio.to_thread(file.write, text.encode())


async def _pages(cluster: Cluster, name: str, offset: int = 0) -> AsyncIterator[str]:
    """A log page by page, until nothing more comes."""
    while True:
        chunk = await cluster.read_log(name, offset, PAGE_BYTES)
        if chunk.next_offset <= offset:
            return
        yield chunk.text
        offset = chunk.next_offset


def _there_or_home(folder: Path) -> Path:
    return folder if folder.is_dir() else Path.home()


def _name(aside: Path, stream: BinaryIO, folder: Path, name: str) -> Path:
    """Give it a name that nothing has: ``dllm-server.log``, ``dllm-server-2.log``…"""
    stream.close()
    stem = "dllm-" + re.sub(r"[^\w.-]+", "-", name)
    number, path = 1, folder / f"{stem}.log"
    while True:
        try:
            become(aside, path)
        except FileExistsError:
            number += 1
            path = folder / f"{stem}-{number}.log"
        else:
            return path
