"""What the screens look like, at the sizes and in the themes that matter.

Behaviour is tested elsewhere; these notice when something looks different.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.tui import scenes
from tests.tui.helpers import settled, until
from tests.tui.scripted import ScriptedCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from tui.app import DllmApp

    MakeApp = Callable[..., DllmApp]
    Compare = Callable[..., bool]

SIZES = [(60, 18), (80, 24), (120, 36), (160, 48)]
THEMES = ["dllm-dark", "dllm-light"]

RATES = [9.0, 14.2, 18.8, 20.1, 21.3, 21.0, 22.4, None, 12.0, 19.7, 21.9, 21.3]


def name_of(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


async def speeds(pilot: Pilot[None]) -> None:
    """Some history in the graph, then everything at rest."""
    await settled(pilot)
    graph = pilot.app._home.live.graph  # type: ignore[attr-defined]
    for second, rate in enumerate(RATES * 4):
        graph.push(scenes.NOW + 10 + second, rate)
    await pilot.pause()


def after(*keys: str) -> Any:
    """Press keys once a split is shown."""

    async def press(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press(*keys)
        await pilot.pause()

    return press


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_serving(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int], theme: str
) -> None:
    app = make_app(theme=theme)
    assert snap_compare(app, terminal_size=size, run_before=speeds)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_starting(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = make_app(ScriptedCluster(scenes.demo_starting()))
    assert snap_compare(app, terminal_size=size, run_before=settled)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_failed(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = make_app(ScriptedCluster(scenes.demo_failed()), theme="dllm-light")
    assert snap_compare(app, terminal_size=size, run_before=settled)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_planning(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    assert snap_compare(app, terminal_size=size, run_before=after("left", "left"))


def test_no_model_yet(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(ScriptedCluster(scenes.idle()))

    async def arrived(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.desk.snapshot)

    assert snap_compare(app, terminal_size=(80, 24), run_before=arrived)


def test_before_the_first_snapshot(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(ScriptedCluster(None))
    assert snap_compare(app, terminal_size=(80, 24))


def test_too_small(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(), terminal_size=(50, 14))


@pytest.mark.parametrize("theme", ["dllm-ansi", "dllm-colour-blind", "nord"])
def test_other_themes(make_app: MakeApp, snap_compare: Compare, theme: str) -> None:
    app = make_app(theme=theme)
    assert snap_compare(app, terminal_size=(100, 30), run_before=speeds)


def test_without_colour(
    make_app: MakeApp, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(make_app(), terminal_size=(100, 30), run_before=speeds)


@pytest.mark.parametrize(
    "keys",
    [
        ("q",),
        ("s",),
        ("question_mark",),
        ("t",),
        ("z",),
        ("1", "2"),
        ("left", "l"),
    ],
    ids=["quit", "stop", "help", "theme", "zoom", "typing", "relaunch"],
)
def test_dialogs(
    make_app: MakeApp, snap_compare: Compare, keys: tuple[str, ...]
) -> None:
    assert snap_compare(make_app(), terminal_size=(100, 30), run_before=after(*keys))


def test_dragging_past_what_fits(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(theme="dllm-dark")

    async def drag(pilot: Pilot[None]) -> None:
        await speeds(pilot)
        bar = app._home.split.bar
        await pilot.mouse_down(bar, offset=(bar.handle_x, 1))
        await pilot.hover(bar, offset=(1, 1))
        await pilot.pause()

    assert snap_compare(app, terminal_size=(120, 36), run_before=drag)
