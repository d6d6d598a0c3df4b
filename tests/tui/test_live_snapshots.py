"""What the strip of the Cluster screen looks like."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from backends.state import Acceptance, ClusterSnapshot, Speed
from tests.tui.links import BOX, MINI, PLAIN
from tests.tui.looks import SIZES, Compare, MakeApp, name_of
from tests.tui.scripted import ScriptedCluster
from tests.tui.test_live_strip import SHARING, serving, serving_many
from tests.tui.test_snapshots import after, speeds

ACCEPTED = Acceptance(drafted=160, accepted=113, passes=20)
DRAFTING = Speed(tok_per_s=61.2, slots=4, speculative=True, acceptance=ACCEPTED)


@pytest.fixture
def looks_the_same(make_app: MakeApp, snap_compare: Compare) -> Compare:
    def compare(scene: ClusterSnapshot, size: tuple[int, int], *keys: str) -> bool:
        async def on_live(pilot: Pilot[None]) -> None:
            await speeds(pilot)
            pilot.app._home.go_to("live")  # type: ignore[attr-defined]
            await pilot.pause()
            if keys:
                await after(*keys)(pilot)

        app = make_app(ScriptedCluster(scene))
        return snap_compare(app, terminal_size=size, run_before=on_live)

    return compare


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_seven_workers(looks_the_same: Compare, size: tuple[int, int]) -> None:
    assert looks_the_same(serving_many(), size)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_no_relays(looks_the_same: Compare, size: tuple[int, int]) -> None:
    assert looks_the_same(serving(), size)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_with_a_draft(looks_the_same: Compare, size: tuple[int, int]) -> None:
    assert looks_the_same(serving(*SHARING, speed=DRAFTING), size)


def test_in_little_room(looks_the_same: Compare) -> None:
    assert looks_the_same(serving(MINI, BOX), (60, 18))


def test_how_data_go(looks_the_same: Compare) -> None:
    links = replace(MINI, way="direct"), replace(BOX, way="tunnel")
    assert looks_the_same(serving(*links), (120, 36))


def test_one_link_nobody_reads(looks_the_same: Compare) -> None:
    assert looks_the_same(serving(MINI, PLAIN), (80, 24))


def test_zoomed(looks_the_same: Compare) -> None:
    assert looks_the_same(serving_many(), (80, 24), "z")
