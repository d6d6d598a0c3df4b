"""A console that runs on a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from textual.pilot import Pilot

from backends.state import ClusterSnapshot
from tests.tui import scenes
from tests.tui.drawing import draw
from tests.tui.helpers import settled
from tests.tui.scripted import ScriptedCluster
from tui.api.services import ClusterService
from tui.app.app import DllmApp

Running = tuple[Pilot[None], DllmApp, ScriptedCluster]
"""The cluster is a scripted one unless another was given."""
SIZE = (120, 36)


class Started(Protocol):
    """Starts a console on a cluster or on a snapshot, by default the homelab's.

    It gives pilot, app and cluster, by default once a split is shown.
    """

    def __call__(
        self,
        cluster: ClusterService | ClusterSnapshot | None = ...,
        *,
        size: tuple[int, int] = ...,
        wait: bool = ...,
        **options: Any,
    ) -> AbstractAsyncContextManager[Running]: ...


def starting(memory_file: Path) -> Started:
    """The way to start consoles that remember things in a file."""

    @asynccontextmanager
    async def started(
        cluster: ClusterService | ClusterSnapshot | None = None,
        *,
        size: tuple[int, int] = SIZE,
        wait: bool = True,
        **options: Any,
    ) -> AsyncIterator[Running]:
        if cluster is None or isinstance(cluster, ClusterSnapshot):
            cluster = ScriptedCluster(cluster or scenes.homelab_serving())
        settings: dict[str, Any] = {"clock": lambda: scenes.NOW} | options
        app = DllmApp(cluster, memory_file=memory_file, **settings)
        async with app.run_test(size=size) as pilot:
            if wait:
                await settled(pilot)
            yield pilot, app, cast("ScriptedCluster", cluster)
            draw(app)

    return started
