"""Dialling by TCP and, where that does not go at once, by QUIC."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from backends.errors import HostError
from backends.mesh.identity import own_key, quic_seed
from backends.mesh.quic import QuicEndpoint
from backends.mesh.quic_place import parse_quic_place
from backends.mesh.relay_access import RelayFile
from backends.tasks import end_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.machines.ssh.invited import Dial
    from backends.mesh.quic import QuicPath
    from backends.mesh.quic_place import QuicPlace
    from backends.mesh.relay_access import RelayAccess
    from backends.paths import Paths
    from backends.state import PeerPath

HEAD_START_S = 0.5
"""As happy eyeballs: TCP, which costs less, may answer first."""
QUIC_S = 12.0
BANNER_S = 5.0
BANNER = b"SSH-"


class QuicDialler:
    """The one endpoint of a console; bound when it first dials."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._relays = RelayFile(paths.relays_file)
        self._endpoint: QuicEndpoint | None = None
        self._binding = asyncio.Lock()

    def learn(self, place: QuicPlace) -> None:
        """Keep the key of a relay that an invitation told, once that is proved."""
        if place.access is not None and place.relay_key:
            self._relays.learn(place.access)

    def beside(self, tcp: Dial, place: QuicPlace) -> Dial:
        """A dial by TCP and by QUIC."""
        return _Both(tcp, self, place)

    async def dial(self, place: QuicPlace) -> tuple[socket.socket, QuicPath]:
        return await (await self._bound()).dial(place, self._access(place))

    def _access(self, place: QuicPlace) -> RelayAccess | None:
        if not place.relay:
            return None
        # A token proves nothing yet: a key that is known already stays.
        known = self._relays.access(place.relay)
        return place.access if place.relay_key and not known.key else known

    async def keep_relays_of(self, places: Iterable[str]) -> None:
        """Leave the relays that no peer needs any more."""
        if self._endpoint is not None:
            urls = [parse_quic_place(one).relay for one in places]
            await self._endpoint.leave_all_but(urls)

    def forget_relays_but(self, places: Iterable[str]) -> None:
        """Forget the keys of relays of peers that are no more."""
        self._relays.forget_all_but([parse_quic_place(one).relay for one in places])

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
    """Implements ``Dial``: the first socket that connects.

    Whatever takes connections of TCP without being a worker counts as nobody.
    """

    shares = False

    def __init__(self, tcp: Dial, quic: QuicDialler, place: QuicPlace) -> None:
        self._tcp = tcp
        self._quic = quic
        self._place = place
        self._path: QuicPath | None = None
        self._shown: socket.socket | None = None
        self.label = f"{tcp.label} or by QUIC"

    @property
    def path(self) -> PeerPath | None:
        return self._path.now if self._path else None

    async def connected(self) -> socket.socket:
        return self._show(*await self._first())

    async def otherwise(self) -> socket.socket | None:
        """By QUIC alone: another machine has our places of TCP."""
        return self._show(*await self._by_quic())

    def _show(self, made: socket.socket, path: QuicPath | None) -> socket.socket:
        # The oldest that is open is the agent's; files come later.
        if self._shown is None or self._shown.fileno() < 0:
            self._shown, self._path = made, path
        return made

    async def _first(self) -> tuple[socket.socket, QuicPath | None]:
        tcp = asyncio.create_task(self._by_tcp())
        quic: asyncio.Task[tuple[socket.socket, QuicPath]] | None = None
        try:
            await asyncio.wait([tcp], timeout=HEAD_START_S)
            if not _succeeded(tcp):
                quic = asyncio.create_task(self._by_quic())
                await _until_one_succeeds(tcp, quic)
            if _succeeded(tcp):
                return tcp.result(), None
            assert quic is not None
            if _succeeded(quic):
                return quic.result()
            raise HostError(
                f"{_why(tcp)}, and {_why(quic)}", "Does its dllm-tui worker run?"
            )
        finally:
            await end_tasks(tcp, quic)
            if quic and _succeeded(quic) and _succeeded(tcp):
                # Both came at once.
                quic.result()[0].close()

    async def _by_tcp(self) -> socket.socket:
        made = await self._tcp.connected()
        try:
            async with asyncio.timeout(BANNER_S):
                told = await _begins(made)
        except (TimeoutError, OSError):
            told = b""
        except BaseException:
            made.close()
            raise
        if told != BANNER:
            made.close()
            raise HostError(f"No worker answers at {self._tcp.label}")
        return made

    async def _by_quic(self) -> tuple[socket.socket, QuicPath]:
        try:
            async with asyncio.timeout(QUIC_S):
                return await self._quic.dial(self._place)
        except TimeoutError as error:
            raise HostError(f"QUIC reaches nobody there within {QUIC_S:g} s") from error


async def _begins(made: socket.socket) -> bytes:
    """The first bytes that come, which stay to be read."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    made.setblocking(False)
    loop.add_reader(made, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(made)
    return made.recv(len(BANNER), socket.MSG_PEEK)


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
