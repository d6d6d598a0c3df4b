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
from tests.tui.looks import Look, Size, at_both_sizes
from tests.tui.scripted import ScriptedCluster
from tui.screens.cluster.peers_pane import PeerList

MODEL = scenes.GLM.path


def home(*peers: Peer) -> ScriptedCluster:
    plans = {MODEL: people.SPREAD_PLAN}
    return ScriptedCluster(people.here(*peers, quiet=True), plans=plans)


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


@at_both_sizes
def test_peers(look: Look, size: Size) -> None:
    look(home(), size, on_peer(1), initial_model=MODEL)


@at_both_sizes
def test_peers_in_trouble(look: Look, size: Size) -> None:
    others = people.NUC, people.OLD, people.EVE, people.FRED, people.GUS, people.NEW
    look(home(*others), size, on_peer(1), initial_model=MODEL)


def test_all_peers(look: Look) -> None:
    look(home(), (120, 36), on_peer(6, "z"), initial_model=MODEL)


@at_both_sizes
def test_adding(look: Look, size: Size) -> None:
    look(home(), size, on_peer(0, "a", "i", "down"), initial_model=MODEL)


@pytest.mark.parametrize("peer", [people.NUC, people.EVE, people.ADA, people.NEW])
def test_added(look: Look, peer: Peer) -> None:
    async def add(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await on_peer(0, "a", *peer.name[:12], "enter")(pilot)
        dialog: Any = app.screen
        await until(pilot, lambda: dialog.follows)
        found = msgspec.structs.replace(peer, name=dialog.follows)
        app.cluster.push(people.here(people.BOB, found))
        await until(pilot, lambda: dialog._shown and dialog._shown.text)
        await until(pilot, lambda: len(app.editor.peers) == 3)
        await pilot.pause()

    look(home(people.BOB), run=add, initial_model=MODEL)


@at_both_sizes
@pytest.mark.parametrize(
    "asked", [people.HOST_KEY, people.PASSWORD], ids=["key", "word"]
)
def test_questions(look: Look, size: Size, asked: Any) -> None:
    peer = msgspec.structs.replace(people.MINI, question=asked, note=asked.text)

    async def typed(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(pilot.app.screen_stack) == 2)
        await pilot.press("s", "3", "q")
        await pilot.pause()

    look(people.here(people.ADA, peer), size, typed)


@at_both_sizes
def test_details(look: Look, size: Size) -> None:
    look(home(), size, on_peer(1, "enter"), initial_model=MODEL)


@at_both_sizes
def test_refused(look: Look, size: Size) -> None:
    look(people.refused(), size)
