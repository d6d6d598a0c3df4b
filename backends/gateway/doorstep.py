"""Listening at the addresses of a gateway, as they come and go."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiohttp import web

from backends.gateway.certificate import Renewal, server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from backends.gateway.access import Access

log = logging.getLogger(__name__)

BACKLOG = 512
AGAIN_S = 2.0
"""Between two tries to listen at an address that this machine does not have now."""
RENEWAL_S = 60.0


class Doorstep:
    """Where clients find a gateway."""

    def __init__(self, runner: web.ServerRunner, access: Access, port: int) -> None:
        """Listen nowhere yet."""
        self._runner = runner
        self._access = access
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Listen at the loopback, and at the other address as soon as it is there.

        Raises:
            DllmError: the certificate cannot be used.
            OSError: the port cannot be had.
        """
        files = (self._access.certificate, self._access.private_key)
        context = server_context(*files) if self._access.certificate else None
        first, *others = self._access.hosts
        await self._listen(first, context)
        for host in others:
            self._begin(self._reach(host, context))
        if context is not None:
            self._begin(_renew(Renewal(context, *files)))

    async def close(self) -> None:
        """Look after nothing any more; what listens is the runner's to end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _reach(self, host: str, context: ssl.SSLContext | None) -> None:
        """Listen there, once the machine has that address.

        One that comes and goes, with a network, must not take the API from others.
        """
        is_told = False
        while True:
            try:
                return await self._listen(host, context)
            except OSError as error:
                if not is_told:
                    log.warning("cannot listen on %s yet: %s", host, error.strerror)
                is_told = True
            await asyncio.sleep(AGAIN_S)

    async def _listen(self, host: str, context: ssl.SSLContext | None) -> None:
        site = web.TCPSite(
            self._runner, host, self._port, backlog=BACKLOG, ssl_context=context
        )
        await site.start()
        log.info("listening on %s, port %d", host, self._port)


async def _renew(renewal: Renewal) -> None:
    while True:
        await asyncio.sleep(RENEWAL_S)
        renewal.look()
