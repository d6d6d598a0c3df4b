"""The relays of the running cluster: their figures to the snapshot, the lab to them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from backends.errors import UsageError
from backends.link.relay import RelayReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from backends.controller.board import Board
    from backends.state import Lab, Pass


class Links:
    """Follows one relay per worker while a cluster serves."""

    def __init__(self, board: Board) -> None:
        """``board`` gets the figures."""
        self._board = board
        self._readers: dict[str, RelayReader] = {}

    @asynccontextmanager
    async def following(
        self,
        sockets: Mapping[str, Path],
        tunnel_rtt_ms: Callable[[str], float | None],
    ) -> AsyncIterator[None]:
        """Follow the workers' relays, at these sockets, while the block runs.

        ``tunnel_rtt_ms`` gives the round trip of a worker's tunnel, if it has one.
        """
        self._readers = {
            worker: RelayReader(
                worker, socket, self._show, partial(tunnel_rtt_ms, worker)
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

    def _show(self) -> None:
        links = tuple(reader.meter.link for reader in self._readers.values())
        self._board.update(links=links)

    def passes(self) -> dict[str, tuple[Pass, ...]]:
        """All passes remembered, by worker, oldest first."""
        return {name: tuple(r.meter.passes) for name, r in self._readers.items()}

    async def set_lab(self, worker: str | None, lab: Lab | None) -> None:
        """Set or clear the lab of one link, or of all.

        Raises:
            UsageError: there is no such link.
            HostError: its relay does not answer.
        """
        chosen = list(self._readers) if worker is None else [worker]
        unknown = [name for name in chosen if name not in self._readers]
        if unknown or not chosen:
            names = ", ".join(self._readers) or "none: nothing runs behind a relay"
            raise UsageError(
                f"There is no link {worker or ''}".rstrip(), f"Links: {names}."
            )
        for name in chosen:
            await self._readers[name].set_lab(lab)
