"""A bare peer: an rpc-server somebody else started, known by its ``host:port`` only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator

import msgspec
import psutil

from backends.config import PeerConfig
from backends.direct_address import PORT_MAX
from backends.engine.ask import list_devices
from backends.errors import (
    DllmError,
    MachineError,
    PeerUnreachable,
    ProcessFailed,
    UsageError,
)
from backends.link.relay import relay_argv
from backends.machines.local_inventory import LocalInventory
from backends.paths import relay_binary
from backends.state import Device, Peer, PeerState, Plan, Transport

CONNECT_TIMEOUT_S = 3.0
ASK_TIMEOUT_S = 10.0
LOOK_FIRST_S = 10.0
LOOK_MOST_S = 300.0
"""A stock rpc-server keeps one connection waiting: ours may be in somebody's way."""
DEVICE = "RPC"
"""Our name for its device: it does not tell what it computes with."""


class BarePeer:
    """Looks after one bare peer while ``run`` runs.

    ``in_use`` tells whether our own cluster holds it now.
    """

    def __init__(
        self,
        name: str,
        config: PeerConfig,
        inventory: LocalInventory,
        changed: Callable[[], None],
        in_use: Callable[[str], bool],
    ) -> None:
        require_endpoint(config.bare or "")
        self._endpoint = config.bare or ""
        self._budget_bytes = config.budget_bytes
        self._inventory = inventory
        self._changed = changed
        self._in_use = in_use
        self._relay: AskingRelay | None = None
        self.peer = Peer(
            name=name,
            state=PeerState.PROBING,
            since=time.time(),
            transport=Transport.BARE,
            address=self._endpoint,
        )

    async def run(self) -> None:
        """Look until cancelled: soon again after news, ever more rarely without."""
        pause_s = LOOK_FIRST_S
        try:
            while True:
                before = self.peer.state
                if not self._in_use(self.peer.name):
                    with contextlib.suppress(DllmError):
                        await self.look(ask=not self.peer.devices)
                pause_s = next_pause_s(pause_s, before, self.peer.state)
                await asyncio.sleep(pause_s)
        finally:
            await self.close()

    async def look(self, *, ask: bool = True) -> None:
        try:
            self._endpoint, rtt_ms = await connects(self.peer.address)
            devices = await self._ask() if ask else self.peer.devices
        except DllmError as error:
            gone = isinstance(error, PeerUnreachable)
            state = PeerState.UNREACHABLE if gone else PeerState.FAILED
            self._become(state, note=str(error))
            raise
        self._become(PeerState.READY, note="", devices=devices, rtt_ms=round(rtt_ms, 2))

    def fail(self, note: str) -> None:
        self._become(PeerState.FAILED, note=note, rtt_ms=None)

    def _become(self, state: PeerState, **changes: object) -> None:
        since = self.peer.since if state is self.peer.state else time.time()
        peer = msgspec.structs.replace(self.peer, state=state, since=since, **changes)
        if peer != self.peer:
            self.peer = peer
            self._changed()

    async def _ask(self) -> tuple[Device, ...]:
        """Its devices and their memory, as our llama-server is told through a relay.

        A relay whose question is still open stays: leaving would kill the rpc-server.
        """
        engine = await self._inventory.engine()
        if self._relay is not None and not self._relay.idle:
            raise self._silent(engine.info.rpc_protocol)
        if self._relay is None:
            self._relay = await AskingRelay.start(self.peer.name, self._endpoint)
        try:
            found = await list_devices(
                self._inventory.agent,
                engine.info,
                self._relay.address,
                timeout_s=ASK_TIMEOUT_S,
            )
        except DllmError as error:
            raise self._silent(engine.info.rpc_protocol) from error
        await self.close()
        rpc = [device for device in found if device.name.startswith("RPC")]
        return tuple(self._device(device, len(rpc)) for device in rpc)

    def _silent(self, rpc_protocol: str) -> MachineError:
        return MachineError(
            f"{self.peer.address} takes connections but does not answer as an "
            f"rpc-server of RPC {rpc_protocol}",
            "Another client may hold it, or its version differs.",
        )

    async def close(self) -> None:
        if self._relay is not None:
            await self._relay.end()
            self._relay = None

    def _device(self, found: Device, n_devices: int) -> Device:
        """Describe one of its devices; the only one has no number."""
        name = DEVICE if n_devices == 1 else found.name
        return Device(
            id=f"{self.peer.name}/{name}",
            name=name,
            description=f"rpc-server at {self.peer.address}",
            total_bytes=found.total_bytes,
            free_bytes=found.free_bytes,
            budget_bytes=self._budget_bytes(name),
            memory_pool=f"{self.peer.name}/{name}",
        )


