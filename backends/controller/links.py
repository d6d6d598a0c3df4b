"""The links of one cluster: open ways, and the relays' figures and labs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from backends.controller.event_recorders import EventRecorder
from backends.controller.snapshot_store import SnapshotStore
from backends.direct_address import DirectAddress
from backends.errors import MachineError, PeerUnreachable, UsageError, did_you_mean
from backends.link.figures import why_no_link
from backends.link.meter import Outcomes, ServerCount
from backends.link.relay import RelayReader, put_lab, worker_relay_name, worker_weights
from backends.link.transport import LinkRoute, LinkTransport, TransportKind
from backends.link.wire import require_possible
from backends.planning.blueprint import Facts
from backends.state import Lab, Pass, Plan, Speed
from backends.state.links import WorkerWeights
from backends.tasks import end_tasks, gather_or_cancel

EXTRA_DRAFT_MAX = 16
"""The usual limit of a draft that further arguments give."""


class End(NamedTuple):
    """The end of a way; another end needs another way."""

    machine: str
    what: str


class Transports:
    """Keeps ways by name: a worker's own, and further ones that others name.

    ``broken`` is called when one breaks.
    """

    def __init__(self, broken: Callable[[], None]) -> None:
        self._broken = broken
        self._ways: dict[str, tuple[End, LinkTransport]] = {}

    async def lead(
        self, name: str, end: End, opened: Callable[[], Awaitable[LinkTransport]]
    ) -> LinkTransport:
        """The open way of that name if it leads there, else a new one in its place."""
        known = self._ways.get(name)
        if known is not None and known[0] == end and known[1].open:
            return known[1]
        await self.close(name)
        way = await opened()
        way.on_broken = self._broken
        self._ways[name] = (end, way)
        return way

    async def close(self, name: str) -> None:
        known = self._ways.pop(name, None)
        if known is not None:
            await known[1].close()

    async def keep(self, names: Collection[str]) -> None:
        await gather_or_cancel(self.close(n) for n in set(self._ways) - set(names))

    @property
    def incarnations(self) -> dict[str, str]:
        return {name: way.incarnation for name, (_, way) in self._ways.items()}

    def rtt_ms(self, worker: str) -> float | None:
        """Round trip of the tunnel to a worker; None without a tunnel."""
        known = self._ways.get(worker)
        if known is None or known[1].kind is not TransportKind.TUNNEL:
            return None
        return known[1].rtt_ms

    def route(self, worker: str, data: DirectAddress, port: int) -> LinkRoute:
        """Return the way to the relay beside a worker, and its other addresses."""
        known = self._ways.get(worker)
        if known is None or not known[1].open:
            return LinkRoute()
        kind, trouble = known[1].kind, known[1].trouble
        return LinkRoute(
            kind, direct=data.endpoint(port), why=data.why, trouble=trouble
        )

    def require_open(self) -> None:
        for end, way in self._ways.values():
            if not way.open:
                raise PeerUnreachable(f"The connection to {end.machine} broke")


class Links:
    """Follows one relay per worker while a cluster loads and serves."""

    def __init__(
        self, store: SnapshotStore, ways: Transports, recorder: EventRecorder
    ) -> None:
        self._store = store
        self._ways = ways
        self._recorder = recorder
        self._readers: dict[str, RelayReader] = {}
        self._sockets: dict[str, Path] = {}
        self.asked_labs: Mapping[str, Lab | None] = {}
        """The labs last asked for, by worker, of links that are not there too."""
        self._outcomes = Outcomes()
        self._draft_max = EXTRA_DRAFT_MAX
        self._tasks: list[asyncio.Task[None]] = []

    def follow(self, plan: Plan, facts: Facts, sockets: Mapping[str, Path]) -> None:
        """Read the counters of the workers' relays at these sockets, by worker."""
        self._draft_max = max(plan.server.draft_max, EXTRA_DRAFT_MAX)
        self._sockets = dict(sockets)
        self._outcomes = Outcomes()
        self._readers = {
            worker: RelayReader(
                worker,
                socket,
                self._show,
                partial(self._ways.rtt_ms, worker),
                partial(self.lab_of, worker),
                self._outcomes,
                facts.pairings[worker].why,
                partial(
                    self._ways.route,
                    worker,
                    facts.pairings[worker].data,
                    facts.ports.get(worker_relay_name(worker), 0),
                ),
            )
            for worker, socket in sockets.items()
        }
        self._show()
        self._tasks = [asyncio.create_task(r.run()) for r in self._readers.values()]

    async def unfollow(self) -> None:
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks)
        self._readers, self._sockets = {}, {}

    def heed(self, speed: Speed) -> None:
        drafted = self._draft_max if speed.speculative else 0
        server = ServerCount(
            tokens=speed.tokens,
            speculative=speed.speculative,
            idle=not speed.requests_active,
            decode_max=max(speed.slots, 1) * (1 + drafted),
        )
        changed = [
            reader.meter.read_server(server) for reader in self._readers.values()
        ]
        if any(changed):
            self._show()

    def _show(self) -> None:
        for reader in self._readers.values():
            reader.meter.judge()
        links = tuple(reader.meter.link for reader in self._readers.values())
        known = {one.worker: one for one in self._store.snapshot.links if one.protocol}
        for link in links:
            before = known.get(link.worker, link)
            if link.reconnects > before.reconnects:
                self._recorder.mended(
                    f"The link to {link.worker} broke and went on over another "
                    f"connection after {link.pause_ms} ms"
                )
        self._store.update(links=links)

    def rows(self) -> int | None:
        """Tokens that came out of all passes; None if relays do not see them all."""
        plain = any(
            reader.meter.link.mode == "plain" for reader in self._readers.values()
        )
        return self._outcomes.rows if self._outcomes.known and not plain else None

    def carried_bytes(self) -> dict[str, int]:
        return {name: r.meter.link.bytes_up for name, r in self._readers.items()}

    def weight_bytes(self) -> dict[str, int]:
        """Return the bytes of weights of each worker, or else all bytes passed on."""
        carried = self.carried_bytes()
        links = (reader.meter.link for reader in self._readers.values())
        known = {
            link.worker: link.weight_bytes_home + link.weight_bytes_sent
            for link in links
            if link.weight_bytes_home is not None and link.weight_bytes_sent is not None
        }
        return {**carried, **known}

    def home_bytes(self) -> dict[str, int]:
        """Return the bytes that workers read from their own disks, if reported."""
        links = (reader.meter.link for reader in self._readers.values())
        told = {link.worker: link.weight_bytes_home for link in links}
        return {worker: home for worker, home in told.items() if home is not None}

    async def weights(self) -> dict[str, WorkerWeights | None]:
        """Return the weights of each worker, as seen by its relay; None if unknown."""
        names = list(self._sockets)
        held = await gather_or_cancel(map(worker_weights, self._sockets.values()))
        return dict(zip(names, held, strict=True))

    def labs(self) -> dict[str, Lab | None]:
        """Return the lab that each relay says it has."""
        links = (reader.meter.link for reader in self._readers.values())
        return {link.worker: link.lab for link in links if link.protocol}

    def passes(self) -> dict[str, tuple[Pass, ...]]:
        return {name: tuple(r.meter.passes) for name, r in self._readers.items()}

    async def set_lab(self, worker: str | None, lab: Lab | None) -> None:
        if lab is not None:
            require_possible(lab)
        for name in self.named(worker):
            await self._readers[name].set_lab(lab)
            self.asked_labs = {**self.asked_labs, name: lab}
        if worker is None:
            self.asked_labs = dict.fromkeys(self._readers, lab)

    def named(self, worker: str | None) -> tuple[str, ...]:
        """The workers with links that a person names; None names all."""
        if not self._readers:
            why = why_no_link(self._store.snapshot)
            raise UsageError(why, "Launch a plan with workers first.")
        if worker is None:
            return tuple(self._readers)
        if worker not in self._readers:
            names = ", ".join(self._readers)
            raise UsageError(
                f"There is no link {worker}",
                f"{did_you_mean(worker, self._readers)}Links: {names}.",
            )
        return (worker,)

    def lab_of(self, worker: str) -> Lab | None:
        return self.asked_labs.get(worker)

    async def ask_for(self, labs: Mapping[str, Lab | None]) -> None:
        """Have these labs, by worker, and none on any other link, now and later."""
        self.asked_labs = labs
        for name, reader in self._readers.items():
            # A relay that does not answer yet gets it as soon as it does.
            with contextlib.suppress(MachineError, OSError):
                await reader.set_lab(self.lab_of(name))

    async def put_labs(
        self, sockets: Callable[[], Awaitable[Mapping[str, Path]]]
    ) -> None:
        """Put the labs of a launch on its relays, before llama-server starts."""
        if not any(lab and lab.is_on for lab in self.asked_labs.values()):
            return
        await gather_or_cancel(
            put_lab(worker, socket, lab)
            for worker, socket in (await sockets()).items()
            if (lab := self.lab_of(worker)) is not None and lab.is_on
        )
