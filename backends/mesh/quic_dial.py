"""Dialling by TCP and, where that does not go at once, by QUIC."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.errors import HostError
from backends.mesh.identity import own_key, quic_seed
from backends.mesh.quic import QuicEndpoint
from backends.mesh.relay_access import RelayFile
from backends.tasks import end_tasks

if TYPE_CHECKING:
    import socket

    from backends.machines.ssh.invited import Dial
    from backends.mesh.quic import QuicPath
    from backends.mesh.quic_place import QuicPlace
    from backends.paths import Paths
    from backends.state import PeerPath

HEAD_START_S = 0.5
"""As happy eyeballs: TCP, which costs less, may answer first."""
QUIC_S = 12.0


class QuicDialler:
    """The one endpoint of a console; bound when it first dials."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._relays = RelayFile(paths.relays_file)
        self._endpoint: QuicEndpoint | None = None
        self._binding = asyncio.Lock()

    def learn(self, place: QuicPlace) -> None:
        """Keep the key of a relay that an invitation tells."""
        if place.access is not None and place.relay_key:
            self._relays.learn(place.access)

    def beside(self, tcp: Dial, place: QuicPlace) -> Dial:
        """A dial by TCP and by QUIC."""
        return _Both(tcp, self, place)

    async def dial(self, place: QuicPlace) -> tuple[socket.socket, QuicPath]:
        relay = self._relays.access(place.relay) if place.relay else None
        return await (await self._bound()).dial(place, relay)

    async def _bound(self) -> QuicEndpoint:
        async with self._binding:
            if self._endpoint is None:
                key = await asyncio.to_thread(own_key, self._paths.console_key_file)
                self._endpoint = await QuicEndpoint.bound(quic_seed(key))
            return self._endpoint

    async def close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()
            self._endpoint = None


class _Both:
    """Implements ``Dial``: the first socket that connects."""

    shares = False

    def __init__(self, tcp: Dial, quic: QuicDialler, place: QuicPlace) -> None:
        self._tcp = tcp
        self._quic = quic
        self._place = place
        self._path: QuicPath | None = None
        self.label = f"{tcp.label} or by QUIC"

    @property
    def path(self) -> PeerPath | None:
        return self._path.now if self._path else None

    async def connected(self) -> socket.socket:
        tcp = asyncio.create_task(self._tcp.connected())
        quic: asyncio.Task[tuple[socket.socket, QuicPath]] | None = None
        try:
            await asyncio.wait([tcp], timeout=HEAD_START_S)
            if not _succeeded(tcp):
                quic = asyncio.create_task(self._by_quic())
                await _until_one_succeeds(tcp, quic)
            if _succeeded(tcp):
                self._path = None
                return tcp.result()
            assert quic is not None
            if _succeeded(quic):
                made, self._path = quic.result()
                return made
            raise HostError(
                f"{_why(tcp)}, and {_why(quic)}", "Does its dllm-tui worker run?"
            )
        finally:
            await end_tasks(tcp, quic)
            if quic and _succeeded(quic) and _succeeded(tcp):
                # Both came at once.
                quic.result()[0].close()

    async def _by_quic(self) -> tuple[socket.socket, QuicPath]:
        try:
            async with asyncio.timeout(QUIC_S):
                return await self._quic.dial(self._place)
        except TimeoutError as error:
            raise HostError(f"QUIC reaches nobody there within {QUIC_S:g} s") from error


async def _until_one_succeeds(
    *tasks: asyncio.Task[socket.socket] | asyncio.Task[tuple[socket.socket, QuicPath]],
) -> None:
    pending = set(tasks)
    while pending and not any(map(_succeeded, tasks)):
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        pending = {task for task in tasks if not task.done()}


def _succeeded(task: asyncio.Task[object]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _why(task: asyncio.Task[object]) -> str:
    error = task.exception()
    text = error.what if isinstance(error, HostError) else str(error)
    return text.rstrip(".")
