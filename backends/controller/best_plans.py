"""Best plans for an aim, longest contexts, and the predicted speed of any plan.

All of it is reckoned beside the event loop. Several heads are compared where several
machines have the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from backends.controller.drafting import gains
from backends.errors import PlanError
from backends.planning.layer_allocation import allocate_layers
from backends.server_settings import CTX_MIN, moving, without_tensor
from backends.speculation.auto import with_draft_text
from backends.speculation.gain import likely, predicted_text
from backends.split.cost import counted_work, forecast, time_text, workload
from backends.split.device_memory import CTX_STEP, longest, overcommitted, plan_loads
from backends.split.layout import ranges, ranges_text
from backends.state import (
    AUTO_DRAFT,
    Alternative,
    Ask,
    ClusterSpeeds,
    Device,
    DraftTrial,
    Fit,
    Forecast,
    MemorySource,
    ModelInfo,
    Objective,
    Plan,
    PlanMemory,
    Split,
)
from backends.units import format_factor

if TYPE_CHECKING:
    from backends.split.objectives import Best
    from backends.split.problem import PartsPlan, SplitProblem


IN_PART = "Not every set of devices was tried: there are too many."
HEADS_MAX = 2
"""Heads that are searched in full; of more, those that a quick search finds best."""
HEADS_BEAM = 8
"""Sets of devices followed at a time for each of them."""
QUICK_BEAM = 16
"""The same for each plan that one is compared with."""
_FASTEST = (Objective.DECODE, Objective.THROUGHPUT)
"""Aims for which parts of layers elsewhere may be better than whole layers."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A plan whose split is open, with all that the choice depends on."""

    plan: Plan
    model: ModelInfo
    devices: Sequence[Device]
    speeds: ClusterSpeeds
    pins: tuple[str, ...] = ()
    draft_models: Mapping[str, ModelInfo] = dataclasses.field(default_factory=dict)
    """By their files."""
    trials: Sequence[DraftTrial] = ()
    """Measurements with drafts of this model, newest first."""


class BestPlan(NamedTuple):
    """The best plan of some options."""

    plan: Plan
    exact: bool = True
    """False if not every set of devices was tried."""
    heads: tuple[Alternative, ...] = ()
    """The best whole layers with each head, if several were compared."""
    searched: _Head | None = None
    """All that was found with its head; None if the plan was given."""


class Told(NamedTuple):
    """The prediction of a plan, with its reasons."""

    forecast: Forecast
    why: str
    alternatives: tuple[Alternative, ...]
    undrafted: Forecast | None = None
    """Without its draft, if it has one."""


def in_layers(plan: Plan) -> Plan:
    """The plan with whole layers, whatever part of a layer it has elsewhere."""
    words = without_tensor(plan.extra_args)
    return replace(plan, extra_args=words, experts=())


def require_open(ask: Ask, model: ModelInfo) -> None:
    if ask.objective is None:
        if ask.pins:
            raise PlanError("Pins are conditions for a best split", "Add --best.")
        return
    if ask.split is not None or ask.counts is not None:
        raise PlanError(
            "The split is given, so there is no best one to look for",
            "Leave out --split or --best.",
        )
    if moved := moving(ask.extra_args):
        raise PlanError(
            f"{moved[0]} says where tensors go, so there is no best split to look for",
            f"Leave out {moved[0]} or --best.",
        )
    if model.sparse is not None:
        raise PlanError(
            "The model's file is sparse: its layers stay where they are",
            "Leave out --best.",
        )


def require_kept(option: Option) -> None:
    """Refuse a split that was not searched and breaks a pin of the cluster file."""
    if option.pins:
        from backends.split.problem import check_kept, parse_pins

        check_kept(parse_pins(option.pins), option.plan.split)


async def best_plan(options: Sequence[Option], objective: Objective) -> BestPlan:
    """The plan that is best for an aim; each option has another head."""
    return await asyncio.to_thread(_best_plan, options, objective)


