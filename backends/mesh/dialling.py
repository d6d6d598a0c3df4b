"""Places of machines: those to dial, and those at which we can be dialled."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import NoReturn, Protocol

import psutil

from backends.errors import HostError, UsageError
from backends.machines.ssh.authentication import dial
from backends.mesh.token import place

DIAL_S = 5.0
BACKLOG = 128
FIRST_LOOK_S = 5.0
"""From a connection by QUIC to the first look for a better way."""
LAST_LOOK_S = 300.0
_PLACE = re.compile(r"(?:\[(?P<v6>[^]]*)\]|(?P<host>[^:]*))(?::(?P<port>\d{1,5}))?")


class Dial(Protocol):
    """A way to get a connected socket to one machine; TCP, or anything like it."""

    @property
    def label(self) -> str:
        """The place as messages name it."""
        ...

    @property
    def shares(self) -> bool:
        """True if there is one socket at a time, for tokens and files alike."""
        ...

    async def connected(self) -> socket.socket: ...

    async def otherwise(self) -> socket.socket:
        """Another way, after another machine answered."""
        ...

    async def better(self) -> socket.socket:
        """By TCP, while a socket of QUIC is there."""
        ...


async def no_other_way(_: Dial) -> NoReturn:
    """For a dial that knows one way."""
    raise HostError("There is no other way")


class Dialled:
    """A machine that listens at one of some places.

    ``says``: the first words to it, of one that is known by them.
    """

    shares = False
    otherwise = better = no_other_way

    def __init__(self, places: Sequence[str], says: bytes = b"") -> None:
        self._places = places
        self._says = says
        self.label = " or ".join(places)

    async def connected(self) -> socket.socket:
        return await said(await dial_any(self._places), self._says)


async def said(made: socket.socket, words: bytes) -> socket.socket:
    """The socket itself, once these words are on their way."""
    made.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_sendall(made, words)
    except OSError as error:
        made.close()
        raise HostError("The connection broke at once") from error
    except BaseException:
        made.close()
        raise
    return made


async def dial_any(places: Sequence[str]) -> socket.socket:
    """Connect to the first place that answers.

    Raises:
        HostError: none does.
    """
    why = "nobody answers"
    for one in places:
        host, _, port = one.rpartition(":")
        try:
            async with asyncio.timeout(DIAL_S):
                return await dial(host.strip("[]"), int(port))
        except TimeoutError:
            why = f"nobody answers within {DIAL_S:g} s"
        except OSError as error:
            why = error.strerror or str(error)
    raise HostError(
        f"{' and '.join(places)} cannot be reached ({why})",
        "Is it switched on, on this network, and not behind a firewall?",
    )


def listening_at(address: str, port: int) -> socket.socket:
    """A listening socket; ``::`` is every address, of IPv4 too.

    Raises:
        HostError: the port cannot be had.
    """
    try:
        dual = address == "::" and socket.has_dualstack_ipv6()
        if address == "::" and not dual:
            address = "0.0.0.0"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.create_server(
            (address, port), family=family, backlog=BACKLOG, dualstack_ipv6=dual
        )
    except OSError as error:
        raise HostError(
            f"Cannot listen at {place(address, port)} ({error.strerror or error})",
            "Something else may listen there: name another port.",
        ) from error
    made.setblocking(False)
    return made


def reachable(address: str) -> list[str]:
    """The addresses at which others may reach a listener, the likely one first."""
    if address not in ("0.0.0.0", "::"):
        return [address]
    found: list[tuple[int, str]] = []
    for name, interfaces in psutil.net_if_addrs().items():
        for one in interfaces:
            with contextlib.suppress(ValueError):
                known = ipaddress.ip_address(one.address.partition("%")[0])
                if known.is_loopback or known.is_link_local:
                    continue
                # A container's bridge is reached from nowhere else.
                inner = name.startswith(("docker", "br-", "veth", "virbr"))
                found.append((2 * inner + (known.version == 6), str(known)))
    return [one for _, one in sorted(found)] or ["127.0.0.1"]


def parse_place(text: str, port: int) -> tuple[str, int]:
    """``ADDRESS``, ``ADDRESS:PORT``, ``:PORT`` or ``[IPV6]:PORT``; blank: every one."""
    found = _PLACE.fullmatch(text.strip())
    host = (found["v6"] or found["host"] or "::") if found else ""
    digits = found["port"] if found else ""
    try:
        ipaddress.ip_address(host)
        number = int(digits) if digits else port
        if not 0 <= number < 1 << 16:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"{text!r} is no place to listen at", "Write it like 0.0.0.0:50080."
        ) from None
    return host, number
