"""The two ends of a connection through a tunnel: a socket here, a channel there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import asyncssh


class LocalEnd(asyncio.Protocol):
    """The end on this machine; what it gets before the channel is open, waits."""

    def __init__(self, registry: set[LocalEnd]) -> None:
        """``registry``: where it stands while it is open."""
        self._registry = registry
        self._transport: asyncio.Transport | None = None
        self._channel: Any = None
        self._all_read = False
        self._all_written = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A socket was accepted or connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._registry.add(self)
        own = transport.get_extra_info("socket")
        if own is not None and own.family in (socket.AF_INET, socket.AF_INET6):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._channel is None:
            transport.pause_reading()

    def join(self, channel: Any) -> None:
        """The channel is open."""
        if self._transport is None:
            channel.abort()
            return
        self._channel = channel
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Bytes for the peer."""
        with contextlib.suppress(OSError):
            self._channel.write(data)

    def eof_received(self) -> bool:
        """The local program has said all; it may still listen."""
        self._all_read = True
        with contextlib.suppress(OSError):
            self._channel.write_eof()
        return not self._all_written

    def pause_writing(self) -> None:
        """The local program reads slowly."""
        if self._channel is not None:
            self._channel.pause_reading()

    def resume_writing(self) -> None:
        """The local program has caught up."""
        if self._channel is not None:
            self._channel.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The local program is gone."""
        self._registry.discard(self)
        self._transport = None
        if self._channel is not None:
            channel, self._channel = self._channel, None
            channel.close()

    # -- Told by the channel -------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Bytes from the peer."""
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> bool:
        """The peer has said all; whether anything is still to come from here."""
        self._all_written = True
        if self._transport is not None and self._transport.can_write_eof():
            with contextlib.suppress(OSError):
                self._transport.write_eof()
        return not self._all_read

    def pause_reading(self) -> None:
        """The peer reads slowly."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """The peer has caught up."""
        if self._transport is not None and self._channel is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """The channel is closed: deliver what it brought, then end."""
        self._channel = None
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()


class RemoteEnd(asyncssh.SSHTCPSession[bytes], asyncssh.SSHUNIXSession[bytes]):
    """The end at the peer, as a channel of the SSH connection."""

    def __init__(self, local: LocalEnd) -> None:
        """Belong to a local end."""
        self._local = local

    def connection_made(self, chan: Any) -> None:
        """The channel is being opened."""
        self._chan = chan

    def session_started(self) -> None:
        """The channel is open."""
        self._local.join(self._chan)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Bytes from the peer."""
        self._local.write(data)

    def eof_received(self) -> bool:
        """The far program has said all; it may still listen."""
        return self._local.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed, or the whole connection broke."""
        if exc is None:
            self._local.close()
        else:
            self._local.abort()

    def pause_writing(self) -> None:
        """The channel's window is full."""
        self._local.pause_reading()

    def resume_writing(self) -> None:
        """The channel takes more."""
        self._local.resume_reading()
