"""The plans of a race: what serves, the best, another split or draft, a saved plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from backends.errors import PlanError
from backends.paths import Paths
from backends.plan_files import KeptPlan, PlanFile, kept_plans
from backends.split.flags import parse_split
from backends.split.layout import counted_text, devices, is_head_cpu, make_split
from backends.state import (
    AIMS,
    NGRAM_DRAFT,
    NO_DRAFT,
    Alternative,
    Objective,
    Plan,
)
from backends.state.races import Contestant, RaceSide
from tui.model.best_choices import AS_IT_IS, choices_of
from tui.model.edit import same_plan
from tui.model.names import model_name

NOW, BEST = "now", "best"
LAUNCHES_MAX = 5
"""Of the last launches, offered beside the saved plans."""


def as_it_is(plan: Plan) -> Contestant:
    return Contestant(name=NOW, plan=plan)


def best_of(plan: Plan, found: Sequence[Alternative]) -> Contestant:
    """The plan predicted to answer fastest.

    Raises:
        PlanError: that is the plan itself, or needs what is not there.
    """
    aim = AIMS[Objective.DECODE]
    choice = next((one for one in choices_of(plan, found) if aim in one.names), None)
    if choice is not None and AS_IT_IS in choice.names:
        raise PlanError(
            "The plan is predicted to be the best already",
            "Race it against another one: --split, --draft or --plan.",
        )
    if choice is None or choice.plan is None:
        raise PlanError("No best plan is known", "Name one: --split or --plan.")
    return Contestant(name=BEST, plan=choice.plan)


def with_draft(plan: Plan, draft: str) -> Contestant:
    """The plan with another speculation method; its details are found anew."""
    server = replace(plan.server, draft=draft)
    asked = plan.asked and replace(plan.asked, server=server)
    name = "no draft" if draft == NO_DRAFT else f"draft {draft_word(draft)}"
    other = replace(plan, server=server, speculation=None, asked=asked)
    return Contestant(name=name, plan=other)


def draft_word(draft: str) -> str:
    return draft if draft == NGRAM_DRAFT else model_name(draft)


def with_split(plan: Plan, typed: str) -> Contestant:
    """The plan with other layers, written as ``up --split`` takes them."""
    found = parse_split(typed)
    if isinstance(found, dict):
        asked = replace(PlanFile.of(plan), split=found).ask()
        return Contestant(name=typed, ask=asked)
    names = devices(plan.split)
    # The head's CPU may be left out, as in ``up``.
    lead = [n for n in names[:1] if is_head_cpu(n, plan.head)]
    if lead and len(found) == len(names) - 1:
        found = (0, *found)
    split = make_split(plan.split.n_layer, names, found, typed=typed)
    return Contestant(name=typed, plan=replace(plan, split=split))


def saved(name: str, plan: PlanFile) -> Contestant:
    return Contestant(name=name, ask=plan.ask())


def side_title(name: str, side: RaceSide) -> str:
    """``B · evening: studio/MTL0 38 | mini/MTL0 10``, once its plan is known."""
    layers = f": {counted_text(side.plan.split)}" if side.plan else ""
    return f"{name} · {side.name}{layers}"


def offered(
    base: Plan, edited: Plan | None, running: Plan | None
) -> Iterator[Contestant]:
    """Yield what runs, the edit if it differs, and the base with other drafts."""
    if running is not None:
        yield as_it_is(running)
    runs = edited and running and same_plan(edited, running)
    if edited is not None and edited.model == base.model and not runs:
        yield Contestant(name="edit", plan=edited)
    drafts = (NO_DRAFT, NGRAM_DRAFT)
    yield from (with_draft(base, d) for d in drafts if d != base.server.draft)


def kept_of(base: Plan, paths: Paths) -> list[Contestant]:
    """Other plans of this model: those saved, and the last launches."""
    present = PlanFile.of(base)

    def others(folder: Path) -> list[KeptPlan]:
        kept = kept_plans(folder)
        return [k for k in kept if k.plan.model == base.model and k.plan != present]

    found = others(paths.plans_dir) + others(paths.launches_dir)[:LAUNCHES_MAX]
    return [saved(one.name, one.plan) for one in found]
