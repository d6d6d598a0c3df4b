"""The gateway's own socket: it is told where to pass requests, and tells its counts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from backends.gateway.language import Target
from backends.state.base import NOT_JSON

if TYPE_CHECKING:
    from pathlib import Path

    from backends.gateway.proxy import Proxy

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
TELL_EVERY_S = 0.25
"""Counts that change more often are told together."""


class Control:
    """A line of JSON for each word, both ways; only this user can connect."""

    def __init__(self, proxy: Proxy, socket: Path) -> None:
        """Nothing happens before ``keep``."""
        self._proxy = proxy
        self._socket = socket
        self._writers: set[asyncio.StreamWriter] = set()

    async def keep(self) -> None:
        """Listen, and anew where the socket has vanished, until cancelled.

        A session manager removes the runtime directory at the last logout.
        """
        server: asyncio.Server | None = None
        inode = 0
        try:
            while True:
                if server is None or _inode(self._socket) != inode:
                    if server is not None:
                        server.close()
                    with contextlib.suppress(OSError):
                        server = await self._listen()
                        inode = _inode(self._socket)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if server is not None:
                server.close()
            for writer in self._writers:
                writer.close()
            if inode and _inode(self._socket) == inode:
                self._socket.unlink(missing_ok=True)

    async def _listen(self) -> asyncio.Server:
        self._socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        # The umask of ``main`` lets nobody else in from the first moment.
        server = await asyncio.start_unix_server(self._talk, self._socket)
        try:
            self._socket.chmod(0o600)
        except OSError:
            # Vanished again already: it is not ours to keep open.
            server.close()
            raise
        return server

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._writers.add(writer)
        telling = asyncio.ensure_future(self._tell(writer))
        try:
            while line := await reader.readline():
                self._proxy.turn_to(msgspec.json.decode(line, type=Target))
        except (*NOT_JSON, ConnectionError) as error:
            log.warning("a controller said what cannot be understood: %s", error)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            writer.close()
            self._writers.discard(writer)
            self._deserted()

    def _deserted(self) -> None:
        """Let requests go on where only a controller's next step was waited for.

        Whoever comes after it tells anew; a drain that a person wants says why.
        """
        target = self._proxy.target
        if target.drains and not target.why and not self._writers:
            self._proxy.turn_to(replace(target, drains=False))

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        tally = self._proxy.tally
        with contextlib.suppress(ConnectionError):
            while True:
                changed = asyncio.ensure_future(tally.change())
                counts = self._proxy.counts
                writer.write(msgspec.json.encode(counts) + b"\n")
                await writer.drain()
                try:
                    await asyncio.sleep(TELL_EVERY_S)
                    # What can be gone on with changes without a word.
                    timeout_s = LOOK_EVERY_S if counts.drains else None
                    await asyncio.wait({changed}, timeout=timeout_s)
                finally:
                    changed.cancel()


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except OSError:
        return 0
