"""The flow of a race: which plans there are, and the race itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from backends.errors import DllmError
from backends.paths import user_paths
from backends.plan_files import KeptPlan, PlanFile, kept_plans
from backends.state import NGRAM_DRAFT, NO_DRAFT, Plan
from backends.state.races import Contestant
from tui.app.console import Flow
from tui.flows.plans import PICK_FIRST
from tui.model.contestants import as_it_is, best_of, saved, with_draft
from tui.model.edit import runs_now, same_plan

LAUNCHES_MAX = 5


class RaceFlow(Flow):
    async def race(self) -> None:
        # Imported when needed: most sessions race nothing.
        from tui.screens.cluster.race_dialog import RaceDialog, RaceSetup

        running, edited = runs_now(self._editor.snapshot), self._editor.plan
        base = running or edited
        if base is None:
            self._app.tell(PICK_FIRST, "warning")
            return
        kept = await asyncio.to_thread(_kept_of, base)
        setup = RaceSetup(tuple(_contestants(base, edited, running, kept)))

        async def add_best() -> None:
            try:
                found = await self._cluster.best(base)
                setup.add((best_of(base, found),))
            except DllmError:
                # There is none beside those in the list.
                return

        self._app.attempt(add_best(), group="race best")
        asked = await self._app.push_screen_wait(setup)
        if asked is not None:
            await self._app.push_screen_wait(RaceDialog(self._cluster, asked))


def _contestants(
    base: Plan, edited: Plan | None, running: Plan | None, kept: list[Contestant]
) -> Iterator[Contestant]:
    if running is not None:
        yield as_it_is(running)
    runs = edited and running and same_plan(edited, running)
    if edited is not None and edited.model == base.model and not runs:
        yield Contestant(name="edit", plan=edited)
    drafts = (NO_DRAFT, NGRAM_DRAFT)
    yield from (with_draft(base, d) for d in drafts if d != base.server.draft)
    yield from kept


def _kept_of(base: Plan) -> list[Contestant]:
    """Other plans of this model: those saved, and the last launches."""
    paths, present = user_paths(), PlanFile.of(base)

    def others(folder: Path) -> list[KeptPlan]:
        kept = kept_plans(folder)
        return [k for k in kept if k.plan.model == base.model and k.plan != present]

    found = others(paths.plans_dir) + others(paths.launches_dir)[:LAUNCHES_MAX]
    return [saved(one.name, one.plan) for one in found]
