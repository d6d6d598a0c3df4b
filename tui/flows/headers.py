"""Reading the header of a model that runs, where the snapshots do not bring it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tui.flows.console import DeskConsole
    from tui.seam.cluster import Cluster
    from tui.work.desk import Desk


class Headers:
    """Asks once for each file and goal, however many snapshots come meanwhile."""

    def __init__(self, app: DeskConsole, cluster: Cluster, desk: Desk) -> None:
        self._app = app
        self._cluster = cluster
        self._desk = desk
        self._asked: tuple[str, int] | None = None

    def look(self) -> None:
        """The desk has changed: see whether its plan lacks a header."""
        plan, snapshot = self._desk.plan, self._desk.snapshot
        if plan is None or snapshot is None or self._desk.model is not None:
            return
        asked = plan.model, snapshot.generation
        if asked != self._asked:
            self._asked = asked
            self._app.attempt(self._read(plan.model), group="header")

    async def _read(self, path: str) -> None:
        model = await self._cluster.inspect(path)
        self._desk.editing.learn(path, model)
        self._app.show_desk()
