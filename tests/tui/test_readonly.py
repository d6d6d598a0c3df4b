"""A console that only watches: keys that act are neither offered nor do anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.client.client import ControllerClient
from backends.client.http import ASKING, ClientFacts
from backends.controller.lock import lock_holder
from backends.paths import user_paths
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import burst, screen_text, toasts, until
from tui.actions import ACTING, action_of, split_keys
from tui.app.app import DllmApp
from tui.app.console import REFUSED
from tui.dialogs.pick import FinderDialog
from tui.model.files import Remembered, remember
from tui.screens.lab.screen import LabScreen

SIZE = (120, 36)


def acted(app: DllmApp) -> list[str]:
    harmless = {
        *(
            "inspect",
            "propose",
            "memory",
            "catalogue",
            "events",
            "passes",
            "speeds",
            "why",
        ),
        "chat states",
    }
    return [name for name, _ in app.cluster.calls if name not in harmless]  # type: ignore[attr-defined]


async def test_keys_that_act_are_not_offered_and_refused_in_one_sentence(
    started: Started,
) -> None:
    async with started(readonly=True) as (pilot, app, _):
        assert "read-only" in screen_text(app).splitlines()[0]
        await pilot.press("left")
        await until(pilot, lambda: "u undo" in screen_text(app))
        bar = screen_text(app).splitlines()[-1]
        assert "l launch" not in bar
        assert "s stop" not in bar
        assert "u undo" in bar, "a plan may be drawn up"
        for count, key in enumerate("ls", 1):
            await pilot.press(key)
            await until(pilot, lambda: toasts(app) == [REFUSED] * count)  # noqa: B023
            assert len(app.screen_stack) == 1, "nothing is asked first"
        await pilot.press("colon")
        await until(pilot, lambda: isinstance(app.screen, FinderDialog))
        await burst(pilot, *"launch")
        await until(pilot, lambda: "refused: read-only" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: toasts(app) == [REFUSED] * 3)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running or app._exit)
        assert acted(app) == []


async def test_peers_and_links_stay_as_they_are(started: Started) -> None:
    async with started(readonly=True) as (pilot, app, _):
        app._home.go_to("peers")
        await pilot.pause()
        for id_ in sorted(ACTING):
            if id_.startswith("peers."):
                await pilot.press(split_keys(action_of(id_).keys)[0])
        assert len(app.screen_stack) == 1
        await pilot.press("4")
        await until(pilot, lambda: isinstance(app.screen, LabScreen))
        await pilot.pause()
        await pilot.press("w", "right", "c", "A", "C")
        assert acted(app) == []
        assert set(toasts(app)) == {REFUSED}


async def test_others_act_as_before(started: Started) -> None:
    async with started() as (pilot, app, _):
        assert "read-only" not in screen_text(app)
        await pilot.press("left", "l")
        await until(pilot, lambda: "launch" in acted(app) or len(app.screen_stack) > 1)


async def test_where_nothing_runs_it_says_so_and_starts_nothing(
    started: Started, memory_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client: what it starts without ``--readonly`` is a controller."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    remember(memory_file, Remembered(plans={"default": scenes.HOMELAB_PLAN}))
    paths = user_paths()
    token = ASKING.set(ClientFacts(program="console", readonly=True))
    running = started(ControllerClient(paths), readonly=True, wait=False)
    async with running as (pilot, app, _):
        await until(pilot, lambda: toasts(app))
        said = "Nothing is running here, and read-only starts nothing."
        assert toasts(app)[0].startswith(said)
        await until(pilot, lambda: "◌ waiting for a controller" in screen_text(app))
        assert len(toasts(app)) == 1
    ASKING.reset(token)
    assert not paths.runtime_dir.exists()
    assert lock_holder(paths.lock) is None
