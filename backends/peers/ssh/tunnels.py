"""Tunnels through an SSH connection: local ports and sockets to and from a peer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING, Any

import asyncssh

from backends.errors import HostError
from backends.peers.ssh.explain import forwarding_failed, forwarding_forbidden
from backends.peers.ssh.pipes import LocalEnd, RemoteEnd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    OpenChannel = Callable[[Callable[[], RemoteEnd]], Awaitable[Any]]

LOOPBACK = "127.0.0.1"
OPEN_TIMEOUT_S = 15.0
_CLOSE_TIMEOUT_S = 2.0


class Tunnel:
    """A listener whose connections come out at the other machine.

    It lives as long as the connection it was opened on; :attr:`is_open` tells.
    """

    def __init__(self, name: str, what: str) -> None:
        """``name``: the peer's; ``what``: the far end, for messages."""
        self.port = 0
        """Where it listens: a loopback port, here or (``forward_from_port``) there."""
        self.last_error: HostError | None = None
        """Why the newest connection through it failed; None while all goes well."""
        self._name = name
        self._what = what
        self._ends: set[LocalEnd] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._listener: asyncssh.SSHListener | None = None
        self._path: Path | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether it still accepts connections."""
        return not self._closed

    @property
    def connections(self) -> int:
        """How many connections go through it now."""
        return len(self._ends)

    async def close(self) -> None:
        """Stop listening and cut the connections through it. May be called twice."""
        self.abort()
        await asyncio.gather(*self._opening, return_exceptions=True)
        if self._listener is not None:
            with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._listener.wait_closed()

    def abort(self) -> None:
        """The same at once, for when the connection is gone anyway."""
        self._closed = True
        for task in self._opening:
            task.cancel()
        for end in list(self._ends):
            end.abort()
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            self._listener.close()
        if self._path is not None:
            _remove_socket(self._path)

    # -- From here to the peer -----------------------------------------------------

    async def listen_here(self, channel: OpenChannel, port: int) -> None:
        """Listen on our loopback; every connection opens a channel."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: self._accept(channel), LOOPBACK, port
            )
        except OSError as error:
            raise HostError(
                f"Port {port} of this machine cannot be used for a tunnel to "
                f"{self._name} ({error.strerror})"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def listen_at(self, channel: OpenChannel, path: Path) -> None:
        """Listen on a Unix socket of ours that nobody else may open."""
        loop = asyncio.get_running_loop()
        try:
            listening = _bound_socket(path)
            self._path = path
            self._server = await loop.create_unix_server(
                lambda: self._accept(channel), sock=listening
            )
        except OSError as error:
            raise HostError(
                f"{path} cannot be used for a tunnel to {self._name} "
                f"({error.strerror or error})"
            ) from error

    def _accept(self, channel: OpenChannel) -> LocalEnd:
        end = LocalEnd(self._ends)
        task = asyncio.get_running_loop().create_task(self._connect(end, channel))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return end

    async def _connect(
        self,
        end: LocalEnd,
        channel: OpenChannel,
    ) -> None:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await channel(lambda: RemoteEnd(end))
            self.last_error = None
        except asyncssh.ChannelOpenError as error:
            self.last_error = forwarding_failed(self._name, self._what, error)
            end.abort()
        except (TimeoutError, OSError, asyncssh.Error) as error:
            self.last_error = HostError(f"The tunnel to {self._name} broke ({error})")
            end.abort()
        except asyncio.CancelledError:
            end.abort()
            raise

    # -- From the peer to here -----------------------------------------------------

    async def listen_there(
        self, connection: asyncssh.SSHClientConnection, local_port: int
    ) -> None:
        """Listen on the peer's loopback; every connection comes out at our port."""

        async def accepted(_host: str, _port: int) -> asyncssh.SSHTCPSession[bytes]:
            return await self._connect_here(local_port)

        try:
            self._listener = await connection.create_server(accepted, LOOPBACK, 0)
        except asyncssh.ChannelListenError as error:
            raise forwarding_forbidden(self._name, self._what) from error
        self.port = self._listener.get_port()

    async def _connect_here(self, local_port: int) -> RemoteEnd:
        if self._closed:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "closed")
        end = LocalEnd(self._ends)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await loop.create_connection(lambda: end, LOOPBACK, local_port)
        except OSError as error:
            self.last_error = HostError(
                f"Nothing listens on our port {local_port}, which {self._name} uses"
            )
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_CONNECT_FAILED, str(error)
            ) from error
        return RemoteEnd(end)


def _bound_socket(path: Path) -> socket.socket:
    _remove_socket(path)
    listening = socket.socket(socket.AF_UNIX)
    previous = os.umask(0o177)
    try:
        listening.bind(str(path))
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(previous)
    return listening


def _remove_socket(path: Path) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
