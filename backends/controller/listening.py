"""The controller's socket: private, and there as long as the controller is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Self

from aiohttp import web

from backends.errors import DllmError
from backends.paths import make_private

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

SHUTDOWN_S = 1.0
LOOK_EVERY_S = 1.0
BACKLOG = 4096
"""A thousand commands at once are no reason to refuse one; the kernel's limit holds."""


class Listening:
    """Listens on a Unix socket only this user can open; removes it at the end."""

    def __init__(self, application: web.Application, socket: Path) -> None:
        # A reader who leaves must end its generation, also before the first token.
        self._runner = web.AppRunner(
            application, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
        )
        self._socket = socket
        self._site: web.UnixSite | None = None
        self._inode = 0

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await self._listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        ours = self._is_there()
        await self._runner.cleanup()
        if ours:
            self._socket.unlink(missing_ok=True)

    async def keep(self) -> None:
        """Make the socket anew, and its directory, whenever it has vanished.

        A session manager removes the runtime directory at the last logout, cleaners
        of temporary directories remove what is old: what runs goes on.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._is_there():
                continue
            log.warning("%s has vanished: listening anew", self._socket)
            with contextlib.suppress(DllmError, OSError):
                await self._listen()

    async def _listen(self) -> None:
        """Listen at the path; connections that are open stay so.

        Raises:
            DllmError: the directory is not ours.
            OSError: the path cannot be listened at.
        """
        if self._site is not None:
            await self._site.stop()
            self._site = None
        make_private(self._socket.parent)
        self._socket.unlink(missing_ok=True)
        site = web.UnixSite(self._runner, str(self._socket), backlog=BACKLOG)
        await site.start()
        self._site = site
        self._socket.chmod(0o600)
        self._inode = self._socket.stat().st_ino

    def _is_there(self) -> bool:
        try:
            return self._socket.stat().st_ino == self._inode
        except OSError:
            return False
