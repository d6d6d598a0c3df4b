"""The Pareto front: plans of which none is better in every aim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from backends.split.objectives import Best, alternative, best_of_sizes
from backends.split.problem import SplitProblem
from backends.state import AIMS, Alternative, Objective, Plan
from backends.units import format_count

INEXACT = "not every set of devices was tried"


def aims_of(plan: Plan) -> tuple[Objective, ...]:
    slots = plan.server.slots > 1
    return tuple(a for a in Objective if slots or a is not Objective.THROUGHPUT)


def pareto_front(
    problem: SplitProblem,
    bests: Mapping[Objective, Best],
    others: Iterable[Alternative],
) -> tuple[Alternative, ...]:
    """The front, the fastest first.

    ``bests`` are the best splits for aims. Compared with them are those of each number
    of devices, and ``others``: parts of layers, where they win.
    """
    plans: dict[object, Alternative] = {}
    aims = aims_of(problem.plan)
    for aim in aims:
        if aim in bests:
            found = bests[aim]
            name = f"whole layers, {AIMS[aim]}"
            inexact = "" if found.exact else INEXACT
            _add(plans, alternative(name, problem, found, inexact))
    for aim in aims:
        if aim is not Objective.CONTEXT:
            for one in best_of_sizes(problem, aim):
                n_devices = sum(share.layers > 0 for share in one.split.shares)
                name = f"{format_count(n_devices, 'device')}, {AIMS[aim]}"
                _add(plans, alternative(name, problem, one))
    for other in others:
        if other.forecast is not None:
            _add(plans, other)
    front = [
        one
        for one in plans.values()
        if not any(_beats(other, one) for other in plans.values())
    ]
    front.sort(key=lambda one: _figures(one)[Objective.DECODE])
    return tuple(_with_objectives(front, aims, problem.plan.ctx_size))


def _add(plans: dict[object, Alternative], one: Alternative) -> None:
    plans.setdefault(identity(one), one)


def identity(one: Alternative) -> object:
    """The same for two plans that do the same."""
    held = dict(zip(one.devices, one.counts, strict=True))
    used = tuple((device, count) for device, count in held.items() if count)
    parts = one.by_tensor, one.experts
    return one.head, used, one.ctx_size, parts, one.imagined


def _figures(one: Alternative) -> dict[Objective, float]:
    told = one.forecast
    assert told is not None
    return {
        Objective.DECODE: -told.tok_per_s,
        Objective.FIRST_TOKEN: told.first_token_s,
        Objective.THROUGHPUT: -(one.all_slots_tok_per_s or 0.0),
        Objective.NETWORK: told.bytes_per_token,
        Objective.CONTEXT: -one.ctx_size,
    }


def _beats(other: Alternative, one: Alternative) -> bool:
    # A longer context takes more memory, so only plans of one context are compared.
    if other.ctx_size != one.ctx_size:
        return False
    mine, theirs = _figures(one), _figures(other)
    return theirs != mine and all(theirs[aim] <= mine[aim] for aim in mine)


def _with_objectives(
    front: list[Alternative], aims: Iterable[Objective], ctx_size: int
) -> Iterable[Alternative]:
    """Each aim is told of the fastest of those that are best for it.

    All but the longest context is asked for at the plan's own.
    """
    own = [at for at, one in enumerate(front) if one.ctx_size == ctx_size]
    best_for = {
        aim: min(
            range(len(front)) if aim is Objective.CONTEXT else own,
            key=lambda at: _figures(front[at])[aim],
            default=None,
        )
        for aim in aims
    }
    for at, one in enumerate(front):
        yield replace(
            one, objectives=tuple(a for a, first in best_for.items() if first == at)
        )