def _best_plan(options: Sequence[Option], objective: Objective) -> BestPlan:
    rows: dict[str, Alternative] = {}
    dropped: list[_Head] = []
    if len(options) > HEADS_MAX:
        quick = _by_rank(options, objective, HEADS_BEAM)
        rows = {one.option.plan.head: one.row() for one in quick}
        dropped = quick[HEADS_MAX:]
        options = [one.option for one in quick[:HEADS_MAX]]
    searched = _by_rank(options, objective)
    if objective in _FASTEST:
        # Parts of layers are tried with the best head alone, or where no whole ones
        # fit.
        end = 1 if searched[0].best else None
        searched[:end] = [
            one._replace(parts=_parts(one.problem, one.best)) for one in searched[:end]
        ]
    found = [(one.rank, one.plan, one) for one in searched if one.best is not None]
    found += [
        (_rank(part.forecast, part.plan, objective), part.plan, one)
        for one in searched
        for part in (one.parts or {}).values()
        if part.plan is not None and part.forecast is not None
    ]
    if not found:
        raise searched[0].refused or PlanError("No split of these devices fits")
    _, plan, head = min(found, key=lambda one: one[0])
    rows.update((one.option.plan.head, one.row()) for one in searched)
    return BestPlan(
        plan=plan,
        exact=all(one.best.exact for one in (*searched, *dropped) if one.best),
        heads=tuple(rows.values()) if len(rows) > 1 else (),
        searched=head,
    )


class _Head(NamedTuple):
    """The best split of whole layers with a head, or why there is none."""

    option: Option
    problem: SplitProblem
    rank: tuple[float, float]
    best: Best | None
    refused: PlanError | None
    parts: Mapping[str, PartsPlan] | None = None
    """Plans with parts of layers elsewhere, by their names; None: not searched."""

    @property
    def plan(self) -> Plan:
        best, plan = self.best, self.option.plan
        return replace(plan, split=best.split, ctx_size=best.ctx_size) if best else plan

    def row(self) -> Alternative:
        from backends.split.objectives import alternative

        head, why = self.option.plan.head, self.refused.what if self.refused else ""
        name = f"{head} as the head"
        if self.best is None:
            return Alternative(name=name, head=head, why=why)
        return alternative(name, self.problem, self.best)


def _by_rank(
    options: Sequence[Option], objective: Objective, beam: int | None = None
) -> list[_Head]:
    # Imported here because numpy, which it needs, is no matter of starting up.
    from backends.split.objectives import best_split

    heads = []
    for option in options:
        problem = _problem(option, objective)
        best, refused, rank = None, None, (math.inf, 0.0)
        try:
            tried = problem if beam is None else problem._replace(beam=beam)
            best = best_split(tried, objective)
            at_best = replace(option.plan, ctx_size=best.ctx_size)
            rank = _rank(best.forecast, at_best, objective)
        except PlanError as error:
            refused = error
        heads.append(_Head(option, problem, rank, best, refused))
    return sorted(heads, key=lambda one: one.rank)


def _parts(problem: SplitProblem, best: Best | None) -> dict[str, PartsPlan]:
    """Plans with parts of layers elsewhere, or why there are none."""
    from backends.split import moved_experts
    from backends.split.problem import check_pins
    from backends.split.tensor_parallel import NAME, by_tensor

    found: dict[str, PartsPlan] = {}
    with contextlib.suppress(PlanError):
        check_pins(problem.pins, problem)
        if best is not None:
            found[NAME] = by_tensor(problem, best.forecast)
        if any(layer.groups.experts for layer in problem.model.layers):
            whole = best and (best.split, best.forecast)
            found[moved_experts.NAME] = moved_experts.moved_experts(problem, whole)
    return found


def _rank(told: Forecast, plan: Plan, objective: Objective) -> tuple[float, float]:
    """The aim's own figure, and the speed where heads are alike in that."""
    own = {
        Objective.FIRST_TOKEN: told.first_token_s,
        Objective.NETWORK: told.bytes_per_token,
        Objective.CONTEXT: -plan.ctx_size,
    }
    return own.get(objective, 0.0), -told.tok_per_s


def _problem(option: Option, objective: Objective | None) -> SplitProblem:
    from backends.split.problem import SplitProblem, parse_pins

    return SplitProblem(
        model=option.model,
        plan=option.plan,
        devices=option.devices,
        speeds=option.speeds,
        pins=parse_pins(option.pins),
        load=workload(option.plan, objective),
        works=counted_work(option.model, option.plan),
        known=cache(lambda: (_by_memory(option),)),
    )


