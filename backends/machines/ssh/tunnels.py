"""Tunnels through an SSH connection: sockets and ports here and at a peer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncssh

from backends.errors import MachineError
from backends.link.transport import (
    LOOPBACK,
    LinkTransport,
    TransportKind,
    path_of,
    port_of,
    tcp_endpoint,
    unix_endpoint,
)
from backends.machines.ssh.errors import forwarding_failed, forwarding_forbidden

OpenChannel = Callable[[Callable[[], "RemoteEnd"]], Awaitable[Any]]


class LocalEnd(asyncio.Protocol):
    """The end on this machine; what it gets before the channel is open, waits.

    ``registry``: where it stands while it is open.
    """

    def __init__(self, registry: set[LocalEnd]) -> None:
        self._registry = registry
        self._transport: asyncio.Transport | None = None
        self._channel: Any = None
        self._all_read = False
        self._all_written = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._registry.add(self)
        own = transport.get_extra_info("socket")
        if own is not None and own.family in (socket.AF_INET, socket.AF_INET6):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._channel is None:
            transport.pause_reading()

    def join(self, channel: Any) -> None:
        if self._transport is None:
            channel.abort()
            return
        self._channel = channel
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._channel.write(data)

    def eof_received(self) -> bool:
        self._all_read = True
        with contextlib.suppress(OSError):
            self._channel.write_eof()
        return not self._all_written

    def pause_writing(self) -> None:
        if self._channel is not None:
            self._channel.pause_reading()

    def resume_writing(self) -> None:
        if self._channel is not None:
            self._channel.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.discard(self)
        self._transport = None
        if self._channel is not None:
            channel, self._channel = self._channel, None
            channel.close()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> bool:
        self._all_written = True
        if self._transport is not None and self._transport.can_write_eof():
            with contextlib.suppress(OSError):
                self._transport.write_eof()
        return not self._all_read

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and self._channel is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        self._channel = None
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class RemoteEnd(asyncssh.SSHTCPSession[bytes], asyncssh.SSHUNIXSession[bytes]):
    """The end at the peer, as a channel of the SSH connection."""

    def __init__(self, local: LocalEnd) -> None:
        self._local = local

    def connection_made(self, chan: Any) -> None:
        self._chan = chan

    def session_started(self) -> None:
        self._local.join(self._chan)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._local.write(data)

    def eof_received(self) -> bool:
        return self._local.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._local.close()
        else:
            self._local.abort()

    def pause_writing(self) -> None:
        self._local.pause_reading()

    def resume_writing(self) -> None:
        self._local.resume_reading()


OPEN_TIMEOUT_S = 15.0
_CLOSE_TIMEOUT_S = 2.0


class _OnlyEnd(RemoteEnd):
    """The end whose connection ends with it."""

    def __init__(self, local: LocalEnd, link: asyncssh.SSHClientConnection) -> None:
        super().__init__(local)
        self._link = link

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._link.close()


async def connect_beyond(
    link: asyncssh.SSHClientConnection, made: socket.socket, host: str, port: int
) -> None:
    """Have an SSH host connect a socket to a port beyond it.

    The connection to that host ends when either end is closed.
    """
    end = LocalEnd(set())
    await asyncio.get_running_loop().create_connection(lambda: end, sock=made)
    try:
        await link.create_connection(lambda: _OnlyEnd(end, link), host, port)
    except BaseException:
        end.abort()
        raise


class Tunnel:
    """A ``LinkTransport``: a listener whose connections come out at the other machine.

    It lives as long as the connection it was opened on.

    ``name``: the peer's; ``what``: the far end, for messages; ``beyond``: the way that
    goes on where it comes out here.
    """

    kind = TransportKind.TUNNEL

    def __init__(
        self, name: str, what: str, beyond: LinkTransport | None = None
    ) -> None:
        self.endpoint = ""
        """Its listening end, here or (``forward_back``) there."""
        self.incarnation = secrets.token_hex(4)
        self.note = ""
        self.on_broken: Callable[[], None] | None = None
        self.last_error: MachineError | None = None
        """Why the newest connection through it failed; None while all goes well."""
        self.heartbeat_ms: float | None = None
        """The round trip of its connection now; None while that is silent."""
        self._name = name
        self._beyond = beyond
        if beyond is not None:
            beyond.on_broken = self.abort
        self._what = what
        self._ends: set[LocalEnd] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._listener: asyncssh.SSHListener | None = None
        self._path: Path | None = None
        self._inode = 0
        self._closed = False

    @property
    def port(self) -> int:
        return port_of(self.endpoint)

    @property
    def open(self) -> bool:
        return not self._closed and (self._beyond is None or self._beyond.open)

    @property
    def connections(self) -> int:
        return len(self._ends)

    @property
    def rtt_ms(self) -> float | None:
        """The round trips of its parts, added up; None while one is silent."""
        own = self.heartbeat_ms
        beyond = 0.0 if self._beyond is None else self._beyond.rtt_ms
        return None if own is None or beyond is None else own + beyond

    @property
    def trouble(self) -> str:
        """Why the newest connection through any part of it failed; usually empty."""
        if self.last_error is not None:
            return self.last_error.what
        return self._beyond.trouble if self._beyond else ""

    async def close(self) -> None:
        """Stop listening and cut the connections through it. May be called twice."""
        self._end()
        if self._beyond is not None:
            await self._beyond.close()
        await asyncio.gather(*self._opening, return_exceptions=True)
        if self._listener is not None:
            with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._listener.wait_closed()

    def abort(self) -> None:
        """The same at once, for when the connection is gone anyway."""
        broken = not self._closed
        self._end()
        if broken and self.on_broken is not None:
            self.on_broken()

    def _end(self) -> None:
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
            path, self._path = self._path, None
            # A later tunnel may listen there by now.
            if _inode(path) == self._inode:
                _remove_socket(path)

    async def listen_here(self, channel: OpenChannel, near: Path | int) -> None:
        """Listen; every connection opens a channel.

        ``near`` is a Unix socket of ours that nobody else may open, or a port of our
        loopback (0: any), where every user of this machine reaches the far end.
        """
        loop = asyncio.get_running_loop()
        try:
            listening = _bound(near)
            if isinstance(near, Path):
                self._path, self._inode = near, _inode(near)
                self.endpoint = unix_endpoint(near)
                self._server = await loop.create_unix_server(
                    lambda: self._accept(channel), sock=listening
                )
            else:
                self.endpoint = tcp_endpoint(listening.getsockname()[1])
                self._server = await loop.create_server(
                    lambda: self._accept(channel), sock=listening
                )
        except OSError as error:
            where = near if isinstance(near, Path) else f"Port {near} of this machine"
            raise MachineError(
                f"{where} cannot be used for a tunnel to {self._name} "
                f"({error.strerror or error})"
            ) from error

    def _accept(self, channel: OpenChannel) -> LocalEnd:
        end = LocalEnd(self._ends)
        task = asyncio.get_running_loop().create_task(self._connect(end, channel))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return end

    async def _connect(self, end: LocalEnd, channel: OpenChannel) -> None:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await channel(lambda: RemoteEnd(end))
            self.last_error = None
        except asyncssh.ChannelOpenError as error:
            self.last_error = forwarding_failed(self._name, self._what, error)
            end.abort()
        except MachineError as error:
            self.last_error = error
            end.abort()
        except (TimeoutError, OSError, asyncssh.Error) as error:
            self.last_error = MachineError(
                f"The tunnel to {self._name} broke ({error})"
            )
            end.abort()
        except asyncio.CancelledError:
            end.abort()
            raise

    async def listen_there(
        self, connection: asyncssh.SSHClientConnection, far: str, endpoint: str
    ) -> None:
        """Listen at the peer; every connection comes out at an endpoint of ours.

        ``far`` is a path for a Unix socket, which its sshd gives to its user alone;
        empty: a port of its loopback, which it chooses.
        """
        try:
            if far:
                self._listener = await connection.create_unix_server(
                    lambda: self._connect_here(endpoint), far
                )
                self.endpoint = unix_endpoint(far)
            else:
                self._listener = await connection.create_server(
                    lambda _host, _port: self._connect_here(endpoint), LOOPBACK, 0
                )
                self.endpoint = tcp_endpoint(self._listener.get_port())
        except asyncssh.ChannelListenError as error:
            raise forwarding_forbidden(self._name, self._what) from error

    async def _connect_here(self, endpoint: str) -> RemoteEnd:
        if self._closed:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "closed")
        end = LocalEnd(self._ends)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await _connect(end, endpoint)
        except OSError as error:
            self.last_error = MachineError(
                f"Nothing listens at our {endpoint}, which {self._name} uses"
            )
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_CONNECT_FAILED, str(error)
            ) from error
        return RemoteEnd(end)


async def _connect(end: LocalEnd, endpoint: str) -> None:
    loop = asyncio.get_running_loop()
    if path := path_of(endpoint):
        await loop.create_unix_connection(lambda: end, str(path))
        return
    host, _, port = endpoint.rpartition(":")
    await loop.create_connection(lambda: end, host, int(port))


def _bound(near: Path | int) -> socket.socket:
    """A socket there that does not listen yet: nobody connects before it is private."""
    path = near if isinstance(near, Path) else None
    if path is not None:
        _remove_socket(path)
    made = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    try:
        if path is None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((LOOPBACK, near))
        else:
            made.bind(str(path))
            path.chmod(0o600)
    except OSError:
        made.close()
        raise
    return made


def _inode(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_ino
    return 0


def _remove_socket(path: Path) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
