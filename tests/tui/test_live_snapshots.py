"""What the strip of the Cluster screen looks like."""

from __future__ import annotations

from msgspec.structs import replace
from textual.pilot import Pilot

from backends.state import Acceptance, Speed
from tests.tui.links import BOX, MINI, PLAIN
from tests.tui.looks import Look, Size, at_both_sizes
from tests.tui.test_live_strip import SHARING, serving, serving_many
from tests.tui.test_snapshots import after, speeds

ACCEPTED = Acceptance(drafted=160, accepted=113, passes=20)
DRAFTING = Speed(tok_per_s=61.2, slots=4, speculative=True, acceptance=ACCEPTED)


async def on_live(pilot: Pilot[None]) -> None:
    await speeds(pilot)
    pilot.app._home.go_to("live")  # type: ignore[attr-defined]
    await pilot.pause()


async def zoomed(pilot: Pilot[None]) -> None:
    await on_live(pilot)
    await after("z")(pilot)


@at_both_sizes
def test_seven_workers(look: Look, size: Size) -> None:
    look(serving_many(), size, on_live)


@at_both_sizes
def test_no_relays(look: Look, size: Size) -> None:
    look(serving(), size, on_live)


@at_both_sizes
def test_with_a_draft(look: Look, size: Size) -> None:
    look(serving(*SHARING, speed=DRAFTING), size, on_live)


def test_in_little_room(look: Look) -> None:
    look(serving(MINI, BOX), (60, 18), on_live)


def test_how_data_go(look: Look) -> None:
    links = replace(MINI, way="direct"), replace(BOX, way="tunnel")
    look(serving(*links), (120, 36), on_live)


def test_one_link_nobody_reads(look: Look) -> None:
    look(serving(MINI, PLAIN), run=on_live)


def test_zoomed(look: Look) -> None:
    look(serving_many(), run=zoomed)
