"""The controller's end of a gateway's socket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from backends.state import NOT_JSON
from backends.state.requests import RequestCounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backends.gateway.language import Target

AGAIN_S = 0.1
AGAIN_MAX_S = 1.0
LINE_BYTES_MAX = 1 << 20
"""A longer line is passed over."""


class Link:
    """Keeps a gateway told, also the one that comes after it."""

    def __init__(self, socket: Path, counted: Callable[[RequestCounts], None]) -> None:
        """``counted`` is told of every change of the counts."""
        self._socket = socket
        self._counted = counted
        self._target: Target | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    def tell(self, target: Target) -> None:
        """This holds from here on; told at once, or as soon as there is a gateway."""
        self._target = target
        if self._task is None:
            self._task = asyncio.create_task(self._keep())
        self._send()

    async def close(self) -> None:
        """Tell nothing more; the gateway goes on with what it was told last."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _send(self) -> None:
        if self._writer is not None and self._target is not None:
            self._writer.write(msgspec.json.encode(self._target) + b"\n")

    async def _keep(self) -> None:
        pause_s = AGAIN_S
        while True:
            with contextlib.suppress(OSError):
                await self._talk()
                pause_s = AGAIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_MAX_S)

    async def _talk(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(
            self._socket, limit=LINE_BYTES_MAX
        )
        try:
            self._send()
            while not reader.at_eof():
                with contextlib.suppress(*NOT_JSON):
                    line = await reader.readline()
                    self._counted(msgspec.json.decode(line, type=RequestCounts))
        finally:
            self._writer.close()
            self._writer = None
