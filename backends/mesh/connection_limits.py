"""Bounds for connections that are not known yet, so that they keep nobody out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from ipaddress import IPv4Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

log = logging.getLogger(__name__)

RELAYED = "relayed "
"""Before the node id of one who comes by a relay."""
PAUSE_S = 0.1
LINES_MAX = 5
LINES_WITHIN_S = 60.0


class Crowd:
    """Counts of connections by address; half of all places are for those relayed."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self.by_address: Counter[str] = Counter()

    @property
    def is_half_full(self) -> bool:
        return 2 * self.by_address.total() >= self._most

    def enter(self, address: str) -> bool:
        """False if there are too many; else ``leave`` must follow.

        All of one network of IPv6 (64 bits) count as one address.
        """
        address = counted_as(address)
        full = self.by_address.total() >= self._most
        full |= self.by_address[address] >= self._most_of_one
        if address.startswith(RELAYED):
            known = self.by_address.items()
            relayed = sum(n for one, n in known if one.startswith(RELAYED))
            full |= 2 * relayed >= self._most
        if not full:
            self.by_address[address] += 1
        return not full

    def leave(self, address: str) -> None:
        self.by_address[counted_as(address)] -= 1
        self.by_address += Counter()

    async def come(self, endpoint: Any) -> AsyncIterator[tuple[Any, str]]:
        """Yield who comes to an endpoint of QUIC and has entered, with its address.

        While many are here, only an address that was proved may enter.
        """
        while True:
            # A panic of the library is of no kind that it names.
            try:
                incoming = await endpoint.accept_next()
            except Exception as error:
                log.info("QUIC takes nobody at the moment: %r", error)
                await asyncio.sleep(PAUSE_S)
                continue
            if incoming is None:
                return
            try:
                address = await self._entered(incoming)
            except Exception as error:
                log.info("somebody who comes by QUIC is not taken: %r", error)
                continue
            if address is not None:
                yield incoming, address

    async def _entered(self, incoming: Any) -> str | None:
        address = _address(await incoming.remote_addr())
        if self.is_half_full and not await incoming.remote_addr_validated():
            await incoming.retry()
        elif self.enter(address):
            return address
        else:
            await incoming.refuse()
        return None


class StrangerLog:
    """Says what strangers do, in so few lines that they fill no log."""

    def __init__(
        self,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._clock = clock
        self._said: deque[float] = deque(maxlen=LINES_MAX)
        self._left_out = 0

    def __call__(self, text: str) -> None:
        now = self._clock()
        if len(self._said) == LINES_MAX and now - self._said[0] < LINES_WITHIN_S:
            self._left_out += 1
            return
        if self._left_out:
            text = f"{text} ({self._left_out} such lines before it were left out)"
        self._said.append(now)
        self._left_out = 0
        self._say(text)


def counted_as(address: str) -> str:
    """The same for TCP and QUIC, which write it in two ways, and for one network."""
    try:
        found = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ip_network((found, 64), strict=False))


def relayed_as(node: Any) -> str:
    """The address of one who comes by a relay, for counting: all share the relay's."""
    return f"{RELAYED}{node.to_bytes().hex()[:16]}"


def _address(of: Any) -> str:
    if of.is_relay():
        return relayed_as(of.endpoint_id)
    return str(of.addr).rpartition(":")[0] if of.is_ip() else ""


async def close_at(connection: Any, stream: Any) -> None:
    """Close a connection as soon as it has a stream that nobody wants.

    Each that is not taken may hold 1.25 MB of memory.
    """
    with contextlib.suppress(Exception):
        await stream
        connection.close(1, b"")
