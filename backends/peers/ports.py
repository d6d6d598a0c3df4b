"""Loopback ports: free ones, and who listens on which."""

from __future__ import annotations

import errno
import socket
import sys
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOPBACK = "127.0.0.1"
RECENT_PORTS_MAX = 64
# Listening on one of these is reachable at 127.0.0.1.
_LOOPBACK_ADDRESSES = (LOOPBACK, "0.0.0.0", "::", f"::ffff:{LOOPBACK}")


class RecentPorts:
    """Ports handed out lately: whoever asked may not listen there yet."""

    def __init__(self) -> None:
        """Remember nothing."""
        self._recent: list[int] = []

    def take(self, pick: Callable[[], int]) -> int:
        """A port that ``pick`` proposes and that nobody was given lately.

        It must have more than ``RECENT_PORTS_MAX`` to propose.
        """
        port = pick()
        while port in self._recent:
            port = pick()
        self._recent = [*self._recent, port][-RECENT_PORTS_MAX:]
        return port


def free_port() -> int:
    """A loopback port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def listens(pid: int, port: int) -> bool:
    """Whether that very process listens on that loopback port."""
    try:
        entries = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError, ValueError):
        # Gone, another user's, or no process number at all.
        return False
    return any(_is_listener(entry.status, entry.laddr, port) for entry in entries)


def port_owner(port: int) -> str | None:
    """``name (pid 42)`` of whoever listens on a port; None when it is free."""
    if not _in_use(port):
        return None
    pid = next(_listeners(port), None)
    return "another process" if pid is None else f"{_name(pid)} (pid {pid})"


def _in_use(port: int) -> bool:
    # macOS lets 127.0.0.1 be bound beside a listener on all addresses.
    addresses = (LOOPBACK, "") if sys.platform == "darwin" else (LOOPBACK,)
    return any(_taken(address, port) for address in addresses)


def _taken(address: str, port: int) -> bool:
    with socket.socket() as probe:
        # Connections that linger after their server ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen()
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _listeners(port: int) -> Iterator[int]:
    """Processes that listen on a port, as far as we may see."""
    try:
        entries = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        # macOS shows the whole table to root only.
        pids = psutil.pids()
        yield from (pid for pid in pids if listens(pid, port))
        return
    for entry in entries:
        if entry.pid is not None and _is_listener(entry.status, entry.laddr, port):
            yield entry.pid


def _is_listener(status: str, address: object, port: int) -> bool:
    return (
        status == psutil.CONN_LISTEN
        and getattr(address, "port", None) == port
        and getattr(address, "ip", None) in _LOOPBACK_ADDRESSES
    )


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a process that just ended"