def _by_memory(option: Option) -> Split:
    plan = option.plan
    return allocate_layers(
        option.model, option.devices, plan.ctx_size, head=plan.head, server=plan.server
    )


async def told_of(
    option: Option,
    objective: Objective | None,
    found: BestPlan | None = None,
    *,
    explain: bool = False,
) -> Told:
    """The predicted speed of a plan as it is; ``explain`` compares it with others.

    ``found`` is the search that the plan is from.
    """
    searched = found.searched if found else None
    work = partial(_explained, searched=searched) if explain else _predicted
    told = await asyncio.to_thread(_drafted, option, objective, work)
    if explain and found:
        others = (one for one in found.heads if one.head != option.plan.head)
        told = told._replace(alternatives=(*told.alternatives, *others))
    if found is None or found.exact or IN_PART in told.why:
        return told
    return told._replace(why=f"{told.why} {IN_PART}")


async def heads_of(
    options: Sequence[Option], objective: Objective | None
) -> tuple[Alternative, ...]:
    """The best whole layers with each head, found by a quick search."""
    aim = objective or Objective.DECODE
    found = await asyncio.to_thread(_by_rank, options, aim, HEADS_BEAM)
    return tuple(one.row() for one in found)


def _drafted(
    option: Option,
    objective: Objective | None,
    work: Callable[[Option, Objective | None], Told],
) -> Told:
    """The same with its draft; ``auto`` is told with the one that it begins with."""
    told, plan = work(option, objective), option.plan
    found = gains(
        *(option.model, plan, option.speeds, option.draft_models, option.trials),
        objective,
    )
    is_auto = plan.server.draft == AUTO_DRAFT
    draft = likely(found.values()) if is_auto else plan.server.draft
    if draft in found:
        gain = found[draft]
        with_what = f"{with_draft_text(draft)}, " if is_auto else ""
        text = f"{told.why} The draft: {with_what}{predicted_text(gain)}."
        if told.alternatives:
            text += " Other plans are told without it."
        return told._replace(
            forecast=gain.forecast, undrafted=told.forecast, why=text.strip()
        )
    if found:
        text = f"{told.why} The draft: auto begins without one, as none surely gains."
        return told._replace(why=text.strip())
    return told


def _predicted(option: Option, objective: Objective | None) -> Told:
    told = forecast(
        option.model, option.plan, option.speeds, workload(option.plan, objective)
    )
    return Told(told, time_text(told), ())


def _explained(
    option: Option, objective: Objective | None, searched: _Head | None = None
) -> Told:
    from backends.split.objectives import why_best

    plan = option.plan
    told = _problem(option, objective).forecast()
    # What else could be is told of whole layers.
    whole = dataclasses.replace(option, plan=in_layers(plan))
    aim = objective or Objective.DECODE
    head = searched or _by_rank([whole], aim)[0]
    problem, best = _problem(whole, objective), head.best
    (by_memory,) = problem.known()
    text = why_best(told, problem.with_split(by_memory).forecast())
    found = _parts(problem, best) if head.parts is None else head.parts
    parts = _told_parts(problem, found)
    if best is None:
        why = head.refused.what if head.refused else ""
        return Told(told, f"{text} {why}.", parts)
    if not best.exact:
        text += f" {IN_PART}"
    is_better = not plan.experts or best.forecast.tok_per_s > told.tok_per_s
    if objective is None and best.split != plan.split and is_better:
        gain = format_factor(best.forecast.tok_per_s / told.tok_per_s)
        split = ranges_text(ranges(best.split))
        text += f" The best split is {split}, {gain} as fast (--best)."
    return Told(told, text, _others(problem, aim, best, parts))


def _told_parts(
    problem: SplitProblem, found: Mapping[str, PartsPlan]
) -> tuple[Alternative, ...]:
    from backends.split.objectives import in_parts

    return tuple(in_parts(name, problem, part) for name, part in found.items())


def _others(
    problem: SplitProblem, aim: Objective, best: Best, parts: Sequence[Alternative]
) -> tuple[Alternative, ...]:
    from backends.split.objectives import alternatives
    from backends.split.pareto import identity, pareto_front

    # Of very many devices the comparisons are looked at less closely than the plan.
    quick = problem._replace(beam=QUICK_BEAM)
    others = (*alternatives(quick, aim), *parts)
    known = {identity(one) for one in others}
    front = pareto_front(quick, {aim: best}, parts)
    return (*others, *(one for one in front if identity(one) not in known))


