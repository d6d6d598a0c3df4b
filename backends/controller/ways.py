"""The open ways of one cluster: head to workers, and this machine to the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backends.controller.together import together
from backends.errors import PeerUnreachable
from backends.link.way import LinkRoute, WayKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from backends.data_place import DataPlace
    from backends.link.way import Way


class End(NamedTuple):
    """The end of a way; another end needs another way."""

    machine: str
    what: str


class Ways:
    """Keeps ways by name: a worker's own, and further ones that others name.

    ``broken`` is called when one breaks.
    """

    def __init__(self, broken: Callable[[], None]) -> None:
        self._broken = broken
        self._ways: dict[str, tuple[End, Way]] = {}

    async def lead(
        self, name: str, end: End, opened: Callable[[], Awaitable[Way]]
    ) -> Way:
        """The open way of that name if it leads there, else a new one in its place.

        Raises:
            HostError: it cannot be opened.
        """
        known = self._ways.get(name)
        if known is not None and known[0] == end and known[1].open:
            return known[1]
        await self.close(name)
        way = await opened()
        way.on_broken = self._broken
        self._ways[name] = (end, way)
        return way

    async def close(self, name: str) -> None:
        """Close one, if it is open."""
        known = self._ways.pop(name, None)
        if known is not None:
            await known[1].close()

    async def keep(self, names: Collection[str]) -> None:
        """Close all others."""
        await together(self.close(n) for n in set(self._ways) - set(names))

    @property
    def incarnations(self) -> dict[str, str]:
        """Name to the incarnation of that way."""
        return {name: way.incarnation for name, (_, way) in self._ways.items()}

    def rtt_ms(self, worker: str) -> float | None:
        """Round trip of the tunnel to a worker; None without a tunnel."""
        known = self._ways.get(worker)
        if known is None or known[1].kind is not WayKind.TUNNEL:
            return None
        return known[1].rtt_ms

    def route(self, worker: str, data: DataPlace, port: int) -> LinkRoute:
        """Return the way to the relay beside a worker, and its other addresses."""
        known = self._ways.get(worker)
        if known is None or not known[1].open:
            return LinkRoute()
        way = known[1]
        return LinkRoute(
            way.kind,
            direct=data.endpoint(port),
            why=data.why,
            trouble=way.trouble,
        )

    def require_open(self) -> None:
        """See that none broke.

        Raises:
            PeerUnreachable: one did.
        """
        for end, way in self._ways.values():
            if not way.open:
                raise PeerUnreachable(f"The connection to {end.machine} broke")
