"""What the Traffic screen looks like."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from backends.state import ClusterSnapshot, Link
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.links import BOX, MINI, PLAIN
from tests.tui.looks import SIZES, Compare, MakeApp, name_of
from tests.tui.scripted import ScriptedCluster


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


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_two_links(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = make_app(ScriptedCluster(traffic(MINI, BOX)))
    run = shown("j", text="GET_TENSOR")
    assert snap_compare(app, terminal_size=size, run_before=run)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_three_links_one_plain(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = make_app(ScriptedCluster(traffic(MINI, BOX, PLAIN)))
    run = shown("v", "j", "space", text="GET_TENSOR")
    assert snap_compare(app, terminal_size=size, run_before=run)


def test_no_token_yet(make_app: MakeApp, snap_compare: Compare) -> None:
    quiet = Link(worker="mini", protocol="8.0.0", rtt_ms=3.1)
    app = make_app(ScriptedCluster(traffic(quiet)))
    run = shown(text="No token yet")
    assert snap_compare(app, terminal_size=(80, 24), run_before=run)


def test_no_relays(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(ScriptedCluster(traffic()))
    run = shown(text="No relays")
    assert snap_compare(app, terminal_size=(80, 24), run_before=run)
