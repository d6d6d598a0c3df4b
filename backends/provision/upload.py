"""Sending a file over SFTP so that it can go on after a break."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import asyncssh

from backends.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    Files = Callable[[], AbstractAsyncContextManager[asyncssh.SFTPClient]]
    """Opens an SFTP session of its own on the peer."""

CHUNK_BYTES_MIN = 256 << 10
CHUNK_BYTES_MAX = 8 << 20
_CHUNK_S = 0.25
"""About how long one chunk takes: the step of the progress, and of a cancellation."""


class Meter:
    """How far a transfer is, in words; speed over the whole of it."""

    def __init__(
        self,
        total_bytes: int,
        tell: Callable[[str, float], None],
    ) -> None:
        """``tell`` gets a text and a fraction (0…1) at each step."""
        self._total = total_bytes
        self._tell = tell
        self._started = time.monotonic()
        self._sent = 0
        self._there = 0

    def skip(self, n_bytes: int) -> None:
        """These were there already."""
        self._there += n_bytes
        self._show()

    def sent(self, n_bytes: int) -> None:
        """These were sent just now."""
        self._sent += n_bytes
        self._show()

    def _show(self) -> None:
        done = self._there + self._sent
        seconds = time.monotonic() - self._started
        text = f"{format_bytes(done)} of {format_bytes(self._total)}"
        if self._sent and seconds > 0:
            rate = self._sent / seconds
            left = format_seconds((self._total - done) / rate)
            text += f", {format_bytes(rate)}/s, ~{left} left"
        self._tell(text, done / max(self._total, 1))


async def upload(
    sftp: asyncssh.SFTPClient, source: Path, target: str, meter: Meter
) -> bool:
    """Send a file, from where an earlier try stopped; whether there was one.

    The parts of a chunk may be written in any order, so what the last chunk of a broken
    transfer would cover is sent again. Whether all is right shows only in its hash.

    Raises:
        asyncssh.Error: the connection broke, or the peer refused.
        OSError: the local file cannot be read, or the connection broke.
    """
    size = (await asyncio.to_thread(source.stat)).st_size
    there = await _size(sftp, target)
    resumed = 0 < there <= size
    offset = max(there - CHUNK_BYTES_MAX, 0) if resumed else 0
    meter.skip(offset)
    async with sftp.open(target, "r+b" if resumed else "wb") as file:
        with await asyncio.to_thread(source.open, "rb") as local:
            await _send(local, file, offset, meter)
        with contextlib.suppress(asyncssh.SFTPOpUnsupported):
            await file.fsync()
    return resumed


async def _send(
    local: BinaryIO, file: asyncssh.SFTPClientFile, offset: int, meter: Meter
) -> None:
    chunk_bytes = CHUNK_BYTES_MIN
    await asyncio.to_thread(local.seek, offset)
    while data := await asyncio.to_thread(_read, local, chunk_bytes):
        started = time.monotonic()
        await file.write(data, offset)
        offset += len(data)
        meter.sent(len(data))
        if time.monotonic() - started < _CHUNK_S / 2:
            chunk_bytes = min(chunk_bytes * 2, CHUNK_BYTES_MAX)


def _read(local: BinaryIO, n_bytes: int) -> bytes:
    try:
        return local.read(n_bytes)
    except OSError as error:
        # A failed read, unlike a failed open, does not name the file.
        error.filename = local.name
        raise


async def _size(sftp: asyncssh.SFTPClient, path: str) -> int:
    try:
        return (await sftp.stat(path)).size or 0
    except asyncssh.SFTPNoSuchFile:
        return 0
