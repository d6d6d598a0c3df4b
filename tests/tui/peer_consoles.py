"""A home of several peers whose work a test holds up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from backends.errors import DllmError
from backends.state import (
    Peer,
    ProvisionMode,
)
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import settled, until
from tests.tui.scripted import ScriptedCluster
from tui.app.app import DllmApp
from tui.screens.cluster.peers_pane import PeerList

HOME = (people.ADA, people.BOB, people.BOX, people.EVE, people.NUC)


class Patient(ScriptedCluster):
    """Long work goes on until the test ends it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.done = asyncio.Event()
        self.ending: DllmError | None = None

    async def provision_peer(
        self, name: str, mode: ProvisionMode = ProvisionMode.AUTO
    ) -> Peer:
        peer = await super().provision_peer(name, mode)
        await self.done.wait()
        if self.ending is not None:
            raise self.ending
        return peer


def cluster_of(*peers: Peer) -> Patient:
    return Patient(
        people.here(*peers or HOME), plans={scenes.GLM.path: people.SPREAD_PLAN}
    )


async def on_peer(pilot: Pilot[None], name: str) -> DllmApp:
    """Select a peer of a console that has a plan in its editor."""
    app: Any = pilot.app
    if app._initial_model:
        await settled(pilot)
    found = app.query_one(PeerList)
    await until(pilot, lambda: found.peers)
    app._home.go_to("peers")
    await pilot.pause()
    found.selected = [peer.name for peer in found.peers].index(name)
    await pilot.pause()
    return app  # type: ignore[no-any-return]


@asynccontextmanager
async def at_peer(
    started: Started,
    name: str,
    cluster: Patient | None = None,
    *,
    model: str = scenes.GLM.path,
) -> AsyncIterator[tuple[Pilot[None], DllmApp, Patient]]:
    """A console with a peer selected, and a plan of a model unless that is empty."""
    cluster = cluster or cluster_of()
    running = started(cluster, wait=False, initial_model=model or None)
    async with running as (pilot, app, _):
        await on_peer(pilot, name)
        yield pilot, app, cluster


def machines(app: DllmApp) -> list[str]:
    assert app.editor.plan is not None
    return list(dict.fromkeys(worker.peer for worker in app.editor.plan.workers))
