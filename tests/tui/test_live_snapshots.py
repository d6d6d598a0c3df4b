"""What the strip of the Cluster screen looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from backends.state import Acceptance, Speed
from tests.tui.links import BOX, MINI, PLAIN
from tests.tui.looks import SIZES, name_of
from tests.tui.scripted import ScriptedCluster
from tests.tui.test_live_strip import SHARING, serving, serving_many
from tests.tui.test_snapshots import after, speeds

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from tui.app.app import DllmApp

    MakeApp = Callable[..., DllmApp]
    Compare = Callable[..., bool]


async def on_live(pilot: Pilot[None]) -> None:
    await speeds(pilot)
    pilot.app._home.go_to("live")  # type: ignore[attr-defined]
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_seven_workers(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = make_app(ScriptedCluster(serving_many()))
    assert snap_compare(app, terminal_size=size, run_before=on_live)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_no_relays(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = make_app(ScriptedCluster(serving()))
    assert snap_compare(app, terminal_size=size, run_before=on_live)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_with_a_draft(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    acceptance = Acceptance(drafted=160, accepted=113, passes=20)
    speed = Speed(tok_per_s=61.2, slots=4, speculative=True, acceptance=acceptance)
    app = make_app(ScriptedCluster(serving(*SHARING, speed=speed)))
    assert snap_compare(app, terminal_size=size, run_before=on_live)


def test_in_little_room(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(ScriptedCluster(serving(MINI, BOX)))
    assert snap_compare(app, terminal_size=(60, 18), run_before=on_live)


def test_how_data_go(make_app: MakeApp, snap_compare: Compare) -> None:
    links = replace(MINI, way="direct"), replace(BOX, way="tunnel")
    app = make_app(ScriptedCluster(serving(*links)))
    assert snap_compare(app, terminal_size=(120, 36), run_before=on_live)


def test_one_link_nobody_reads(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(ScriptedCluster(serving(MINI, PLAIN)))
    assert snap_compare(app, terminal_size=(80, 24), run_before=on_live)


def test_zoomed(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(ScriptedCluster(serving_many()))

    async def zoom(pilot: Pilot[None]) -> None:
        await on_live(pilot)
        await after("z")(pilot)

    assert snap_compare(app, terminal_size=(80, 24), run_before=zoom)