def next_pause_s(pause_s: float, before: PeerState, now: PeerState) -> float:
    """Wait longer before each next look while nothing changes."""
    if before is not now or now is PeerState.UNREACHABLE:
        return LOOK_FIRST_S
    return min(pause_s * 2, LOOK_MOST_S)


def require_endpoint(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) <= PORT_MAX):
        raise UsageError(
            f"{address!r} is no address of an rpc-server",
            f"Give host:port with a port from 1 to {PORT_MAX}: 10.0.0.3:50052.",
        )


async def numeric_address(address: str) -> str:
    """The endpoint in numbers: a relay knows no names.

    Raises:
        PeerUnreachable: nobody knows the name.
    """
    host, _, port = address.rpartition(":")
    with _told(address):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            # llama.cpp and our relay speak IPv4 only here.
            found = await asyncio.get_running_loop().getaddrinfo(
                host, int(port), family=socket.AF_INET, type=socket.SOCK_STREAM
            )
    return f"{found[0][4][0]}:{port}"


async def connects(address: str) -> tuple[str, float]:
    """The endpoint in numbers, and the milliseconds a connection took.

    A stock rpc-server serves one connection, keeps two more waiting, also those that
    were left, and takes no other: never ask one that is at work.
    """
    number = await numeric_address(address)
    host, _, port = number.rpartition(":")
    with _told(address):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            before = time.monotonic()
            _, writer = await asyncio.open_connection(host, int(port))
            rtt_ms = (time.monotonic() - before) * 1e3
    writer.close()
    return number, rtt_ms


@contextlib.contextmanager
def _told(address: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise PeerUnreachable(
            f"{address} does not answer within {CONNECT_TIMEOUT_S:g} s",
            "Is the machine on, and does a firewall let the port through?",
        ) from None
    except (OSError, ValueError) as error:
        raise PeerUnreachable(
            f"No rpc-server listens at {address} ({system_words(error)})",
            "Start one there: ggml-rpc-server -H ADDRESS -p PORT.",
        ) from error


class AskingRelay:
    """A relay before an rpc-server, to ask it through.

    Use ``start``.
    """

    def __init__(self, process: asyncio.subprocess.Process, endpoint: str) -> None:
        self._process = process
        self._upstream = endpoint
        self.address = ""

    @classmethod
    async def start(cls, name: str, endpoint: str) -> AskingRelay:
        argv = relay_argv(
            str(relay_binary()), worker=name, listen_port=0, upstream=endpoint
        )
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        relay = cls(process, endpoint)
        try:
            line = await process.stdout.readline()
            if not line:
                raise MachineError(f"The relay to {name} did not start")
            relay.address = f"127.0.0.1:{json.loads(line)['port']}"
        except BaseException:
            await relay.end()
            raise
        return relay

    @property
    def idle(self) -> bool:
        try:
            found = psutil.Process(self._process.pid).net_connections("tcp")
        except psutil.Error:
            return True
        held = [c for c in found if c.raddr and c.status == psutil.CONN_ESTABLISHED]
        return not any(f"{c.raddr[0]}:{c.raddr[1]}" == self._upstream for c in held)

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()


async def blamed(error: DllmError, plan: Plan) -> DllmError:
    """The failure of a bare worker in place of that of llama-server, which it caused.

    Nobody tells us how somebody else's rpc-server ended, only that it is gone.
    """
    for worker in plan.workers:
        if worker.endpoint:
            try:
                await connects(worker.endpoint)
            except PeerUnreachable as gone:
                evidence = error.failure()
                what = f"{worker.name} is gone: {gone.what}"
                return ProcessFailed(
                    msgspec.structs.replace(evidence, what=what, hint=gone.hint)
                )
    return error


def system_words(error: Exception) -> str:
    """``connection refused``: the system's words, where Python adds its own."""
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0 and not isinstance(error, socket.gaierror):
        return os.strerror(number).lower()
    return str(getattr(error, "strerror", None) or error).lower()
