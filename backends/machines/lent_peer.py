"""A peer that its owner lends us: a worker, by the sentence of an invitation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NoReturn

import asyncssh
from msgspec.structs import replace

from backends.errors import MachineError
from backends.machine_names import is_place
from backends.machines.peer import SshPeer
from backends.machines.shell import transfer_error
from backends.machines.ssh.connection import ConnectionPhase
from backends.machines.ssh.files import Meter, upload
from backends.machines.ssh.lent import LentConnection, ThroughHost
from backends.mesh.dialling import Dialled
from backends.mesh.messages import PART
from backends.mesh.quic_place import ADDRESSES_MAX as QUIC_ADDRESSES_MAX
from backends.mesh.quic_place import parse_quic_place
from backends.mesh.token import ADDRESSES_MAX, place
from backends.models.identity import identity_of
from backends.state import PeerWork, Transport
from backends.state.models import Delivered
from backends.tasks import end_tasks

if TYPE_CHECKING:
    from backends.config import PeerConfig
    from backends.link.transport import LinkTransport, TransportSpec
    from backends.machines.peer_downloads import Wanted
    from backends.machines.shell import Greeting
    from backends.machines.ssh.connection import ConnectionState
    from backends.machines.ssh.tunnels import Tunnel
    from backends.mesh.dialling import Dial
    from backends.mesh.messages import WorkerHello
    from backends.mesh.quic_dial import QuicDialler
    from backends.mesh.quic_place import QuicPlace

HEARD_MAX = 4
DIALS = "dials"
"""In place of its places: it dials us."""


class LentPeer(SshPeer):
    """Implements ``Machine`` for a worker alone: never the head, nothing is installed.

    ``awaited`` makes the dial of one that dials us, by its host key. ``quic`` dials the
    others by QUIC, too, where their settings have a place for that. ``moved`` is told
    of their new places; ``announced`` looks here for one that is gone.
    """

    transport = Transport.INVITED

    def __init__(
        self,
        name: str,
        config: PeerConfig,
        *,
        awaited: Callable[[str, Callable[[], None]], Dial],
        quic: QuicDialler,
        moved: Callable[[str, PeerConfig, QuicPlace | None], None],
        announced: Callable[[str], Awaitable[tuple[str, ...]]],
        **known: Any,
    ) -> None:
        self._awaited = awaited
        self._quic = quic
        self._moved = moved
        self._announced = announced
        self._config = config
        self._heard: tuple[str, ...] = ()
        """The places that somebody announces, who may have its key."""
        self._searching: asyncio.Task[None] | None = None
        super().__init__(name, config, **known)

    def _connected_by(self, name: str, config: PeerConfig) -> LentConnection:
        key = config.host_key or ""
        if self._dials:
            dial = self._awaited(key, lambda: self.connection.poke())
        else:
            dial = self._dial()
        self._invited = LentConnection(name, dial, key, self._paths.console_key_file)
        self._invited.is_busy = self._is_busy
        self._invited.on_greeted = self._learn_places
        return self._invited

    # --- its places -------------------------------------------------------------------

    @property
    def _dials(self) -> bool:
        return self._config.worker == DIALS

    @property
    def _places(self) -> tuple[str, ...]:
        return tuple((self._config.worker or "").split())

    def _dial(self) -> Dial:
        config, places = self._config, (*self._places, *self._heard)
        dial: Dial = Dialled(places)
        if config.quic:
            dial = self._quic.beside(dial, parse_quic_place(config.quic))
        return ThroughHost(dial, config.via, places) if config.via else dial

    def _learn_places(self) -> None:
        """Its key is proved: keep the places that it tells."""
        if self._dials:
            return
        hello, here = self._invited.hello, self._invited.place
        used = here if here in (*self._places, *self._heard) else ""
        config = moved_to(self._config, hello, used)
        if config != self._config:
            self._config, self._heard = config, ()
            self._invited.dial_by(self._dial())
            self._show(address=config.worker or "")
            self._moved(self.name, config, _sensible(hello.quic))

    async def _search(self) -> None:
        heard = await self._announced(self._config.host_key or "")
        heard = heard[:HEARD_MAX]
        if set(heard) - {*self._heard, *self._places}:
            self._heard = heard
            self._invited.dial_by(self._dial(), at_once=True)

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await end_tasks(self._searching)

    def _is_busy(self) -> bool:
        works = (self._work, self._looking)
        return self._agent.is_asked or any(task and not task.done() for task in works)

    def _on_state(self, state: ConnectionState) -> None:
        super()._on_state(state)
        connected = state.phase is ConnectionPhase.CONNECTED
        self._show(path=self._invited.path if connected else None)
        failed = state.phase is ConnectionPhase.WAITING and state.retry_at is not None
        is_refused = state.revoked or state.withheld
        searches = self._searching is not None and not self._searching.done()
        if failed and not (self._dials or is_refused or searches):
            self._searching = asyncio.create_task(self._search())

    async def _greeting(self) -> Greeting:
        self._prober.lent = self._invited.hello.models
        return self.connection.greeting

    @property
    def _remedy(self) -> str:
        return f"Its owner installs one there: dllm-tui engine get, on {self.name}."

    async def provision(self, mode: object) -> str:
        self._not_ours("its owner installs engines there: dllm-tui engine get, on it")

    async def deliver(self, wanted: Sequence[Wanted], *_: object) -> Delivered:
        """Send whole models of this machine, where its owner lets us add some."""
        await self._reach()
        hello = self._invited.hello
        if not hello.writable or not all(file.source for file in wanted):
            self._not_ours(
                "it takes only whole models of this machine, and only with "
                "--models-writable"
            )
        delivered = await self._at_work(self._sent(wanted, hello.models[0]))
        await self._look_anew()
        return delivered

    async def _sent(self, wanted: Sequence[Wanted], folder: str) -> Delivered:
        title = f"Getting {wanted[0].name} on {self.name}"
        size_bytes = sum(file.size_bytes for file in wanted)

        def tell(text: str, done: float) -> None:
            self._report(PeerWork(title=title, progress=done, detail=text))

        meter = Meter(size_bytes, tell)
        try:
            async with self.connection.files() as sftp:
                for file in wanted:
                    await self._send(sftp, file, f"{folder}/{file.name}", meter)
        except (asyncssh.Error, OSError) as error:
            raise transfer_error(self.name, error) from error
        return Delivered(
            peer=self.name,
            path=f"{folder}/{wanted[0].name}",
            size_bytes=size_bytes,
            how="from this machine",
            verified_by="its size and samples",
        )

    async def _send(
        self, sftp: asyncssh.SFTPClient, file: Wanted, target: str, meter: Meter
    ) -> None:
        assert file.source is not None
        identity = await asyncio.to_thread(identity_of, file.source)
        if await sftp.exists(target):
            if await self.agent.identity(target) != identity:
                raise MachineError(f"Another file is {target} on {self.name} already")
            return
        half = f"{target}{PART}"
        await upload(sftp, file.source, half, meter)
        if await self.agent.identity(half) != identity:
            raise MachineError(
                f"{half} on {self.name} is not what was sent",
                "Its owner may remove it; then repeat.",
            )
        await sftp.rename(half, target)

    async def clean(self) -> int:
        self._not_ours("nothing of ours is installed there")

    def _not_ours(self, why: str) -> NoReturn:
        raise MachineError(f"{self.name} is lent by its owner: {why}")

    async def _socket_folder(self, run_dir: str) -> str:
        return run_dir

    async def way_from(self, way: LinkTransport, spec: TransportSpec) -> Tunnel:
        return await self.connection.forward_back(way)


def moved_to(config: PeerConfig, hello: WorkerHello, used: str) -> PeerConfig:
    """The settings of a worker that tells where it is; it is reached at ``used`` now.

    Names and public addresses stay, for it may not know its own as others see them.
    """
    places = tuple((config.worker or "").split())
    told = _useful(hello.places)
    places = _renewed(places, told, ADDRESSES_MAX, used)
    known = parse_quic_place(config.quic) if config.quic else None
    quic = _sensible(hello.quic)
    if quic is None:
        quic = known
    elif known is not None and known.node == quic.node:
        addresses = _renewed(known.addresses, quic.addresses, QUIC_ADDRESSES_MAX)
        quic = replace(quic, addresses=addresses, relay=quic.relay or known.relay)
    return replace(
        config, worker=" ".join(places), quic=quic.text if quic else config.quic
    )


def _sensible(quic: QuicPlace | None) -> QuicPlace | None:
    if quic is None or not quic.makes_sense:
        return None
    return replace(quic, addresses=_useful(quic.addresses))


def _useful(told: Iterable[str]) -> tuple[str, ...]:
    # Each is written in one way.
    return tuple(dict.fromkeys(filter(None, map(_written, told))))


def _written(told: str) -> str:
    host, (_, _, port) = _host(told), told.rpartition(":")
    host = getattr(host, "ipv4_mapped", None) or host
    # The zone of an address is a word of that machine alone.
    if host is None or getattr(host, "scope_id", None):
        return ""
    is_ours = host.is_loopback or host.is_unspecified or host.is_multicast
    is_port = port.isascii() and port.isdigit() and len(port) <= 5
    if is_ours or not is_port or not 0 < int(port) < 1 << 16:
        return ""
    return place(str(host), int(port))


def _renewed(
    known: tuple[str, ...], told: tuple[str, ...], most: int, used: str = ""
) -> tuple[str, ...]:
    first = (used,) if used else ()
    names = tuple(place for place in known if not _is_address(place))
    stay = (place for place in known if place in names or _is_public(place))
    made = dict.fromkeys((*first, *(told or known), *stay))
    # The user wrote the names: however much is told, they stay.
    room = max(0, most - len(names))
    addresses = tuple(place for place in made if place not in names)[:room]
    renewed = tuple(one for one in made if one in (*names, *addresses))[:most]
    return known if set(renewed) == set(known) else renewed


def _host(place: str) -> IPv4Address | IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ip_address(place.rpartition(":")[0].strip("[]"))
    return None


def _is_address(place: str) -> bool:
    host = _host(place)
    return host is not None and is_place(place) and not host.is_loopback


def _is_public(place: str) -> bool:
    host = _host(place)
    return host is not None and not (host.is_private or host.is_link_local)
