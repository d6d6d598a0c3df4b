"""Files to and from a peer, away from the connection that tokens go through."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import asyncssh

from backends.errors import HostError, NeedsAnswer
from backends.machines.ssh.complaints import connection_lost
from backends.machines.ssh.sftp import start_sftp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.machines.ssh.route import Route

IDLE_S = 60.0
_OPEN_TIMEOUT_S = 15.0


class FilesLink:
    """A second connection to a peer, opened on demand and ended when unused."""

    def __init__(self, name: str, route: Route) -> None:
        """``name``: the peer's, for messages."""
        self._name = name
        self._route = route
        self._link: asyncssh.SSHClientConnection | None = None
        self._opening = asyncio.Lock()
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def client(
        self, shared: asyncssh.SSHClientConnection
    ) -> AsyncIterator[asyncssh.SFTPClient]:
        """An SFTP client; on ``shared`` where a second login would need the user.

        Raises:
            HostError: the peer offers no SFTP.
            PeerUnreachable: it cannot be reached.
        """
        self._users += 1
        self._stay()
        try:
            link = await self._open(shared)
            sftp = await self._start(link)
            try:
                yield sftp
            finally:
                sftp.exit()
        finally:
            self._users -= 1
            self._leave_later()

    async def close(self) -> None:
        """End the connection."""
        self._stay()
        link, self._link = self._link, None
        if link is not None:
            link.abort()
            await link.wait_closed()
        self._route.close()

    async def _open(
        self, shared: asyncssh.SSHClientConnection
    ) -> asyncssh.SSHClientConnection:
        async with self._opening:
            if self._link is None or self._link.is_closed():
                try:
                    self._link, _ = await self._route.open()
                except NeedsAnswer:
                    self._route.close()
                    return shared
            return self._link

    async def _start(self, link: asyncssh.SSHClientConnection) -> asyncssh.SFTPClient:
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                return await start_sftp(link)
        except (TimeoutError, asyncssh.ChannelOpenError, asyncssh.SFTPError) as error:
            raise HostError(
                f"{self._name} takes and gives no files: it offers no SFTP ({error})",
                "Set Subsystem sftp internal-sftp in its sshd_config.",
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise connection_lost(self._name, error) from error

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _leave_later(self) -> None:
        if self._users == 0 and self._link is not None:
            self._stay()
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(IDLE_S, self._leave)

    def _leave(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._route.close()
