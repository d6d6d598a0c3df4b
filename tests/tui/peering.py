"""What tests of the peers' dialogs have in common."""

from __future__ import annotations

from typing import Any

import msgspec
from textual.pilot import Pilot

from backends.state import Peer, QuestionKind
from tests.tui import peer_scenes as people
from tests.tui.helpers import in_front, until
from tui.dialogs.add_peer import AddPeerDialog
from tui.dialogs.peers import QuestionDialog
from tui.screens.cluster.peers_pane import PeerList

SIZE = (120, 36)


async def on_peers(pilot: Pilot[None]) -> None:
    app: Any = pilot.app
    await until(pilot, lambda: app.query_one(PeerList).peers)
    app._home.go_to("peers")
    await pilot.pause()


async def question(pilot: Pilot[None]) -> QuestionDialog:
    return await in_front(pilot, QuestionDialog)


async def adding(pilot: Pilot[None]) -> AddPeerDialog:
    await on_peers(pilot)
    await pilot.press("a")
    await until(pilot, lambda: isinstance(pilot.app.screen, AddPeerDialog))
    screen = pilot.app.screen
    assert isinstance(screen, AddPeerDialog)
    await until(pilot, lambda: screen._names.rows)
    return screen


def asks(kind: QuestionKind, name: str = "mini") -> Peer:
    asked = {
        QuestionKind.HOST_KEY: people.HOST_KEY,
        QuestionKind.PASSWORD: people.PASSWORD,
        QuestionKind.PASSPHRASE: people.PASSPHRASE,
    }
    return msgspec.structs.replace(
        people.MINI, name=name, question=asked[kind], note=asked[kind].text
    )
