"""Asking for the memory of a plan, once the user has paused for a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.errors import DllmError
from backends.state import PlanMemory

if TYPE_CHECKING:
    from textual.timer import Timer

    from backends.state import Plan
    from tui.api.services import ClusterService
    from tui.app.console import ClusterConsole
    from tui.model.editor import PlanEditor

SETTLE_S = 0.3
"""A plan that is unchanged for so long is checked."""
GROUP = "memory"


class Settling:
    """Watches the plan in the editor; a move cancels the check of the plan before."""

    def __init__(
        self, app: ClusterConsole, cluster: ClusterService, editor: PlanEditor
    ) -> None:
        self._app = app
        self._cluster = cluster
        self._editor = editor
        self._plan: Plan | None = None
        self._timer: Timer | None = None

    def look(self) -> None:
        plan = self._editor.unsettled
        if plan == self._plan:
            return
        self._disturb()
        self._plan = plan
        if plan is not None:
            self._timer = self._app.set_timer(SETTLE_S, self._ask)

    def _disturb(self) -> None:
        self._plan = None
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._app.workers.cancel_group(self._app, GROUP)

    def _ask(self) -> None:
        if self._plan is not None:
            self._app.attempt(self._asked(self._plan), group=GROUP)

    async def _asked(self, plan: Plan) -> None:
        try:
            memory = await self._cluster.memory(plan)
        except DllmError as error:
            # The prediction stays, and why is said beside it: nothing to alarm anyone.
            memory = PlanMemory(devices=(), note=str(error))
        self._editor.settle(plan, memory)


class Headers:
    """Asks once for each file and goal, however many snapshots come meanwhile."""

    def __init__(
        self, app: ClusterConsole, cluster: ClusterService, editor: PlanEditor
    ) -> None:
        self._app = app
        self._cluster = cluster
        self._editor = editor
        self._asked: tuple[str, int] | None = None

    def look(self) -> None:
        plan, snapshot = self._editor.plan, self._editor.snapshot
        if plan is None or snapshot is None or self._editor.model is not None:
            return
        asked = plan.model, snapshot.generation
        if asked != self._asked:
            self._asked = asked
            self._app.attempt(self._read(plan.model), group="header")

    async def _read(self, path: str) -> None:
        model = await self._cluster.inspect(path)
        self._editor.learn(path, model)
