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
from tests.tui.looks import EVERY_SIZE, SIZES, Look, Size, at_both_sizes, name_of
from tests.tui.scripted import ScriptedCluster
from tui.app.app import DllmApp
from tui.dialogs.help_and_events import EvidenceDialog
from tui.dialogs.settings import SettingsDialog
from tui.model.events import happening_of
from tui.screens.cluster.launch_dialog import LaunchDialog
from tui.screens.cluster.split_bar import SplitBar
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


async def at_once(pilot: Pilot[None]) -> None:
    pass


def after(*keys: str) -> Any:
    """Press keys once a split is shown."""

    async def press(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press(*keys)
        await pilot.pause()

    return press


@pytest.mark.parametrize("size", EVERY_SIZE, ids=name_of)
def test_serving(look: Look, size: Size) -> None:
    look(None, size, speeds)


@at_both_sizes
def test_starting(look: Look, size: Size) -> None:
    look(scenes.demo_starting(), size)


@at_both_sizes
def test_failed(look: Look, size: Size) -> None:
    look(scenes.demo_failed(), size)


@at_both_sizes
def test_planning(look: Look, size: Size) -> None:
    moved = after("left", "left")
    look(scenes.idle(), size, moved, initial_model=scenes.DEMO.path)


def test_no_model_yet(look: Look) -> None:
    async def arrived(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: cast("DllmApp", pilot.app).editor.snapshot)

    look(scenes.idle(), run=arrived)


def test_before_the_first_snapshot(look: Look) -> None:
    look(ScriptedCluster(None), run=at_once)


def test_too_small(look: Look) -> None:
    look(None, (50, 14), at_once)


@pytest.mark.parametrize("theme", THEMES)
def test_other_themes(look: Look, theme: str) -> None:
    look(None, (100, 30), speeds, theme=theme)


def test_without_colour(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    look(None, (100, 30), speeds)


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
    "jump": ("ctrl+j",),
    "menu": ("shift+tab", "j", "full_stop"),
}
SMALL = {"quit", "stop", "typing", "jump", "menu"}
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
def test_dialogs(look: Look, size: Size, name: str) -> None:
    look(None, size, after(*DIALOGS[name]))


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


def test_evidence(look: Look) -> None:
    async def shown(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.app.push_screen(EvidenceDialog(happening_of(DIED)))
        await pilot.pause()

    look(run=shown)


def test_dragging_past_what_fits(look: Look) -> None:
    async def drag(pilot: Pilot[None]) -> None:
        await speeds(pilot)
        bar = pilot.app.query_one(SplitBar)
        await pilot.mouse_down(bar, offset=(bar.handle_x, 1))
        await pilot.hover(bar, offset=(1, 1))
        await pilot.pause()

    look(None, (120, 36), drag, theme="dllm-dark")


@at_both_sizes
def test_launch_settings(look: Look, size: Size) -> None:
    async def changed(pilot: Pilot[None]) -> None:
        await settled(pilot)
        pilot.app.query_one(SplitPane).focus_default()
        await pilot.press("p")
        await until(pilot, lambda: isinstance(pilot.app.screen, LaunchDialog))
        for name, text in (("slots", "4"), ("extra_args", "--port 9")):
            pilot.app.screen.query_one(f"#{name}", Input).value = text
        await pilot.press("down", "down", "right", "right")
        await pilot.pause()

    look(scenes.demo_serving(), size, changed)


@at_both_sizes
def test_settings(look: Look, size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SettingsFile, "name", "~/.config/dllm-tui/config.toml")

    workers = Config.__struct_fields__.index("workers")

    async def refused(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("comma")
        await until(pilot, lambda: isinstance(pilot.app.screen, SettingsDialog))
        await pilot.press(*["down"] * workers, "enter", *"999", "enter")
        await until(pilot, lambda: "cannot be 999" in screen_text(pilot.app))

    look(None, size, refused, settings=SettingsFile(user_paths()))
