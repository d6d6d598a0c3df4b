"""While a cluster serves: its speed, its processes, and the first sign of trouble."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.controller.speed import SpeedMeter
from backends.engine.server import Counts, ServerClient
from backends.errors import DllmError
from backends.state import Speed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from backends.controller.snapshot_store import SnapshotStore
    from backends.controller.watch import Watch
    from backends.machines.host import AgentHost

log = logging.getLogger(__name__)

SPEED_S = 0.5
LOOK_S = 1.0
SPEED_IDLE_S = 30.0
"""While nothing moves, every question is a line of llama-server's log."""
LOG_READ_BYTES = 1 << 16
# All that a question about the slots leaves behind.
ASKED = "all slots are idle"


class Serving:
    """Reads the speed of one llama-server until trouble comes.

    ``told`` gets every reading. ``rows`` gives the tokens that relays saw come out, or
    None if no relay sees them.
    """

    def __init__(
        self,
        store: SnapshotStore,
        told: Callable[[Speed], None],
        rows: Callable[[], int | None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._told = told
        self._rows = rows
        self._sleep = sleep
        self.meter = SpeedMeter()

    async def until_trouble(
        self, api_port: int, watch: Watch, moved: Callable[[], Awaitable[bool]]
    ) -> None:
        """Returns only by raising.

        ``moved`` says whether llama-server did anything since it was asked last.

        Raises:
            ProcessFailed: a process of the cluster ended.
            PeerUnreachable: the connection to a machine broke.
        """
        self.meter = SpeedMeter()
        speed = asyncio.ensure_future(self._speed(api_port, moved))
        try:
            await watch.until_trouble()
        finally:
            speed.cancel()
            await asyncio.gather(speed, return_exceptions=True)

    async def _speed(self, api_port: int, moved: Callable[[], Awaitable[bool]]) -> None:
        async with ServerClient(api_port) as client:
            speed = Speed()
            while True:
                try:
                    speed = await self._reading(client, speed)
                    self._store.update(speed=speed)
                    self._told(speed)
                    if not speed.requests_active:
                        await quiet(moved, self._sleep)
                        continue
                except Exception:
                    # No figure is worth ending what serves.
                    log.exception("the speed was not read")
                await self._sleep(SPEED_S)

    async def _reading(self, client: ServerClient, before: Speed) -> Speed:
        """Asks for the server's own count only if relays do not see every token.

        Each answer of its ``/metrics`` begins the averages in it anew, for all readers.
        """
        counts = Counts()
        if self._rows() is None or before.speculative or not before.slots:
            counts = await client.counts()
        slots = await client.slots()
        rows = None if any(slot.speculative for slot in slots) else self._rows()
        now = time.monotonic()
        speed = self.meter.read(slots, now, counts.finished_tokens, rows)
        return (
            replace(speed, acceptance=counts.acceptance) if speed.speculative else speed
        )


async def quiet(
    moved: Callable[[], Awaitable[bool]],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Wait until something moves, or for long enough that it may have been missed."""
    for _ in range(round(SPEED_IDLE_S / LOOK_S)):
        await sleep(LOOK_S)
        if await moved():
            return


class Activity:
    """Finds out if llama-server was active of late, without a request to it.

    Each request while it is idle becomes a line of its log. So this watches the bytes
    on the links; without links, the log.

    ``carried`` gives the bytes that each relay passed on. ``host`` has the log.
    """

    def __init__(
        self, carried: Callable[[], Mapping[str, int]], host: AgentHost, log_name: str
    ) -> None:
        self._carried = carried
        self._host = host
        self._log_name = log_name
        self._seen: Mapping[str, int] = {}
        self._offset = -1

    async def since(self) -> bool:
        """Return true if there was activity since the last call."""
        if carried := self._carried():
            before, self._seen = self._seen, carried
            return carried != before
        return await self._wrote()

    async def _wrote(self) -> bool:
        try:
            chunk = await self._host.read_log(
                self._log_name, self._offset, LOG_READ_BYTES
            )
        except DllmError:
            # Whoever watches the processes says what is wrong.
            return False
        self._offset = chunk.next_offset
        return any(line and ASKED not in line for line in chunk.text.splitlines())
