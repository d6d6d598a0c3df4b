"""The relays of the running cluster: their figures to the snapshot, the lab to them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from backends.controller.together import together
from backends.errors import UsageError, did_you_mean
from backends.link.figures import why_no_link
from backends.link.relay import RelayReader, worker_weights
from backends.link.tokens import Outcomes, ServerCount
from backends.link.way import LinkRoute
from backends.link.wire import require_possible

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from backends.controller.snapshot_store import SnapshotStore
    from backends.state import Lab, Pass, Speed
    from backends.state.links import WorkerWeights

EXTRA_DRAFT_MAX = 16
"""The usual limit of a draft that further arguments give."""


class Links:
    """Follows one relay per worker while a cluster serves; ``store`` gets figures."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._readers: dict[str, RelayReader] = {}
        self._sockets: dict[str, Path] = {}
        self._labs: dict[str, Lab | None] = {}
        self._outcomes = Outcomes()
        self._draft_max = EXTRA_DRAFT_MAX

    @asynccontextmanager
    async def following(
        self,
        sockets: Mapping[str, Path],
        tunnel_rtt_ms: Callable[[str], float | None],
        why: Callable[[str], str] = lambda _: "",
        route: Callable[[str], LinkRoute] = lambda _: LinkRoute(),
        draft_max: int = 0,
    ) -> AsyncIterator[None]:
        """Follow the workers' relays, at these sockets, while the block runs.

        ``tunnel_rtt_ms`` gives the round trip of a worker's tunnel, if it has one;
        ``why`` whether, and why, a relay stands beside the worker; ``route`` how that
        is reached now; ``draft_max`` are the tokens that a draft of the plan adds to a
        pass.
        """
        self._draft_max = max(draft_max, EXTRA_DRAFT_MAX)
        self._sockets = dict(sockets)
        self._outcomes = Outcomes()
        self._readers = {
            worker: RelayReader(
                worker,
                socket,
                self._show,
                partial(tunnel_rtt_ms, worker),
                partial(self._labs.get, worker),
                self._outcomes,
                why(worker),
                partial(route, worker),
            )
            for worker, socket in sockets.items()
        }
        self._show()
        tasks = [asyncio.create_task(r.run()) for r in self._readers.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._readers = {}
            self._sockets = {}

    def heed(self, speed: Speed) -> None:
        """Take what llama-server counted itself."""
        drafted = self._draft_max if speed.speculative else 0
        server = ServerCount(
            tokens=speed.tokens,
            speculative=speed.speculative,
            idle=not speed.requests_active,
            decode_max=max(speed.slots, 1) * (1 + drafted),
        )
        changed = [reader.meter.read_server(server) for reader in self._each()]
        if any(changed):
            self._show()

    def _each(self) -> tuple[RelayReader, ...]:
        return tuple(self._readers.values())

    def _show(self) -> None:
        for reader in self._each():
            reader.meter.judge()
        links = tuple(reader.meter.link for reader in self._each())
        self._store.update(links=links)

    def rows(self) -> int | None:
        """Tokens that came out of all passes; None if relays do not see them all."""
        plain = any(reader.meter.link.mode == "plain" for reader in self._each())
        return self._outcomes.rows if self._outcomes.known and not plain else None

    def carried_bytes(self) -> dict[str, int]:
        """Return the bytes that each relay has passed on since it began."""
        return {name: r.meter.link.bytes_up for name, r in self._readers.items()}

    def weight_bytes(self) -> dict[str, int]:
        """Return the bytes of weights of each worker, or else all bytes passed on."""
        carried = self.carried_bytes()
        links = (reader.meter.link for reader in self._each())
        known = {
            link.worker: link.weight_bytes_home + link.weight_bytes_sent
            for link in links
            if link.weight_bytes_home is not None and link.weight_bytes_sent is not None
        }
        return {**carried, **known}

    def home_bytes(self) -> dict[str, int]:
        """Return the bytes that workers read from their own disks, if reported."""
        links = (reader.meter.link for reader in self._each())
        told = {link.worker: link.weight_bytes_home for link in links}
        return {worker: home for worker, home in told.items() if home is not None}

    async def weights(self) -> dict[str, WorkerWeights | None]:
        """Return the weights of each worker, as seen by its relay; None if unknown."""
        names = list(self._sockets)
        held = await together(map(worker_weights, self._sockets.values()))
        return dict(zip(names, held, strict=True))

    def passes(self) -> dict[str, tuple[Pass, ...]]:
        """All passes remembered, by worker, oldest first."""
        return {name: tuple(r.meter.passes) for name, r in self._readers.items()}

    async def set_lab(self, worker: str | None, lab: Lab | None) -> None:
        """Set or clear the lab of one link, or of all.

        Raises:
            UsageError: there is no such link, or no relay takes such a lab.
            HostError: its relay does not answer.
        """
        if lab is not None:
            require_possible(lab)
        chosen = list(self._readers) if worker is None else [worker]
        if not self._readers:
            raise UsageError(why_no_link(self._store.snapshot))
        if worker is not None and worker not in self._readers:
            names = ", ".join(self._readers)
            raise UsageError(
                f"There is no link {worker}",
                f"{did_you_mean(worker, self._readers)}Links: {names}.",
            )
        for name in chosen:
            await self._readers[name].set_lab(lab)
            self._labs[name] = lab

    def forget_labs(self) -> None:
        """Put none on relays that are started from here on."""
        self._labs.clear()
