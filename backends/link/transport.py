"""The path from the head to one worker, whatever it leads through."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from backends.state import Value

LOOPBACK = "127.0.0.1"
_UNIX = "unix:"


class TransportKind(StrEnum):
    LOCAL = "local"
    """Worker and head on one machine: nothing lies between."""
    TUNNEL = "tunnel"
    """An SSH connection of ours."""
    DIRECT = "direct"
    """The network itself: a bare rpc-server, later a relay there."""


class LinkRoute(NamedTuple):
    """The controller's facts about a relay's transport to its worker."""

    kind: TransportKind | None = None
    """Of the transport that it opened; None: it is not open."""
    direct: str = ""
    """The address of the relay beside the worker without that."""
    why: str = ""
    """Why it may not."""
    trouble: str = ""
    """Why nothing goes through the tunnel now."""


class TransportSpec(Value, frozen=True, kw_only=True):
    """The names of a transport; the same names give the same socket paths."""

    cluster: str
    worker: str
    tcp: bool = False
    """True if llama-server itself is to use it, which knows no Unix sockets: then every
    user of the head reaches the worker."""


class LinkTransport(Protocol):
    """An open path from the head to a worker's rpc-server."""

    on_broken: Callable[[], None] | None
    """Called once when it breaks, not when it is closed."""

    @property
    def kind(self) -> TransportKind: ...

    @property
    def endpoint(self) -> str:
        """The head's address of the worker: ``127.0.0.1:PORT`` or ``unix:/path``."""

    @property
    def incarnation(self) -> str:
        """Tells this transport from one opened later to the same endpoint."""

    @property
    def open(self) -> bool:
        """True if it still leads there; a broken one is replaced, never mended."""

    @property
    def rtt_ms(self) -> float | None:
        """Round trip of what lies between, as heartbeats take it; None if unknown."""

    @property
    def note(self) -> str:
        """A remark for the user, in a sentence; usually empty."""

    @property
    def trouble(self) -> str:
        """Why the newest connection through it failed; empty while all goes well."""

    async def close(self) -> None:
        """Close it; fine when it is closed or broken."""


class PlainTransport:
    """A transport with nothing of ours in it: it never breaks and needs no closing."""

    incarnation = ""
    open = True
    note = ""
    trouble = ""

    def __init__(
        self,
        endpoint: str,
        kind: TransportKind = TransportKind.LOCAL,
        rtt_ms: float | None = 0.0,
    ) -> None:
        self.kind = kind
        self.endpoint = endpoint
        self.rtt_ms = rtt_ms
        self.on_broken: Callable[[], None] | None = None

    async def close(self) -> None: ...


def local_transport(port: int) -> PlainTransport:
    return PlainTransport(tcp_endpoint(port))


def direct_transport(endpoint: str) -> PlainTransport:
    """To a bare rpc-server at ``host:port``; the kernel measures all of it."""
    return PlainTransport(endpoint, TransportKind.DIRECT, None)


def tcp_endpoint(port: int) -> str:
    return f"{LOOPBACK}:{port}"


def unix_endpoint(path: Path | str) -> str:
    return f"{_UNIX}{path}"


def path_of(endpoint: str) -> Path | None:
    """The path of a Unix endpoint; None for ``host:port``."""
    found = endpoint.removeprefix(_UNIX)
    return None if found == endpoint else Path(found)


def port_of(endpoint: str) -> int:
    """The port of ``host:port``; 0 for a Unix socket."""
    return 0 if path_of(endpoint) else int(endpoint.rpartition(":")[2])
