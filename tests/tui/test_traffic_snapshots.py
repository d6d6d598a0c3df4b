"""What the Traffic screen looks like."""

from __future__ import annotations

from typing import Any

import msgspec
from textual.pilot import Pilot

from backends.state import ClusterSnapshot, Link
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.links import BOX, MINI, PLAIN
from tests.tui.looks import Look, Size, at_both_sizes


def traffic(*links: Link, at: float = scenes.NOW) -> ClusterSnapshot:
    return msgspec.structs.replace(scenes.homelab_serving(), links=links, at=at)


def shown(*keys: str, text: str) -> Any:
    """Go to the Traffic screen and press keys there."""

    async def run(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("f3")
        await until(pilot, lambda: text in screen_text(pilot.app))
        await pilot.press(*keys)
        await pilot.pause()

    return run


@at_both_sizes
def test_two_links(look: Look, size: Size) -> None:
    look(traffic(MINI, BOX), size, shown("j", text="GET_TENSOR"))


@at_both_sizes
def test_three_links_one_plain(look: Look, size: Size) -> None:
    run = shown("v", "j", "space", text="GET_TENSOR")
    look(traffic(MINI, BOX, PLAIN), size, run)


def test_no_token_yet(look: Look) -> None:
    quiet = Link(worker="mini", protocol="8.0.0", rtt_ms=3.1)
    look(traffic(quiet), run=shown(text="No token yet"))


def test_no_relays(look: Look) -> None:
    look(traffic(), run=shown(text="No relays"))