async def best_plans(option: Option) -> tuple[Alternative, ...]:
    """A plan as it is, the Pareto front of its devices, and what else could be."""
    return await asyncio.to_thread(_best_plans, option)


def _best_plans(option: Option) -> tuple[Alternative, ...]:
    from backends.split.objectives import Best, alternative, alternatives, best_split
    from backends.split.pareto import aims_of, identity, pareto_front
    from backends.split.problem import check_pins

    now, plan = _problem(option, None), option.plan
    present = Best(plan.split, plan.ctx_size, now.forecast(), exact=True)
    problem = now._replace(plan=in_layers(plan))
    check_pins(problem.pins, problem)
    bests: dict[Objective, Best] = {}
    refused: list[PlanError] = []
    for aim in aims_of(plan):
        try:
            bests[aim] = best_split(problem, aim)
        except PlanError as error:
            refused.append(error)
    best = bests.get(Objective.DECODE)
    parts = _told_parts(problem, _parts(problem, best))
    if not bests and not any(one.forecast for one in parts):
        raise refused[0]
    quick = problem._replace(beam=QUICK_BEAM)
    front = pareto_front(quick, bests, parts)
    if best is not None:
        others = alternatives(quick.with_split(best.split), Objective.DECODE)
    else:
        why = refused[0].what
        others = (Alternative(name="whole layers", head=plan.head, why=why),)
    known = {identity(one) for one in front}
    return (
        alternative("as it is", now, present),
        *front,
        *(
            one
            for one in (*others, *parts)
            if not one.counts or identity(one) not in known
        ),
    )


ASKS_MAX = 6
"""Questions to llama.cpp for one model; each takes some tenths of a second."""


async def longest_fit(
    made: Callable[[int], Plan],
    most: int,
    model: ModelInfo,
    devices: Callable[[Plan], Sequence[Device]],
    asked: Callable[[Plan], Awaitable[PlanMemory]],
    *,
    protocol: str = "",
) -> Fit:
    """Find the longest context up to ``most``.

    ``made`` makes the plan of a context, or raises a ``PlanError``. Of ``model`` the
    header suffices. ``asked`` gives the memory of a plan by llama.cpp, or predicts it.
    """
    sizes = [*range(CTX_STEP, most, CTX_STEP), most]
    try:
        low, plan = await asyncio.to_thread(_longest, made, sizes)
    except PlanError as error:
        return Fit(why=error.what)
    best, why, below, above = None, "", -1, low + 1
    for _ in range(ASKS_MAX):
        memory = await asked(plan)
        misfits = _misfits(plan, model, memory, devices(plan), protocol)
        if not misfits:
            best, below = _fit(plan, memory), low
        else:
            why, above = f"{', '.join(misfits)} would be too small", low
        if memory.note or above - below <= 1:
            break
        low = (below + above) // 2
        try:
            plan = await asyncio.to_thread(made, sizes[low])
        except PlanError as error:
            why = error.what
            break
    return best or Fit(why=why)


def _longest(made: Callable[[int], Plan], sizes: Sequence[int]) -> tuple[int, Plan]:
    # The index of the longest context that has a plan, and that.
    shortest = sizes[0] if len(sizes) > 1 else CTX_MIN
    return longest(sizes, made) or (0, made(shortest))


def _misfits(
    plan: Plan,
    model: ModelInfo,
    memory: PlanMemory,
    devices: Sequence[Device],
    protocol: str,
) -> list[str]:
    told = {one.device: one for one in memory.devices}
    loads = [
        load.as_told(told[load.device]) if load.device in told else load
        for load in plan_loads(model, plan, protocol=protocol)
    ]
    return sorted(overcommitted(loads, devices))


def _fit(plan: Plan, memory: PlanMemory) -> Fit:
    source = MemorySource.PREDICTED if memory.note else MemorySource.ENGINE
    return Fit(
        ctx_size=plan.ctx_size,
        n_layer=plan.split.n_layer,
        layers=ranges(plan.split),
        memory=memory.devices,
        source=source,
        note=memory.note,
    )
