"""The ports at which the clusters of one controller give out their APIs."""

from __future__ import annotations

FIRST_TRIED = 10
"""So many ports from the default one on are tried before any free one is taken."""


class ApiPorts:
    """The API port of each cluster: a cluster takes its port before it listens."""

    def __init__(self) -> None:
        self._chosen: dict[str, int] = {}
        self._lost: set[int] = set()

    def owner(self, port: int) -> str | None:
        """The cluster that has chosen a port."""
        return next((name for name, p in self._chosen.items() if p == port), None)

    def choose(self, cluster: str, port: int) -> bool:
        """Take a port for a cluster; False if another has it."""
        if self.owner(port) not in (None, cluster):
            return False
        self._chosen[cluster] = port
        return True

    def candidates(self, cluster: str, first: int) -> list[int]:
        """Ports to try in this order: clients know the one there was before."""
        before = self._chosen.get(cluster)
        tried = [port for port in range(first, first + FIRST_TRIED) if port != before]
        there = [*([before] if before else []), *tried]
        return [port for port in there if port not in self._lost]

    def lose(self, cluster: str) -> None:
        """The port of a cluster was another program's, though it looked free."""
        port = self._chosen.pop(cluster, None)
        if port is not None:
            self._lost.add(port)

    def release(self, cluster: str) -> None:
        """A cluster was ended: its port is anybody's."""
        self._chosen.pop(cluster, None)
