"""Dialling by TCP and, where that does not go at once, by QUIC."""

from __future__ import annotations

import asyncio
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from backends.errors import MachineError
from backends.mesh.dialling import greeted, said, soonest
from backends.mesh.identity import own_key, quic_seed
from backends.mesh.quic import QuicEndpoint
from backends.mesh.relay_access import RelayFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from backends.mesh.dialling import Dial
    from backends.mesh.quic import QuicSocket
    from backends.mesh.quic_place import QuicPlace
    from backends.mesh.relay_access import RelayAccess
    from backends.paths import Paths
    from backends.state import PeerPath

log = logging.getLogger(__name__)

HEAD_START_S = 0.5
"""As happy eyeballs: TCP, which costs less, may answer first."""
QUIC_S = 12.0


class QuicDialler:
    """The one endpoint of a console, or of a worker that dials; bound when needed.

    ``seed``: of its node id; None: that of the console's key. ``port``: of UDP, where
    others are to find it; who only dials has any.
    """

    def __init__(
        self,
        paths: Paths,
        seed: bytes | None = None,
        port: Callable[[], int] = lambda: 0,
    ) -> None:
        self._paths = paths
        self._seed = seed
        self._port = port
        self._relays = RelayFile(paths.relays_file)
        self._endpoint: QuicEndpoint | None = None
        self._waits = False
        self._binding = asyncio.Lock()
        # One thread: what is written waits for the disk, and keeps its order.
        self._writing = ThreadPoolExecutor(1, "relays")

    async def learn(self, place: QuicPlace, *, heard: bool = False) -> None:
        """Keep the key of a relay that an invitation told, once that is proved.

        ``heard``: a machine told it, by itself.
        """
        if place.access is not None and place.relay_key:
            learn = partial(self._relays.learn, place.access, heard=heard)
            await asyncio.get_running_loop().run_in_executor(self._writing, learn)

    def beside(self, tcp: Dial, place: QuicPlace, says: bytes = b"") -> Dial:
        """A dial by TCP and by QUIC, where ``says`` are the first words."""
        return _Both(tcp, self, place, says)

    async def dial(self, place: QuicPlace) -> QuicSocket:
        return await (await self._bound()).dial(place, self._access(place))

    async def waiting(self) -> QuicEndpoint:
        """The endpoint, where it is found at the relay that this machine uses."""
        endpoint = await self._bound(waits=True)
        if (own := self._relays.own) is not None:
            await endpoint.wait_at(own)
        return endpoint

    async def own_place(self) -> QuicPlace | None:
        """For a token: where we are found by QUIC; None where there is none."""
        try:
            place = (await self.waiting()).place
        except MachineError as error:
            log.info("a token tells no place of QUIC: %s", error)
            return None
        return place.with_key(self._relays)

    def _access(self, place: QuicPlace) -> RelayAccess | None:
        if not place.relay:
            return None
        # A token proves nothing yet: a key that is known already stays.
        known = self._relays.access(place.relay)
        is_new = not known.key or self._relays.is_heard(place.relay)
        return place.access if place.relay_key and is_new else known

    async def keep_relays(self, urls: Collection[str]) -> None:
        """Leave the relays that nobody needs any more."""
        if self._endpoint is not None:
            await self._endpoint.leave_all_but(urls)

    async def forget_relays_but(self, urls: Collection[str]) -> None:
        """Forget the keys of relays of peers that are no more."""
        forget = partial(self._relays.forget_all_but, urls)
        await asyncio.get_running_loop().run_in_executor(self._writing, forget)

    async def _bound(self, waits: bool = False) -> QuicEndpoint:
        async with self._binding:
            if waits and not self._waits:
                self._waits = True
                # At another port. Connections by it are made again.
                await self.close()
            if self._endpoint is None:
                if (seed := self._seed) is None:
                    key = await asyncio.to_thread(own_key, self._paths.console_key_file)
                    seed = quic_seed(key)
                port = self._port() if self._waits else 0
                self._endpoint = await QuicEndpoint.bound(seed, port=port)
            return self._endpoint

    async def close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()
            self._endpoint = None


class _Both:
    """Implements ``Dial``: the first socket that connects."""

    shares = False

    def __init__(
        self, tcp: Dial, quic: QuicDialler, place: QuicPlace, says: bytes
    ) -> None:
        self._tcp = tcp
        self._quic = quic
        self._place = place
        self._says = says
        self.label = f"{tcp.label} or by QUIC"

    async def connected(self) -> socket.socket:
        return await soonest((self._by_tcp, self._by_quic), HEAD_START_S)

    async def otherwise(self) -> socket.socket:
        """By QUIC, or at another place of TCP."""
        return await soonest((self._by_tcp_otherwise, self._by_quic), HEAD_START_S)

    async def _by_quic(self) -> socket.socket:
        try:
            async with asyncio.timeout(QUIC_S):
                return await said(await self._quic.dial(self._place), self._says)
        except TimeoutError as error:
            raise MachineError(
                f"QUIC reaches nobody there within {QUIC_S:g} s"
            ) from error

    async def better(self, path: PeerPath | None) -> socket.socket:
        """By TCP alone."""
        return await self._by_tcp()

    async def _by_tcp(self) -> socket.socket:
        return await greeted(await self._tcp.connected(), self._tcp.label)

    async def _by_tcp_otherwise(self) -> socket.socket:
        return await greeted(await self._tcp.otherwise(), self._tcp.label)
