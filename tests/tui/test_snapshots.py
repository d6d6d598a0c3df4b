"""What the screens look like, at the sizes and in the themes that matter.

Behaviour is tested elsewhere; these notice when something looks different.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from backends.config import Config, SettingsFile
from backends.paths import user_paths
from backends.state import Event, EventKind, EventTone
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.looks import EVERY_SIZE, SIZES, Compare, MakeApp, name_of
from tests.tui.scripted import ScriptedCluster
from tui.app.app import DllmApp
from tui.dialogs.help_and_events import EvidenceDialog
from tui.dialogs.settings import SettingsDialog
from tui.model.events import happening_of
from tui.screens.cluster.launch_dialog import LaunchDialog
from tui.screens.cluster.split_pane import SplitPane

THEMES = ["dllm-light", "dllm-ansi", "dllm-colour-blind", "nord"]
RATES = [9.0, 14.2, 18.8, 20.1, 21.3, 21.0, 22.4, None, 12.0, 19.7, 21.9, 21.3]


async def speeds(pilot: Pilot[None]) -> None:
    """Some history in the graph, then everything at rest."""
    await settled(pilot)
    app = cast("DllmApp", pilot.app)
    for second, rate in enumerate(RATES * 4):
        app.editor.trends.rates.push(scenes.NOW + 10 + second, rate)
    app._show()
    await pilot.pause()


def after(*keys: str) -> Any:
    """Press keys once a split is shown."""

    async def press(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press(*keys)
        await pilot.pause()

    return press


@pytest.mark.parametrize("size", EVERY_SIZE, ids=name_of)
def test_serving(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = make_app()
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
    app = make_app(ScriptedCluster(scenes.demo_failed()))
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
        await until(pilot, lambda: app.editor.snapshot)

    assert snap_compare(app, terminal_size=(80, 24), run_before=arrived)


def test_before_the_first_snapshot(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(ScriptedCluster(None))
    assert snap_compare(app, terminal_size=(80, 24))


def test_too_small(make_app: MakeApp, snap_compare: Compare) -> None:
    assert snap_compare(make_app(), terminal_size=(50, 14))


@pytest.mark.parametrize("theme", THEMES)
def test_other_themes(make_app: MakeApp, snap_compare: Compare, theme: str) -> None:
    app = make_app(theme=theme)
    assert snap_compare(app, terminal_size=(100, 30), run_before=speeds)


def test_without_colour(
    make_app: MakeApp, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(make_app(), terminal_size=(100, 30), run_before=speeds)


DIALOGS = {
    "quit": ("q",),
    "stop": ("s",),
    "help": ("question_mark",),
    "theme": ("t",),
    "zoom": ("z",),
    "typing": ("1", "2"),
    "relaunch": ("left", "l"),
    "find": ("colon", "s", "p", "l", "i", "t"),
    "events": ("e",),
}
SMALL = {"quit", "stop", "typing"}
"""As at another size, or as another of them: kept at one size."""


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (size, name)
        for size in SIZES
        for name in DIALOGS
        if size == SIZES[0] or name not in SMALL
    ],
    ids=lambda value: value if isinstance(value, str) else name_of(value),
)
def test_dialogs(
    make_app: MakeApp,
    snap_compare: Compare,
    size: tuple[int, int],
    name: str,
) -> None:
    keys = after(*DIALOGS[name])
    assert snap_compare(make_app(), terminal_size=size, run_before=keys)


DIED = Event(
    number=7,
    at=datetime(2026, 8, 1, 12, 30, tzinfo=UTC),
    kind=EventKind.DIED,
    text="worker1 was killed (SIGKILL)",
    tone=EventTone.ERROR,
    cluster="default",
    peer="mini",
    process="worker1",
    exit_signal=9,
    hint="It ran out of memory: give it fewer layers.",
    evidence=(
        "Starting RPC server v7.0.0",
        "  endpoint       : 127.0.0.1:50052",
        "Accepted client connection",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate 4.2 GiB",
    ),
)


def test_evidence(make_app: MakeApp, snap_compare: Compare) -> None:
    async def shown(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.app.push_screen(EvidenceDialog(happening_of(DIED)))
        await pilot.pause()

    assert snap_compare(make_app(), terminal_size=SIZES[0], run_before=shown)


def test_dragging_past_what_fits(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(theme="dllm-dark")

    async def drag(pilot: Pilot[None]) -> None:
        await speeds(pilot)
        bar = app._home.split.bar
        await pilot.mouse_down(bar, offset=(bar.handle_x, 1))
        await pilot.hover(bar, offset=(1, 1))
        await pilot.pause()

    assert snap_compare(app, terminal_size=(120, 36), run_before=drag)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_launch_settings(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    async def changed(pilot: Pilot[None]) -> None:
        await settled(pilot)
        pilot.app.query_one(SplitPane).focus_default()
        await pilot.press("p")
        await until(pilot, lambda: isinstance(pilot.app.screen, LaunchDialog))
        for name, text in (("slots", "4"), ("extra_args", "--port 9")):
            pilot.app.screen.query_one(f"#{name}", Input).value = text
        await pilot.press("down", "down", "right", "right")
        await pilot.pause()

    app = make_app(ScriptedCluster(scenes.demo_serving()))
    assert snap_compare(app, terminal_size=size, run_before=changed)


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_settings(
    make_app: MakeApp,
    snap_compare: Compare,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SettingsFile, "name", "~/.config/dllm-tui/config.toml")

    workers = Config.__struct_fields__.index("workers")

    async def refused(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("comma")
        await until(pilot, lambda: isinstance(pilot.app.screen, SettingsDialog))
        await pilot.press(*["down"] * workers, "enter", *"999", "enter")
        await until(pilot, lambda: "cannot be 999" in screen_text(pilot.app))

    app = make_app(settings=SettingsFile(user_paths()))
    assert snap_compare(app, terminal_size=size, run_before=refused)
