"""What peers and their dialogs look like, at the sizes and themes that matter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from backends.state import Peer
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import settled, until
from tests.tui.looks import SIZES, Compare, MakeApp, name_of
from tests.tui.scripted import ScriptedCluster
from tui.app.app import DllmApp
from tui.screens.cluster.peers_pane import PeerList


def made(make_app: MakeApp, *peers: Peer, theme: str = "dllm-dark") -> DllmApp:
    plans = {scenes.GLM.path: people.SPREAD_PLAN}
    cluster = ScriptedCluster(people.here(*peers, quiet=True), plans=plans)
    return make_app(cluster, initial_model=scenes.GLM.path, theme=theme)


def on_peer(index: int, *keys: str) -> Any:
    """Select a peer, press keys, and wait until all is at rest."""

    async def go(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await settled(pilot)
        app._home.go_to("peers")
        app.query_one(PeerList).selected = index
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()

    return go


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_peers(make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]) -> None:
    app = made(make_app)
    assert snap_compare(app, terminal_size=size, run_before=on_peer(1))


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_peers_in_trouble(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    others = people.NUC, people.OLD, people.EVE, people.FRED, people.GUS, people.NEW
    app = made(make_app, *others)
    assert snap_compare(app, terminal_size=size, run_before=on_peer(1))


def test_all_peers(make_app: MakeApp, snap_compare: Compare) -> None:
    app = made(make_app)
    assert snap_compare(app, terminal_size=(120, 36), run_before=on_peer(6, "z"))


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_adding(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = made(make_app)
    keys = on_peer(0, "a", "i", "down")
    assert snap_compare(app, terminal_size=size, run_before=keys)


@pytest.mark.parametrize("peer", [people.NUC, people.EVE, people.ADA, people.NEW])
def test_added(make_app: MakeApp, snap_compare: Compare, peer: Peer) -> None:
    app = made(make_app, people.BOB)

    async def add(pilot: Pilot[None]) -> None:
        await on_peer(0, "a", *peer.name[:12], "enter")(pilot)
        dialog: Any = app.screen
        await until(pilot, lambda: dialog.follows)
        found = msgspec.structs.replace(peer, name=dialog.follows)
        app.cluster.push(people.here(people.BOB, found))  # type: ignore[attr-defined]
        await until(pilot, lambda: dialog._shown and dialog._shown.text)
        await until(pilot, lambda: len(app.editor.peers) == 3)
        await pilot.pause()

    assert snap_compare(app, terminal_size=(80, 24), run_before=add)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
@pytest.mark.parametrize(
    "asked", [people.HOST_KEY, people.PASSWORD], ids=["key", "word"]
)
def test_questions(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int], asked: Any
) -> None:
    peer = msgspec.structs.replace(people.MINI, question=asked, note=asked.text)
    app = make_app(ScriptedCluster(people.here(people.ADA, peer)))

    async def typed(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("s", "3", "q")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=typed)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_details(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = made(make_app)
    assert snap_compare(app, terminal_size=size, run_before=on_peer(1, "enter"))


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_refused(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = make_app(ScriptedCluster(people.refused()))
    assert snap_compare(app, terminal_size=size, run_before=settled)
