"""Plans saved by name, and the last launches, in the console."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any

from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from backends.paths import user_paths
from backends.plan_files import PlanFile, kept_plans, save_plan
from backends.split.layout import with_counts
from backends.state import Ask, Plan
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, toasts, until
from tests.tui.snapshot_sizes import Look
from tui.dialogs.dialog import ChoiceDialog, LineDialog
from tui.dialogs.pick import PlansDialog

PLAN = scenes.HOMELAB_PLAN
OTHER = replace(PLAN, split=with_counts(PLAN.split, (20, 10, 18)), ctx_size=4096)


def keep(model: str = OTHER.model) -> None:
    """A saved plan, and a launch."""
    paths = user_paths()
    at = scenes.NOW - 7200
    saved = save_plan(
        paths.plans_dir, "evening", replace(PlanFile.of(OTHER), model=model)
    )
    launch = save_plan(paths.launches_dir, "20261126-1", PlanFile.of(PLAN))
    os.utime(saved, (at, at))
    os.utime(launch, (at, at))


async def test_a_plan_is_saved_by_a_name(started: Started) -> None:
    async with started() as (pilot, app, _):
        app._home.split.bar.focus()
        await pilot.press("o")
        await until(pilot, lambda: "No plan is kept yet." in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.is_modal)
        await pilot.press("S")
        await until(pilot, lambda: isinstance(app.screen, LineDialog))
        app.screen.query_one(Input).value = "evening"
        await pilot.press("enter")
        await until(pilot, lambda: any("Saved" in toast for toast in toasts(app)))
        (kept,) = kept_plans(user_paths().plans_dir)
        assert (kept.name, kept.plan) == ("evening", PlanFile.of(PLAN))
        await pilot.press("S")
        await until(pilot, lambda: isinstance(app.screen, LineDialog))
        app.screen.query_one(Input).value = "evening"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        assert "There is a plan evening already" in screen_text(app)


async def test_a_kept_plan_becomes_the_candidate(started: Started) -> None:
    # Another person shared it, who has the model elsewhere.
    keep(f"/elsewhere/{PurePath(OTHER.model).name}")
    async with started() as (pilot, app, cluster):
        asked: list[Ask] = []

        async def propose(ask: Ask) -> Plan:
            asked.append(ask)
            return OTHER

        cluster.propose = propose  # type: ignore[method-assign]
        app._home.split.bar.focus()
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, PlansDialog))
        assert "/elsewhere/" in screen_text(app)
        await pilot.press("down")
        await until(pilot, lambda: "as the plan in the Split" in screen_text(app))
        await pilot.press(*"even", "enter")
        await until(pilot, lambda: app.editor.plan == OTHER)
        assert asked == [PlanFile.of(OTHER).ask()]
        assert not cluster.called("launch")
        app._home.split.bar.focus()
        await pilot.press("u")
        await until(pilot, lambda: app.editor.plan == PLAN)


async def test_a_kept_plan_keeps_its_own_file(started: Started) -> None:
    """Though another of that name is among the models."""
    own = f"/own/{PurePath(OTHER.model).name}"
    keep(own)
    async with started() as (pilot, app, cluster):
        cluster.models[own] = replace(cluster.models[OTHER.model], path=own)
        chosen, model = await app._flows._with_model(
            replace(PlanFile.of(OTHER), model=own)
        )
        assert (chosen.model, model.path) == (own, own)
        await pilot.pause()


def test_the_list_of_kept_plans(look: Look) -> None:
    keep()

    async def listed(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await until(pilot, lambda: app.editor.edit)
        app._home.split.bar.focus()
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, PlansDialog))
        await pilot.pause()

    look(run=listed)
