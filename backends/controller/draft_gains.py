"""The gains of a plan's drafts, predicted from what is known of its machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

from backends.controller.context import ClusterContext
from backends.controller.memory_usage import machines_now
from backends.controller.speed_book import ground_of
from backends.errors import DllmError
from backends.machines.readers import Readers
from backends.speculation.gain import DraftGain, draft_use, predicted_gain
from backends.split.cost import with_labs, workload
from backends.state import ClusterSpeeds, DraftTrial, ModelInfo, Objective, Plan

log = logging.getLogger(__name__)


async def draft_models(plan: Plan, readers: Readers) -> dict[str, ModelInfo]:
    """The draft models of a plan that can be read, by their files."""
    methods = plan.speculation.methods if plan.speculation else ()
    found = {}
    for path in {method.model for method in methods if method.model}:
        with contextlib.suppress(DllmError):
            found[path] = await readers.model(path)
    return found


def gains(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    models: Mapping[str, ModelInfo],
    trials: Sequence[DraftTrial],
    objective: Objective | None = None,
) -> dict[str, DraftGain]:
    """By draft; one whose model cannot be read is left out."""
    load = workload(plan, objective)
    return {
        method.draft: predicted_gain(
            model,
            plan,
            speeds,
            load,
            method,
            draft_use(method, plan.server.draft_max, trials),
            models.get(method.model),
        )
        for method in (plan.speculation.methods if plan.speculation else ())
        if not method.model or method.model in models
    }


async def gains_now(context: ClusterContext, plan: Plan) -> dict[str, DraftGain]:
    """The same for a plan that is brought up; none if anything is not known."""
    try:
        model = await context.readers.model(plan.model)
        models = await draft_models(plan, context.readers)
        engine = (await context.readers.engine()).info
        machines = await machines_now(context.machines, context.readers)
        ground = ground_of(plan, model, machines, engine)
        links, asked = context.store.snapshot.links, context.links.lab_of
        speeds = await asyncio.to_thread(context.speeds.speeds, ground, links)
        seen = {link.worker: link.lab for link in links}
        speeds = with_labs(speeds, lambda name: seen.get(name, asked(name)))
        trials = context.trials.found_for(model)
        return gains(model, plan, speeds, models, trials)
    except Exception:
        # No prediction is worth stopping a launch.
        log.exception("no draft's gain is predicted")
        return {}
