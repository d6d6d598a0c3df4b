"""The way through an SSH connection, or through two when head and worker are peers."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from backends.errors import HostError
from backends.link.way import WayKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.link.way import Way
    from backends.machines.ssh.tunnels import Tunnel


class TunnelWay:
    """A tunnel, with the way that goes on where it comes out here."""

    kind = WayKind.TUNNEL

    def __init__(
        self,
        tunnel: Tunnel,
        rtt_ms: Callable[[], float | None],
        *,
        beyond: Way | None = None,
        note: str = "",
    ) -> None:
        """``rtt_ms`` tells the round trip of the tunnel's connection now."""
        self.on_broken: Callable[[], None] | None = None
        self.incarnation = secrets.token_hex(4)
        self.note = note
        self._tunnel = tunnel
        self._rtt_ms = rtt_ms
        self._beyond = beyond
        self._closed = False
        tunnel.on_broken = self._break
        if beyond is not None:
            beyond.on_broken = self._break

    @property
    def endpoint(self) -> str:
        """Where the head finds the worker."""
        return self._tunnel.endpoint

    @property
    def open(self) -> bool:
        """Whether every part of it still leads on."""
        beyond = self._beyond is None or self._beyond.open
        return not self._closed and self._tunnel.is_open and beyond

    @property
    def rtt_ms(self) -> float | None:
        """The round trips of its parts, added up; None while one is silent."""
        own = self._rtt_ms()
        beyond = 0.0 if self._beyond is None else self._beyond.rtt_ms
        return None if own is None or beyond is None else own + beyond

    @property
    def trouble(self) -> str:
        """Why the newest connection through any part of it failed; usually empty."""
        if error := self._tunnel.last_error:
            return error.what
        return self._beyond.trouble if self._beyond else ""

    async def close(self) -> None:
        """Close all of it."""
        self._closed = True
        with contextlib.suppress(HostError, OSError):
            await self._tunnel.close()
        if self._beyond is not None:
            await self._beyond.close()

    def _break(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._tunnel.abort()
        if self.on_broken is not None:
            self.on_broken()
