"""Every console test runs on its own: no user files, fixed zone, steady cursors."""

from __future__ import annotations

import os

# Read when textual is imported.
os.environ["TEXTUAL_ANIMATIONS"] = "none"

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from textual.app import App
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, TextArea

from backends.state import ClusterSnapshot
from tests.kit.console import Started, starting
from tests.tui import drawing, scenes
from tests.tui.helpers import settled
from tests.tui.parsing import parse_once
from tests.tui.scripted import ScriptedCluster
from tests.tui.snapshot_sizes import MakeApp, Size
from tui.app import console
from tui.app.app import DllmApp
from tui.flows import background_queries


@pytest.fixture(autouse=True)
def _isolated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Temporary XDG directories, fixed time zone, plain terminal, steady cursors."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("NO_MOTION", "1")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr(Input.cursor_blink, "_default", False)
    monkeypatch.setattr(TextArea.cursor_blink, "_default", False)
    monkeypatch.setattr(Stylesheet, "_parse_rules", parse_once)
    # The same hash, not computed in Python: each style looks up hundreds of rules.
    monkeypatch.setattr(RuleSet, "__hash__", object.__hash__)
    if not request.node.get_closest_marker("frames"):
        monkeypatch.setattr(Screen, "_compositor_refresh", drawing.draw_later)
        monkeypatch.setattr(Pilot, "pause", drawing.pause_and_draw)
    monkeypatch.setattr(Pilot, "_wait_for_screen", drawing.wait_for_busy)
    for module in ("textual.app", "textual.pilot"):
        monkeypatch.setattr(f"{module}.wait_for_idle", drawing.wait_for_idle)
    # A toast of four seconds may be gone before a busy machine has looked for it.
    monkeypatch.setattr(console, "TOAST_S", dict.fromkeys(console.TOAST_S, 3600.0))
    # A plan settles when a test says so: pictures must not depend on its pace.
    monkeypatch.setattr(background_queries, "SETTLE_S", 3600.0)
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def memory_file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "console.json"


@pytest.fixture
def started(memory_file: Path) -> Started:
    return starting(memory_file)


@pytest.fixture
def make_app(memory_file: Path) -> Callable[..., DllmApp]:
    """A console on a scripted cluster, by default the serving homelab."""

    def make(
        cluster: ScriptedCluster | ClusterSnapshot | None = None, **options: object
    ) -> DllmApp:
        if cluster is None or isinstance(cluster, ClusterSnapshot):
            cluster = ScriptedCluster(cluster or scenes.homelab_serving())
        settings = {"memory_file": memory_file, "clock": lambda: scenes.NOW} | options
        return DllmApp(cluster, **settings)  # type: ignore[arg-type]

    return make


@pytest.fixture
def look(make_app: MakeApp, snap_compare: Callable[..., bool]) -> Callable[..., None]:
    """Asserts that an app looks as it did, once ``run`` has led it somewhere."""

    def see(
        shown: ScriptedCluster | ClusterSnapshot | App[None] | None = None,
        size: Size = (80, 24),
        run: Callable[[Pilot[None]], Awaitable[None]] = settled,
        **options: object,
    ) -> None:
        app = shown if isinstance(shown, App) else make_app(shown, **options)
        assert snap_compare(app, terminal_size=size, run_before=run)

    return see
