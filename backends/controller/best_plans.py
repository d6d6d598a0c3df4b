"""Best plans for an aim, and the predicted speed of any plan; beside the event loop.

Several heads are compared where several machines have the model.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from backends.errors import PlanError
from backends.planning.sharing import shared_out
from backends.server_settings import moving, without_tensor
from backends.split.cost import forecast, time_text, workload
from backends.split.layout import ranges, ranges_text
from backends.state import Objective
from backends.units import format_factor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.split.best import Best
    from backends.split.problem import SplitProblem
    from backends.state import (
        Alternative,
        Ask,
        ClusterSpeeds,
        Device,
        Forecast,
        ModelInfo,
        Plan,
    )


HEADS_MAX = 2
"""Heads that are searched in full; of more, those that a quick search finds best."""
QUICK_BEAM = 16
_FASTEST = (Objective.DECODE, Objective.THROUGHPUT)
"""Aims for which parts of tensors on every device may be better than whole layers."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A plan whose split is open, with all that the choice depends on."""

    plan: Plan
    model: ModelInfo
    devices: Sequence[Device]
    speeds: ClusterSpeeds
    pins: tuple[str, ...] = ()


class Told(NamedTuple):
    """The prediction of a plan, with its reasons."""

    forecast: Forecast
    why: str
    alternatives: tuple[Alternative, ...]


def require_open(ask: Ask, model: ModelInfo) -> None:
    """See that a best split may be looked for.

    Raises:
        PlanError: the split is given, or bound to what a sparse file holds.
    """
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


async def best_plan(options: Sequence[Option], objective: Objective) -> Plan:
    """The plan that is best for an aim; each option has another head.

    Raises:
        PlanError: none can be had.
    """
    return await asyncio.to_thread(_best_plan, options, objective)


def _best_plan(options: Sequence[Option], objective: Objective) -> Plan:
    # Imported here because numpy, which it needs, is no matter of starting up.
    from backends.split.best import best_split
    from backends.split.by_tensor import by_tensor

    if len(options) > HEADS_MAX:
        options = _promising(options, objective)
    found: list[tuple[tuple[float, float], Plan]] = []
    refused: list[PlanError] = []
    for option in options:
        problem = _problem(option, objective)
        try:
            best = best_split(problem, objective)
        except PlanError as error:
            refused.append(error)
            continue
        plan = replace(option.plan, split=best.split, ctx_size=best.ctx_size)
        if objective in _FASTEST:
            faster = by_tensor(problem, best.forecast)
            if faster.plan is not None and faster.forecast is not None:
                plan, best = faster.plan, best._replace(forecast=faster.forecast)
        found.append((_rank(best, objective), plan))
    if not found:
        raise refused[0]
    return min(found, key=lambda pair: pair[0])[1]


def _promising(options: Sequence[Option], objective: Objective) -> Sequence[Option]:
    """The heads that a quick search finds best."""
    from backends.split.best import best_split

    ranked: list[tuple[tuple[float, float], int]] = []
    for number, option in enumerate(options):
        quick = _problem(option, objective)._replace(beam=QUICK_BEAM)
        try:
            ranked.append((_rank(best_split(quick, objective), objective), number))
        except PlanError:
            ranked.append(((math.inf, 0.0), number))
    return [options[number] for _, number in sorted(ranked)[:HEADS_MAX]]


def _rank(best: Best, objective: Objective) -> tuple[float, float]:
    """The aim's own figure, and the speed where heads are alike in that."""
    told = best.forecast
    own = {
        Objective.FIRST_TOKEN: told.first_token_s,
        Objective.NETWORK: told.bytes_per_token,
        Objective.CONTEXT: -best.ctx_size,
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
    )


async def told_of(
    option: Option, objective: Objective | None, *, explain: bool = False
) -> Told:
    """The predicted speed of a plan as it is; ``explain`` compares it with others."""
    if explain:
        return await asyncio.to_thread(_explained, option, objective)
    return await asyncio.to_thread(_predicted, option, objective)


def _predicted(option: Option, objective: Objective | None) -> Told:
    told = forecast(
        option.model, option.plan, option.speeds, workload(option.plan, objective)
    )
    return Told(told, time_text(told), ())


def _explained(option: Option, objective: Objective | None) -> Told:
    from backends.split.best import best_split, why

    plan = option.plan
    told = _problem(option, objective).forecast()
    # What else could be is told of whole layers.
    layers = replace(plan, extra_args=without_tensor(plan.extra_args))
    problem = _problem(dataclasses.replace(option, plan=layers), objective)
    by_memory = shared_out(
        option.model,
        option.devices,
        plan.ctx_size,
        head=plan.head,
        server=plan.server,
    )
    text = why(told, problem.with_split(by_memory).forecast())
    aim = objective or Objective.DECODE
    try:
        best = best_split(problem, aim)
        others = _others(problem, aim)
    except PlanError as error:
        return Told(told, f"{text} {error.what}.", ())
    if not best.exact:
        text += " Not every set of devices was tried: there are too many."
    if objective is None and best.split != option.plan.split:
        gain = format_factor(best.forecast.tok_per_s / told.tok_per_s)
        split = ranges_text(ranges(best.split))
        text += f" The best split is {split}, {gain} as fast (--best)."
    return Told(told, text, others)


def _others(problem: SplitProblem, aim: Objective) -> tuple[Alternative, ...]:
    """All that could be in place of a plan; each split once."""
    from backends.split.best import alternatives, pareto_front

    # Of very many devices the comparisons are looked at less closely than the plan.
    quick = problem._replace(beam=QUICK_BEAM)
    others = alternatives(quick, aim)
    known = {(one.devices, one.counts) for one in others}
    front = pareto_front(quick)
    return (*others, *(o for o in front if (o.devices, o.counts) not in known))


async def best_first(option: Option, objective: Objective) -> tuple[Alternative, ...]:
    """The best split for an aim, named ``best``, and then what else could be.

    Raises:
        PlanError: none keeps to the pins and fits.
    """
    return await asyncio.to_thread(_best_first, option, objective)


def _best_first(option: Option, objective: Objective) -> tuple[Alternative, ...]:
    from backends.split.best import alternative, best_split

    problem = _problem(option, objective)
    best = best_split(problem, objective)
    why = "" if best.exact else "not every set of devices was tried"
    there = problem.with_split(best.split)
    return alternative("best", there, best, why), *_others(there, objective)
