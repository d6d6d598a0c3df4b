"""The sweep in the Lab: its curve and words, and a sweep from its key to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from tests.kit.console import Started
from tests.tui.helpers import screen_text, until
from tests.tui.looks import Look, Size
from tests.tui.scripted import ScriptedCluster
from tests.tui.test_lab_screen import serving
from tests.unit.bench.test_sweep_report import POINTS, SWEEP
from tui.app.app import DllmApp
from tui.dialogs.dialog import ChoiceDialog
from tui.screens.lab.screen import LabScreen
from tui.screens.lab.sweep import curve_at, progress_text, save_sweep


def test_progress_tells_the_step_and_what_is_expected() -> None:
    assert progress_text(replace(SWEEP, measuring=2)) == (
        "step 3 of 3: +50 ms, predicted ~8.0 tok/s; measured before 16.0"
    )


@pytest.mark.parametrize(
    ("latency_ms", "expected"),
    [(0, (30, 40, 50)), (12.5, (19.5, 26, 32.5)), (50, (6, 8, 10))],
)
def test_the_curve_is_straight_between_steps(
    latency_ms: float, expected: tuple[float, float, float]
) -> None:
    assert curve_at(POINTS, latency_ms) == pytest.approx(expected)


async def test_a_sweep_is_saved_as_picture_and_values(tmp_path: Path) -> None:
    picture, values = await save_sweep(SWEEP, tmp_path)
    assert picture.read_text().startswith("<svg")
    assert values.read_text().count("\n") == 1 + len(POINTS)


async def begin(pilot: Pilot[None]) -> None:
    await pilot.press("f4")
    await until(pilot, lambda: isinstance(pilot.app.screen, LabScreen))
    await pilot.press("s")
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog))
    await pilot.press("a")


@asynccontextmanager
async def sweeping(
    started: Started, cluster: ScriptedCluster
) -> AsyncIterator[tuple[Pilot[None], DllmApp]]:
    async with started(cluster, size=(120, 36)) as (pilot, app, _):
        await begin(pilot)
        yield pilot, app


async def test_escape_ends_a_sweep_and_then_closes_its_result(
    started: Started,
) -> None:
    cluster = ScriptedCluster(serving())
    cluster.gate.clear()
    async with sweeping(started, cluster) as (pilot, app):
        await until(pilot, lambda: "step 2 of 11" in screen_text(app))
        assert cluster.called("sweep")[0].worker is None
        screen = app.screen
        assert isinstance(screen, LabScreen)
        await pilot.press("z")
        await until(pilot, lambda: screen.zooms)
        await pilot.press("escape")
        assert not screen.zooms
        assert not cluster.called("sweep closed")
        await pilot.press("escape")
        await until(pilot, lambda: cluster.called("sweep closed"))
        await until(pilot, lambda: "1 of 1 steps within" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: "Sweep of" not in screen_text(app))
        assert isinstance(app.screen, LabScreen)


@pytest.mark.parametrize("size", [(120, 36)], ids=["120x36"])
def test_look_of_a_sweep(look: Look, size: Size) -> None:
    async def swept(pilot: Pilot[None]) -> None:
        await begin(pilot)
        await until(pilot, lambda: "of 11 steps within" in screen_text(pilot.app))

    look(ScriptedCluster(serving()), size, swept)
