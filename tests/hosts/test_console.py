"""The console over SSH, key by key: add, trust, install, split, launch, ask, stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.client.client import ControllerClient
from backends.paths import user_paths
from backends.state import ClusterState, PeerState
from tests.engine.test_console import until
from tests.hosts.user import MODEL
from tests.tui.helpers import last_answer, screen_text
from tui.app.app import DllmApp
from tui.screens.cluster.chat_pane import Composer
from tui.screens.cluster.peers_pane import PeerList

if TYPE_CHECKING:
    import pytest
    from textual.pilot import Pilot

    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser


class Session:
    """Somebody at the console."""

    def __init__(self, app: DllmApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def until(self, condition: object, what: str) -> None:
        assert callable(condition)
        await until(self.pilot, condition, what)

    def state_of(self, name: str) -> PeerState | None:
        snapshot = self.app.editor.snapshot
        peers = snapshot.peers if snapshot else ()
        return next((p.state for p in peers if p.name == name), None)

    def shows(self, text: str) -> bool:
        return text in screen_text(self.app)

    def cluster(self) -> ClusterState | None:
        return self.app.editor.snapshot.state if self.app.editor.snapshot else None

    def workers(self) -> list[str]:
        plan = self.app.editor.plan
        return [worker.name for worker in plan.workers] if plan else []

    async def add(self, name: str) -> None:
        """Add a machine, trust it and install our engine there, all from the dialog."""
        self.app._home.go_to("peers")
        await self.pilot.press("a")
        await self.until(lambda: self.shows("Add a machine"), "the dialog")
        await self.pilot.press(*name, "enter")
        await self.until(lambda: self.shows("Trust and connect"), "the question")
        await self.pilot.press("down", "enter")
        await self.until(lambda: self.shows("Install the engine"), f"{name} reached")
        await self.pilot.press("p")
        seen: list[PeerState | None] = []

        def is_ready() -> bool:
            seen.append(self.state_of(name))
            return seen[-1] is PeerState.READY

        await self.until(is_ready, f"{name} has an engine")
        at = [n for n, state in enumerate(seen) if state is PeerState.PROVISIONING]
        after = seen[at[-1] :] if at else []
        assert PeerState.NO_ENGINE not in after, "once it is installed"

    async def use(self, name: str) -> None:
        """Take a machine into the split."""
        found = self.app.query_one(PeerList)
        self.app._home.go_to("peers")
        found.selected = [peer.name for peer in found.peers].index(name)
        await self.pilot.press("w")


async def test_from_an_empty_home_to_an_answer(
    network: Network, user: HeadUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that nobody has added yet, whose key is unknown."""
    bob = network.peer("bob")
    network.known_hosts.write_text("")
    for name, value in user.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    paths = user_paths()
    client = ControllerClient(paths)
    app = DllmApp(client, memory_file=paths.console_file, initial_model=MODEL)
    async with app.run_test(size=(120, 36)) as pilot:
        session = Session(app, pilot)
        await session.until(lambda: app.editor.plan is not None, "a plan for the model")
        await session.add("bob")
        await session.use("bob")
        await session.until(lambda: "bob" in session.workers(), "bob takes part")
        await session.use("local")
        await session.until(lambda: session.workers() == ["bob"], "it alone works")
        await pilot.press("l")
        await session.until(
            lambda: session.cluster() is ClusterState.SERVING, "serving"
        )
        assert app.editor.snapshot is not None
        assert app.editor.snapshot.measured is not None
        assert app.editor.snapshot.measured.mismatches == ()
        app.query_one(Composer).focus()
        await pilot.press(*"What is a split?", "enter")
        await session.until(
            lambda: "layers" in last_answer(app),
            "an answer",
        )
        app._home.go_to("peers")
        await pilot.press("s")
        await session.until(lambda: app.screen.is_modal, "the question")
        await pilot.press("y")
        await session.until(lambda: session.cluster() is ClusterState.IDLE, "stopped")
    await client.shutdown()
    assert bob.host_key.split()[1] in network.known_hosts.read_text()
