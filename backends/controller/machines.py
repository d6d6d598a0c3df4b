"""What the controller needs of every machine that takes part, and the one we run on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from backends.controller.places import LOCAL, at_peer
from backends.errors import ModelError
from backends.paths import relay_binary
from backends.state import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from backends.controller.readers import Engine, Readers
    from backends.peers.host import Host, ProcessRecord
    from backends.state import ModelInfo, Peer


class Machine(Protocol):
    """One machine: its processes, its engine, and ways to and from its loopback."""

    @property
    def name(self) -> str:
        """The peer's name; ``local`` is the one we run on."""
        ...

    @property
    def transport(self) -> Transport:
        """The way we reach it."""
        ...

    @property
    def host(self) -> Host:
        """Its processes.

        Raises:
            PeerUnreachable: there is no connection to it now.
        """
        ...

    @property
    def records(self) -> tuple[ProcessRecord, ...]:
        """Its process directories as last seen; never waits."""
        ...

    async def look(self) -> tuple[ProcessRecord, ...]:
        """Its process directories now.

        One that is silent for a moment, though still connected, tells what it told
        last.

        Raises:
            PeerUnreachable: the connection to it broke.
        """
        ...

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine:
        """Its llama.cpp: the one wanted, else the first that speaks ``rpc_protocol``.

        Raises:
            EngineError: there is none, or none that fits.
        """
        ...

    async def model_path(self, model: ModelInfo) -> str:
        """Where it keeps the same model file.

        Raises:
            ModelError: it has none with the same bytes.
        """
        ...

    def relay_program(self) -> str:
        """Path of ``dllm-relay`` there.

        Raises:
            DllmError: it is not installed there.
        """
        ...

    def relay_stats(self, worker: str) -> str:
        """Path there of the socket at which a worker's relay gives out its counters."""
        ...

    async def reach_stats(self, worker: str) -> Path:
        """A socket of ours that leads to ``relay_stats``."""
        ...

    async def reach_port(self, port: int, at: int = 0) -> int:
        """A loopback port of ours (``at``, if given) that leads to one there."""
        ...

    async def offer_port(self, port: int) -> int:
        """A loopback port there that leads to one of ours."""
        ...

    async def close_ways(self) -> None:
        """Close everything ``reach_…`` and ``offer_…`` opened."""
        ...


class LocalMachine:
    """The machine we run on: every way is no way."""

    def __init__(
        self, host: Host, readers: Readers, relay_socket: Callable[[str], Path]
    ) -> None:
        """``relay_socket`` tells where a worker's relay gives out its counters."""
        self.name = LOCAL
        self.transport = Transport.LOCAL
        self.host = host
        self._readers = readers
        self._relay_socket = relay_socket
        self.records: tuple[ProcessRecord, ...] = ()

    async def look(self) -> tuple[ProcessRecord, ...]:
        """Our process directories now."""
        self.records = tuple(await self.host.records())
        return self.records

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine:
        """The engine a plan names, else the one found first."""
        return await self._readers.engine(wanted)

    async def model_path(self, model: ModelInfo) -> str:
        """The model is where it was read.

        Raises:
            ModelError: that is on a peer.
        """
        if there := at_peer(model.path):
            raise ModelError(
                f"{there[1]} is on {there[0]}, and the head has no copy of it",
                f"Make {there[0]} the head (--head {there[0]}).",
            )
        return model.path

    def relay_program(self) -> str:
        """The helper installed with us."""
        return str(relay_binary())

    def relay_stats(self, worker: str) -> str:
        """A socket in our runtime directory."""
        return str(self._relay_socket(worker))

    async def reach_stats(self, worker: str) -> Path:
        """The socket itself."""
        return Path(self.relay_stats(worker))

    async def reach_port(self, port: int, at: int = 0) -> int:
        """The port itself."""
        return port

    async def offer_port(self, port: int) -> int:
        """The port itself."""
        return port

    async def close_ways(self) -> None:
        """There are none."""


class Machines(Protocol):
    """All machines, by name."""

    def get(self, name: str) -> Machine:
        """A machine of the settings, connected or not.

        Raises:
            HostError: there is none of that name.
        """
        ...

    def all(self) -> Iterable[Machine]:
        """Every machine that is connected, ours first."""
        ...

    def values(self) -> Sequence[Peer]:
        """How every other machine is, newer than any snapshot."""
        ...

    def rtt_ms(self, *names: str) -> float | None:
        """The round trips from here to these machines, added up; None if unknown.

        Between two peers the bytes pass through this machine.
        """
        ...

    async def reached(self, names: Iterable[str]) -> None:
        """Wait until these are connected.

        Raises:
            PeerUnreachable: one cannot be reached.
            NeedsAnswer: one asks the user something.
        """
        ...


async def route(worker: Machine, head: Machine, port: int) -> int:
    """A loopback port of the head that leads to a loopback port of a worker.

    Between two peers the bytes pass through this machine.

    Raises:
        PeerUnreachable: one of them is not connected.
    """
    if worker is head:
        return port
    return await head.offer_port(await worker.reach_port(port))
